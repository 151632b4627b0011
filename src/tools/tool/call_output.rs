//! Long text of a tool call: stores it whole in a file of the Session, and opens it by its path.

use std::path::{Path, PathBuf};

use super::ToolContext;
use crate::host::process::{
    CapturedOutput, OUTPUT_FOLDER, OutputCollector, OutputTarget, SpillFile,
};
use crate::host::workspace::OpenFile;

impl ToolContext {
    /// The destinations of this call's output.
    pub fn output_target(&self) -> OutputTarget {
        OutputTarget {
            signals: self.events.clone(),
            call_id: self.call_id.clone(),
            spill: SpillFile::for_call(&self.session_folder, &self.call_id),
        }
    }
}

/// Opens the full output of a command by the path that its result names. The path may be outside the Workspace,
/// because the state folder may be; no other file there is opened.
pub fn open_spilled_output(context: &ToolContext, path: &Path) -> Option<OpenFile> {
    let mut folders = context.output_folders.iter().map(|session| session.join(OUTPUT_FOLDER));
    let folder = folders.find(|folder| path.starts_with(folder.path()))?;
    let name = path.strip_prefix(folder.path()).ok()?;
    let file = folder.open().ok()??.open_file(name).ok()??;
    let stat = rustix::fs::fstat(&file).ok()?;
    Some(OpenFile { file, path: path.to_owned(), stat })
}

/// Bytes of the output limit reserved for the line that names the file.
const PATH_RESERVE: usize = 1024;

/// A bounded text for the model, and the file with the whole text if it was too long.
#[derive(Debug)]
pub struct StoredText {
    /// The bounded text, with the path of the file at its end.
    pub text: String,
    pub path: Option<PathBuf>,
    pub total_bytes: u64,
}

/// Bounds a text as the result of a call. A text over the limit is stored whole beside the Log, like
/// the output of a command.
pub async fn store_text(context: &ToolContext, text: String) -> StoredText {
    let total_bytes = text.len() as u64;
    if text.len() <= context.output_limit {
        return StoredText { text, path: None, total_bytes };
    }
    let limit = context.output_limit.saturating_sub(PATH_RESERVE);
    let mut output = OutputCollector::without_live(
        SpillFile::for_call(&context.session_folder, &context.call_id),
        &context.secrets,
        limit,
    );
    output.push(text.as_bytes()).await;
    let collected = output.finish().await;
    let notes = collected.file_notes().join("\n");
    let CapturedOutput { bounded, total_bytes, spill, .. } = collected;
    let mut text = bounded.text;
    if !notes.is_empty() {
        let gap = if text.ends_with('\n') { "" } else { "\n" };
        text = format!("{text}{gap}{notes}");
    }
    StoredText { text, path: spill, total_bytes }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::id::{CallId, SessionId};
    use crate::host::workspace::Workspace;
    use crate::record::event::ToolEvents;
    use crate::record::state_dir::StateRoot;

    fn context_in(folder: &Path, signals: ToolEvents) -> ToolContext {
        ToolContext {
            sandbox_profile: crate::host::sandbox::Profile::Workspace,
            call_id: CallId::new("call"),
            workspace: Workspace::open(folder).unwrap(),
            cancel: tokio_util::sync::CancellationToken::new(),
            events: signals,
            secrets: Arc::default(),
            session_folder: StateRoot::in_workspace(folder).session_folder(&SessionId::mint()),
            output_folders: [].into(),
            output_limit: 16 * 1024,
            editor: crate::tools::tool::EditorBridge::default(),
            tracker: None,
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn the_file_of_a_long_text_is_named_on_a_line_of_its_own_and_so_is_its_absence() {
        let folder = tempfile::tempdir().unwrap();
        let context = context_in(folder.path(), ToolEvents::discard());
        let last_lines = |text: &str| {
            let stored = runtime().block_on(store_text(&context, text.to_owned()));
            let lines: Vec<String> = stored.text.lines().rev().take(2).map(str::to_owned).collect();
            (lines[1].clone(), lines[0].clone())
        };
        for text in ["x\n".repeat(20_000), "x\n".repeat(20_000) + "x"] {
            let (before, last) = last_lines(&text);
            assert_eq!(before, "x");
            let start = format!("[full output, {} bytes: ", text.len());
            assert!(last.starts_with(&start) && last.ends_with("call.txt]"), "{last}");
        }
        let output = context.session_folder.path().join(OUTPUT_FOLDER);
        std::fs::remove_dir_all(&output).unwrap();
        std::fs::write(&output, "no folder").unwrap();
        let (before, last) = last_lines(&"x\n".repeat(20_000));
        assert_eq!(before, "x");
        assert!(last.starts_with("[the full output could not be kept: "), "{last}");
    }
}
