//! Undo and redo of Turns, conversation and files together.
//!
//! Files are changed first, then `history_rewound` is logged: after an interruption the rewind is repeated
//! and skips what is done. The Log keeps everything; undone Turns only stop counting.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::base::error::{Explain, Explanation, Kind, counted};
use crate::base::files::StateError;
use crate::base::id::SessionId;
use crate::base::paths;
use crate::host::snapshot::{
    ContentStore, CurrentFiles, Direction, FileState, OtherSessions, RestoreConflict,
    RestoreConflictReason, RestoreOutcome, RestorePlan, StoreLock, Survey, SurveyLimits,
    TurnRecord, UnreadRecords, find_obstacles, missing_contents, restore,
};
use crate::host::workspace::Workspace;
use crate::record::event::{
    Canonical, Extra, HistoryRewound, Seq, SharedEvent, SubagentEvent, SubagentEventKind,
};
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::{SessionFolder, StateRoot};

/// How many paths an error names.
const MAX_NAMED_PATHS: usize = 20;

/// How deep children of children are followed; a forged Log can name itself.
const MAX_CHILD_DEPTH: u32 = 8;

/// The Workspace and the Session folder of a rewind.
#[derive(Debug, Clone)]
pub struct RewindContext {
    pub workspace: Workspace,
    pub session_folder: SessionFolder,
    pub limits: SurveyLimits,
    /// The state folders whose Sessions may have changed the same files; empty where no other Session can.
    pub other_roots: Vec<StateRoot>,
}

/// A planned undo or redo.
#[derive(Debug)]
pub struct Rewind {
    pub direction: Direction,
    /// The user's message of each Turn, oldest first.
    pub turns: Vec<(Seq, String)>,
    pub plan: RestorePlan,
    to_seq: Seq,
    /// Keeps garbage collection away: overwritten contents are not referenced until the Event is recorded.
    _store_lock: Option<StoreLock>,
}

impl Rewind {
    /// Plans the undo of the last `count` Turns.
    pub fn plan_undo(
        history: &History,
        count: usize,
        context: &RewindContext,
    ) -> Result<Self, RewindError> {
        let live = history.live_turns();
        let first = live
            .len()
            .checked_sub(count.max(1))
            .ok_or(RewindError::NothingToUndo { wanted: count, turns: live.len() })?;
        let turns = &live[first..];
        let to_seq = turns.first().map(|turn| history.turn_start(*turn)).unwrap_or_default();
        let mut writers = BTreeSet::new();
        let mut seen = [context.session_folder.id().clone()].into();
        collect_writing_children(
            &mut writers,
            &mut seen,
            history,
            to_seq,
            context,
            MAX_CHILD_DEPTH,
        )?;
        if !writers.is_empty() {
            return Err(RewindError::Children(writers.into_iter().collect()));
        }
        Self::plan(history, Direction::Back, turns, to_seq, context)
    }

    /// Plans the redo of the last undone Turns.
    pub fn plan_redo(history: &History, context: &RewindContext) -> Result<Self, RewindError> {
        let undone = history.last_undone().ok_or(RewindError::NothingToRedo)?;
        Self::plan(history, Direction::Forward, &undone.turns, undone.marker, context)
    }

