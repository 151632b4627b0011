//! Tests of the file tools, called as the Executor calls them.

mod editor;
mod exact;
mod extra_roots;
mod patch;
mod search;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::base::paths::Home;
use crate::record::history::History;
use crate::record::resource::Resources;
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::base::error::Kind;
use crate::base::id::CallId;
use crate::base::secret::Secrets;
use crate::base::text::bound_text;
use crate::base::tool_error::ToolError;
use crate::host::process::{CommandRunner, Containment, HostEnvironment};
use crate::host::workspace::Workspace;
use crate::model::tool_spec::ToolSpec;
use crate::record::event::ToolEvents;
use crate::tools::tool::*;
use crate::tools::toolbox::Toolbox;

struct ToolTestEnv {
    folder: TempDir,
    toolbox: Toolbox,
    context: ToolContext,
}

impl ToolTestEnv {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let toolbox = toolbox(folder.path(), &History::default());
        let context = ToolContext {
            call_id: CallId::new("call"),
            workspace: Workspace::open(folder.path()).unwrap(),
            cancel: CancellationToken::new(),
            events: ToolEvents::discard(),
            secrets: Arc::default(),
            session_folder: StateRoot::in_workspace(folder.path())
                .session_folder(&crate::base::id::SessionId::mint()),
            output_folders: [].into(),
            output_limit: 16 * 1024,
            sandbox_profile: crate::host::sandbox::Profile::Workspace,
            editor: EditorBridge::default(),
            tracker: None,
        };
        Self { folder, toolbox, context }
    }
    fn call(&self, name: &str, args: Value) -> Result<ToolOutput, ToolError> {
        self.toolbox.validate(name, &args)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.toolbox.find_tool(name)?.run(args, self.context.clone()))
    }
    fn plan(&self, name: &str, args: &Value) -> Result<CallPlan, ToolError> {
        self.toolbox.find_tool(name)?.plan(args, &self.context)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    fn write_file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }
    fn read_bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }
    fn read(&self, args: Value) -> String {
        self.call("read", args).unwrap().text
    }
    fn edit(&self, name: &str, old: &str, new: &str) -> Result<ToolOutput, ToolError> {
        self.call("edit", json!({"path": name, "edits": [{"old_string": old, "new_string": new}]}))
    }
    fn kind(&self, name: &str, args: Value) -> Kind {
        self.call(name, args).unwrap_err().kind
    }
}

fn toolbox(folder: &std::path::Path, history: &History) -> Toolbox {
    let config = Config::new(Home::new(folder.join("home")));
    let host = HostEnvironment {
        own_binary: "/nowhere".into(),
        environment: Vec::new(),
        containment: Containment::Best,
    };
    let resources = Resources::new(&crate::base::files::StatePath::root(folder).join("session"));
    Toolbox::built_in(&config, CommandRunner::new(host, &config), history, resources)
}

fn is_about_commands(tool: &Value) -> bool {
    tool["name"].as_str().is_some_and(|name| name.starts_with("bash"))
}

#[test]
fn the_tool_definitions_are_short_and_stable() {
    let env = ToolTestEnv::new();
    let specs = env.toolbox.specs();
    let definitions: Vec<_> = specs
        .iter()
        .map(|s| json!({"name": s.name, "description": s.description, "parameters": s.parameters}))
        .collect();
    let text = serde_json::to_string(&definitions).unwrap();
    assert!(text.len() < 9 * 1024, "{} bytes: {text}", text.len());
    let commands: Vec<_> = definitions.iter().filter(|tool| is_about_commands(tool)).collect();
    let about_commands = serde_json::to_string(&commands).unwrap();
    assert!(about_commands.len() <= 2200, "{} bytes: {about_commands}", about_commands.len());
    let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let names = names.join(" ");
    let wanted = "apply_patch bash bash_input bash_output bash_stop edit glob grep list read \
        resource_view update_plan write";
    assert_eq!(names, wanted);
    for noise in ["$schema", "title", "format", "null", "$ref", "$defs"] {
        assert!(!text.contains(&format!("\"{noise}\"")), "{noise}: {text}");
    }
    for spec in specs.iter() {
        assert_eq!(spec.parameters.value()["additionalProperties"], false);
    }
    let again = ToolTestEnv::new().toolbox.specs();
    assert_eq!(specs, again);
}

