//! Fidelity: every tool that changes files, on every kind of file. A change is exact or refused, and
//! nothing else in the folder changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pixir::workbench::{Workbench, WorkbenchSetup};
use serde_json::{Value, json};

use crate::support::torture::{self, SuiteSize};

const ENDINGS: [&str; 4] = ["lf", "crlf", "cr", "mixed"];
const ENCODINGS: [&str; 7] = ["utf-8", "bom", "latin-1", "utf-16le", "utf-16be", "invalid", "nul"];
const FINALS: [bool; 2] = [true, false];
const MODES: [u32; 4] = [0o644, 0o755, 0o600, 0o444];
const LINKS: [&str; 5] = ["plain", "hard", "inside", "outside", "dangling"];
const TOOLS: [&str; 7] = ["write", "edit", "multi-edit", "update", "move", "delete", "add"];

#[derive(Debug, Clone, Copy)]
struct FileCase {
    endings: &'static str,
    encoding: &'static str,
    final_newline: bool,
    mode: u32,
    link: &'static str,
    tool: &'static str,
}

fn file_cases() -> Vec<FileCase> {
    let mut cases = Vec::new();
    for endings in ENDINGS {
        for encoding in ENCODINGS {
            for final_newline in FINALS {
                for mode in MODES {
                    for link in LINKS {
                        for tool in TOOLS {
                            cases.push(FileCase {
                                endings,
                                encoding,
                                final_newline,
                                mode,
                                link,
                                tool,
                            });
                        }
                    }
                }
            }
        }
    }
    cases
}

impl FileCase {
    /// Content of the file: five lines, of which tools name the second to the fourth.
    fn content(self, target: &str, below: &str) -> Vec<u8> {
        let (odd, mixed) = match self.encoding {
            "utf-8" | "bom" | "utf-16le" | "utf-16be" => ("caf\u{e9} \u{201c}x\u{201d}", "la\rst"),
            _ => ("ODD", "la\rst"),
        };
        let last = if self.endings == "mixed" { mixed } else { "last" };
        let lines = [odd, "keep me", target, below, last];
        let ends: [&str; 5] = match self.endings {
            "lf" => ["\n"; 5],
            "crlf" => ["\r\n"; 5],
            "cr" => ["\r"; 5],
            _ => ["\r\n", "\n", "\r\n", "\n", "\r\n"],
        };
        let mut text: String =
            lines.iter().zip(ends).flat_map(|(line, end)| [*line, end]).collect();
        if !self.final_newline {
            text.truncate(text.len() - ends[4].len());
        }
        let wide = |mark: char, bytes: fn(u16) -> [u8; 2]| {
            format!("{mark}{text}").encode_utf16().flat_map(bytes).collect()
        };
        let odd = |bytes: &[u8]| {
            let at = text.find("ODD").unwrap_or_default();
            [&text.as_bytes()[..at], bytes, &text.as_bytes()[at + 3..]].concat()
        };
        match self.encoding {
            "bom" => [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            "utf-16le" => wide('\u{feff}', u16::to_le_bytes),
            "utf-16be" => wide('\u{feff}', u16::to_be_bytes),
            "latin-1" => odd(b"caf\xe9 noir"),
            "invalid" => odd(b"a\xff\xfe\x80\xc3 b"),
            "nul" => odd(b"a\0b\x01"),
            _ => text.into_bytes(),
        }
    }

    fn is_wide(self) -> bool {
        self.encoding.starts_with("utf-16")
    }

    /// The path that the tools are given.
    fn name(self) -> &'static str {
        match self.link {
            "inside" | "outside" | "dangling" => "link.txt",
            _ => "file.txt",
        }
    }