    fn plan(
        history: &History,
        direction: Direction,
        turns: &[Seq],
        to_seq: Seq,
        context: &RewindContext,
    ) -> Result<Self, RewindError> {
        let read = |turn: &Seq| TurnRecord::read(&context.session_folder, *turn);
        let records: Vec<TurnRecord> = turns.iter().map(read).collect::<Result<_, _>>()?;
        if let Some((record, path)) =
            records.iter().find_map(|it| Some((it, it.path_outside_workspace()?)))
        {
            let record = TurnRecord::path(&context.session_folder, record.turn);
            return Err(RewindError::Outside { record, path: path.to_owned() });
        }
        let store = ContentStore::for_session(&context.session_folder);
        let hold = store.lock_shared().ok();
        let current =
            CurrentFiles { workspace: &context.workspace, store: &store, limits: context.limits };
        let others = OtherSessions::read(&context.session_folder, &context.other_roots, &records);
        let mut plan = RestorePlan::for_records(&records, direction, &current, &others)?;
        plan.notes.extend(note_outside_files(history, turns, context.workspace.root()));
        let mut notes = note_skipped_files(&plan);
        notes.extend(note_shared_files(&plan, &others));
        notes.extend(others.unread().map(note_unread_records));
        plan.notes.append(&mut notes);
        let words = |turn: &Seq| {
            let user_event = history.iter().find(|event| event.seq() == Some(*turn));
            let text = user_event.and_then(|event| match event.fact() {
                Some(Canonical::UserMessage(message)) => Some(message.text.clone()),
                _ => None,
            });
            (*turn, text.unwrap_or_default())
        };
        Ok(Self {
            direction,
            turns: turns.iter().map(words).collect(),
            plan,
            to_seq,
            _store_lock: hold,
        })
    }

    /// Refuses conflicts unless `force` is set, and in any case obstructed paths and missing contents.
    pub fn check_conflicts(&self, force: bool, context: &RewindContext) -> Result<(), RewindError> {
        let needs_force = self.needs_force();
        if !needs_force.is_empty() && !force {
            return Err(RewindError::Changed(needs_force));
        }
        let all = if force { self.plan.clone().with_conflicts_forced() } else { self.plan.clone() };
        let occupied = find_obstacles(&all, &context.workspace);
        if !occupied.is_empty() {
            return Err(RewindError::Occupied(occupied));
        }
        let lost = missing_contents(&all, &ContentStore::for_session(&context.session_folder));
        if lost.is_empty() { Ok(()) } else { Err(RewindError::Lost(lost)) }
    }

    /// The files and folders that are changed only with `--force`, and why.
    fn needs_force(&self) -> Vec<(PathBuf, RestoreConflictReason)> {
        let conflicts = self.plan.conflicts.iter();
        let files = conflicts.map(|conflict| (conflict.change.path.clone(), conflict.reason));
        let folders = self.plan.command_folders.iter();
        files
            .chain(folders.map(|folder| (folder.clone(), RestoreConflictReason::WhileCommandRan)))
            .collect()
    }

    /// Changes the files. The caller then logs the Event.
    pub fn restore(&self, context: &RewindContext) -> Result<RestoreOutcome, RewindError> {
        let (workspace, store) =
            (&context.workspace, &ContentStore::for_session(&context.session_folder));
        for turn in &self.plan.cut_off {
            let survey = Survey { workspace, store, limits: context.limits };
            TurnRecord::read(&context.session_folder, *turn)?
                .close(&context.session_folder, &survey)?;
        }
        let all = self.plan.clone().with_conflicts_forced();
        Ok(restore(&all, workspace, store))
    }

    /// The `history_rewound` Event.
    pub fn rewound_event(&self, restored: &RestoreOutcome) -> Canonical {
        // A redo restores what the Turns themselves left, so only other overwritten contents are listed.
        let is_lost =
            |conflict: &&RestoreConflict| conflict.reason != RestoreConflictReason::WhileCommandRan;
        let overwritten = self.plan.conflicts.iter().filter(is_lost).filter_map(|conflict| {
            let Some(FileState::File { sha256, .. }) = &conflict.change.from else { return None };
            Some(json!({ "path": conflict.change.path.to_string_lossy(), "sha256": sha256 }))
        });
        let turns: Vec<Seq> = self.turns.iter().map(|(seq, _)| *seq).collect();
        let facts = json!({
            "direction": match self.direction {
                Direction::Back => "undo",
                Direction::Forward => "redo",
            },
            "turns": turns,
            "files": restored.files,
            "overwritten": overwritten.collect::<Vec<Value>>(),
        });
        let extra: Extra = match facts {
            Value::Object(facts) => facts.into_iter().collect(),
            _ => Extra::new(),
        };
        HistoryRewound { to_seq: self.to_seq, extra }.into()
    }
}