#[test]
fn the_kept_schemas_are_those_of_the_types() {
    let places = crate::model::skill::DiscoveryFolders {
        workspace: "/nowhere".into(),
        user: None,
        home: Home::new("/nowhere"),
    };
    // The schemas of tools that are offered only sometimes are stored as well.
    let toolbox = ToolTestEnv::new().toolbox.with_skills(&crate::model::skill::Skills::new(places));
    let specs = toolbox.specs();
    let generated = specs.iter().map(|spec| {
        let generated = toolbox.find_tool(&spec.name).unwrap().generated_schema();
        (spec.name.clone(), generated)
    });
    crate::model::tool_spec::store_schemas(generated);
}

#[test]
fn bad_arguments_are_named_all_at_once() {
    let env = ToolTestEnv::new();
    let error = env.call("read", json!({"path": 7, "offset": 0, "odd": 1})).unwrap_err();
    assert_eq!(error.kind, Kind::InvalidArgs);
    assert_eq!(error.details["violations"].as_array().unwrap().len(), 3, "{}", error.details);
    let error = env.call("edit", json!({"path": "a", "edits": [{"old_string": 1}]})).unwrap_err();
    assert!(error.details["violations"].to_string().contains("/edits/0"), "{}", error.details);
    let error = env.call("raed", json!({})).unwrap_err();
    assert_eq!((error.kind, error.next_actions[0].as_str()), (Kind::UnknownTool, "call `read`"));
}

#[test]
fn a_plan_says_what_would_happen() {
    let env = ToolTestEnv::new();
    let plan = env.plan("bash", &json!({"command": "make\n  test"})).unwrap();
    assert_eq!((plan.effect, plan.summary.as_str()), (CallEffect::Execute, "run make test"));
    let path = env.context.workspace.root().join("src/a.rs");
    let plan = env.plan("read", &json!({ "path": path })).unwrap();
    assert_eq!((plan.effect, plan.summary.as_str()), (CallEffect::Read, "read src/a.rs"));
    assert_eq!(plan.paths, [PathBuf::from("src/a.rs")]);
    let plan = env.plan("write", &json!({"path": "b", "content": "x\n"})).unwrap();
    assert_eq!((plan.effect, plan.summary.as_str()), (CallEffect::Write, "create b (+1 -0)"));
    let write = json!({"path": ".pixir/config.json", "content": ""});
    assert_eq!(env.plan("write", &write).unwrap_err().kind, Kind::ProtectedPath);
    let error = env.plan("bash", &json!({"command": 1})).unwrap_err();
    assert_eq!(error.kind, Kind::InvalidArgs);
}

#[test]
fn a_file_is_shown_with_line_numbers() {
    let env = ToolTestEnv::new();
    env.write_file("a.txt", "one\ntwo\r\n\tthree");
    let expected = "     1\tone\n     2\ttwo\n     3\t\tthree\n[no newline at the end]\n";
    assert_eq!(env.read(json!({"path": "a.txt"})), expected);
    env.write_file("empty", "");
    assert_eq!(env.read(json!({"path": "empty"})), "(empty file)");
}

