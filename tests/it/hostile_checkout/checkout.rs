//! Environments of hostile checkouts: a Workspace with state of every kind, a Home, a folder outside, and the
//! commands that run there.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use pixir::scripted::ScriptedServer;
use serde_json::{Value, json};

use crate::child_workspaces::git;
use crate::support::test_env::{PIXIR, newest_log};
use crate::support::{binary_env, leaks};

/// Content of every file outside, which must never be read.
pub const CANARY: &str = "CONTENT-OF-A-FILE-OUTSIDE";

/// Time after which a command counts as hanging.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// More memory than any command needs, in KiB: an unbounded read fails instead of taking the machine's.
const MEMORY: &str = "3000000";

/// The server named by planted settings, which must never be called.
pub fn other_endpoint() -> &'static TcpListener {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    LISTENER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    })
}

/// A folder with `work`, `home` and `outside`.
#[derive(Debug, Clone)]
pub struct HostileCheckout {
    pub root: PathBuf,
}

/// Ids of the Sessions in an environment.
#[derive(Debug, Clone)]
pub struct Ids {
    /// Two Turns with changes, a blob, Resources and spilled output.
    main: String,
    /// The parent of a child with a Workspace of its own.
    parent: String,
    child: String,
    damaged: String,
    flow: String,
    undone: String,
}

/// Exit and output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub is_hung: bool,
    pub output: String,
}

/// One command to run in the environment.
#[derive(Debug, Clone)]
pub struct ProbeCommand {
    pub name: &'static str,
    pub args: Vec<String>,
    /// Exit code where nothing is planted.
    pub code: i32,
    /// Whether the command leaves all Sessions unchanged.
    pub is_calm: bool,
}

impl ProbeCommand {
    pub fn words(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }
}

