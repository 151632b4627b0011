//! Stories of an editor and its agent, told by the lines between them and by the Log.

mod acpx;
mod asking;
mod conformance;
mod content;
mod directories;
mod files;
mod grants;
mod life;
mod links;
mod listing;
mod options;
mod replay;
mod sdk;
mod servers;
mod signing;
mod turns;

use pixir::scripted::{Reply, Script};
use serde_json::Value;

use crate::support::Stage;
use crate::support::editor::Editor;

/// A test environment whose model gives these replies.
async fn stage(replies: impl IntoIterator<Item = Reply>) -> Stage {
    Stage::new(Stage::mark(), Script::new(replies)).await
}

/// An editor with one Session.
fn editor(stage: &Stage, args: &[&str], capabilities: Value) -> (Editor, String) {
    let mut editor = Editor::start(stage, args);
    editor.initialize(capabilities);
    let id = editor.session(&stage.workspace());
    (editor, id)
}

/// The facts of one type in the Log.
fn facts(stage: &Stage, type_name: &str) -> Vec<Value> {
    let events = stage.events().into_iter().filter(|event| event["type"] == type_name);
    events.map(|event| event["data"].clone()).collect()
}
