//! Confinement: paths that lead out of the Workspace, and links that change while they are followed. No path
//! given to the file tools reads or changes anything outside the Workspace.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pixir::Home;
use pixir::scripted::Reply;
use pixir::workbench::{ToolAnswer, Workbench, WorkbenchSetup};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::torture::{self, SuiteSize};

/// The content of every file outside.
const OUTSIDE: &str = "belongs to somebody else";

struct ConfinementEnv {
    outer: tempfile::TempDir,
    bench: Workbench,
}

impl ConfinementEnv {
    /// A Workspace `app`, its look-alike `app_evil`, and a foreign folder `secret`.
    fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        for folder in ["app/real", "app/.pixir/sessions", "app_evil", "secret", "app/sub"] {
            fs::create_dir_all(outer.path().join(folder)).unwrap();
        }
        for file in ["app_evil/f", "secret/f", "secret/a", "secret/x", "app/.pixir/f"] {
            fs::write(outer.path().join(file), format!("{OUTSIDE}\n")).unwrap();
        }
        for file in ["app/real/f", "app/real/a"] {
            fs::write(outer.path().join(file), "inside\n").unwrap();
        }
        let bench = Workbench::new(WorkbenchSetup {
            own_binary: "/nowhere".into(),
            folder: &outer.path().join("app"),
            environment: Vec::new(),
            subreaper: false,
            drain: Duration::ZERO,
            grace: Duration::ZERO,
        })
        .unwrap();
        Self { outer, bench }
    }

    fn root(&self) -> PathBuf {
        self.outer.path().canonicalize().unwrap().join("app")
    }

    /// All files outside the Workspace and in Pixir's own state, with times and inodes.
    fn outside_state(&self) -> Vec<(PathBuf, u64, i64, i64, String)> {
        let mut found = Vec::new();
        let folders = ["app_evil", "secret", "app/.pixir", ""];
        for folder in folders.map(|folder| self.outer.path().join(folder)) {
            let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            for path in names.filter(|path| !path.ends_with("app")) {
                let about = fs::symlink_metadata(&path).unwrap();
                let text = fs::read_to_string(&path).unwrap_or_default();
                let mtime = about.mtime_nsec();
                let ctime = about.ctime_nsec();
                found.push((path, about.ino(), mtime, ctime, text));
            }
        }
        found.sort();
        found
    }

    async fn call(&self, tool: &str, args: Value) -> Option<Result<ToolAnswer, pixir::Report>> {
        let answer = self.bench.call(tool, args).await;
        let is_unknown = answer.as_ref().is_err_and(|report| report.kind == "unknown_tool");
        if let Ok(answer) = &answer {
            let text = format!("{}{}", answer.text, answer.details);
            assert!(!text.contains(OUTSIDE), "{tool} shows content from outside: {text}");
        }
        (!is_unknown).then_some(answer)
    }
}

/// Tool calls that take a path, in every form.
fn calls(path: &str) -> Vec<(&'static str, Value)> {
    let wrapped = |body: String| {
        ("apply_patch", json!({"patch": format!("*** Begin Patch\n{body}*** End Patch")}))
    };
    let edit = json!([{"old_string": "e", "new_string": "CHANGED", "replace_all": true}]);
    vec![
        ("read", json!({"path": path})),
        ("list", json!({"path": path})),
        ("grep", json!({"pattern": "somebody", "path": path})),
        ("glob", json!({"pattern": "**/*", "path": path})),
        ("write", json!({"path": path, "content": "CHANGED\n"})),
        ("edit", json!({"path": path, "edits": edit})),
        wrapped(format!("*** Add File: {path}\n+CHANGED\n")),
        wrapped(format!("*** Update File: {path}\n-{OUTSIDE}\n+CHANGED\n")),
        wrapped(format!("*** Update File: {path}\n-inside\n+CHANGED\n")),
        wrapped(format!("*** Delete File: {path}\n")),
        wrapped(format!("*** Update File: {path}\n*** Move to: taken\n")),
        wrapped(format!("*** Update File: real/a\n*** Move to: {path}\n")),
        wrapped(format!("*** Delete File: {path}\n*** Add File: {path}\n+CHANGED\n")),
    ]
}

