//! Traces: paths below a Workspace that Pixir itself touched, as recorded by strace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Flags of strace: one file per thread, descriptors with their paths, and process ids of its own namespace.
const FLAGS: [&str; 8] = [
    "-ff",
    "-y",
    "-qq",
    "--seccomp-bpf",
    "--pidns-translation",
    "-s",
    "0",
    "-etrace=%file,?fork,?vfork,clone,?clone3",
];

/// The words before a command line that run it under strace.
pub fn prefix(record: &Path) -> Vec<String> {
    let mut words = vec!["strace".to_owned()];
    words.extend(FLAGS.map(str::to_owned));
    words.extend(["-o".to_owned(), record.to_str().unwrap().to_owned()]);
    words
}

/// Whether strace is installed, knows the flags and may trace.
pub fn is_possible() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let words = prefix(&folder.path().join("trace"));
    let mut probe = Command::new(&words[0]);
    probe.args(&words[1..]).arg("true").stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// The paths below `work` that `program` itself touched, and their parents, relative to `work`. Paths
/// touched by its child programs are left out. `record` is the prefix of strace's files.
pub fn touched(record: &Path, program: &Path, work: &Path) -> BTreeSet<PathBuf> {
    let name = record.file_name().and_then(OsStr::to_str).unwrap();
    let mut threads: BTreeMap<u32, String> = BTreeMap::new();
    for entry in fs::read_dir(record.parent().unwrap()).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap_or_default();
        let id = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        if let Some(id) = id.and_then(|id| id.parse().ok()) {
            threads.insert(id, fs::read_to_string(entry.path()).unwrap());
        }
    }
    let program = format!("execve(\"{}\"", program.display());
    let started: BTreeSet<u32> =
        threads.values().flat_map(|text| text.lines().filter_map(child)).collect();
    let main = threads.keys().find(|id| !started.contains(id)).copied();
    let mut waiting: Vec<(u32, bool)> = main.into_iter().map(|id| (id, false)).collect();
    let mut found = BTreeSet::new();
    while let Some((id, is_inherited)) = waiting.pop() {
        let mut is_pixir = is_inherited;
        for line in threads.remove(&id).unwrap_or_default().lines() {
            if line.starts_with("execve(") {
                if line.ends_with(" = 0") {
                    let own = line.starts_with(&program);
                    is_pixir = own || line.starts_with("execve(\"/proc/self/exe\"");
                }
            } else if let Some(child) = child(line) {
                waiting.push((child, is_pixir));
            } else if is_pixir {
                found.extend(paths(line, work));
            }
        }
    }
    with_parents(&found, work)
}

fn with_parents(found: &BTreeSet<PathBuf>, work: &Path) -> BTreeSet<PathBuf> {
    let below = found.iter().filter_map(|path| path.strip_prefix(work).ok());
    let all = below.flat_map(Path::ancestors);
    all.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned).collect()
}

/// The process or thread that a line started.
fn child(line: &str) -> Option<u32> {
    let call = line.split_once('(')?.0;
    if !matches!(call, "fork" | "vfork" | "clone" | "clone3") {
        return None;
    }
    let result = line.rsplit_once(") = ")?.1;
    let translated = result.split_once("/* ").map(|(_, rest)| rest);
    let number = translated.unwrap_or(result).split_whitespace().next()?;
    number.parse().ok()
}

/// The paths in a system call, made absolute.
fn paths(line: &str, work: &Path) -> Vec<PathBuf> {
    let Some((call, arguments)) = line.split_once('(') else { return Vec::new() };
    let wanted: &[usize] = match call {
        "getcwd" => &[],
        "symlink" | "symlinkat" => &[1],
        _ if call.starts_with("rename") || call.starts_with("link") => &[0, 1],
        "mount" | "move_mount" | "pivot_root" => &[0, 1],
        _ => &[0],
    };
    let texts = texts(arguments);
    let chosen = wanted.iter().filter_map(|place| texts.get(*place));
    chosen
        .filter(|text| call != "mount" || text.path.starts_with('/'))
        .map(|text| plain(&text.folder.as_deref().unwrap_or(work).join(&text.path)))
        .collect()
}

/// A text argument of a system call, and the folder of the descriptor before it.
struct TracedPath {
    folder: Option<PathBuf>,
    path: String,
}

fn texts(arguments: &str) -> Vec<TracedPath> {
    let mut found = Vec::new();
    let mut rest = arguments;
    while let Some(start) = rest.find('"') {
        let before = rest[..start].trim_end_matches(", ");
        let folder = before.strip_suffix('>').and_then(|before| before.rsplit_once('<'));
        let folder = folder.map(|(_, path)| path).filter(|path| path.starts_with('/'));
        let (path, length) = unquoted(&rest[start + 1..]);
        found.push(TracedPath { folder: folder.map(PathBuf::from), path });
        rest = &rest[start + 1 + length..];
    }
    found
}

