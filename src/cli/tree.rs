//! `pixir tree`: Sessions and what branched off from them.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde_json::{Value, json};

use super::exit::Exit;
use super::sessions::{age, status};
use super::{Context, say};
use crate::error::{Report, counted};
use crate::id::SessionId;
use crate::projection::{self, Summary};
use crate::render::{Envelope, clean, one_line};

/// Draw Sessions with what branched off from them
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir tree [FLAGS] [<ID>|--all]",
    long_about = "Draw Sessions with their forks and children, their status and age.\n\n\
        The family of one Session: where it comes from, and everything that branched off. With --all, \
        every Session of this Workspace.",
    after_long_help = "Examples:\n  pixir tree --all\n  pixir tree 20260721T101112-abcdef --json"
)]
pub struct TreeArgs {
    /// The Session whose family is drawn, by its id or the beginning or end of it; without it, the one used last
    #[arg(value_name = "ID", conflicts_with_all = ["all", "last"])]
    id: Option<String>,
    /// Every Session of this Workspace
    #[arg(long, conflicts_with = "last")]
    all: bool,
    /// The family of the Session of this Workspace that was used last, as without an id
    #[arg(long)]
    last: bool,
}

/// Sessions by their parents.
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

    /// The oldest ancestor that is here; a ring ends where it began.
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

    fn node(&self, id: &SessionId, seen: &mut BTreeSet<SessionId>) -> Value {
        let mut node = self.sessions.get(id).map_or(Value::Null, |summary| json!(summary));
        seen.insert(id.clone());
        let mut children = Vec::new();
        for child in self.children_of(id) {
            if !seen.contains(child) {
                children.push(self.node(child, seen));
            }
        }
        node["children"] = json!(children);
        node
    }

    fn children_of(&self, id: &SessionId) -> impl Iterator<Item = &SessionId> {
        self.children.get(id).into_iter().flatten()
    }

    fn draw(
        &self,
        id: &SessionId,
        shown: &Shown,
        stem: &str,
        out: &mut String,
        seen: &mut BTreeSet<SessionId>,
    ) {
        if !seen.insert(id.clone()) {
            return;
        }
        if let Some(summary) = self.sessions.get(id) {
            out.push_str(&row(summary, shown));
        }
        let children: Vec<&SessionId> =
            self.children_of(id).filter(|child| !seen.contains(*child)).collect();
        for (place, child) in children.iter().enumerate() {
            let is_last = place + 1 == children.len();
            out.extend([stem, if is_last { "└─ " } else { "├─ " }]);
            let below = format!("{stem}{}", if is_last { "   " } else { "│  " });
            self.draw(child, shown, &below, out, seen);
        }
    }
}

/// How rows are written.
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
    let found = projection::list(&roots, usize::MAX);
    // One Session was looked for in its own Workspace, and the search has said what it could not read.
    if args.all {
        context.explain_closed_folders(false, !found.is_empty())?;
    }
    let forest = Forest::of(found);
    let roots = match &id {
        Some(id) => vec![forest.root(id)],
        None => forest.roots(),
    };
    let mut seen = BTreeSet::new();
    if context.flags.json {
        let trees: Vec<Value> = roots.iter().map(|root| forest.node(root, &mut seen)).collect();
        say(&Envelope::success("tree", json!(trees), context.started.elapsed()).line());
        return Ok(Exit::Answered);
    }
    let shown = Shown { now: jiff::Timestamp::now().as_second(), marked: id.as_ref() };
    let mut out = String::new();
    for root in roots {
        forest.draw(&root, &shown, "", &mut out, &mut seen);
    }
    if out.is_empty() {
        context.notice("there are no Sessions yet");
    }
    say(&clean(&out));
    Ok(Exit::Answered)
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
