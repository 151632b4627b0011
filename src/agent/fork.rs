//! Forks a Session: makes a new Session from the history of another one up to some point.
//!
//! The child's Log is complete by itself: it has copies of the facts that count, with their times. It is
//! written in a temporary folder and renamed last, so that no incomplete fork is ever visible.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use crate::agent::child_workspace::{ChildWorkspaceError, ChildWorkspaces};
use crate::base::error::{Explain, Explanation, Kind};
use crate::base::files::{StateError, StatePath, WriteDurability};
use crate::base::id::SessionId;
use crate::base::text::{on_one_line, truncate_chars};
use crate::record::event::{
    BranchSummary, Canonical, Event, Extra, LOG_VERSION, Seq, SessionFork, SharedEvent,
};
use crate::record::history::History;
use crate::record::log::{Log, LogError};
use crate::record::state_dir::{StateProblem, StateRoot, log_name};

/// How many characters of a text a summary keeps.
const MAX_EXCERPT_CHARS: usize = 400;
/// The largest file that is copied with a Session, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// How many prompts and files a summary names.
const MAX_NAMED_LINES: usize = 30;

/// The point at which a Session is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPoint {
    /// The end: everything is copied.
    End,
    /// After this many Turns that count.
    AfterTurn(usize),
    /// At this seq, inclusive.
    AtSeq(Seq),
}

/// The result of a fork or of its dry run.
#[derive(Debug, Serialize)]
pub struct ForkOutcome {
    pub parent_session_id: SessionId,
    pub fork_root_session_id: String,
    /// `None` after a dry run.
    pub session_id: Option<SessionId>,
    #[serde(serialize_with = "crate::base::paths::as_text_if_any")]
    pub path: Option<PathBuf>,
    /// The last seq of the parent that was copied.
    #[serde(rename = "forked_to_seq")]
    pub to_seq: Seq,
    pub turns: usize,
    pub events: usize,
    /// Whether the child has a summary of the abandoned branch.
    pub is_summarized: bool,
}

/// The facts for the child's Log.
struct ForkDraft<'h> {
    inherited: Vec<(Seq, &'h SharedEvent)>,
    abandoned: Vec<&'h Canonical>,
    forked_to_seq: Seq,
    first: &'h Canonical,
}

/// Refuses a Session with its own child Workspace: a fork would have its conversation but other files.
pub fn refuse_child_workspace(
    child_workspaces: &ChildWorkspaces,
    logs: &StateRoot,
    id: &SessionId,
) -> Result<(), ForkError> {
    match child_workspaces.find(logs, id)? {
        None => Ok(()),
        Some(child_workspace) => Err(ForkError::InChildWorkspace {
            id: id.clone(),
            folder: child_workspace.folder().to_owned(),
        }),
    }
}

/// Forks a Session into the state folder `to`; with `dry_run` nothing is written.
pub fn fork_session(
    root: &StateRoot,
    to: &StateRoot,
    parent: &SessionId,
    cut: ForkPoint,
    summarize: bool,
    dry_run: bool,
) -> Result<ForkOutcome, ForkError> {
    let history = History::from_events(Log::read(root, parent)?.events);
    let draft = ForkDraft::from_history(&history, cut)?;
    let summary = summarize.then(|| draft.summarize_abandoned(parent)).flatten();
    let mut forked = ForkOutcome {
        parent_session_id: parent.clone(),
        fork_root_session_id: history.fork_root_id(parent),
        session_id: None,
        path: None,
        to_seq: draft.forked_to_seq,
        turns: draft.inherited.iter().filter(|(_, event)| is_prompt(event)).count(),
        events: draft.inherited.len(),
        is_summarized: summary.is_some(),
    };
    if dry_run {
        return Ok(forked);
    }
    let child = SessionId::mint();
    let name = format!(".fork-{child}");
    let sessions = to.create_sessions()?;
    let aside = StateRoot::in_state_folder(to.workspace(), to.sessions().join(&name));
    let made = draft.write_log(root, parent, &child, &aside, &forked.fork_root_session_id, summary);
    let placed = made.and_then(|()| move_into_place(to, &child, &aside));
    sessions.remove_tree(&name).ok();
    placed?;
    forked.path = Some(to.log(&child));
    forked.session_id = Some(child);
    Ok(forked)
}

fn is_prompt(event: &Event) -> bool {
    matches!(event.fact(), Some(Canonical::UserMessage(_)))
}

