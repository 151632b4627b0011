//! Editors over the Agent Client Protocol, checked by the protocol lines and by the Log.

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

use pixir::scripted::{ModelScript, Reply};
use serde_json::Value;

use crate::support::BinaryEnv;
use crate::support::acp_client::AcpClient;

/// A test environment whose model gives these replies.
async fn new_binary_env(replies: impl IntoIterator<Item = Reply>) -> BinaryEnv {
    BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await
}

/// An editor with one Session.
fn new_client(env: &BinaryEnv, args: &[&str], capabilities: Value) -> (AcpClient, String) {
    let mut editor = AcpClient::start(env, args);
    editor.initialize(capabilities);
    let id = editor.new_session(&env.workspace());
    (editor, id)
}

/// The Events of one type in the Log.
fn facts(env: &BinaryEnv, type_name: &str) -> Vec<Value> {
    let events = env.events().into_iter().filter(|event| event["type"] == type_name);
    events.map(|event| event["data"].clone()).collect()
}
