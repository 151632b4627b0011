//! Access for benchmarks to private modules.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::pin;

use bytes::Bytes;
use eventsource_stream::EventStream;
use futures_util::{FutureExt, StreamExt, stream};

use crate::agent::inspect;
use crate::agent::rewind::{Rewind, RewindContext};
use crate::base::id::SessionId;
use crate::host::http::EventLines;
use crate::host::snapshot::{SurveyLimits, TurnTracker};
use crate::host::workspace::Workspace;
use crate::model::credential::FieldPolicy;
use crate::model::provider::{ModelEvent, ModelRequest, Reducer, ResponseOptions, http_body};
use crate::record::compaction;
use crate::record::compaction::{CompactionTrigger, WindowBudget};
use crate::record::event::{AssistantMessage, Phase, UserMessage};
use crate::record::history::History;
pub use crate::record::log::Log;
use crate::record::resource::ResourceContents;
use crate::record::state_dir::StateRoot;
use crate::settings::config::{DEFAULT_MODEL, UndoLimits};

/// The request body that a Turn would send for a History.
pub fn request_body(history: History) -> Vec<u8> {
    let request = ModelRequest {
        model: DEFAULT_MODEL.to_owned(),
        effort: None,
        instructions: "Be helpful.".into(),
        project: None,
        tools: Vec::new().into(),
        history,
        contents: ResourceContents::default(),
        cache_key: "bench".to_owned(),
        response_options: ResponseOptions::default(),
        session: SessionId::mint(),
        resends: 0,
    };
    http_body(&request, FieldPolicy::OpenAi)
}

/// The tokens that a compaction of a History saves, with a usual context window.
pub fn compact_history(history: &History) -> u64 {
    let room = WindowBudget { window: 272_000, fixed: 10_000 };
    let plan = compaction::plan_compaction(history, room, CompactionTrigger::CriticalPressure);
    plan.map_or(0, |plan| plan.before - plan.after)
}

/// Reduces a stream in chunks of this size; returns the length of its text.
pub fn reduce_stream(stream: &[u8], piece: usize) -> usize {
    let mut lines = EventLines::new(stream.len());
    let mut pieces = stream.chunks(piece);
    let lines = std::iter::from_fn(|| {
        loop {
            match lines.next_line() {
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
        reducer.push_frame(&event.event, event.data.as_bytes(), &mut out);
        for event in out.drain(..) {
            if let Ok(ModelEvent::TextDelta(text)) = event {
                length += text.len();
            }
        }
    }
    length
}

/// The number of Sessions on the first page of a list.
pub fn first_page(workspace: &Path, limit: usize) -> usize {
    inspect::list_sessions(&[StateRoot::in_workspace(workspace)], limit).len()
}

/// A Session whose Turns are tracked, so that they can be undone.
pub struct TrackedSession {
    log: Log,
    tracker: TurnTracker,
    rewind_context: RewindContext,
}

impl TrackedSession {
    /// A new Session in a Workspace.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let workspace = Workspace::open(folder).map_err(io::Error::other)?;
        let id = SessionId::mint();
        let root = StateRoot::in_workspace(workspace.root());
        let log = Log::create(&root, &id).map_err(io::Error::other)?;
        let session_folder = root.session_folder(&id);
        let limits = SurveyLimits::from_undo_settings(UndoLimits::default());
        let tracker = TurnTracker::new(workspace.clone(), session_folder.clone(), limits);
        let other_roots = vec![session_folder.root().clone()];
        Ok(Self {
            log,
            tracker,
            rewind_context: RewindContext { workspace, session_folder, limits, other_roots },
        })
    }

    /// Begins a Turn.
    pub fn begin_turn(&mut self) -> io::Result<()> {
        let message = self.log.append(UserMessage::default().into()).map_err(io::Error::other)?;
        self.tracker.begin_turn(message.seq().unwrap_or_default());
        Ok(())
    }

    /// Takes the survey before a command.
    pub fn before_command(&self) -> io::Result<()> {
        self.tracker.before_command()
    }

    /// Takes the survey after a command.
    pub fn after_command(&self) -> io::Result<()> {
        self.tracker.after_command()
    }

    /// Ends the Turn, with a survey if commands still run.
    pub fn end_turn(&mut self) -> io::Result<()> {
        self.tracker.end_turn()?;
        let phase = Some(Phase::Final);
        let answer = AssistantMessage { text: "done".into(), phase, ..AssistantMessage::default() };
        self.log.append(answer.into()).map(drop).map_err(io::Error::other)
    }

    /// Undoes the last Turn; returns the number of changed files.
    pub fn undo(&mut self) -> io::Result<usize> {
        let rewind = Rewind::plan_undo(self.log.history(), 1, &self.rewind_context)
            .map_err(io::Error::other)?;
        rewind.check_conflicts(true, &self.rewind_context).map_err(io::Error::other)?;
        let restored = rewind.restore(&self.rewind_context).map_err(io::Error::other)?;
        self.log.append(rewind.rewound_event(&restored)).map_err(io::Error::other)?;
        Ok(restored.files)
    }
}