    fn call(self) -> (&'static str, Value) {
        let name = self.name();
        let edit = |old: &str, new: &str| json!({"old_string": old, "new_string": new});
        let patch =
            |body: String| json!({"patch": format!("*** Begin Patch\n{body}*** End Patch")});
        let change = " keep me\n-TARGET one\n+CHANGED two\n keep too\n";
        match self.tool {
            "write" => {
                let end = if self.final_newline { "\n" } else { "" };
                ("write", json!({"path": name, "content": format!("new\nlines{end}")}))
            }
            "edit" => {
                let edits = [edit("TARGET one", "CHANGED two")];
                ("edit", json!({"path": name, "edits": edits}))
            }
            "multi-edit" => {
                let edits = [edit("TARGET one", "CHANGED two"), edit("keep too", "kept 2")];
                ("edit", json!({"path": name, "edits": edits}))
            }
            "update" => ("apply_patch", patch(format!("*** Update File: {name}\n{change}"))),
            "move" => {
                let head = format!("*** Update File: {name}\n*** Move to: new/moved.txt\n");
                ("apply_patch", patch(format!("{head}@@\n{change}")))
            }
            "delete" => ("apply_patch", patch(format!("*** Delete File: {name}\n"))),
            _ => {
                let name = if self.link == "plain" { "new/added.txt" } else { name };
                ("apply_patch", patch(format!("*** Add File: {name}\n+new\n+lines\n")))
            }
        }
    }

    /// Whether the call must be refused.
    fn is_refused(self) -> bool {
        match (self.link, self.tool) {
            // Files outside are not touched, and a dangling link is not replaced. Moving or deleting a link is
            // refused, and so is adding a file that exists.
            ("outside" | "dangling", _)
            | ("inside", "move" | "delete" | "add")
            | ("hard", "add") => true,
            // Text in UTF-16 cannot be matched.
            (_, "edit" | "multi-edit" | "update" | "move") => self.is_wide(),
            _ => false,
        }
    }

    /// Content of the file after the change.
    fn changed(self) -> Vec<u8> {
        if self.tool == "multi-edit" {
            return self.content("CHANGED two", "kept 2");
        }
        if self.tool != "write" {
            return self.content("CHANGED two", "keep too");
        }
        let end = match self.endings {
            "crlf" if !self.is_wide() => "\r\n",
            "cr" if !self.is_wide() => "\r",
            _ => "\n",
        };
        let mark = if self.encoding == "bom" { "\u{feff}" } else { "" };
        let last = if self.final_newline { end } else { "" };
        format!("{mark}new{end}lines{last}").into_bytes()
    }

    /// State of the folder after the change.
    fn expected(self, before: &FolderState) -> FolderState {
        let mut after = before.clone();
        match self.tool {
            "delete" => {
                after.remove(Path::new("ws/file.txt"));
                after.get_mut(Path::new("ws/other.txt")).into_iter().for_each(|one| one.names = 1);
            }
            "move" => {
                let mut file = after.remove(Path::new("ws/file.txt")).unwrap();
                (file.bytes, file.names) = (self.changed(), 1);
                after.insert("ws/new/moved.txt".into(), file);
                after.get_mut(Path::new("ws/other.txt")).into_iter().for_each(|one| one.names = 1);
            }
            "add" => {
                let bytes = b"new\nlines\n".to_vec();
                after.insert(
                    "ws/new/added.txt".into(),
                    FileState { bytes, mode: fresh_mode(), names: 1, link: None },
                );
            }
            _ => {
                for name in ["ws/file.txt", "ws/other.txt"] {
                    if let Some(file) = after.get_mut(Path::new(name)) {
                        file.bytes = self.changed();
                    }
                }
            }
        }
        after
    }
}

/// The mode of a new file under the umask of this process.
fn fresh_mode() -> u32 {
    static MODE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *MODE.get_or_init(|| {
        let file = tempfile::tempdir().unwrap();
        fs::write(file.path().join("x"), "").unwrap();
        fs::metadata(file.path().join("x")).unwrap().mode() & 0o7777
    })
}

type FolderState = BTreeMap<PathBuf, FileState>;

/// A file or link: kind, mode, links, attributes and content.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    bytes: Vec<u8>,
    mode: u32,
    names: u64,
    link: Option<PathBuf>,
}