/// Whether a tool only reads; Pixir's own state may be read.
fn only_looks(tool: &str) -> bool {
    matches!(tool, "read" | "list" | "grep" | "glob")
}

#[tokio::test]
async fn no_spelling_of_a_path_leads_out() {
    let place = ConfinementEnv::new();
    let root = place.root();
    let app = place.root().parent().unwrap().to_owned();
    let link = |aim: &Path, name: &str| symlink(aim, root.join(name)).unwrap();
    link(Path::new("../secret/f"), "link");
    link(&app.join("secret/f"), "absolute");
    link(Path::new(".."), "up");
    link(&app.join("secret"), "folder");
    link(Path::new("/proc/self/root"), "magic");
    link(Path::new("/proc/self/cwd"), "cwd");
    link(Path::new("link"), "chain");
    let shown = |path: PathBuf| path.to_str().unwrap().to_owned();
    let out = [
        "../secret/f".to_owned(),
        "real/../../secret/f".to_owned(),
        "./.././secret/f".to_owned(),
        "missing/../../secret/f".to_owned(),
        shown(app.join("secret/f")),
        shown(app.join("app_evil/f")),
        shown(root.join("../app_evil/f")),
        "../app_evil/f".to_owned(),
        format!("/proc/self/root{}", app.join("secret/f").display()),
        format!("magic{}", app.join("secret/f").display()),
        "cwd/Cargo.toml".to_owned(),
        "link".to_owned(),
        "chain".to_owned(),
        "absolute".to_owned(),
        "up/secret/f".to_owned(),
        "up/secret/new".to_owned(),
        "up/app_evil/f".to_owned(),
        "folder/f".to_owned(),
        "folder/new/deep".to_owned(),
        "real/../up/secret/f".to_owned(),
        "/etc/passwd".to_owned(),
        "~/f".replace('~', "../../../../../../../../../.."),
        "\\..\\secret\\f/../../../secret/f".to_owned(),
    ];
    let state = [
        ".pixir/f",
        ".Pixir/f",
        ".PIXIR/new",
        ".piXir/f",
        "./.pixir/./f",
        ".pixir//f",
        "real/../.pixir/f",
        "sub/.pixir/new",
        "sub/.PiXiR/deep/new",
        "state/f",
        "state/new",
        "statefile",
    ];
    link(Path::new(".pixir"), "state");
    link(Path::new(".pixir/f"), "statefile");
    let before = place.outside_state();
    let mut tried = 0;
    let mut refused = 0;
    for (path, is_out) in
        out.iter().map(|path| (path.as_str(), true)).chain(state.map(|path| (path, false)))
    {
        for (tool, args) in calls(path) {
            // Pixir's own state may be read.
            if !is_out && only_looks(tool) {
                continue;
            }
            let text = args.to_string();
            let Some(answer) = place.call(tool, args).await else { continue };
            tried += 1;
            refused += usize::from(answer.is_err());
            // Search tools may find nothing instead of failing.
            let may_find_nothing = only_looks(tool) && tool != "read";
            assert!(answer.is_err() || may_find_nothing, "{tool} {text}: {answer:?}");
        }
        assert_eq!(place.outside_state(), before, "{path}");
        assert_eq!(fs::read_to_string(root.join("real/a")).unwrap(), "inside\n", "{path}");
    }
    assert!(refused > 300, "{refused} of {tried} calls were refused");
    torture::print_summary(&format!(
        "confinement: spellings={} calls={tried} refused={refused} effects outside=0",
        out.len() + state.len(),
    ));
}

