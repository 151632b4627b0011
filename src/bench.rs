//! What the benchmarks need of the private rooms, and nothing that anybody else should.

use std::collections::VecDeque;

use crate::compaction::{self, Room, Trigger};
use crate::config::DEFAULT_MODEL;
use crate::credential::FieldPolicy;
use crate::history::History;
use crate::id::SessionId;
pub use crate::log::Log;
use crate::provider::{ModelEvent, Reducer, Request, Splitter, Wishes, body};
use crate::resource::Contents;

/// The body of the request that a Turn would make of a History.
pub fn request_body(history: History) -> Vec<u8> {
    let request = Request {
        model: DEFAULT_MODEL.to_owned(),
        effort: None,
        instructions: "Be helpful.".into(),
        project: None,
        tools: Vec::new().into(),
        history,
        contents: Contents::default(),
        cache_key: "bench".to_owned(),
        wishes: Wishes::default(),
        session: SessionId::mint(),
        resends: 0,
    };
    body(&request, FieldPolicy::OpenAi)
}

/// What a compaction of a History saves, in tokens of a usual window.
pub fn compact(history: &History) -> u64 {
    let room = Room { window: 272_000, fixed: 10_000 };
    let plan = compaction::plan(history, room, Trigger::CriticalPressure);
    plan.map_or(0, |plan| plan.before - plan.after)
}

/// Reduces a stream that arrives in pieces of this size; gives the length of the text in it.
pub fn reduce(stream: &[u8], piece: usize) -> usize {
    let mut splitter = Splitter::default();
    let mut reducer = Reducer::default();
    let mut out = VecDeque::new();
    let mut length = 0;
    for piece in stream.chunks(piece) {
        let fed = splitter.feed(piece, |frame| reducer.take(frame.event, frame.data, &mut out));
        debug_assert!(fed.is_ok(), "a benchmark feeds what can be read");
        for event in out.drain(..) {
            if let Ok(ModelEvent::TextDelta(text)) = event {
                length += text.len();
            }
        }
    }
    length
}