fn read_folder_state(folder: &Path) -> FolderState {
    let mut state = FolderState::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            if about.is_dir() {
                waiting.push(path);
                continue;
            }
            let link = fs::read_link(&path).ok();
            let bytes = if link.is_some() { Vec::new() } else { fs::read(&path).unwrap() };
            let mode = about.mode() & 0o7777;
            let names = about.nlink();
            let name = path.strip_prefix(folder).unwrap().to_owned();
            state.insert(name, FileState { bytes, mode, names, link });
        }
    }
    state
}

fn lay_out(case: FileCase, folder: &Path) {
    let workspace = folder.join("ws");
    let outside = folder.join("out");
    fs::create_dir_all(&workspace).unwrap();
    fs::create_dir_all(&outside).unwrap();
    let content = case.content("TARGET one", "keep too");
    let file = workspace.join("file.txt");
    for path in [&file, &outside.join("file.txt")] {
        fs::write(path, &content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(case.mode)).unwrap();
    }
    let link = workspace.join("link.txt");
    match case.link {
        "hard" => fs::hard_link(&file, workspace.join("other.txt")).unwrap(),
        "inside" => symlink("file.txt", link).unwrap(),
        "outside" => symlink("../out/file.txt", link).unwrap(),
        "dangling" => symlink("nowhere", link).unwrap(),
        _ => {}
    }
}

/// Runs one case; gives whether the change was made.
fn try_case(case: FileCase, runtime: &tokio::runtime::Runtime) -> bool {
    let folder = tempfile::tempdir().unwrap();
    lay_out(case, folder.path());
    let before = read_folder_state(folder.path());
    let bench = Workbench::new(WorkbenchSetup {
        own_binary: "/nowhere".into(),
        folder: &folder.path().join("ws"),
        environment: Vec::new(),
        subreaper: false,
        drain: Duration::ZERO,
        grace: Duration::ZERO,
    })
    .unwrap();
    let (tool, args) = case.call();
    let answer = runtime.block_on(bench.call(tool, args));
    let after = read_folder_state(folder.path());
    let Err(report) = answer else {
        assert!(!case.is_refused(), "{case:?} was not refused: {answer:?}");
        assert_eq!(after, case.expected(&before), "{case:?}");
        return true;
    };
    assert_eq!(after, before, "{case:?} was refused and changed something: {report:?}");
    assert!(!folder.path().join("ws/new").exists(), "{case:?} left a folder");
    // A read-only file cannot be changed, except by root.
    let is_locked = case.mode == 0o444 && !rustix::process::geteuid().is_root();
    assert!(case.is_refused() || is_locked, "{case:?} was refused: {report:?}");
    false
}

#[test]
fn every_change_is_exact_or_refused() {
    let size = SuiteSize::from_environment();
    let seed = torture::seed();
    let began = Instant::now();
    let mut cases = file_cases();
    let all = cases.len();
    fastrand::Rng::with_seed(seed).shuffle(&mut cases);
    cases.truncate(size.choose(all / 8, all));
    assert!(cases.len() >= 400);
    let next = AtomicUsize::new(0);
    let counts: Mutex<BTreeMap<&str, (usize, usize)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let is_exact = try_case(*case, &runtime);
                    let mut counts = counts.lock().unwrap();
                    let count = counts.entry(case.tool).or_default();
                    *(if is_exact { &mut count.0 } else { &mut count.1 }) += 1;
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    let (exact, refused) =
        counts.values().fold((0, 0), |(exact, refused), one| (exact + one.0, refused + one.1));
    assert_eq!(exact + refused, cases.len());
    let by_tool: Vec<String> =
        counts.iter().map(|(tool, (exact, refused))| format!("{tool} {exact}/{refused}")).collect();
    torture::print_summary(&format!(
        "fidelity: cells={} of {all} exact={exact} refused={refused} damaged=0 (exact/refused: {}) seed={seed}, {:.1} s",
        cases.len(),
        by_tool.join(", "),
        began.elapsed().as_secs_f64(),
    ));
}