impl<'h> ForkDraft<'h> {
    fn from_history(history: &'h History, cut: ForkPoint) -> Result<Self, ForkError> {
        let first = history.facts().next().ok_or(ForkError::Empty)?;
        let turns = history.live_turns();
        let last = history.last_seq().unwrap_or_default();
        let end = match cut {
            ForkPoint::End => last,
            ForkPoint::AfterTurn(number) if number == turns.len() => last,
            ForkPoint::AfterTurn(number) => {
                let next = number.checked_sub(1).and_then(|_| turns.get(number));
                let next = next.ok_or(ForkError::NoSuchTurn { number, turns: turns.len() })?;
                history.turn_start(*next).saturating_sub(1)
            }
            ForkPoint::AtSeq(seq) if seq <= last => seq,
            ForkPoint::AtSeq(seq) => return Err(ForkError::NoSuchSeq { seq, last }),
        };
        let live: Vec<Seq> = history.live_backwards().map(|(seq, _)| seq).collect();
        let live: BTreeSet<Seq> = live.into_iter().collect();
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        for event in history.iter() {
            let (Some(seq), Some(fact)) = (event.seq(), event.fact()) else { continue };
            if !live.contains(&seq) || !is_inherited(fact) {
                continue;
            }
            if seq <= end { kept.push((seq, event)) } else { left.push(fact) }
        }
        Ok(Self { inherited: kept, abandoned: left, forked_to_seq: end, first })
    }

    /// Writes the child's Log and files into the temporary folder `aside`.
    fn write_log(
        &self,
        root: &StateRoot,
        parent: &SessionId,
        child: &SessionId,
        aside: &StateRoot,
        fork_root: &str,
        summary: Option<String>,
    ) -> Result<(), ForkError> {
        let mut log = Log::create(aside, child)?;
        log.append(self.first_event(root, parent, fork_root))?;
        let from = root.session_folder(parent);
        let to = aside.session_folder(child);
        copy_files(&from.join("resources"), &to.join("resources"), |name| Some(name.to_owned()))?;
        let mut seq_map: BTreeMap<Seq, Seq> = BTreeMap::new();
        for (seq, event) in &self.inherited {
            let Some(fact) = event.fact() else { continue };
            let copied = log.append_copy(event, renumber_seqs(fact, parent, &seq_map))?;
            seq_map.extend(copied.seq().map(|own| (*seq, own)));
        }
        // Turns that can be undone in the parent can be undone in the child. Records in an unsafe state
        // folder are not copied, because they may be forged: undo would remove the files that they name.
        if !matches!(root.problem(), Some(StateProblem::Unsafe { .. })) {
            copy_files(&from.join("snapshots"), &to.join("snapshots"), |name| {
                let turn: Seq = name.strip_suffix(".ndjson")?.parse().ok()?;
                Some(format!("{}.ndjson", seq_map.get(&turn)?))
            })?;
        }
        log.close_open_turn(
            "the fork was made before its result",
            "the fork was made inside of this Turn",
        )?;
        if let Some(summary) = summary {
            let parent_session_id = parent.to_string();
            log.append(BranchSummary { parent_session_id, summary, extra: Extra::new() }.into())?;
        }
        Ok(log.syncer().sync()?)
    }

    fn first_event(&self, root: &StateRoot, parent: &SessionId, fork_root: &str) -> Canonical {
        let mut fork = match self.first {
            Canonical::SessionFork(first) => first.clone(),
            Canonical::SessionStarted(first) => {
                SessionFork { posture: first.posture.clone(), ..SessionFork::default() }
            }
            _ => SessionFork::default(),
        };
        fork.parent_session_id = parent.to_string();
        fork_root.clone_into(&mut fork.fork_root_session_id);
        fork.forked_to_seq = self.forked_to_seq;
        env!("CARGO_PKG_VERSION").clone_into(&mut fork.posture.pixir_version);
        fork.posture.log_version = LOG_VERSION;
        fork.posture.workspace = root.workspace().to_string_lossy().into_owned();
        fork.into()
    }

    /// A summary of the abandoned branch; `None` when nothing happened there.
    fn summarize_abandoned(&self, parent: &SessionId) -> Option<String> {
        let mut lines = Vec::new();
        let mut files = BTreeSet::new();
        for fact in &self.abandoned {
            match fact {
                Canonical::UserMessage(message) => {
                    lines.push(format!("- the user said: {}", excerpt(&message.text)));
                }
                Canonical::AssistantMessage(message) if message.is_final() => {
                    lines.push(format!("- the answer was: {}", excerpt(&message.text)));
                }
                Canonical::TurnFailed(failed) => {
                    lines.push(format!(
                        "- it ended without an answer: {}",
                        excerpt(&failed.error_message)
                    ));
                }
                Canonical::ToolResult(result) => {
                    let changed = result.files().filter(|file| file.is_changed);
                    files.extend(changed.map(|file| file.path.to_owned()));
                }
                _ => {}
            }
        }
        if lines.is_empty() {
            return None;
        }
        let skipped = lines.len().saturating_sub(MAX_NAMED_LINES);
        let mut text =
            format!("Another branch of this conversation ({parent}) went on like this:\n");
        if skipped > 0 {
            writeln!(text, "- {skipped} earlier steps").ok();
        }
        text.push_str(&lines[skipped..].join("\n"));
        if !files.is_empty() {
            let named: Vec<String> = files.into_iter().take(MAX_NAMED_LINES).collect();
            write!(text, "\nIt changed: {}", named.join(", ")).ok();
        }
        text.push_str("\nFiles are as that branch left them, unless its Turns were undone.");
        Some(text)
    }
}