/// Collects the Subagents, at any depth, that were started since a seq and whose Turns changed files and
/// were not undone. A child may still write when the Turn of its parent has ended. Sessions in `seen` are
/// skipped.
fn collect_writing_children(
    writers: &mut BTreeSet<SessionId>,
    seen: &mut BTreeSet<SessionId>,
    history: &History,
    since: Seq,
    context: &RewindContext,
    depth: u32,
) -> Result<(), RewindError> {
    for event in history.iter().filter(|event| event.seq() >= Some(since)) {
        let Some(Canonical::SubagentEvent(life)) = event.fact() else { continue };
        let child = life.child_session_id.as_deref().and_then(|id| SessionId::parse(id).ok());
        let Some(child) = child.filter(|_| has_begun(life)) else { continue };
        if !seen.insert(child.clone()) {
            continue;
        }
        let root = context.session_folder.root();
        // A child without a Log has no Turn to undo.
        let Ok(reading) = Log::read(root, &child) else { continue };
        let folder = root.session_folder(&child);
        if !shares_files(&reading.events) {
            continue;
        }
        // Work for earlier Turns of the parent is not undone here.
        let before = last_run_end_before(history, since, &child);
        let own = History::from_events(reading.events);
        if depth > 0 {
            let next = before.map_or(0, |before| before + 1);
            collect_writing_children(writers, seen, &own, next, context, depth - 1)?;
        }
        let mut turns = own.live_turns();
        turns.retain(|turn| Some(*turn) > before);
        let records = turns.iter().map(|turn| TurnRecord::read(&folder, *turn));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let store = ContentStore::for_session(&context.session_folder);
        let current =
            CurrentFiles { workspace: &context.workspace, store: &store, limits: context.limits };
        let plan = RestorePlan::for_records(
            &records,
            Direction::Back,
            &current,
            &OtherSessions::default(),
        )?;
        if !plan.changes.is_empty() || !plan.conflicts.is_empty() {
            writers.insert(child);
        }
    }
    Ok(())
}

/// The seq in a child's Log of the last run end that its parent recorded before `since`.
fn last_run_end_before(history: &History, since: Seq, child: &SessionId) -> Option<Seq> {
    let earlier = history.iter().filter(|event| event.seq() < Some(since));
    let ends = earlier.filter_map(|event| match event.fact() {
        Some(Canonical::SubagentEvent(life)) if life.ends_run() => Some(life),
        _ => None,
    });
    let own = ends.filter(|life| life.child_session_id.as_deref() == Some(child.as_str()));
    own.filter_map(|life| life.child_seq).max()
}

/// Whether the child can have Turns from this Event on.
fn has_begun(life: &SubagentEvent) -> bool {
    matches!(life.event, SubagentEventKind::Started | SubagentEventKind::Detached)
}

/// The note about files outside of the Workspace that these Turns changed: those are not covered and are
/// left as they are.
fn note_outside_files(history: &History, turns: &[Seq], root: &Path) -> Option<String> {
    let (mut calls, mut paths) = (HashMap::new(), BTreeSet::new());
    let mut is_one = false;
    for event in history.iter() {
        match event.fact() {
            Some(Canonical::UserMessage(_)) => {
                is_one = event.seq().is_some_and(|seq| turns.contains(&seq));
            }
            Some(Canonical::ToolCall(call)) if is_one => {
                calls.insert(&call.call_id, &call.args);
            }
            Some(Canonical::ToolResult(result)) if result.diff().is_some() => {
                paths.extend(
                    calls.get(&result.call_id).into_iter().flat_map(|args| paths_in_call(args)),
                );
            }
            _ => {}
        }
    }
    paths.retain(|path| path.is_absolute() && !path.starts_with(root));
    if paths.is_empty() {
        return None;
    }
    let paths: Vec<PathBuf> = paths.into_iter().collect();
    let listed = list_paths(paths.iter().map(PathBuf::as_path));
    Some(format!("left as it is, because it is not in the Workspace: {listed}"))
}

