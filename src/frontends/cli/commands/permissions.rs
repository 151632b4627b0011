//! `pixir permissions`: list, grant and revoke permanent permissions.

use std::fmt::Write;

use crate::base::error::{Kind, Report};
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_lookup::{ambiguous, is_part};
use crate::frontends::cli::{CliContext, bad_argument};
use crate::frontends::render::{name_on_one_line, one_line};
use crate::tools::permission::{Approval, ApprovalScope, ApprovalStore, offered_prefix};
use clap::{Args, Subcommand};

/// Show, grant or revoke permanent permissions
#[derive(Debug, Args)]
#[command(
    long_about = "Show, grant or revoke permanent permissions.\n\n\
        When Pixir asks, \"always in this project\" is kept in ~/.pixir/permissions.json: for exactly \
        this call, or for every simple command that begins with the words you saw. What is allowed \
        in a Session (this call, edits of files, a tool of an MCP server) ends with it. Editors \
        offer one of those; `pixir permissions allow` gives more.",
    after_long_help = "Examples:\n  pixir permissions\n  pixir permissions list --all --json\n  \
        pixir permissions allow cargo test\n  \
        pixir permissions forget 3f9c2a71b0d4\n  pixir permissions forget --all"
)]
pub struct PermissionsArgs {
    #[command(subcommand)]
    action: Option<PermissionsAction>,
}

#[derive(Debug, Subcommand)]
enum PermissionsAction {
    /// List what is allowed in this project
    List {
        /// List every project
        #[arg(long)]
        all: bool,
    },
    /// Allow simple commands that begin with these words in this project
    Allow {
        /// The first words, such as `cargo test`
        #[arg(value_name = "WORD", required = true)]
        words: Vec<String>,
        /// Allow them with network access too
        #[arg(long)]
        network: bool,
    },
    /// Revoke permissions
    Forget {
        /// Permission id from the list, or the beginning or end of one
        #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// Revoke everything that is allowed in this project
        #[arg(long)]
        all: bool,
    },
}

pub fn permissions(args: &PermissionsArgs, context: &CliContext) -> Result<Exit, Report> {
    let approvals = ApprovalStore::new(&context.home()?);
    let project = context.current_folder()?;
    match args.action.as_ref().unwrap_or(&PermissionsAction::List { all: false }) {
        PermissionsAction::List { all } => {
            let here = (!all).then_some(project.as_path());
            let found = approvals.list(here)?;
            if found.is_empty() {
                context.print_notice("there are no permanent permissions here");
            }
            context.print_result("permissions", &approvals_text(&found), found)
        }
        PermissionsAction::Allow { words, network } => {
            let words: Vec<String> =
                words.iter().flat_map(|word| word.split_whitespace()).map(str::to_owned).collect();
            let allowed = approvals.allow_prefix(&project, &words, *network)?;
            let allowed = allowed.ok_or_else(|| prefix_error(&words))?;
            let words = format!("allowed\n{}", approvals_text(std::slice::from_ref(&allowed)));
            context.print_result("permissions", &words, [allowed])
        }
        PermissionsAction::Forget { ids, all } => {
            if let Some(bad) = ids.iter().find(|id| id.trim().is_empty()) {
                return Err(bad_argument(format!("{bad:?} is no id")));
            }
            let known = approvals.list(None)?;
            let named = ids.iter().map(|id| find_id(id, &known));
            let named: Vec<String> = named.collect::<Result<_, _>>()?;
            let is_meant = |approval: &Approval| {
                if *all { approval.project == project } else { named.contains(&approval.id) }
            };
            let gone = approvals.remove(is_meant)?;
            let words = format!("{} forgotten\n{}", gone.len(), approvals_text(&gone));
            context.print_result("permissions", &words, gone)
        }
    }
}

/// The whole id that an argument names: its own, or the only one that begins or ends with it.
fn find_id(text: &str, known: &[Approval]) -> Result<String, Report> {
    let mut ids: Vec<&str> = known.iter().map(|approval| approval.id.as_str()).collect();
    ids.dedup();
    if ids.contains(&text) {
        return Ok(text.to_owned());
    }
    ids.retain(|id| is_part(text, id));
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(Report::new(Kind::NotFound, format!("there is no permission {text}"))
            .with_next_actions(vec!["list them with `pixir permissions list --all`".into()])),
        several => Err(ambiguous("permissions", text, several.iter().copied())),
    }
}

/// The error for a prefix that cannot be allowed, with one that can.
fn prefix_error(words: &[String]) -> Report {
    let command = words.join(" ");
    let shown = name_on_one_line(&command, 80);
    let next = match offered_prefix(&command) {
        Some(shorter) => {
            format!("allow `pixir permissions allow {}`, which covers it", shorter.join(" "))
        }
        None => "name a program and what it does, such as `cargo test`; shells, interpreters and \
                 options that write or start programs are asked about each time"
            .to_owned(),
    };
    bad_argument(format!("`{shown}` cannot be allowed permanently")).with_next_actions(vec![next])
}

fn approvals_text(approvals: &[Approval]) -> String {
    let mut text = String::new();
    for approval in approvals {
        let what = match &approval.scope {
            ApprovalScope::Digest(_) => name_on_one_line(&approval.summary, 100),
            ApprovalScope::Prefix(words) => {
                format!("run {} …", name_on_one_line(&words.join(" "), 80))
            }
        };
        let network = if approval.network { ", with network access" } else { "" };
        let sandbox = if approval.is_unheld { ", without the sandbox" } else { "" };
        let project = one_line(&approval.project.to_string_lossy(), 200);
        // Writing to a String cannot fail.
        writeln!(text, "{}  {what}{network}{sandbox}  in {project}", one_line(&approval.id, 20))
            .ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn approval(id: &str) -> Approval {
        let json = json!({"id": id, "project": "/p", "tool": "bash", "summary": "x",
            "digest": "d", "granted_at": "t"});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_unique_beginning_or_end_names_a_permission() {
        let known = ["3f9c2a71b0d4", "3f9c55555555", "00002a71b0d4"].map(approval);
        let found = |text: &str| find_id(text, &known);
        for (text, id) in [
            ("3f9c2a71b0d4", "3f9c2a71b0d4"),
            ("3f9c2", "3f9c2a71b0d4"),
            ("5555", "3f9c55555555"),
            ("0000", "00002a71b0d4"),
        ] {
            assert_eq!(found(text).unwrap(), id);
        }
        for (text, kind, words) in [
            ("3f9c", "invalid_args", "3f9c2a71b0d4, 3f9c55555555"),
            ("2a71b0d4", "invalid_args", "00002a71b0d4, 3f9c2a71b0d4"),
            ("00", "not_found", "there is no permission 00"),
            ("c2a7", "not_found", "there is no permission c2a7"),
        ] {
            let refused = found(text).unwrap_err();
            assert!(refused.message.contains(words), "{refused}");
            assert_eq!(refused.kind, kind, "{text}");
        }
    }
}