impl HostileCheckout {
    pub fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    pub fn outside(&self) -> PathBuf {
        self.root.join("outside")
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// An environment with files only: a repository with files for models, a Home, and a folder outside.
    pub fn bare(root: PathBuf) -> Self {
        let env = Self { root };
        for file in ["outside/canary.txt", "outside/folder/canary.txt", "home/.ssh/id_rsa"] {
            env.write(file, format!("{CANARY}\n"));
        }
        env.write("home/.bashrc", format!("# {CANARY}\n"));
        env.write("home/.bashrc.d/first", format!("# {CANARY}\n"));
        let settings = json!({
            "permission_mode": "ask", "durability": "none", "transport": "sse",
            "retry": {"base_ms": 1, "cap_ms": 4}, "bash": {"drain_ms": 20},
        });
        env.write("home/.pixir/config.json", settings.to_string());
        for (path, text) in FILES {
            env.write(&format!("work/{path}"), text);
        }
        env
    }

    /// An environment with a git repository and the state of many Sessions.
    pub fn full(root: PathBuf, server: &ScriptedServer) -> (Self, Ids) {
        let env = Self::bare(root);
        let work = env.work();
        git(&work, &["init", "-q", "-b", "main", "--template="]);
        fs::create_dir_all(work.join(".git/hooks")).unwrap();
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-qm", "first"]);
        let run = |args: &[&str]| -> Value {
            let ended = env.run(&[], &[args, &["--json"]].concat(), server);
            let line = ended.output.lines().find(|line| line.starts_with('{'));
            let envelope = line.and_then(|line| serde_json::from_str(line).ok());
            let envelope: Value = envelope.unwrap_or_else(|| panic!("{args:?}: {ended:?}"));
            // A step that does not state its outcome is not a success.
            assert!(matches!(ended.code, Some(0 | 6)), "{args:?}: {}", ended.output);
            envelope
        };
        let session = |args: &[&str]| run(args)["session_id"].as_str().unwrap().to_owned();
        let main =
            session(&["--auto", "--attach", "picture.png", "--attach", "README.md", "play work"]);
        run(&["resume", &main, "--auto", "play work"]);
        session(&["fork", &main]);
        let undone = session(&["--auto", "play work"]);
        run(&["undo", "--yes", &undone, "--force"]);
        session(&["--auto", "play background"]);
        let parent = session(&["--auto", "play share"]);
        let child = child_of(&work, &parent);
        let compacted = session(&["--auto", "play say"]);
        run(&["resume", &compacted, "--auto", "play say"]);
        run(&["compact", &compacted, "--keep-turns", "1"]);
        let flow = session(&["workflow", "run", "flow.json", "--auto"]);
        run(&["delegate", "--spec", "tasks.json", "--auto"]);
        let damaged = session(&["--auto", "play work"]);
        damage(&work.join(format!(".pixir/sessions/{damaged}.ndjson")));
        let again = session(&["--auto", "play say"]);
        damage(&work.join(format!(".pixir/sessions/{again}.ndjson")));
        run(&["repair", &again]);
        run(&["resume", &main, "--auto", "play say"]);
        assert!(newest_log(&work).ends_with(format!("{main}.ndjson")));
        write_leftovers(&work.join(".pixir"), &main);
        // Grants are removed, as if the Sessions came with the checkout.
        for file in ["grants.json", "permissions.json", "trust.json"] {
            fs::remove_file(env.home().join(".pixir").join(file)).ok();
        }
        (env, Ids { main, parent, child, damaged, flow, undone })
    }

    /// Removes the environment. An overlay of a killed supervisor leaves folders that their owner cannot enter.
    pub fn remove(self) {
        if fs::remove_dir_all(&self.root).is_ok() {
            return;
        }
        let opened = Command::new("chmod").args(["-R", "u+rwX"]).arg(&self.root).status();
        assert!(opened.unwrap().success());
        fs::remove_dir_all(&self.root).unwrap();
    }

    /// A copy at another path, with the paths in the Home replaced.
    pub fn copy(&self, root: PathBuf) -> Self {
        fs::create_dir(&root).unwrap();
        let copied = Command::new("cp").arg("-a").arg(self.root.join(".")).arg(&root).status();
        assert!(copied.unwrap().success());
        let copy = Self { root };
        relocate(
            &copy.home().join(".pixir"),
            self.root.to_str().unwrap(),
            copy.root.to_str().unwrap(),
        );
        copy
    }

    /// Runs Pixir with arguments to its end, or to the deadline.
    pub fn run(&self, before: &[String], args: &[&str], server: &ScriptedServer) -> CommandOutput {
        let program = [before, &[PIXIR.to_owned()]].concat();
        self.run_program(&program, args, server, DEADLINE)
    }

    pub fn run_program(
        &self,
        program: &[String],
        args: &[&str],
        server: &ScriptedServer,
        deadline: Duration,
    ) -> CommandOutput {
        let mut output = tempfile::tempfile().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"ulimit -v "$0" && exec "$@""#, MEMORY]).args(program);
        // With `acp`, the client names the Session.
        command.args(if args.first() == Some(&"acp") { &args[..1] } else { args });
        command
            .current_dir(self.work())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home())
            .env("OPENAI_API_KEY", "sk-test-of-binary-env")
            .env("OPENAI_BASE_URL", server.base_url())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        let end = Instant::now() + deadline;
        if let ["acp", session] = args {
            play_acp_client(&mut child, &output, session, &self.work(), end);
        }
        drop(child.stdin.take());
        let patience = end.saturating_duration_since(Instant::now());
        let status = binary_env::wait_for(patience, || child.try_wait().unwrap(), Option::is_some);
        if status.is_none() {
            let group = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
            child.wait().unwrap();
        }
        let text = read(&mut output);
        leaks::check_stream(&text);
        CommandOutput {
            code: status.and_then(|status| status.code()),
            is_hung: status.is_none(),
            output: text,
        }
    }
}

