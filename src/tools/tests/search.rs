//! Tests of `grep`, `glob` and `list` on file trees.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::search::{WalkStop, run_search};
use super::*;

impl ToolTestEnv {
    /// Creates files and their folders.
    fn write_files(&self, files: &[(&str, &str)]) {
        for (path, content) in files {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
    /// The environment with another folder as the Workspace.
    fn inside(mut self, folder: &str) -> Self {
        self.context.workspace = Workspace::open(&self.path(folder)).unwrap();
        self
    }
    fn output_text(&self, name: &str, args: Value) -> String {
        self.call(name, args).unwrap().text
    }
    /// Every file that a glob finds, without the notes.
    fn glob_files(&self, args: Value) -> Vec<String> {
        let text = self.output_text("glob", args);
        let is_name = |line: &&str| !line.starts_with('[') && *line != "no files";
        text.lines().filter(is_name).map(str::to_owned).collect()
    }
}

#[test]
fn the_search_tools_have_small_definitions() {
    let env = ToolTestEnv::new();
    let size = |spec: &ToolSpec| {
        let ToolSpec { name, description, parameters } = spec;
        json!({"name": name, "description": description, "parameters": parameters})
            .to_string()
            .len()
    };
    let specs = env.toolbox.specs();
    let searching = specs.iter().filter(|spec| ["grep", "glob", "list"].contains(&&*spec.name));
    let bytes: usize = searching.map(size).sum();
    assert!(bytes <= 1800, "{bytes} bytes");
}

#[test]
fn names_are_left_out_as_git_would() {
    // Rules of one `.gitignore` at the root, all files, and the files that are found.
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("*.log", &["a.log", "b/c.log", "d.txt"], &["d.txt"]),
        ("*.log\n!keep.log", &["a.log", "keep.log"], &["keep.log"]),
        ("/top", &["top", "a/top"], &["a/top"]),
        ("target/", &["target/a", "b/target/c", "d/e"], &["d/e"]),
        ("a/*\n!a/b", &["a/b", "a/c"], &["a/b"]),
        ("!.env", &[".env", ".other", "x"], &[".env", "x"]),
        ("# no rule\n\n[bad", &["a"], &["a"]),
        ("\u{feff}*.log\r\n*.tmp\r\n", &["a.log", "b.tmp", "c"], &["c"]),
        ("", &["a", ".hidden", ".folder/b"], &["a"]),
        ("*", &["a"], &[]),
    ];
    for (rules, files, found) in cases {
        let env = ToolTestEnv::new();
        env.write_files(&[(".gitignore", rules)]);
        for file in *files {
            env.write_files(&[(file, "x\n")]);
        }
        assert_eq!(env.glob_files(json!({"pattern": "*"})), *found, "{rules:?}");
        let text = env.output_text("grep", json!({"pattern": "x", "show": "files"}));
        let grepped: Vec<&str> =
            text.lines().filter(|l| !l.starts_with('[') && *l != "no matches").collect();
        assert_eq!(grepped, *found, "{rules:?}");
        let all = env.glob_files(json!({"pattern": "*", "all": true}));
        assert_eq!(all.len(), files.len() + 1, "{all:?}");
    }
}

#[test]
fn nearer_rules_count_more_and_own_rules_most() {
    let env = ToolTestEnv::new();
    env.write_files(&[
        (".gitignore", "*.gen\nbuild\n"),
        ("src/.gitignore", "!keep.gen\n/local\n"),
        ("src/keep.gen", ""),
        ("src/other.gen", ""),
        ("src/local", ""),
        ("src/deep/local", ""),
        ("src/build/x", ""),
        ("docs/.ignore", "!page.gen\ndraft*\n"),
        ("docs/.gitignore", "page.gen\n"),
        ("docs/page.gen", ""),
        ("docs/draft.md", ""),
        (".git/info/exclude", "private*\n"),
        ("private.txt", ""),
        // Another repository begins here, in which git rules from above do not apply.
        ("vendor/dep/.git/HEAD", ""),
        ("vendor/dep/a.gen", ""),
        ("vendor/b.gen", ""),
        (".pixir/sessions/log.ndjson", ""),
        (".pixir/agents/a.md", ""),
    ]);
    let expected = ["docs/page.gen", "src/deep/local", "src/keep.gen", "vendor/dep/a.gen"];
    assert_eq!(env.glob_files(json!({"pattern": "*"})), expected);
    let below = env.glob_files(json!({"pattern": "*", "path": "src"}));
    assert_eq!(below, ["src/deep/local", "src/keep.gen"], "rules above the folder hold in it");
    assert_eq!(env.glob_files(json!({"pattern": "*", "path": "src/build"})), ["src/build/x"]);
    let all = env.glob_files(json!({"pattern": "*", "all": true}));
    assert!(!all.iter().any(|path| path.contains(".pixir") || path.contains(".git/")), "{all:?}");
    assert_eq!(all.len(), 14);
    let state = env.glob_files(json!({"pattern": "*", "path": ".pixir/sessions"}));
    assert_eq!(state, [".pixir/sessions/log.ndjson"], "a named folder is searched");
}

#[test]
fn rules_above_the_workspace_hold_inside_its_repository() {
    let planted = [
        ("repo/.git/HEAD", ""),
        ("repo/.git/info/exclude", "mine\n"),
        ("repo/.gitignore", "*.log\n/app/out\n"),
        ("repo/app/.gitignore", "web/tmp\n"),
        ("repo/app/web/a.rs", ""),
        ("repo/app/web/a.log", ""),
        ("repo/app/web/mine", ""),
        ("repo/app/web/tmp/b.rs", ""),
        ("repo/app/web/out/c.rs", ""),
        ("plain/.gitignore", "*.log\n"),
        ("plain/sub/a.log", ""),
    ];
    let env = ToolTestEnv::new();
    env.write_files(&planted);
    let env = env.inside("repo/app/web");
    assert_eq!(env.glob_files(json!({"pattern": "*"})), ["a.rs", "out/c.rs"]);
    assert_eq!(env.glob_files(json!({"pattern": "out/*"})), ["out/c.rs"]);
    let env = env.inside("plain/sub");
    assert_eq!(env.glob_files(json!({"pattern": "*"})), ["a.log"], "no repository, no rules above");
}

#[test]
fn globs_include_and_exclude() {
    let env = ToolTestEnv::new();
    let names = ["a.rs", "b.ts", "src/c.rs", "src/d/e.rs", "src/d/f.toml", "test/g.rs"];
    for name in names {
        env.write_files(&[(name, "x\n")]);
    }
    let cases: &[(&[&str], &[&str])] = &[
        (&["*.rs"], &["a.rs", "src/c.rs", "src/d/e.rs", "test/g.rs"]),
        (&["src/**/*.rs"], &["src/c.rs", "src/d/e.rs"]),
        (&["./src/*.rs"], &["src/c.rs"]),
        (&["/*.rs"], &["a.rs"]),
        (&["*.{ts,toml}"], &["b.ts", "src/d/f.toml"]),
        (&["*.rs", "!test"], &["a.rs", "src/c.rs", "src/d/e.rs"]),
        (&["!*.rs"], &["b.ts", "src/d/f.toml"]),
        (&["[ab].*"], &["a.rs", "b.ts"]),
        (&["nothing*"], &[]),
    ];
    for (globs, found) in cases {
        let text =
            env.output_text("grep", json!({"pattern": "x", "globs": globs, "show": "files"}));
        let lines: Vec<&str> = text.lines().filter(|line| *line != "no matches").collect();
        assert_eq!(lines, *found, "{globs:?}");
        if let [glob] = globs {
            assert_eq!(env.glob_files(json!({"pattern": glob})), *found, "{glob:?}");
        }
    }
    assert_eq!(env.glob_files(json!({"pattern": "*.rs", "path": "src/d"})), ["src/d/e.rs"]);
    assert_eq!(env.glob_files(json!({"pattern": "d/*.rs", "path": "src"})), ["src/d/e.rs"]);
}

#[test]
fn matches_are_shown_with_their_lines() {
    let env = ToolTestEnv::new();
    env.write_files(&[
        ("b.txt", "one\ntwo\nthree\nfour\nfive\nsix\nSeven (7)\n"),
        ("a/z.txt", "no\r\nfive\r\n"),
    ]);
    let grep = |args| env.output_text("grep", args);
    assert_eq!(grep(json!({"pattern": "five"})), "a/z.txt\n2: five\n\nb.txt\n5: five\n");
    assert_eq!(
        grep(json!({"pattern": "e$", "path": "a"})),
        "a/z.txt\n2: five\n",
        "CRLF ends a line"
    );
    assert_eq!(grep(json!({"pattern": "SEVEN", "ignore_case": true})), "b.txt\n7: Seven (7)\n");
    assert_eq!(grep(json!({"pattern": "(7)", "literal": true})), "b.txt\n7: Seven (7)\n");
    assert_eq!(
        grep(json!({"pattern": "one|six", "path": "b.txt", "context": 1})),
        "b.txt\n1: one\n2- two\n--\n5- five\n6: six\n7- Seven (7)\n"
    );
    assert_eq!(
        grep(json!({"pattern": "two|three|five", "path": "b.txt", "context": 1})),
        "b.txt\n1- one\n2: two\n3: three\n4- four\n5: five\n6- six\n"
    );
    assert_eq!(grep(json!({"pattern": "five", "show": "files"})), "a/z.txt\nb.txt\n");
    assert_eq!(grep(json!({"pattern": "e", "show": "counts"})), "a/z.txt: 1\nb.txt: 4\n");
    assert_eq!(grep(json!({"pattern": "absent"})), "no matches\n");
    let details = env.call("grep", json!({"pattern": "five", "limit": 1})).unwrap().details;
    assert_eq!((&details["next_offset"], &details["total"]), (&json!(2), &Value::Null));
}

#[test]
fn what_is_no_text_is_said_and_never_blocks() {
    let env = ToolTestEnv::new();
    env.write_files(&[("empty", ""), ("text", "needle\n"), ("folder/x", "needle\n")]);
    env.write_file("binary", b"needle\n\0\x01\x02");
    env.write_file("latin", b"caf\xe9 needle\x1b[31m\n");
    env.write_file("utf16", [&b"\xff\xfe"[..], &utf16("needle 16\n")].concat());
    env.write_file("long", format!("{}needle{}\n", "x".repeat(100_000), "y".repeat(50_000)));
    fs::write(env.folder.path().join(OsStr::from_bytes(b"bad\xff\nname")), "needle\n").unwrap();
    symlink(".", env.path("loop")).unwrap();
    symlink("/etc", env.path("outside")).unwrap();
    symlink("text", env.path("alias")).unwrap();
    nix::unistd::mkfifo(&env.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = UnixListener::bind(env.path("socket")).unwrap();
    let text = env.output_text("grep", json!({"pattern": "needle"}));
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let (long, rest): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.len() > 300);
    assert_eq!(
        rest,
        [
            "bad\u{fffd}\u{240a}name",
            "1: needle",
            "folder/x",
            "1: needle",
            "latin",
            "1: caf\u{fffd} needle\u{241b}[31m",
            "long",
            "text",
            "1: needle",
            "utf16",
            "1: needle 16",
            "[1 binary file skipped: binary]",
        ]
    );
    assert!(long[0].starts_with("1: [… 99920 bytes]x") && long[0].ends_with("y[… 49766 bytes]"));
    let listed = env.output_text("list", json!({}));
    for line in ["alias@", "folder/", "loop@", "pipe (no file)", "socket (no file)", "text"] {
        assert!(listed.lines().any(|listed| listed == line), "{line}: {listed}");
    }
    let found = env.glob_files(json!({"pattern": "*"}));
    assert_eq!(
        found.len(),
        13,
        "links and odd files are names, and no link is followed: {found:?}"
    );
    for odd in ["pipe", "socket"] {
        let error = env.call("grep", json!({"pattern": "x", "path": odd})).unwrap_err();
        assert_eq!(error.kind, Kind::InvalidArgs, "{error}");
    }
    let named = env.output_text("grep", json!({"pattern": "needle", "path": "alias"}));
    assert_eq!(named, "text\n1: needle\n", "a link that is named leads to its file");
    let error = env.call("grep", json!({"pattern": "x", "path": "outside"})).unwrap_err();
    assert_eq!(error.kind, Kind::OutsideWorkspace);
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn what_cannot_be_read_is_said() {
    let env = ToolTestEnv::new();
    env.write_files(&[("a", "needle\n")]);
    // Deeper than any path can be; a walk gets as far as the kernel's limit.
    let mut folder = fs::File::open(env.folder.path()).unwrap();
    let name = "d".repeat(250);
    for _ in 0..20 {
        rustix::fs::mkdirat(&folder, &name, rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        let next = rustix::fs::openat(&folder, &name, flags, rustix::fs::Mode::empty()).unwrap();
        folder = next.into();
    }
    let text = env.output_text("grep", json!({"pattern": "needle"}));
    assert!(text.starts_with("a\n1: needle\n[1 could not be read: ddd"), "{text}");
    // Root may read everything.
    if !nix::unistd::Uid::effective().is_root() {
        env.write_files(&[("closed", "needle\n")]);
        fs::set_permissions(env.path("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        let text = env.output_text("grep", json!({"pattern": "needle"}));
        assert!(text.contains("2 could not be read: closed (Permission denied"), "{text}");
    }
}

#[test]
fn pages_of_every_size_make_the_same_whole() {
    let env = ToolTestEnv::new();
    for file in 0..60 {
        let lines = (0..=file % 7)
            .fold(String::new(), |text, line| format!("{text}hit {file} {line}\nother\n"));
        env.write_files(&[(&format!("d{}/f{file}", file % 5), &lines)]);
    }
    let whole = |show: &str, limit: u64| {
        let (mut lines, mut offset) = (Vec::new(), 1);
        loop {
            let args = json!({"pattern": "hit", "show": show, "limit": limit, "offset": offset});
            let output = env.call("grep", args).unwrap();
            let mut path = String::new();
            for line in output.text.lines().filter(|l| !l.is_empty() && !l.starts_with('[')) {
                if show == "lines" && !line.contains(": ") {
                    line.clone_into(&mut path);
                } else {
                    lines.push(format!("{path} {line}"));
                }
            }
            match output.details["next_offset"].as_u64() {
                Some(next) => offset = next,
                None => return lines,
            }
        }
    };
    for show in ["lines", "files", "counts"] {
        let one = whole(show, 1000);
        let mut sorted = one.clone();
        sorted.sort_by_key(|line| line.split([' ', ':']).next().unwrap().to_owned());
        assert_eq!(one, sorted);
        assert_eq!(one.len(), if show == "lines" { 234 } else { 60 });
        for limit in [1, 3, 50] {
            assert_eq!(whole(show, limit), one, "{show} {limit}");
        }
    }
    let first = env.output_text("grep", json!({"pattern": "hit", "limit": 20}));
    assert!(first.ends_with("[matches 1-20, more follow; next: offset 21]\n"), "{first}");
    for _ in 0..20 {
        assert_eq!(env.output_text("grep", json!({"pattern": "hit", "limit": 20})), first);
    }
    let names = env.output_text("glob", json!({"pattern": "f*", "limit": 2, "offset": 3}));
    assert_eq!(names, "d0/f15\nd0/f20\n[files 3-4 of 60; next: offset 5]\n");
    let listed = env.output_text("list", json!({"depth": 2, "limit": 2}));
    assert_eq!(listed, "d0/\n[entries 1-2 of 65; next: offset 3]\n".replace("/\n", "/\nd0/f0\n"));
    let error = env.call("glob", json!({"pattern": "f*", "offset": 61})).unwrap_err();
    assert_eq!((error.kind, &*error.message), (Kind::InvalidArgs, "there are only 60 files"));
}

#[test]
fn a_page_is_bounded_in_bytes() {
    let mut env = ToolTestEnv::new();
    let lines = format!("hit {}\n", "z".repeat(600)).repeat(2000);
    env.write_files(&[("big", &lines)]);
    (0..3000).for_each(|n| env.write_file(&format!("{}{n}", "n".repeat(60)), ""));
    env.context.output_limit = 8 * 1024;
    for (name, args) in [
        ("grep", json!({"pattern": "hit", "limit": 1000})),
        ("glob", json!({"pattern": "n*", "limit": 1000})),
        ("list", json!({"limit": 1000})),
    ] {
        let output = env.call(name, args).unwrap();
        assert!((4 * 1024..8 * 1024).contains(&output.text.len()), "{name} {}", output.text.len());
        let next = output.details["next_offset"].as_u64().unwrap();
        assert!(output.text.contains(&format!("next: offset {next}]")), "{}", output.text);
        assert_eq!(bound_text(&output.text, 8 * 1024), output.text, "nothing is cut again");
    }
}

#[test]
fn mistakes_are_explained() {
    let env = ToolTestEnv::new();
    env.write_files(&[("src/main.rs", "x\n"), ("readme.md", "x\n")]);
    let error = env.call("grep", json!({"pattern": "a(b"})).unwrap_err();
    assert_eq!(error.kind, Kind::InvalidArgs);
    assert!(error.message.contains("a(b\n") && error.message.contains("unclosed group"), "{error}");
    assert!(error.message.lines().any(|line| line.trim() == "^"), "it shows where: {error}");
    let error = env.call("grep", json!({"pattern": "a\\nb"})).unwrap_err();
    assert!(error.next_actions[0].contains("one line"), "{error:?}");
    for (name, args, next) in [
        ("grep", json!({"pattern": "x", "path": "src/mian.rs"}), "use path src/main.rs"),
        ("glob", json!({"pattern": "x", "path": "srcs"}), "use path src"),
        ("list", json!({"path": "src/main.r"}), "use path src/main.rs"),
        ("list", json!({"path": "readme.md"}), "read readme.md, or use its folder"),
        ("glob", json!({"pattern": "x", "path": "readme.md"}), "read readme.md"),
        ("glob", json!({"pattern": "a{b"}), "use *, **"),
        ("grep", json!({"pattern": "x", "globs": ["[z-a]"]}), "use *, **"),
        ("grep", json!({"pattern": ""}), "use glob or list"),
        ("grep", json!({"pattern": "x", "offset": 20_000}), "narrow the search"),
    ] {
        let error = env.call(name, args).unwrap_err();
        assert!(error.next_actions.iter().any(|action| action.starts_with(next)), "{error:?}");
    }
    for path in ["..", "/etc", "../outside"] {
        for (name, args) in [
            ("grep", json!({"pattern": "x", "path": path})),
            ("glob", json!({"pattern": "x", "path": path})),
            ("list", json!({ "path": path })),
        ] {
            assert_eq!(env.kind(name, args), Kind::OutsideWorkspace, "{name} {path}");
        }
    }
    let plan = env.plan("grep", &json!({"pattern": "x", "path": "src"})).unwrap();
    assert_eq!((plan.effect, plan.summary.as_str()), (CallEffect::Read, "grep \"x\" in src"));
}

#[test]
fn a_secret_is_neither_shown_nor_found() {
    let mut env = ToolTestEnv::new();
    let secret = ("KEY".to_owned(), "sk-very-hidden-value".to_owned());
    env.context.secrets = Arc::new(Secrets::new([secret]));
    let far = format!("key = {}sk-very-hidden-value", "x".repeat(400));
    env.write_files(&[("a", &format!("key = sk-very-hidden-value\n{far}\nend\n"))]);
    let text = env.output_text("grep", json!({"pattern": "key"}));
    assert!(text.contains("1: key = [redacted:KEY]\n") && !text.contains("hidden"), "{text}");
    assert!(!text.contains("sk-"), "{text}");
    for show in ["lines", "files", "counts"] {
        for guess in ["sk-v", "hidden", "value$", "sk-[a-z]"] {
            let text = env.output_text("grep", json!({"pattern": guess, "show": show}));
            assert_eq!(text, "no matches\n", "{guess} {show}");
        }
    }
    let around = env.output_text("grep", json!({"pattern": "end", "context": 2}));
    assert!(around.contains("1- key = [redacted:KEY]\n") && !around.contains("hidden"), "{around}");
}

#[test]
fn an_interrupt_and_a_lost_caller_stop_the_work() {
    let env = ToolTestEnv::new();
    env.write_files(&[("a", "x\n")]);
    env.context.cancel.cancel();
    for (name, args) in
        [("grep", json!({"pattern": "x"})), ("glob", json!({"pattern": "x"})), ("list", json!({}))]
    {
        // The interrupt may come too late for so small a tree; then the result is complete.
        if let Err(error) = env.call(name, args) {
            assert_eq!(error.kind, Kind::Interrupted);
        }
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let work = move |_: &ToolContext, stop: &WalkStop| {
        while !stop.is_due() {
            std::thread::yield_now();
        }
        sender.send(stop.reason()).unwrap();
        Ok(())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run_search(env.context.clone(), work.clone())).unwrap();
    let limit = Duration::from_secs(10);
    assert!(receiver.recv_timeout(limit).unwrap().is_some(), "cancelled");
    let mut context = env.context.clone();
    context.cancel = CancellationToken::new();
    runtime.block_on(async {
        let lost = tokio::time::timeout(Duration::from_millis(20), run_search(context, work));
        assert!(lost.await.is_err());
    });
    assert!(receiver.recv_timeout(limit).unwrap().is_some(), "dropped");
}

#[test]
fn a_folder_that_becomes_a_link_leads_nowhere() {
    let env = ToolTestEnv::new();
    env.write_files(&[("work/real/deep/a", "inside\n"), ("out/deep/a", "outside\n")]);
    symlink(env.path("out"), env.path("work/swap")).unwrap();
    let (one, other) = (env.path("work/real"), env.path("work/swap"));
    let env = env.inside("work");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let here = rustix::fs::CWD;
            while !over.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(here, &one, here, &other, flags).unwrap();
            }
        });
        let mut seen = 0;
        for _ in 0..300 {
            let text = env.output_text("grep", json!({"pattern": "side"}));
            assert!(!text.contains("outside"), "{text}");
            seen += usize::from(text.contains("inside"));
        }
        over.store(true, Ordering::Relaxed);
        assert!(seen > 0, "the race is real");
    });
}
