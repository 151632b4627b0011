//! `pixir gc`: show files that Pixir no longer needs, and remove them with `--apply`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::changes::child_workspaces;
use crate::agent::child_workspace::{ChildWorkspaces, CloseOutcome};
use crate::agent::inspect;
use crate::agent::inspect::{GarbageItem, GcOptions, GcPlan, GcResult};
use crate::base::error::{Kind, Report, counted};
use crate::base::paths::as_texts;
use crate::frontends::cli::arguments::whole_number_parser;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::record::state_dir;
use crate::settings::config::parse_duration;

/// Shown items per Workspace.
const SHOWN_ROWS: usize = 30;

/// Remove files that Pixir no longer needs
#[derive(Debug, Args)]
#[command(
    long_about = "Remove files that Pixir no longer needs.\n\n\
        Shows what would be removed and how much space it takes; nothing is removed without --apply. By default that is \
        only what no Log refers to: blobs, Resources, spilled output and kept contents of files, folders of Sessions that were \
        deleted, Workspaces of their children and of those whose changes are all merged, leftovers of processes that were killed, private layers over package caches that no command uses, and Workspaces of your list that are gone. Sessions, and what the first Pixir left \
        of its children, are removed only with --older-than. What a process has open, what a remaining Session refers to, and anything younger than an hour \
        is never touched.",
    after_long_help = "Examples:\n  pixir gc\n  pixir gc --apply\n  pixir gc --older-than 90d --keep 20\n  \
        pixir gc --all --older-than 26w --apply --json"
)]
pub struct GcArgs {
    /// Remove what is listed
    #[arg(long)]
    apply: bool,
    /// Also remove Sessions that were not written to for this long, such as 30d or 12w
    #[arg(long, value_name = "AGE")]
    older_than: Option<String>,
    /// Keep this many of the newest Sessions of each Workspace
    #[arg(long, value_name = "N", default_value_t = 0, requires = "older_than")]
    #[arg(value_parser = whole_number_parser::<usize, usize>(0))]
    keep: usize,
    /// Include every Workspace that you used
    #[arg(long)]
    all: bool,
}

pub fn gc(args: &GcArgs, context: &CliContext) -> Result<Exit, Report> {
    let older_than = args.older_than.as_deref().map(|age| {
        parse_duration(age).ok_or_else(|| {
            bad_argument(format!("--older-than {age}: must be an age such as 90s, 30d or 12w"))
        })
    });
    let options = GcOptions { older_than: older_than.transpose()?, keep: args.keep };
    let home = context.home()?;
    let mut plans: Vec<GcPlan> = Vec::new();
    let mut refused: Vec<(PathBuf, String)> = Vec::new();
    for workspace in context.workspaces(args.all)? {
        let mut own = Vec::new();
        let roots = state_dir::readable_roots(&home, &workspace);
        for root in roots.into_iter().filter(|root| root.problem().is_none()) {
            match inspect::plan_gc(&root, options) {
                Ok(plan) => own.push(plan),
                // A state root that cannot be read does not stop the others.
                Err(error) => refused.push((workspace.clone(), Report::describe(&error).message)),
            }
        }
        let drafts = inspect::abandoned_drafts(&workspace);
        if own.is_empty() {
            own.push(GcPlan { workspace, ..GcPlan::default() });
        }
        if let Some(first) = own.first_mut() {
            first.garbage.extend(drafts);
        }
        plans.extend(own);
    }
    let home_plan = || GcPlan {
        workspace: home.path().to_owned(),
        garbage: inspect::home_garbage(&home),
        ..GcPlan::default()
    };
    let mut at_home = home_plan();
    let child_workspaces = child_workspaces(context, &context.load_user_settings()?);
    let unreferenced = GcPlan {
        workspace: home.child_workspaces(),
        garbage: child_workspaces
            .list_garbage()
            .into_iter()
            .map(|(id, at)| inspect::child_workspace_garbage(id, at))
            .collect(),
        ..GcPlan::default()
    };
    let gone = inspect::gone_workspaces(&home);
    let mut done = GcResult::default();
    if args.apply {
        add_cleared(&mut done, collect_child_workspaces(&child_workspaces, &unreferenced)?);
        for plan in &plans {
            add_cleared(&mut done, inspect::clear_garbage(plan));
        }
        // State may be empty now.
        at_home = home_plan();
        add_cleared(&mut done, inspect::clear_garbage(&at_home));
        if !gone.is_empty()
            && let Err(error) = inspect::forget_gone_workspaces(&home)
        {
            done.failed.push((home.workspaces(), error.to_string()));
        }
    }
    done.failed.extend(refused);
    let all: Vec<&GcPlan> = plans.iter().chain([&at_home, &unreferenced]).collect();
    let envelope = context.success_envelope("gc", gc_json(&all, &gone, args.apply, &done))?;
    let envelope = envelope.with_error(first_failure(&done));
    Ok(context.print_envelope(&envelope, &gc_text(&all, &gone, args.apply, &done)))
}