fn read(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.take(64 << 20).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An editor that loads a Session and sends a prompt, waiting for each answer.
fn play_acp_client(child: &mut Child, output: &File, session: &str, work: &Path, end: Instant) {
    let mut stdin = child.stdin.take().unwrap();
    let calls = [
        ("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})),
        ("session/list", json!({"cwd": work})),
        ("session/new", json!({"cwd": work, "mcpServers": []})),
        ("session/load", json!({"sessionId": session, "cwd": work, "mcpServers": []})),
        (
            "session/prompt",
            json!({"sessionId": session, "prompt": [{"type": "text", "text": "play say"}]}),
        ),
    ];
    for (id, (method, params)) in calls.into_iter().enumerate() {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        if writeln!(stdin, "{call}").is_err() {
            return;
        }
        let is_answered = || {
            let mut bytes = vec![0; 8 << 20];
            let read = std::os::unix::fs::FileExt::read_at(output, &mut bytes, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            child.try_wait().unwrap().is_some()
                || text.lines().any(|line| {
                    serde_json::from_str::<Value>(line)
                        .is_ok_and(|line| line["id"] == id && line.get("method").is_none())
                })
        };
        binary_env::wait_for(end.saturating_duration_since(Instant::now()), is_answered, |is| *is);
    }
}

/// The Session of the one child of a Session.
fn child_of(work: &Path, parent: &str) -> String {
    let log = fs::read_to_string(work.join(format!(".pixir/sessions/{parent}.ndjson"))).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let child = |event: Value| event["data"]["child_session_id"].as_str().map(str::to_owned);
    events.filter(|event| event["type"] == "subagent_event").find_map(child).unwrap()
}

/// Damages a line in the middle of a Log.
fn damage(log: &Path) {
    let text = fs::read_to_string(log).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let place = lines.len() / 2;
    lines[place] = "{\"id\": broken";
    fs::write(log, lines.join("\n") + "\n").unwrap();
}

/// Writes old files that no Log mentions.
fn write_leftovers(state: &Path, session: &str) {
    let digest = "a1".repeat(32);
    let own = format!("sessions/{session}");
    let names = [
        format!("snapshots/a1/{digest}"),
        "snapshots/a1/draft-0123456789abcdef".to_owned(),
        format!("{own}/blobs/{digest}"),
        format!("{own}/resources/{digest}"),
        format!("{own}/output/call_none.txt"),
        "sessions/.fork-20200101T000000-000000/file".to_owned(),
        "sessions/20200101T000000-000001/file".to_owned(),
    ];
    let past = SystemTime::now() - Duration::from_hours(24);
    for name in names {
        let path = state.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "rubbish").unwrap();
        File::open(&path).unwrap().set_modified(past).unwrap();
        if path.ends_with("file") {
            File::open(path.parent().unwrap()).unwrap().set_modified(past).unwrap();
        }
    }
}

/// Replaces a path in every text below a folder.
fn relocate(folder: &Path, from: &str, to: &str) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            relocate(&entry.path(), from, to);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(entry.path())
            && text.contains(from)
        {
            fs::write(entry.path(), text.replace(from, to)).unwrap();
        }
    }
}