/// A text up to its closing quote, and its length including the quote.
fn unquoted(quoted: &str) -> (String, usize) {
    let mut text = String::new();
    let mut letters = quoted.char_indices();
    while let Some((place, letter)) = letters.next() {
        match letter {
            '"' => return (text, place + 1),
            '\\' => text.extend(letters.next().map(|(_, letter)| letter)),
            _ => text.push(letter),
        }
    }
    (text, quoted.len())
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            _ => plain.push(part),
        }
    }
    plain
}

/// The path with placeholders for variable parts: Session ids, digests, random names and
/// numbers.
pub fn pattern(path: &Path) -> String {
    let parts = path.iter().map(|part| part.to_string_lossy());
    let parts: Vec<String> = parts.map(|part| part_pattern(&part)).collect();
    parts.join("/")
}

fn part_pattern(part: &str) -> String {
    if part.len() == 2 && part.bytes().all(is_hex) {
        return "<xx>".to_owned();
    }
    let mut pattern = String::new();
    let mut rest = part;
    while !rest.is_empty() {
        let length = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        if length == 0 {
            let letter = rest.chars().next().unwrap();
            pattern.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        }
        // A Session id has a dash inside: date, time and random digits.
        if length == 15 && is_session(rest) {
            pattern.push_str("<session>");
            rest = &rest[22..];
            continue;
        }
        let (word, behind) = rest.split_at(length);
        let is_random = word.bytes().all(is_hex) && word.bytes().any(|byte| byte.is_ascii_digit());
        pattern.push_str(match length {
            64 if is_random => "<digest>",
            8.. if is_random => "<hex>",
            _ if word.bytes().all(|byte| byte.is_ascii_digit()) => "<n>",
            _ => word,
        });
        rest = behind;
    }
    pattern
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_session(text: &str) -> bool {
    text.get(..22).is_some_and(|id| pixir::SessionId::parse(id).is_ok())
}

#[test]
fn a_trace_tells_what_pixir_touched_from_what_commands_did() {
    let folder = tempfile::tempdir().unwrap();
    let write =
        |name: &str, lines: &[&str]| fs::write(folder.path().join(name), lines.join("\n")).unwrap();
    write(
        "t.10",
        &[
            r#"execve("/bin/pixir", [""...], 0x7ff /* 3 vars */) = 0"#,
            r#"openat(AT_FDCWD</w>, "AGENTS.md", O_RDONLY) = 3</w/AGENTS.md>"#,
            r#"openat(5</w/.pixir>, "sessions/../x", O_RDONLY) = -1 ENOENT (No such file or directory)"#,
            r#"symlink("/w/no", "/w/link") = 0"#,
            r#"renameat2(5</w/a>, "b", 5</w/c>, "d\"e", 0) = 0"#,
            r#"readlink("/w/seen", "/w/told"..., 256) = 4"#,
            "clone3({flags=CLONE_VM|CLONE_VFORK}, 88) = 11",
            "clone(child_stack=NULL, flags=SIGCHLD) = 2 /* 12 in strace's PID NS */",
            r#"stat("/elsewhere/x", 0x7) = 0"#,
        ],
    );
    write("t.11", &[r#"execve("/proc/self/exe", [""...], 0x7) = 0"#, r#"stat("/w/own", 0x7) = 0"#]);
    let shell = [
        r#"chdir("/w") = 0"#,
        r#"execve("/bin/sh", [""...], 0x7) = -1 ENOENT (No such file or directory)"#,
        r#"stat("/w/before", 0x7) = 0"#,
        r#"execve("/bin/bash", [""...], 0x7) = 0"#,
        r#"stat("/w/foreign", 0x7) = 0"#,
    ];
    write("t.12", &shell);
    let found = touched(&folder.path().join("t"), Path::new("/bin/pixir"), Path::new("/w"));
    let found: Vec<&str> = found.iter().filter_map(|path| path.to_str()).collect();
    let wanted = [
        ".pixir",
        ".pixir/x",
        "AGENTS.md",
        "a",
        "a/b",
        "before",
        "c",
        "c/d\"e",
        "link",
        "own",
        "seen",
    ];
    assert_eq!(found, wanted);
}

#[test]
fn what_differs_from_run_to_run_is_left_out_of_patterns() {
    let digest = "0123456789abcdef".repeat(4);
    let path = |text: &str| pattern(Path::new(text));
    assert_eq!(
        path(".pixir/sessions/20260101T000000-abcdef.ndjson"),
        ".pixir/sessions/<session>.ndjson"
    );
    assert_eq!(path(&format!(".pixir/snapshots/01/{digest}")), ".pixir/snapshots/<xx>/<digest>");
    assert_eq!(path(&format!("blobs/{digest}.01234567")), "blobs/<digest>.<hex>");
    assert_eq!(path(".0123456789abcdef.pixir-new"), ".<hex>.pixir-new");
    assert_eq!(path("snapshots/12.ndjson"), "snapshots/<n>.ndjson");
    assert_eq!(path("src/deadbeef.rs/feedback"), "src/deadbeef.rs/feedback");
}
