//! The prompts of earlier Sessions, for the history of an editor.

use super::sessions::list_sessions;
use super::transcript::{TranscriptEntry, open_transcript};
use crate::record::log::LogError;
use crate::record::state_dir::StateRoot;

/// How many Sessions are read, and how many bytes of Logs.
const MOST_SESSIONS: usize = 30;
const MOST_BYTES: u64 = 32 * 1024 * 1024;

/// The prompts of the last Sessions of a Workspace, the oldest first; those of Subagents are left out. Blocks on the
/// disk.
pub fn earlier_prompts(roots: &[StateRoot]) -> Vec<String> {
    let mut prompts: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for summary in list_sessions(roots, MOST_SESSIONS) {
        bytes += summary.bytes;
        let is_child = summary.origin.as_ref().is_some_and(|origin| origin.kind == "child");
        let root = roots.iter().find(|root| root.has_log(&summary.session_id));
        let Some(root) = root.filter(|_| !is_child && bytes <= MOST_BYTES) else { continue };
        let mut own = Vec::new();
        let Ok(transcript) = open_transcript(root, &summary.session_id) else { continue };
        let read = transcript.for_each_turn(|turn| -> Result<(), LogError> {
            own.extend(turn.entries.into_iter().filter_map(|entry| match entry {
                TranscriptEntry::User { text, .. } => Some(text),
                _ => None,
            }));
            Ok(())
        });
        if read.is_ok() {
            prompts.push(own);
        }
    }
    // The last used Session came first.
    prompts.into_iter().rev().flatten().collect()
}