/// Whether a child inherits a fact. It does not inherit the parent's start and repairs, its costs, its runs
/// of Workflows, which belong to one Session, and rewinds, because undone facts are not copied.
fn is_inherited(fact: &Canonical) -> bool {
    !matches!(
        fact,
        Canonical::SessionStarted(_)
            | Canonical::SessionFork(_)
            | Canonical::LogRepaired(_)
            | Canonical::ProviderUsage(_)
            | Canonical::HistoryRewound(_)
            | Canonical::WorkflowEvent(_)
    )
}

/// A fact whose seqs are renumbered for the child. Subagents stay with the Session that started them.
fn renumber_seqs(fact: &Canonical, parent: &SessionId, seq_map: &BTreeMap<Seq, Seq>) -> Canonical {
    let compaction = match fact {
        Canonical::HistoryCompaction(compaction) => compaction,
        Canonical::SubagentEvent(life) => return life.clone().copy_of(parent.as_str()).into(),
        other => return other.clone(),
    };
    let moved = |seq: Seq| seq_map.range(..=seq).next_back().map_or(0, |(_, own)| *own);
    let mut compaction = compaction.clone();
    let hidden_to = compaction.hidden_to();
    compaction.from_seq = moved(compaction.from_seq);
    compaction.to_seq = moved(hidden_to.unwrap_or(compaction.to_seq));
    compaction.prune_to_seq = compaction.prune_to_seq.map(moved);
    compaction.extra.shift_remove("range");
    compaction.into()
}

fn excerpt(text: &str) -> String {
    truncate_chars(&on_one_line(text), MAX_EXCERPT_CHARS)
}

/// Copies the files of a folder under new names; files without a new name are skipped.
fn copy_files(
    from: &StatePath,
    to: &StatePath,
    named: impl Fn(&str) -> Option<String>,
) -> Result<(), StateError> {
    let Some(from) = from.open()? else { return Ok(()) };
    for name in from.names()? {
        let Some(new_name) = name.to_str().and_then(&named) else { continue };
        if let Some(bytes) = from.read(&name, MAX_FILE_BYTES)? {
            to.create()?.replace(new_name, &bytes, WriteDurability::Lazy)?;
        }
    }
    Ok(())
}

/// Renames the child into place: its folder first, the Log last.
fn move_into_place(
    root: &StateRoot,
    child: &SessionId,
    aside: &StateRoot,
) -> Result<(), ForkError> {
    let from = aside.sessions().create()?;
    let to = root.sessions().create()?;
    if from.stat(child.as_str())?.is_some() {
        from.rename(child.as_str(), &to, child.as_str())?;
    }
    from.rename(log_name(child), &to, log_name(child))?;
    to.sync().ok();
    Ok(())
}

/// Why a Session cannot be forked.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error("the Session is empty")]
    Empty,
    #[error("there is no Turn {number}; the Session has {turns}")]
    NoSuchTurn { number: usize, turns: usize },
    #[error("there is no seq {seq}; the last one is {last}")]
    NoSuchSeq { seq: Seq, last: Seq },
    #[error("the fork could not be written")]
    Write(#[from] io::Error),
    #[error(transparent)]
    State(StateError),
    #[error("{id} works in a Workspace of its own, {}: a fork would know those files but change others", folder.display())]
    InChildWorkspace { id: SessionId, folder: PathBuf },
    #[error(transparent)]
    ChildWorkspace(#[from] ChildWorkspaceError),
    #[error(transparent)]
    Log(#[from] LogError),
}

impl From<StateError> for ForkError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Io { source, .. } => Self::Write(source),
            StateError::Unsafe { .. } | StateError::TooLarge { .. } => Self::State(error),
        }
    }
}

impl Explain for ForkError {
    fn explain(&self) -> Explanation {
        let dry_run = "preview with `pixir fork <id> --dry-run`";
        let list = "list the Sessions with `pixir sessions`";
        match self {
            Self::Empty => Kind::NotFound.with_next_action(list),
            Self::NoSuchTurn { turns, .. } => {
                Kind::InvalidArgs.with_details(json!({ "turns": turns })).with_next_action(dry_run)
            }
            Self::NoSuchSeq { last, .. } => Kind::InvalidArgs
                .with_details(json!({ "last_seq": last }))
                .with_next_action(dry_run),
            Self::InChildWorkspace { id, folder, .. } => Kind::InvalidArgs
                .with_details(json!({ "folder": folder.to_string_lossy() }))
                .with_next_action(format!("continue it with `pixir resume {id}`"))
                .with_next_action(format!(
                    "merge its changes with `pixir merge {id}`, then continue in its parent"
                )),
            Self::Write(_) => Kind::LogWriteFailed.with_next_action(list),
            Self::State(error) => error.explain(),
            Self::ChildWorkspace(error) => error.explain(),
            Self::Log(error) => error.explain(),
        }
    }
}
