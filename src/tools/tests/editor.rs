//! Tests of the file tools with an editor that has files open.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::runtime::Runtime;

use super::*;
use crate::tools::tool::Editor;

/// A fake editor with open buffers, which saves each accepted text unless `is_lazy`.
#[derive(Debug, Default)]
struct FakeEditor {
    held: Mutex<HashMap<PathBuf, String>>,
    /// Refuses every write.
    is_locked: bool,
    /// Does not support writing.
    is_read_only: bool,
    /// Accepts changes without saving them.
    is_lazy: bool,
    /// The accepted texts, in order.
    taken: Mutex<Vec<(PathBuf, String)>>,
}

type EditorResult<T> = Option<BoxFuture<'static, Result<T, String>>>;

impl Editor for FakeEditor {
    fn read_text(&self, path: &Path) -> EditorResult<String> {
        let held = self.held.lock().unwrap().get(path).cloned();
        let text = held.map_or_else(|| fs::read_to_string(path).map_err(|e| e.to_string()), Ok);
        // The text as a buffer shows it.
        let text = text.map(|text| text.replace("\r\n", "\n"));
        Some(Box::pin(async move {
            tokio::task::yield_now().await;
            text
        }))
    }

    fn write_text(&self, path: &Path, text: String) -> EditorResult<()> {
        if self.is_read_only {
            return None;
        }
        if self.is_locked || path.ends_with("refused") {
            return Some(Box::pin(std::future::ready(Err("locked".to_owned()))));
        }
        self.held.lock().unwrap().insert(path.to_owned(), text.clone());
        self.taken.lock().unwrap().push((path.to_owned(), text.clone()));
        if !self.is_lazy {
            fs::write(path, text).unwrap();
        }
        Some(Box::pin(std::future::ready(Ok(()))))
    }

    fn mark_unresponsive(&self) {
        panic!("it always answers");
    }
}

struct EditorTestEnv {
    env: ToolTestEnv,
    editor: Arc<FakeEditor>,
    runtime: Runtime,
}

impl EditorTestEnv {
    fn with(editor: FakeEditor) -> Self {
        let mut env = ToolTestEnv::new();
        let editor = Arc::new(editor);
        env.context.editor = EditorBridge::new(Some(editor.clone()), env.context.cancel.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self { env, editor, runtime: runtime.unwrap() }
    }

    /// Creates a file on disk that is open in the editor with another text.
    fn hold(&self, name: &str, disk: &str, held: &str) {
        self.env.write_file(name, disk);
        self.editor.held.lock().unwrap().insert(self.path(name), held.to_owned());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.env.context.workspace.root().join(name)
    }

    /// Plans a call on a worker thread, as the Executor does, and then runs it.
    fn call(&self, name: &'static str, args: Value) -> Result<(CallPlan, ToolOutput), ToolError> {
        let (toolbox, context) = (self.env.toolbox.clone(), self.env.context.clone());
        let work = self.runtime.spawn(async move {
            let tool = toolbox.find_tool(name)?;
            let plan = tool.plan(&args, &context)?;
            Ok((plan, tool.run(args, context).await?))
        });
        self.runtime.block_on(work).unwrap()
    }

    fn taken(&self) -> Vec<String> {
        let taken = self.editor.taken.lock().unwrap();
        taken.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap().into()).collect()
    }
}

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"path": path, "edits": [{"old_string": old, "new_string": new}]})
}

#[test]
fn what_an_editor_holds_is_what_the_model_reads_and_changes() {
    let editor_env = EditorTestEnv::with(FakeEditor::default());
    editor_env.hold("a.txt", "one\ntwo\n", "one\nTWO, unsaved\n");
    let (_, read) = editor_env.call("read", json!({"path": "a.txt"})).unwrap();
    assert!(read.text.contains("TWO, unsaved"), "{}", read.text);
    let (plan, done) = editor_env.call("edit", edit("a.txt", "TWO", "2")).unwrap();
    assert!(plan.diff.unwrap().contains("-TWO, unsaved"), "the question shows the same");
    assert!(done.details["diff"].as_str().unwrap().contains("+2, unsaved"), "{}", done.details);
    assert_eq!(editor_env.taken(), ["a.txt"]);
    assert_eq!(editor_env.env.read_bytes("a.txt"), b"one\n2, unsaved\n");
    // The file is recorded now, and may be changed again.
    editor_env.call("edit", edit("a.txt", "one", "1")).unwrap();
    assert_eq!(editor_env.env.read_bytes("a.txt"), b"1\n2, unsaved\n");
}