/// The commands that read or write below a Workspace.
pub fn probes(ids: &Ids) -> Vec<ProbeCommand> {
    let Ids { main, parent, child, damaged, flow, undone } = ids;
    let calm: &[Row] = &[
        ("sessions", 0, &["sessions"]),
        ("all sessions", 0, &["sessions", "--all", "--json"]),
        ("tree", 0, &["tree", "--all"]),
        ("usage", 0, &["usage"]),
        ("verify", 1, &["verify", "--all"]),
        ("diagnose", 0, &["diagnose", main]),
        ("replay", 0, &["inspect-replay", main]),
        ("export", 0, &["export", main]),
        ("undo dry", 0, &["undo", main, "--dry-run"]),
        ("gc", 0, &["gc"]),
        ("doctor", 0, &["doctor"]),
        ("skills", 0, &["skills"]),
        ("show skill", 0, &["skills", "show", "tidy"]),
        ("validate skills", 0, &["skills", "validate", ".pixir/skills"]),
        ("agents", 0, &["agents"]),
        ("show agent", 0, &["agents", "show", "scribe"]),
        ("agents status", 0, &["agents", "status", parent]),
        ("workflow list", 0, &["workflow", "list"]),
        ("workflow validate", 0, &["workflow", "validate", "flow.json"]),
        ("workflow status", 0, &["workflow", "status", flow]),
        ("trust", 3, &["trust"]),
        ("mcp", 0, &["mcp"]),
        ("config", 0, &["config"]),
        ("permissions", 0, &["permissions"]),
        ("changes", 0, &["changes", child, "--diff"]),
        ("role", 3, &["--role", "scribe", "play say"]),
        ("skill", 0, &["use $tidy and $other, play say"]),
        ("strict", 0, &["play strict"]),
        ("resume strictly", 0, &["resume", main, "play strict"]),
        ("acp", 0, &["acp", main]),
        ("attach", 0, &["--auto", "--attach", "picture.png", "--attach", "README.md", "play say"]),
        ("background", 0, &["--auto", "play background"]),
        ("share", 0, &["--auto", "play share"]),
        ("workflow run", 6, &["workflow", "run", "flow.json", "--auto"]),
        ("delegate", 0, &["delegate", "--spec", "tasks.json", "--auto", "--json"]),
        ("export to file", 0, &["export", main, "-o", "exported.md"]),
        ("turn", 0, &["--auto", "play work"]),
    ];
    let rough: &[Row] = &[
        ("resume", 0, &["resume", "--last", "--auto", "play work"]),
        ("fork", 0, &["fork", main, "--at", "1", "--summarize"]),
        ("compact", 0, &["compact", main, "--keep-turns", "1"]),
        ("merge", 0, &["merge", "--yes", child]),
        ("redo", 0, &["redo", "--yes", undone, "--force"]),
        ("undo", 0, &["undo", "--yes", main, "--turns", "2", "--force"]),
        ("repair", 0, &["repair", damaged]),
        ("gc apply", 0, &["gc", "--apply", "--older-than", "90s", "--keep", "2"]),
        ("delete", 0, &["sessions", "delete", main]),
    ];
    let probe = |is_calm: bool, (name, code, args): &Row| {
        let args = args.iter().map(|word| (*word).to_owned()).collect();
        ProbeCommand { name, args, code: *code, is_calm }
    };
    let calm = calm.iter().map(|row| probe(true, row));
    calm.chain(rough.iter().map(|row| probe(false, row))).collect()
}

/// A name, an exit code and the arguments of a command.
type Row<'a> = (&'static str, i32, &'a [&'a str]);

/// The files of the Workspace.
const FILES: &[(&str, &str)] = &[
    ("README.md", "# A project\n\nhello\n"),
    ("AGENTS.md", "Be brief.\n"),
    ("src/lib.rs", "pub fn one() -> u32 {\n    1\n}\n"),
    ("src/deep/AGENTS.md", "Be deep.\n"),
    ("picture.png", "\u{89}PNG not really"),
    (".gitignore", "/target/\n"),
    (".mcp.json", r#"{"mcpServers": {"files": {"command": "false", "args": []}}}"#),
    (".pixir/config.json", r#"{"max_iterations": 50}"#),
    (".pixir/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: Tidies up\n---\nSee notes.md\n"),
    (".pixir/skills/tidy/notes.md", "Notes.\n"),
    (".agents/skills/other/SKILL.md", "---\nname: other\ndescription: Another\n---\nDo it.\n"),
    (".claude/skills/third/SKILL.md", "---\nname: third\ndescription: A third\n---\nDo it.\n"),
    (".pixir/agents/scribe.toml", SCRIBE),
    (".pixir/prompts/review.md", "Review it.\n"),
    (
        "flow.json",
        r#"{"id": "flow", "steps": [{"id": "one", "role": "explorer", "task": "play say"}]}"#,
    ),
    (
        "tasks.json",
        r#"{"tasks": ["play say", {"task": "play make", "posture": "write", "write_set": ["made/"]}]}"#,
    ),
];

const SCRIBE: &str =
    "name = \"scribe\"\ndescription = \"Writes\"\ndeveloper_instructions = \"Write.\"\n";
