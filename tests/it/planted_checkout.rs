//! Files of a checkout for Pixir and the model, planted as links out of the project, pipes, devices
//! and endless files: no command hangs, and nothing from outside is shown.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pixir::scripted::{ModelScript, Reply};

use super::planted_home::wait_with_deadline;
use crate::support::TestEnv;

/// Content of the files outside, which must not be shown.
const MARKER: &str = "words-from-outside";

/// A file that Pixir reads in a project, and a usable content.
struct CheckoutFile {
    path: &'static str,
    text: &'static str,
    /// Arguments of a command that reads the file, besides a Turn.
    args: &'static [&'static str],
}

const SOURCES: &[CheckoutFile] = &[
    CheckoutFile {
        path: "AGENTS.md",
        text: "words-from-outside",
        args: &["doctor", "--sandbox", "off"],
    },
    CheckoutFile {
        path: ".pixir/config.json",
        text: r#"{"model": "words-from-outside"}"#,
        args: &["config", "list"],
    },
    CheckoutFile {
        path: ".mcp.json",
        text: r#"{"mcpServers": {"words-from-outside": {"command": "true"}}}"#,
        args: &["mcp", "list"],
    },
    CheckoutFile {
        path: ".pixir/skills/planted/SKILL.md",
        text: "---\nname: planted\ndescription: words-from-outside\n---\nwords-from-outside\n",
        args: &["skills"],
    },
    CheckoutFile {
        path: ".agents/skills/planted/SKILL.md",
        text: "---\nname: planted\ndescription: words-from-outside\n---\nwords-from-outside\n",
        args: &["skills"],
    },
    CheckoutFile {
        path: ".pixir/prompts/planted.md",
        text: "---\ndescription: words-from-outside\n---\nwords-from-outside\n",
        args: &["skills"],
    },
    CheckoutFile {
        path: ".pixir/agents/planted.toml",
        text: "name = \"planted\"\ndescription = \"words-from-outside\"\n\
               developer_instructions = \"words-from-outside\"\n",
        args: &["agents"],
    },
    CheckoutFile {
        path: ".pixir/workflows/planted.json",
        text: r#"{"id": "planted", "description": "words-from-outside",
                  "steps": [{"id": "a", "task": "words-from-outside"}]}"#,
        args: &["workflow", "list"],
    },
    CheckoutFile {
        path: ".pixir/workflows/planted.json",
        text: r#"{"id": "words-from-outside", "steps": [{"id": "a", "task": "words-from-outside"}]}"#,
        args: &["workflow", "plan", "planted"],
    },
    CheckoutFile {
        path: ".pixir/.gitignore",
        text: "words-from-outside\n",
        args: &["doctor", "--sandbox", "off"],
    },
    CheckoutFile {
        path: ".git/HEAD",
        text: "words-from-outside\n",
        args: &["doctor", "--sandbox", "off"],
    },
];

/// Kinds of planted files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckoutPlant {
    Link,
    /// The folder of the file is a link.
    LinkedFolder,
    LinkToDevice,
    Pipe,
    /// A sparse file of many gigabytes.
    Endless,
}

const PLANTINGS: [CheckoutPlant; 5] = [
    CheckoutPlant::Link,
    CheckoutPlant::LinkedFolder,
    CheckoutPlant::LinkToDevice,
    CheckoutPlant::Pipe,
    CheckoutPlant::Endless,
];

/// Plants a file in the project; false when this kind is not possible.
fn plant(planting: CheckoutPlant, source: &CheckoutFile, work: &Path, outside: &Path) -> bool {
    let path = work.join(source.path);
    let folder = path.parent().unwrap();
    let name = path.file_name().unwrap();
    if planting == CheckoutPlant::LinkedFolder {
        // Links in place of the project itself or of `.git` are tested elsewhere.
        if folder == work || folder.ends_with(".git") {
            return false;
        }
        fs::create_dir_all(folder.parent().unwrap()).unwrap();
        fs::write(outside.join(name), source.text).unwrap();
        symlink(outside, folder).unwrap();
        return true;
    }
    fs::create_dir_all(folder).unwrap();
    match planting {
        CheckoutPlant::Link => {
            fs::write(outside.join(name), source.text).unwrap();
            symlink(outside.join(name), &path).unwrap();
        }
        CheckoutPlant::LinkToDevice => symlink("/dev/zero", &path).unwrap(),
        CheckoutPlant::Pipe => {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        }
        CheckoutPlant::Endless => fs::File::create(&path).unwrap().set_len(64 << 30).unwrap(),
        CheckoutPlant::LinkedFolder => {}
    }
    true
}

async fn new_test_env() -> TestEnv {
    let env = TestEnv::with_script(ModelScript::answering(|_| Reply::says("all done"))).await;
    fs::create_dir(env.workspace().join(".git")).unwrap();
    env
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_checkout_plants_for_the_model_shows_nothing_from_outside_and_hangs_nothing() {
    let mut wrong = Vec::new();
    let mut planted = 0;
    for source in SOURCES {
        for planting in PLANTINGS {
            let env = new_test_env().await;
            let outside = tempfile::tempdir().unwrap();
            if !plant(planting, source, &env.workspace(), outside.path()) {
                continue;
            }
            planted += 1;
            let name = format!("{} as {planting:?}", source.path);
            for args in [source.args, &["hello", "there"]] {
                let what = format!("{name}: pixir {args:?}");
                let run = wait_with_deadline(env.command(args).spawn().unwrap(), &what);
                if format!("{}{}", run.out, run.err).contains(MARKER) {
                    wrong.push(format!("{what} shows it:\n{}\n{}", run.out, run.err));
                }
            }
            let is_told = |body: &str| body.contains(MARKER);
            if env.requests().iter().any(|request| is_told(&request.body.to_string())) {
                wrong.push(format!("{name}: the model is shown it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(planted >= SOURCES.len() * (PLANTINGS.len() - 1), "only {planted} were planted");
}

/// The control: the same files are used when they are regular files of the project.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_files_are_used_where_the_project_holds_them() {
    // These are read, but shown only if they are trusted or invalid.
    let is_silent = |path: &str| matches!(path, ".git/HEAD" | ".pixir/.gitignore" | ".mcp.json");
    let is_shown = |source: &&CheckoutFile| !is_silent(source.path);
    for source in SOURCES.iter().filter(is_shown) {
        let env = new_test_env().await;
        let path = env.workspace().join(source.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A link may lead to another file of its folder.
        let kept: PathBuf = path.with_file_name("kept");
        let is_linked = source.path != ".pixir/config.json";
        fs::write(if is_linked { &kept } else { &path }, source.text).unwrap();
        if is_linked {
            symlink("kept", &path).unwrap();
        }
        let args = [source.args, &["hello", "there"]];
        let runs =
            args.map(|args| wait_with_deadline(env.command(args).spawn().unwrap(), source.path));
        let shown = runs.iter().any(|run| format!("{}{}", run.out, run.err).contains(MARKER));
        let was_sent = env.requests().iter().any(|it| it.body.to_string().contains(MARKER));
        assert!(shown || was_sent, "{}: {}{}", source.path, runs[0].out, runs[0].err);
    }
}
