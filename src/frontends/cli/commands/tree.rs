//! `pixir tree`: Sessions with their forks and children.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde::Serialize;

use super::sessions::{display_age, status_text};
use crate::agent::inspect;
use crate::agent::inspect::SessionSummary;
use crate::base::error::{Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::one_line;

/// Draw Sessions as a tree of forks and children
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir tree [OPTIONS] [<ID>|--all]",
    long_about = "Draw Sessions with their forks and children, their status and age.\n\n\
        One Session is drawn with its ancestors and everything that branched off. With --all, \
        every Session of this Workspace.",
    after_long_help = "Examples:\n  pixir tree --all\n  pixir tree 20260721T101112-abcdef --json"
)]
pub struct TreeArgs {
    /// Session id, or the beginning or end of one; default: the last used Session of this Workspace
    #[arg(value_name = "ID", conflicts_with_all = ["all", "last"])]
    id: Option<String>,
    /// Draw every Session of this Workspace
    #[arg(long, conflicts_with = "last")]
    all: bool,
    /// Draw the last used Session of this Workspace, which is the default
    #[arg(long)]
    last: bool,
}

/// Sessions, and the ids of their children.
struct SessionForest {
    sessions: BTreeMap<SessionId, SessionSummary>,
    children: BTreeMap<SessionId, Vec<SessionId>>,
}

impl SessionForest {
    fn new(found: Vec<SessionSummary>) -> Self {
        let sessions: BTreeMap<SessionId, SessionSummary> =
            found.into_iter().map(|summary| (summary.session_id.clone(), summary)).collect();
        let mut children: BTreeMap<SessionId, Vec<SessionId>> = BTreeMap::new();
        for (id, summary) in &sessions {
            if let Some(parent) = parent_of(summary).filter(|parent| sessions.contains_key(parent))
            {
                children.entry(parent).or_default().push(id.clone());
            }
        }
        Self { sessions, children }
    }

    /// The oldest known ancestor; a cycle ends at its start.
    fn root(&self, id: &SessionId) -> SessionId {
        let mut seen = BTreeSet::new();
        let mut id = id.clone();
        while seen.insert(id.clone()) {
            let parent = self.sessions.get(&id).and_then(parent_of);
            match parent.filter(|parent| self.sessions.contains_key(parent)) {
                Some(parent) => id = parent,
                None => break,
            }
        }
        id
    }

    fn roots(&self) -> Vec<SessionId> {
        let roots: BTreeSet<SessionId> = self.sessions.keys().map(|id| self.root(id)).collect();
        roots.into_iter().collect()
    }

    /// The node of a Session; `None` if it is in `seen`, and so in the tree already.
    fn build_node(
        &self,
        id: &SessionId,
        seen: &mut BTreeSet<SessionId>,
    ) -> Option<SessionNode<'_>> {
        if !seen.insert(id.clone()) {
            return None;
        }
        let summary = self.sessions.get(id)?;
        let branches = self.children.get(id).into_iter().flatten();
        let children = branches.filter_map(|child| self.build_node(child, seen)).collect();
        Some(SessionNode { summary, children })
    }
}

/// A Session with its forks and children.
#[derive(Serialize)]
struct SessionNode<'a> {
    #[serde(flatten)]
    summary: &'a SessionSummary,
    children: Vec<SessionNode<'a>>,
}

impl SessionNode<'_> {
    fn draw(&self, shown: &TreeRowOptions, stem: &str, out: &mut String) {
        out.push_str(&tree_row(self.summary, shown));
        for (place, child) in self.children.iter().enumerate() {
            let is_last = place + 1 == self.children.len();
            out.extend([stem, if is_last { "└─ " } else { "├─ " }]);
            child.draw(shown, &format!("{stem}{}", if is_last { "   " } else { "│  " }), out);
        }
    }
}

/// Options of a row.
struct TreeRowOptions<'a> {
    now: i64,
    marked: Option<&'a SessionId>,
}

fn parent_of(summary: &SessionSummary) -> Option<SessionId> {
    SessionId::parse(&summary.origin.as_ref()?.parent_session_id).ok()
}

pub fn tree(args: &TreeArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, roots) = if args.all {
        (None, context.state_roots(false)?)
    } else {
        let (id, root) = context.find_session_or_last(args.id.as_deref())?;
        (Some(id), vec![root])
    };
    let found = inspect::list_sessions(&roots, usize::MAX);
    // The search for one Session has reported unreadable folders already.
    if args.all {
        context.explain_closed_folders(false, !found.is_empty())?;
    }
    let forest = SessionForest::new(found);
    let roots = match &id {
        Some(id) => vec![forest.root(id)],
        None => forest.roots(),
    };
    let mut seen = BTreeSet::new();
    let trees: Vec<SessionNode> =
        roots.iter().filter_map(|root| forest.build_node(root, &mut seen)).collect();
    let shown = TreeRowOptions { now: jiff::Timestamp::now().as_second(), marked: id.as_ref() };
    let mut out = String::new();
    for tree in &trees {
        tree.draw(&shown, "", &mut out);
    }
    if out.is_empty() && !context.flags.json {
        context.print_notice("there are no Sessions yet");
    }
    context.print_result("tree", &out, trees)
}

fn tree_row(summary: &SessionSummary, shown: &TreeRowOptions) -> String {
    let kind =
        summary.origin.as_ref().map(|origin| format!("{} ", origin.kind)).unwrap_or_default();
    let mark = if shown.marked == Some(&summary.session_id) { " *" } else { "" };
    let age = display_age(shown.now.saturating_sub(summary.updated));
    let title = one_line(&summary.title, 50);
    let (id, turns, status) =
        (&summary.session_id, counted(summary.turns, "Turn"), status_text(&summary.status));
    format!("{kind}{id}{mark}  {age}  {turns}  {status}  {title}\n")
}