/// Removes the Workspaces of deleted children, and of children whose changes are all merged; a dirty worktree stays
/// and is listed.
fn collect_child_workspaces(
    child_workspaces: &ChildWorkspaces,
    plan: &GcPlan,
) -> Result<GcResult, Report> {
    let mut cleared = GcResult::default();
    if plan.garbage.is_empty() {
        return Ok(cleared);
    }
    let collected = in_runtime(async { Ok(child_workspaces.remove_merged().await) })?;
    for (child, closed) in collected {
        let garbage =
            plan.garbage.iter().find(|garbage| garbage.session_id.as_ref() == Some(&child));
        match closed {
            Ok(CloseOutcome::Removed { .. }) => {
                cleared.count += 1;
                cleared.bytes += garbage.map_or(0, |garbage| garbage.bytes);
            }
            Ok(CloseOutcome::Kept { .. }) => {
                cleared.spared.extend(garbage.map(|garbage| garbage.path.clone()));
            }
            Err(error) => {
                let path = garbage.map_or_else(PathBuf::new, |garbage| garbage.path.clone());
                cleared.failed.push((path, error.to_string()));
            }
        }
    }
    Ok(cleared)
}

fn add_cleared(sum: &mut GcResult, more: GcResult) {
    sum.count += more.count;
    sum.bytes += more.bytes;
    sum.spared.extend(more.spared);
    sum.failed.extend(more.failed);
}

fn gc_json(plans: &[&GcPlan], gone: &[PathBuf], applied: bool, done: &GcResult) -> Value {
    let failed: Vec<Value> = done
        .failed
        .iter()
        .map(|(path, reason)| json!({ "path": path.to_string_lossy(), "reason": reason }))
        .collect();
    json!({
        "applied": applied,
        "plans": plans,
        "gone_workspaces": as_texts(gone),
        "totals": {
            "count": plans.iter().map(|plan| plan.garbage.len()).sum::<usize>(),
            "bytes": plans.iter().map(|plan| plan.bytes()).sum::<u64>(),
        },
        "removed": { "count": done.count, "bytes": done.bytes },
        "spared": as_texts(&done.spared),
        "failed": failed,
    })
}

fn first_failure(done: &GcResult) -> Option<Report> {
    let (path, reason) = done.failed.first()?;
    let report = Report::new(Kind::WriteFailed, format!("{}: {reason}", path.display()));
    Some(report.with_details(json!({ "path": path.to_string_lossy() })))
}

fn gc_text(plans: &[&GcPlan], gone: &[PathBuf], applied: bool, done: &GcResult) -> String {
    let mut text = String::new();
    for plan in plans.iter().filter(|plan| !plan.garbage.is_empty() || !plan.kept.is_empty()) {
        // Writing to a String cannot fail.
        writeln!(text, "{}", plan.workspace.display()).ok();
        for thing in plan.garbage.iter().take(SHOWN_ROWS) {
            writeln!(
                text,
                "  {:<14} {:>9}  {}",
                thing.kind.name(),
                display_size(thing.bytes),
                short_path(thing, &plan.workspace)
            )
            .ok();
        }
        if plan.garbage.len() > SHOWN_ROWS {
            writeln!(text, "  and {} more", plan.garbage.len() - SHOWN_ROWS).ok();
        }
        for kept in &plan.kept {
            writeln!(text, "  kept: {}, because {}", kept.session_id, kept.reason).ok();
        }
    }
    for path in gone {
        writeln!(text, "  gone: {}", path.display()).ok();
    }
    for (path, reason) in &done.failed {
        writeln!(text, "  FAILED {}: {reason}", path.display()).ok();
    }
    for path in &done.spared {
        writeln!(text, "  changed meanwhile, kept: {}", path.display()).ok();
    }
    let count: usize = plans.iter().map(|plan| plan.garbage.len()).sum::<usize>() + gone.len();
    let bytes: u64 = plans.iter().map(|plan| plan.bytes()).sum();
    let last = match (count, applied) {
        (0, _) => "there is nothing to remove".to_owned(),
        (_, true) => {
            let removed = counted(done.count + gone.len(), "thing");
            format!("removed {removed}, {}", display_size(done.bytes))
        }
        (count, false) => {
            let things = counted(count, "thing");
            format!(
                "{things}, {}, would be removed; nothing was removed (add --apply)",
                display_size(bytes)
            )
        }
    };
    text.push_str(&last);
    text.push('\n');
    text
}

fn short_path(thing: &GarbageItem, workspace: &Path) -> String {
    thing.path.strip_prefix(workspace).unwrap_or(&thing.path).display().to_string()
}

/// Bytes as people read them.
fn display_size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} KB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}