/// The files that a tool call names: one, or those of a patch.
fn paths_in_call(args: &Value) -> Vec<PathBuf> {
    let text = |key: &str| args.get(key).and_then(Value::as_str);
    let patched = text("patch")
        .or_else(|| text("input"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| Some(line.strip_prefix("*** ")?.split_once(" File: ")?.1));
    let one = text("path").or_else(|| text("file_path"));
    one.into_iter().chain(patched).map(PathBuf::from).collect()
}

/// Why a rewind is refused.
#[derive(Debug, thiserror::Error)]
pub enum RewindError {
    #[error("{} can be undone, not {wanted}", counted(*turns, "Turn"))]
    NothingToUndo { wanted: usize, turns: usize },
    #[error("no Turn was undone, or the conversation continued since")]
    NothingToRedo,
    #[error("{}", describe_conflicts(.0))]
    Changed(Vec<(PathBuf, RestoreConflictReason)>),
    #[error("other files are in the way: {}", list_paths(.0.iter().map(PathBuf::as_path)))]
    Occupied(Vec<PathBuf>),
    #[error("the earlier contents of these files are not stored any more: {}", list_paths(.0.iter().map(PathBuf::as_path)))]
    Lost(Vec<PathBuf>),
    #[error("Subagents changed files in these Turns: {}", list_children(.0).join(", "))]
    Children(Vec<SessionId>),
    #[error("{} names {}, which is outside the Workspace", record.display(), path.display())]
    Outside { record: PathBuf, path: PathBuf },
    #[error(transparent)]
    State(StateError),
    #[error("the Records of file changes could not be read")]
    Read(#[source] std::io::Error),
}

impl From<std::io::Error> for RewindError {
    fn from(error: std::io::Error) -> Self {
        error.downcast().map_or_else(Self::Read, Self::State)
    }
}

fn list_children(children: &[SessionId]) -> Vec<String> {
    children.iter().take(MAX_NAMED_PATHS).map(ToString::to_string).collect()
}

/// Whether a child worked in its parent's Workspace.
fn shares_files(events: &[SharedEvent]) -> bool {
    let first = events.iter().find_map(|event| event.fact());
    let Some(Canonical::SessionStarted(started)) = first else { return true };
    started.extra.get("workspace_mode").is_none_or(|mode| mode == "shared")
}

fn is_command_change(reason: RestoreConflictReason) -> bool {
    reason == RestoreConflictReason::WhileCommandRan
}

fn describe_conflicts(conflicts: &[(PathBuf, RestoreConflictReason)]) -> String {
    let of = |is_meant: fn(RestoreConflictReason) -> bool| -> Vec<&Path> {
        let meant = conflicts.iter().filter(|(_, reason)| is_meant(*reason));
        meant.map(|(path, _)| path.as_path()).collect()
    };
    let groups = [
        (
            "changed outside this session",
            of(|reason| {
                matches!(
                    reason,
                    RestoreConflictReason::ChangedSince | RestoreConflictReason::ChangedBetween
                )
            }),
        ),
        (
            "changed by a Turn that was cut off, or outside this session",
            of(|reason| reason == RestoreConflictReason::Unsure),
        ),
        ("changed while a command ran, by it or by another program", of(is_command_change)),
    ];
    let named = groups.into_iter().filter(|(_, paths)| !paths.is_empty());
    let named = named.map(|(words, paths)| {
        let verb = if paths.len() == 1 { "was" } else { "were" };
        format!("{} {verb} {words}", list_paths(paths.into_iter()))
    });
    named.collect::<Vec<_>>().join("; ")
}

/// The notes about files that changed while another Session ran a command too.
fn note_shared_files(plan: &RestorePlan, others: &OtherSessions) -> Vec<String> {
    let mut paths_of: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    let of_commands = plan.conflicts.iter().filter(|conflict| is_command_change(conflict.reason));
    let files = of_commands.map(|conflict| conflict.change.path.as_path());
    for path in files.chain(plan.command_folders.iter().map(PathBuf::as_path)) {
        for session in others.sessions_sharing(path) {
            paths_of.entry(session).or_default().push(path);
        }
    }
    let note = |(session, paths): (&str, Vec<&Path>)| {
        let named = list_paths(paths.into_iter());
        format!("Session {session} ran at the same time, and may have changed: {named}")
    };
    paths_of.into_iter().map(note).collect()
}

/// The note about Records of other Sessions that are too large or too many to be read.
fn note_unread_records(unread: &UnreadRecords) -> String {
    let (count, path) = (unread.count, unread.path.display());
    format!(
        "{count} Records of other Sessions were not read, because they are too large or too many, such as {path}: \
         changes of those Sessions cannot be recognized"
    )
}

/// The notes about files that were changed by other programs or Sessions.
fn note_skipped_files(plan: &RestorePlan) -> Vec<String> {
    let mut notes = Vec::new();
    if !plan.foreign.is_empty() {
        let named = list_paths(plan.foreign.iter().map(PathBuf::as_path));
        notes.push(format!("left as it is, because it changed between commands: {named}"));
    }
    let sessions: BTreeSet<&str> = plan.claimed.iter().map(|(_, id)| id.as_str()).collect();
    for session in sessions {
        let of_session = plan.claimed.iter().filter(|(_, id)| id == session);
        let paths: Vec<&Path> = of_session.map(|(path, _)| path.as_path()).collect();
        let named = list_paths(paths.into_iter());
        notes.push(format!("left as it is, because Session {session} changed it: {named}"));
    }
    notes
}

fn list_paths<'p>(paths: impl ExactSizeIterator<Item = &'p Path>) -> String {
    let count = paths.len();
    let mut named: Vec<String> =
        paths.take(MAX_NAMED_PATHS).map(|path| path.display().to_string()).collect();
    if count > MAX_NAMED_PATHS {
        named.push(format!("and {} more", count - MAX_NAMED_PATHS));
    }
    named.join(", ")
}

impl Explain for RewindError {
    fn explain(&self) -> Explanation {
        match self {
            Self::NothingToUndo { turns, .. } => Kind::NoTurn
                .with_details(json!({ "turns": turns }))
                .with_next_action("see the Session with `pixir sessions`"),
            Self::NothingToRedo => Kind::NoTurn.with_next_action("undo Turns with `pixir undo`"),
            Self::Changed(paths) => {
                let path = |(path, reason): &(PathBuf, RestoreConflictReason)| json!({ "path": path.to_string_lossy(), "changed": reason.name() });
                let files: Vec<Value> = paths.iter().map(path).collect();
                let is_command = paths.iter().all(|(_, reason)| is_command_change(*reason));
                Kind::FileChanged.with_details(json!({ "files": files })).with_next_action(
                    if is_command {
                        "preview with --dry-run, then undo those changes too with --force"
                    } else {
                        "preview with --dry-run, then overwrite those changes with --force"
                    },
                )
            }
            Self::Occupied(paths) => Kind::FileChanged
                .with_details(json!({ "files": paths::as_texts(paths) }))
                .with_next_action("move it elsewhere, then run this again"),
            Self::Children(children) => {
                let undo = |child: &SessionId| format!("undo its Turns: pixir undo {child}");
                Explanation {
                    next_actions: children.iter().take(MAX_NAMED_PATHS).map(undo).collect(),
                    ..Kind::FileChanged
                        .with_details(json!({ "subagents": list_children(children) }))
                }
            }
            Self::Lost(paths) => Kind::ReadFailed
                .with_details(json!({ "files": paths::as_texts(paths) }))
                .with_next_action("undo fewer Turns with --turns"),
            Self::Read(_) => Kind::ReadFailed
                .with_next_action("check the permissions of .pixir in the Workspace"),
            Self::Outside { record, .. } => Kind::ReadFailed
                .with_details(json!({ "path": record.to_string_lossy() }))
                .with_next_action(format!(
                    "inspect {}, remove it, then try again",
                    record.display()
                )),
            Self::State(error) => error.explain(),
        }
    }
}