#[test]
fn pages_follow_each_other_without_gap() {
    let env = ToolTestEnv::new();
    let lines: Vec<String> = (1..=5000).map(|n| format!("line number {n}")).collect();
    env.write_file("long", lines.join("\n") + "\n");
    let (mut seen, mut offset) = (Vec::new(), Some(1));
    while let Some(at) = offset {
        let output = env.call("read", json!({"path": "long", "offset": at})).unwrap();
        assert!(output.text.len() <= 16 * 1024);
        seen.extend(output.text.lines().filter_map(|l| Some(l.split_once('\t')?.1.to_owned())));
        let last = output.details["last_line"].as_u64().unwrap();
        assert_eq!(output.details["total_lines"], 5000);
        offset = (last < 5000).then_some(last + 1);
        if last < 5000 {
            let note = format!("[lines {at}-{last} of 5000; next: offset {}]\n", last + 1);
            assert!(output.text.ends_with(&note), "{}", output.text);
        }
    }
    assert_eq!(seen, lines);
    let two = env.read(json!({"path": "long", "offset": 7, "limit": 2}));
    let expected =
        "     7\tline number 7\n     8\tline number 8\n[lines 7-8 of 5000; next: offset 9]\n";
    assert_eq!(two, expected);
    assert_eq!(env.kind("read", json!({"path": "long", "offset": 5001})), Kind::InvalidArgs);
}

#[test]
fn a_very_long_line_is_paged_by_column() {
    let env = ToolTestEnv::new();
    let words: Vec<String> = (0..9000).map(|n| format!("{n}é ")).collect();
    let line = words.concat();
    env.write_file("min.js", format!("{line}\nend\n"));
    let (mut joined, mut column) = (String::new(), 1);
    loop {
        let text = env.read(json!({"path": "min.js", "column": column}));
        assert!(text.len() <= 16 * 1024);
        let shown = text.lines().next().unwrap().split_once('\t').unwrap().1;
        joined.push_str(shown);
        let Some((_, next)) = text.split_once("next: offset 1, column ") else { break };
        column = next.split(']').next().unwrap().parse().unwrap();
    }
    assert_eq!(joined, line);
}

#[test]
fn what_is_not_plain_text_is_refused_or_said() {
    let env = ToolTestEnv::new();
    env.write_file("binary", b"\x7fELF\0\0");
    env.write_file("wide", b"\xff\xfea\0b\0");
    env.write_file("latin", b"caf\xe9\n");
    env.write_file("odd", b"a\x1b[31mb\rc\n");
    fs::create_dir(env.path("folder")).unwrap();
    assert_eq!(env.kind("read", json!({"path": "binary"})), Kind::BinaryFile);
    assert_eq!(env.kind("read", json!({"path": "wide"})), Kind::BinaryFile);
    assert_eq!(env.kind("read", json!({"path": "folder"})), Kind::InvalidArgs);
    let text = env.read(json!({"path": "latin"}));
    assert!(text.contains("caf\u{fffd}") && text.contains("not valid UTF-8"), "{text}");
    let text = env.read(json!({"path": "odd"}));
    assert!(text.contains("a␛[31mb␍c"), "{text}");
    assert_eq!(bound_text(&text, 16 * 1024), text);
}

#[test]
fn a_missing_file_suggests_its_neighbours() {
    let env = ToolTestEnv::new();
    env.write_file("settings.json", "");
    let error = env.call("read", json!({"path": "setting.json"})).unwrap_err();
    assert_eq!(
        (error.kind, error.next_actions),
        (Kind::NotFound, vec!["read settings.json".into()])
    );
}

#[test]
fn a_huge_file_is_streamed() {
    let env = ToolTestEnv::new();
    let file = fs::File::create(env.path("huge")).unwrap();
    let mut writer = std::io::BufWriter::new(file);
    for _ in 0..400 {
        writer.write_all(&[&[b'x'; 63][..], b"\n"].concat().repeat(1024)).unwrap();
    }
    writer.into_inner().unwrap();
    let output = env.call("read", json!({"path": "huge", "offset": 409_599})).unwrap();
    assert_eq!(output.details["total_lines"], 409_600);
    assert_eq!(output.text.lines().filter(|line| line.contains("xxx")).count(), 2);
}