/// Swaps links, files and folders with links that lead out, `swaps` times.
fn swap(root: &Path, swaps: usize, done: &AtomicBool) {
    let at = |name: &str| root.join(name);
    for round in 0..swaps.div_ceil(4) {
        let is_evil = round % 2 == 0;
        // A link to a folder is replaced by one that leads out.
        symlink(if is_evil { "../secret" } else { "real" }, at("next")).unwrap();
        fs::rename(at("next"), at("door")).unwrap();
        // A link to a file.
        symlink(if is_evil { "../secret/f" } else { "real/f" }, at("next")).unwrap();
        fs::rename(at("next"), at("window")).unwrap();
        // A folder is exchanged with a link, at the top and one level below.
        renameat_with(CWD, at("room"), CWD, at("trap"), RenameFlags::EXCHANGE).unwrap();
        renameat_with(CWD, at("deep/er"), CWD, at("deep/trap"), RenameFlags::EXCHANGE).unwrap();
    }
    done.store(true, Ordering::Release);
}

#[test]
fn a_thread_that_swaps_links_lets_nothing_out() {
    let swaps = SuiteSize::from_environment().choose(20_000, 200_000);
    let seed = torture::seed();
    let began = Instant::now();
    let place = ConfinementEnv::new();
    let root = place.root();
    for folder in ["room", "deep/er"] {
        fs::create_dir_all(root.join(folder)).unwrap();
        for file in ["f", "a"] {
            fs::write(root.join(folder).join(file), "inside\n").unwrap();
        }
    }
    symlink("../secret", root.join("trap")).unwrap();
    symlink("../../secret", root.join("deep/trap")).unwrap();
    symlink("real", root.join("door")).unwrap();
    symlink("real/f", root.join("window")).unwrap();
    let before = place.outside_state();
    let paths =
        ["door/f", "window", "room/f", "deep/er/f", "door/new", "room/new/x", "door/a", "trap/f"];
    let mut random = fastrand::Rng::with_seed(seed);
    let mut calls_made = 0;
    let mut carried_out = 0;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| swap(&root, swaps, &done));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while !done.load(Ordering::Acquire) {
            let calls = calls(paths[random.usize(..paths.len())]);
            let (tool, args) = calls[random.usize(..calls.len())].clone();
            let answer = runtime.block_on(place.call(tool, args));
            calls_made += usize::from(answer.is_some());
            carried_out += usize::from(answer.is_some_and(|answer| answer.is_ok()));
            // Files removed by a patch are restored; these are not swapped.
            for file in ["real/f", "real/a"].map(|file| root.join(file)) {
                if !file.exists() {
                    fs::write(file, "inside\n").unwrap();
                }
            }
        }
    });
    assert_eq!(place.outside_state(), before);
    assert!(carried_out > 0, "{carried_out} of {calls_made} calls were carried out");
    assert!(carried_out < calls_made, "no call met a link that leads out");
    torture::print_summary(&format!(
        "race: swaps={swaps} calls={calls_made} carried out={carried_out} effects outside=0 seed={seed}, {:.1} s",
        began.elapsed().as_secs_f64(),
    ));
}

#[tokio::test]
async fn a_workspace_around_the_home_shows_no_tokens() {
    let mut env = TestEnv::with_replies([
        Reply::new()
            .call("read", json!({"path": ".pixir/auth.json"}))
            .call("read", json!({"path": "way/auth.json"}))
            .call("grep", json!({"pattern": "token", "path": ".pixir"}))
            .call("read", json!({"path": "mine/auth.json"})),
        Reply::says("Nothing to see."),
    ])
    .await;
    env.config.home = Home::new(env.workspace().join(".pixir"));
    for folder in [".pixir", "mine"] {
        fs::create_dir(env.workspace().join(folder)).unwrap();
    }
    env.write(".pixir/auth.json", r#"{"access_token":"one-that-opens-doors"}"#);
    env.write(".pixir/.auth.draft", r#"{"access_token":"one-that-opens-doors"}"#);
    env.write("mine/auth.json", "my own file\n");
    symlink(".pixir", env.workspace().join("way")).unwrap();
    let (conversation, _) = env.run_turn("look around").await;
    let log = fs::read_to_string(conversation.log_path()).unwrap();
    assert!(!log.contains("opens-doors"), "{log}");
    assert_eq!(log.matches(r#""kind":"protected_path""#).count(), 2, "{log}");
    assert!(log.contains("my own file"), "a name alone hides nothing");
}