#[test]
fn new_files_and_patches_go_through_the_editor_too() {
    let editor_env = EditorTestEnv::with(FakeEditor::default());
    editor_env.call("write", json!({"path": "new/b.txt", "content": "b\n"})).unwrap();
    editor_env.hold("a.txt", "one\n", "one, unsaved\n");
    editor_env.env.write_file("old.txt", "old\n");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one, unsaved\n+1\n\
        *** Add File: c.txt\n+c\n*** Delete File: old.txt\n*** End Patch";
    editor_env.call("apply_patch", json!({"patch": patch})).unwrap();
    assert_eq!(editor_env.taken(), ["b.txt", "a.txt"]);
    assert_eq!(editor_env.env.read_bytes("a.txt"), b"1\n");
    assert_eq!(editor_env.env.read_bytes("c.txt"), b"c\n");
    assert!(!editor_env.path("old.txt").exists());
}

#[test]
fn what_a_buffer_would_damage_goes_to_the_disk() {
    let editor_env = EditorTestEnv::with(FakeEditor::default());
    for (name, content) in [
        ("crlf", &b"one\r\ntwo\r\n"[..]),
        ("bom", b"\xef\xbb\xbfone\ntwo\n"),
        ("latin", b"one \xfc\ntwo\n"),
    ] {
        editor_env.env.write_file(name, content);
        editor_env.call("edit", edit(name, "two", "2")).unwrap();
        let expected = String::from_utf8_lossy(content).replace("two", "2");
        assert_eq!(String::from_utf8_lossy(&editor_env.env.read_bytes(name)), expected);
    }
    editor_env.env.write_file("names", "one\ntwo\n");
    fs::hard_link(editor_env.path("names"), editor_env.path("other")).unwrap();
    editor_env.call("edit", edit("names", "two", "2")).unwrap();
    assert_eq!(editor_env.env.read_bytes("other"), b"one\n2\n");
    assert!(editor_env.taken().is_empty());
}

#[test]
fn an_editor_that_does_not_take_a_change_leaves_it_to_the_disk() {
    for editor in [
        FakeEditor { is_locked: true, ..FakeEditor::default() },
        FakeEditor { is_read_only: true, ..FakeEditor::default() },
    ] {
        let editor_env = EditorTestEnv::with(editor);
        editor_env.env.write_file("a.txt", "one\n");
        let (_, done) = editor_env.call("edit", edit("a.txt", "one", "1")).unwrap();
        assert_eq!(editor_env.env.read_bytes("a.txt"), b"1\n");
        let is_reported = done.text.contains("the editor refused it (locked)");
        assert_eq!(
            is_reported, editor_env.editor.is_locked,
            "a refusal is reported: {}",
            done.text
        );
        // But unsaved text of the editor is never overwritten.
        editor_env.hold("b.txt", "one\n", "one, unsaved\n");
        let error = editor_env.call("edit", edit("b.txt", "one", "1")).unwrap_err();
        assert_eq!(error.kind, Kind::FileChanged);
        assert!(error.message.contains("unsaved"), "{error}");
        assert_eq!(editor_env.env.read_bytes("b.txt"), b"one\n");
        let patch = "*** Begin Patch\n*** Delete File: b.txt\n*** End Patch";
        editor_env.call("apply_patch", json!({"patch": patch})).unwrap_err();
        assert_eq!(editor_env.env.read_bytes("b.txt"), b"one\n");
    }
}

#[test]
fn a_patch_that_cannot_be_whole_is_taken_back_from_the_editor() {
    let editor_env = EditorTestEnv::with(FakeEditor::default());
    editor_env.env.write_file("a.txt", "one\n");
    editor_env.hold("refused", "two\n", "two, unsaved\n");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n\
        *** Update File: refused\n@@\n-two, unsaved\n+2\n*** End Patch";
    editor_env.call("apply_patch", json!({"patch": patch})).unwrap_err();
    assert_eq!(editor_env.taken(), ["a.txt", "a.txt"]);
    assert_eq!(editor_env.env.read_bytes("a.txt"), b"one\n");
    assert_eq!(editor_env.env.read_bytes("refused"), b"two\n");
}

#[test]
fn a_change_that_the_editor_has_not_saved_is_reported() {
    let editor_env = EditorTestEnv::with(FakeEditor { is_lazy: true, ..FakeEditor::default() });
    editor_env.env.write_file("a.txt", "one\n");
    let (_, done) = editor_env.call("edit", edit("a.txt", "one", "1")).unwrap();
    assert!(done.text.contains("the editor has not saved it yet"), "{}", done.text);
    // The next edit starts from the unsaved text.
    let (_, done) = editor_env.call("edit", edit("a.txt", "1", "2")).unwrap();
    assert!(done.details["diff"].as_str().unwrap().contains("-1\n+2"), "{}", done.details);
}