#[test]
fn writing_creates_changes_and_tells_the_difference() {
    let env = ToolTestEnv::new();
    let output = env.call("write", json!({"path": "a/b.txt", "content": "one\n"})).unwrap();
    assert_eq!(output.text, "created a/b.txt, 4 bytes (+1 -0)");
    let args = json!({"path": "a/b.txt", "content": "one\ntwo\n"});
    let plan = env.plan("write", &args).unwrap();
    assert_eq!(plan.effect, CallEffect::Write);
    assert!(plan.diff.unwrap().contains("+two"));
    assert_eq!(env.read_bytes("a/b.txt"), b"one\n", "a plan changes nothing");
    let output = env.call("write", args).unwrap();
    assert!(output.details["diff"].as_str().unwrap().contains("+two"));
    assert_eq!(env.read_bytes("a/b.txt"), b"one\ntwo\n");
    env.plan("write", &json!({"path": "new/c", "content": ""})).unwrap();
    assert!(!env.path("new").exists());
}

#[test]
fn writing_keeps_line_endings_bom_and_mode() {
    let env = ToolTestEnv::new();
    env.write_file("dos.txt", b"\xef\xbb\xbfa\r\nb\r\n");
    fs::set_permissions(env.path("dos.txt"), fs::Permissions::from_mode(0o754)).unwrap();
    let output = env.call("write", json!({"path": "dos.txt", "content": "x\ny"})).unwrap();
    assert_eq!(env.read_bytes("dos.txt"), b"\xef\xbb\xbfx\r\ny");
    assert!(output.text.contains("kept CRLF line endings; kept the byte order mark"));
    assert_eq!(fs::metadata(env.path("dos.txt")).unwrap().mode() & 0o777, 0o754);
    env.write_file("mixed.txt", b"a\r\nb\n");
    env.call("write", json!({"path": "mixed.txt", "content": "x\n"})).unwrap();
    assert_eq!(env.read_bytes("mixed.txt"), b"x\n");
}

#[test]
fn a_file_that_changed_since_it_was_read_is_not_overwritten() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one\n");
    env.edit("a", "one", "two").unwrap();
    env.read(json!({"path": "a"}));
    env.write_file("a", "theirs two\n");
    assert_eq!(env.edit("a", "two", "three").unwrap_err().kind, Kind::FileChanged);
    let write = json!({"path": "./a", "content": "x"});
    assert_eq!(env.plan("write", &write).unwrap_err().kind, Kind::FileChanged);
    assert_eq!(env.kind("write", write.clone()), Kind::FileChanged);
    assert_eq!(env.read_bytes("a"), b"theirs two\n");
    env.read(json!({"path": "a"}));
    env.edit("a", "two", "three").unwrap();
    env.edit("a", "three", "four").unwrap();
    assert_eq!(env.read_bytes("a"), b"theirs four\n");
    assert_eq!(env.kind("read", json!({"path": "/etc/passwd"})), Kind::OutsideWorkspace);
    env.call("write", json!({"path": ".pixir/x", "content": ""})).unwrap_err();
    assert_eq!(env.kind("write", json!({"path": ".pixir/x", "content": ""})), Kind::ProtectedPath);
}

/// Endings, marks, final newline and odd bytes: only the matched bytes differ afterwards.
#[test]
fn an_edit_touches_nothing_else() {
    let texts: &[&[u8]] = &[
        b"a\nTARGET\nz\n",
        b"a\r\nTARGET\r\nz\r\n",
        b"a\rTARGET\rz\r",
        b"a\r\nTARGET\nz\r",
        b"a  \n\tTARGET \n\n\n z",
        b"caf\xe9\nTARGET\n\xff\xfe\x80",
        b"TARGET",
        b"\0\x01TARGET\0",
        b"a\r\r\nTARGET\n\r\n",
    ];
    for (mark, text) in
        [&b""[..], b"\xef\xbb\xbf"].iter().flat_map(|m| texts.iter().map(move |t| (m, t)))
    {
        for linked in [false, true] {
            let env = ToolTestEnv::new();
            let content = [mark, *text].concat();
            env.write_file("file", &content);
            fs::set_permissions(env.path("file"), fs::Permissions::from_mode(0o640)).unwrap();
            symlink("file", env.path("soft")).unwrap();
            if linked {
                fs::hard_link(env.path("file"), env.path("hard")).unwrap();
            }
            env.edit("soft", "TARGET", "new text").unwrap();
            let at = content.windows(6).position(|window| window == b"TARGET").unwrap();
            let expected = [&content[..at], b"new text", &content[at + 6..]].concat();
            assert_eq!(env.read_bytes("file"), expected, "{content:?}");
            assert!(env.path("soft").is_symlink());
            assert_eq!(fs::metadata(env.path("file")).unwrap().mode() & 0o7777, 0o640);
            if linked {
                assert_eq!(env.read_bytes("hard"), expected);
            }
        }
    }
}

