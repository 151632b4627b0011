//! What the benchmarks need of the private rooms, and nothing that anybody else should.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::pin;

use bytes::Bytes;
use eventsource_stream::EventStream;
use futures_util::{FutureExt, StreamExt, stream};

use crate::compaction::{self, Room, Trigger};
use crate::config::{DEFAULT_MODEL, Undo};
use crate::credential::FieldPolicy;
use crate::event::{AssistantMessage, Phase, UserMessage};
use crate::history::History;
use crate::http::EventLines;
use crate::id::SessionId;
pub use crate::log::Log;
use crate::projection;
use crate::provider::{ModelEvent, Reducer, Request, Wishes, body};
use crate::resource::Contents;
use crate::rewind::{Rewind, Site};
use crate::snapshot::{Limits, Tracker};
use crate::state::StateRoot;
use crate::workspace::Workspace;

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
    let mut lines = EventLines::new(stream.len());
    let mut pieces = stream.chunks(piece);
    let lines = std::iter::from_fn(|| {
        loop {
            match lines.take() {
                Ok(Some(line)) => return Some(Ok::<_, Infallible>(line)),
                Ok(None) => lines.push(Bytes::copy_from_slice(pieces.next()?)),
                Err(_) => return None,
            }
        }
    });
    let mut events = pin!(EventStream::new(stream::iter(lines)));
    let mut reducer = Reducer::default();
    let mut out = VecDeque::new();
    let mut length = 0;
    while let Some(Some(Ok(event))) = events.next().now_or_never() {
        reducer.take(&event.event, event.data.as_bytes(), &mut out);
        for event in out.drain(..) {
            if let Ok(ModelEvent::TextDelta(text)) = event {
                length += text.len();
            }
        }
    }
    length
}

/// How many Sessions are on the first page of a list.
pub fn first_page(workspace: &Path, limit: usize) -> usize {
    projection::list(&[StateRoot::in_workspace(workspace)], limit).len()
}

/// A Session whose Turns are followed, so that they can be taken back.
pub struct Followed {
    log: Log,
    tracker: Tracker,
    site: Site,
}

impl Followed {
    /// A new Session in a Workspace.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let workspace = Workspace::open(folder).map_err(io::Error::other)?;
        let id = SessionId::mint();
        let root = StateRoot::in_workspace(workspace.root());
        let log = Log::create(&root, &id).map_err(io::Error::other)?;
        let session_folder = root.session_folder(&id);
        let limits = Limits::of(Undo::default());
        let tracker = Tracker::new(workspace.clone(), session_folder.clone(), limits);
        let neighbours = vec![session_folder.root().clone()];
        Ok(Self { log, tracker, site: Site { workspace, session_folder, limits, neighbours } })
    }

    /// A Turn begins.
    pub fn begin(&mut self) -> io::Result<()> {
        let said = self.log.append(UserMessage::default().into()).map_err(io::Error::other)?;
        self.tracker.begin(said.seq().unwrap_or_default());
        Ok(())
    }

    /// The survey before a command.
    pub fn before_command(&self) -> io::Result<()> {
        self.tracker.before_command()
    }

    /// The survey after a command.
    pub fn after_command(&self) -> io::Result<()> {
        self.tracker.after_command()
    }

    /// The Turn ends, with the survey after its commands.
    pub fn end(&mut self) -> io::Result<()> {
        self.tracker.end()?;
        let phase = Some(Phase::Final);
        let answer = AssistantMessage { text: "done".into(), phase, ..AssistantMessage::default() };
        self.log.append(answer.into()).map(drop).map_err(io::Error::other)
    }

    /// Takes the last Turn back, and says how many files that changed.
    pub fn undo(&mut self) -> io::Result<usize> {
        let rewind = Rewind::back(self.log.history(), 1, &self.site).map_err(io::Error::other)?;
        rewind.check(true, &self.site).map_err(io::Error::other)?;
        let restored = rewind.restore(&self.site).map_err(io::Error::other)?;
        self.log.append(rewind.fact(&restored)).map_err(io::Error::other)?;
        Ok(restored.files)
    }
}
