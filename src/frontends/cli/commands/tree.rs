//! `pixir tree`: Sessions and what branched off from them.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde::Serialize;

use super::sessions::{age, status};
use crate::agent::inspect;
use crate::agent::inspect::Summary;
use crate::base::error::{Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::Context;
use crate::frontends::cli::exit::Exit;
use crate::frontends::render::one_line;

/// Draw Sessions as a tree of forks and children
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir tree [FLAGS] [<ID>|--all]",
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
struct Forest {
    sessions: BTreeMap<SessionId, Summary>,
    children: BTreeMap<SessionId, Vec<SessionId>>,
}

impl Forest {
    fn of(found: Vec<Summary>) -> Self {
        let sessions: BTreeMap<SessionId, Summary> =
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

    /// A Session with what branched off; `None` if it was `seen`, and so is in the tree already.
    fn node(&self, id: &SessionId, seen: &mut BTreeSet<SessionId>) -> Option<Node<'_>> {
        if !seen.insert(id.clone()) {
            return None;
        }
        let summary = self.sessions.get(id)?;
        let branches = self.children.get(id).into_iter().flatten();
        let children = branches.filter_map(|child| self.node(child, seen)).collect();
        Some(Node { summary, children })
    }
}

/// A Session with what branched off from it.
#[derive(Serialize)]
struct Node<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    children: Vec<Node<'a>>,
}

impl Node<'_> {
    fn draw(&self, shown: &Shown, stem: &str, out: &mut String) {
        out.push_str(&row(self.summary, shown));
        for (place, child) in self.children.iter().enumerate() {
            let is_last = place + 1 == self.children.len();
            out.extend([stem, if is_last { "└─ " } else { "├─ " }]);
            child.draw(shown, &format!("{stem}{}", if is_last { "   " } else { "│  " }), out);
        }
    }
}

/// Options of a row.
struct Shown<'a> {
    now: i64,
    marked: Option<&'a SessionId>,
}

fn parent_of(summary: &Summary) -> Option<SessionId> {
    SessionId::parse(&summary.origin.as_ref()?.parent_session_id).ok()
}

pub fn tree(args: &TreeArgs, context: &Context) -> Result<Exit, Report> {
    let (id, roots) = if args.all {
        (None, context.state_roots(false)?)
    } else {
        let (id, root) = context.session_or_last(args.id.as_deref())?;
        (Some(id), vec![root])
    };
    let found = inspect::list(&roots, usize::MAX);
    // The search for one Session has reported unreadable folders already.
    if args.all {
        context.explain_closed_folders(false, !found.is_empty())?;
    }
    let forest = Forest::of(found);
    let roots = match &id {
        Some(id) => vec![forest.root(id)],
        None => forest.roots(),
    };
    let mut seen = BTreeSet::new();
    let trees: Vec<Node> = roots.iter().filter_map(|root| forest.node(root, &mut seen)).collect();
    let shown = Shown { now: jiff::Timestamp::now().as_second(), marked: id.as_ref() };
    let mut out = String::new();
    for tree in &trees {
        tree.draw(&shown, "", &mut out);
    }
    if out.is_empty() && !context.flags.json {
        context.notice("there are no Sessions yet");
    }
    context.told("tree", &out, trees)
}

fn row(summary: &Summary, shown: &Shown) -> String {
    let kind =
        summary.origin.as_ref().map(|origin| format!("{} ", origin.kind)).unwrap_or_default();
    let mark = if shown.marked == Some(&summary.session_id) { " *" } else { "" };
    let age = age(shown.now.saturating_sub(summary.updated));
    let title = one_line(&summary.title, 50);
    let (id, turns, status) =
        (&summary.session_id, counted(summary.turns, "Turn"), status(&summary.standing));
    format!("{kind}{id}{mark}  {age}  {turns}  {status}  {title}\n")
}