#[track_caller]
fn check_edit(content: &[u8], old: &str, new: &str, expected: &[u8]) {
    let env = ToolTestEnv::new();
    env.write_file("file", content);
    env.edit("file", old, new).unwrap();
    assert_eq!(env.read_bytes("file"), expected);
}

#[test]
fn a_model_that_writes_lf_can_edit_other_endings() {
    check_edit(b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", b"x\r\ny\r\nz\r\nc\r\n");
    check_edit(b"a\rb\rc\r", "a\nb", "x\ny", b"x\ry\rc\r");
    check_edit(b"1\n2\r\n3\r\n4\n", "2\n3", "x\ny", b"1\nx\r\ny\r\n4\n");
    check_edit(b"a\r\nb\r\n", "\nb", "\nc", b"a\r\nc\r\n");
    // One line becomes two in a file that is CRLF throughout.
    check_edit(b"a\r\nb\r\n", "a", "x\ny", b"x\r\ny\r\nb\r\n");
    // An exact match is preferred.
    check_edit(b"a\nb\r\na\r\nb\n", "a\nb", "x\ny", b"x\ny\r\na\r\nb\n");
}

#[test]
fn several_edits_are_applied_in_order_or_not_at_all() {
    let env = ToolTestEnv::new();
    env.write_file("a", "one two two\n");
    let edit = |old, new, all| json!({"old_string": old, "new_string": new, "replace_all": all});
    let edits =
        json!([edit("one", "1", false), edit("two", "2", true), edit("1 2", "done", false)]);
    let output = env.call("edit", json!({"path": "a", "edits": edits})).unwrap();
    assert_eq!(env.read_bytes("a"), b"done 2\n");
    assert!(output.text.starts_with("edited a: 4 replaced"), "{}", output.text);
    let edits = json!([edit("done", "x", false), edit("missing", "y", false)]);
    let error = env.call("edit", json!({"path": "a", "edits": edits})).unwrap_err();
    assert!(error.message.starts_with("edit 2 of 2"), "{}", error.message);
    assert_eq!(env.read_bytes("a"), b"done 2\n");
}

#[test]
fn an_edit_that_cannot_be_made_says_why() {
    let env = ToolTestEnv::new();
    env.write_file("a", "x = 1\ny = 2\nx = 1\n    indented(value)\n");
    let error = env.edit("a", "x = 1", "x = 2").unwrap_err();
    assert_eq!((error.kind, &error.details["lines"]), (Kind::NotUnique, &json!([1, 3])));
    let error = env.edit("a", "\tindented(value)", "z").unwrap_err();
    assert_eq!((error.kind, &error.details["line"]), (Kind::NoMatch, &json!(4)));
    assert!(error.next_actions[0].contains("white space"), "{:?}", error.next_actions);
    let error = env.edit("a", "indented(valve)", "z").unwrap_err();
    assert!(error.next_actions[0].contains("closest"), "{:?}", error.next_actions);
    let error = env.edit("a", "y = 3", "y = 2").unwrap_err();
    assert!(error.next_actions[0].contains("already there, at line 2"));
    assert_eq!(env.edit("a", "", "z").unwrap_err().kind, Kind::InvalidArgs);
    assert_eq!(env.edit("a", "y", "y").unwrap_err().kind, Kind::InvalidArgs);
    assert_eq!(env.edit("no/file", "a", "b").unwrap_err().kind, Kind::NotFound);
    assert!(!env.path("no").exists());
    symlink("/etc/hostname", env.path("out")).unwrap();
    assert_eq!(env.edit("out", "a", "b").unwrap_err().kind, Kind::OutsideWorkspace);
}
