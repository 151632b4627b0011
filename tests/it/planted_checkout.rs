//! Files that a checkout brings for Pixir and the model, as links out of the project, pipes, devices
//! and files without end: nothing hangs, and nothing from outside is shown.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pixir::scripted::{Reply, Script};

use super::planted_home::finish;
use crate::support::House;

/// What stands in the files outside, and must be seen nowhere.
const MARKER: &str = "words-from-outside";

/// A file that Pixir looks for in a project, and what a usable one holds.
struct Source {
    path: &'static str,
    text: &'static str,
    /// The commands that read it, besides a Turn.
    args: &'static [&'static str],
}

const SOURCES: &[Source] = &[
    Source { path: "AGENTS.md", text: "words-from-outside", args: &["doctor", "--sandbox", "off"] },
    Source {
        path: ".pixir/config.json",
        text: r#"{"model": "words-from-outside"}"#,
        args: &["config", "list"],
    },
    Source {
        path: ".mcp.json",
        text: r#"{"mcpServers": {"words-from-outside": {"command": "true"}}}"#,
        args: &["mcp", "list"],
    },
    Source {
        path: ".pixir/skills/planted/SKILL.md",
        text: "---\nname: planted\ndescription: words-from-outside\n---\nwords-from-outside\n",
        args: &["skills"],
    },
    Source {
        path: ".agents/skills/planted/SKILL.md",
        text: "---\nname: planted\ndescription: words-from-outside\n---\nwords-from-outside\n",
        args: &["skills"],
    },
    Source {
        path: ".pixir/prompts/planted.md",
        text: "---\ndescription: words-from-outside\n---\nwords-from-outside\n",
        args: &["skills"],
    },
    Source {
        path: ".pixir/agents/planted.toml",
        text: "name = \"planted\"\ndescription = \"words-from-outside\"\n\
               developer_instructions = \"words-from-outside\"\n",
        args: &["agents"],
    },
    Source {
        path: ".pixir/workflows/planted.json",
        text: r#"{"id": "planted", "description": "words-from-outside",
                  "steps": [{"id": "a", "task": "words-from-outside"}]}"#,
        args: &["workflow", "list"],
    },
    Source {
        path: ".pixir/workflows/planted.json",
        text: r#"{"id": "words-from-outside", "steps": [{"id": "a", "task": "words-from-outside"}]}"#,
        args: &["workflow", "plan", "planted"],
    },
    Source {
        path: ".pixir/.gitignore",
        text: "words-from-outside\n",
        args: &["doctor", "--sandbox", "off"],
    },
    Source {
        path: ".git/HEAD",
        text: "words-from-outside\n",
        args: &["doctor", "--sandbox", "off"],
    },
];

/// How a file of a checkout is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planting {
    Link,
    /// The folder that holds it is a link.
    LinkedFolder,
    LinkToDevice,
    Pipe,
    /// A sparse file of many gigabytes.
    Endless,
}

const PLANTINGS: [Planting; 5] = [
    Planting::Link,
    Planting::LinkedFolder,
    Planting::LinkToDevice,
    Planting::Pipe,
    Planting::Endless,
];

/// Puts a source into the project; false when it cannot be planted in this way.
fn plant(planting: Planting, source: &Source, work: &Path, outside: &Path) -> bool {
    let path = work.join(source.path);
    let folder = path.parent().unwrap();
    let name = path.file_name().unwrap();
    if planting == Planting::LinkedFolder {
        // A link in the place of the project itself, or of what git keeps, is another story.
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
        Planting::Link => {
            fs::write(outside.join(name), source.text).unwrap();
            symlink(outside.join(name), &path).unwrap();
        }
        Planting::LinkToDevice => symlink("/dev/zero", &path).unwrap(),
        Planting::Pipe => {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        }
        Planting::Endless => fs::File::create(&path).unwrap().set_len(64 << 30).unwrap(),
        Planting::LinkedFolder => {}
    }
    true
}

async fn house() -> House {
    let house = House::scripted(Script::answering(|_| Reply::says("all done"))).await;
    fs::create_dir(house.workspace().join(".git")).unwrap();
    house
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_checkout_plants_for_the_model_shows_nothing_from_outside_and_hangs_nothing() {
    let mut wrong = Vec::new();
    for source in SOURCES {
        for planting in PLANTINGS {
            let house = house().await;
            let outside = tempfile::tempdir().unwrap();
            if !plant(planting, source, &house.workspace(), outside.path()) {
                continue;
            }
            let name = format!("{} as {planting:?}", source.path);
            for args in [source.args, &["hello", "there"]] {
                let what = format!("{name}: pixir {args:?}");
                let run = finish(house.command(args).spawn().unwrap(), &what);
                if format!("{}{}", run.out, run.err).contains(MARKER) {
                    wrong.push(format!("{what} shows it:\n{}\n{}", run.out, run.err));
                }
            }
            let is_told = |body: &str| body.contains(MARKER);
            if house.requests().iter().any(|request| is_told(&request.body.to_string())) {
                wrong.push(format!("{name}: the model is shown it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same files as files of the project are used, so that the story above can fail.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_files_are_used_where_the_project_holds_them() {
    // These are read, and shown to nobody unless they are trusted or wrong.
    let is_silent = |path: &str| matches!(path, ".git/HEAD" | ".pixir/.gitignore" | ".mcp.json");
    let is_shown = |source: &&Source| !is_silent(source.path);
    for source in SOURCES.iter().filter(is_shown) {
        let house = house().await;
        let path = house.workspace().join(source.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A link may lead to another file of its folder.
        let kept: PathBuf = path.with_file_name("kept");
        let is_linked = source.path != ".pixir/config.json";
        fs::write(if is_linked { &kept } else { &path }, source.text).unwrap();
        if is_linked {
            symlink("kept", &path).unwrap();
        }
        let args = [source.args, &["hello", "there"]];
        let runs = args.map(|args| finish(house.command(args).spawn().unwrap(), source.path));
        let shown = runs.iter().any(|run| format!("{}{}", run.out, run.err).contains(MARKER));
        let told = house.requests().iter().any(|it| it.body.to_string().contains(MARKER));
        assert!(shown || told, "{}: {}{}", source.path, runs[0].out, runs[0].err);
    }
}
