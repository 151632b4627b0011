//! `pixir diagnose`: what happened in a Session, what is wrong with it, and what to do next.

use std::fmt::Write;

use clap::Args;
use serde_json::json;

use super::doctor::health_word;
use crate::agent::inspect;
use crate::agent::inspect::{
    CheckStatus, DiagnosedTurn, Diagnosis, RequestAnatomy, analyze_request,
};
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_arg::SessionArg;
use crate::frontends::render::one_line;
use crate::model::credential::FieldPolicy;
use crate::model::provider::{ModelRequest, ResponseOptions, http_body};
use crate::record::history::History;
use crate::record::resource::ResourceContents;

/// Shown damaged places and Turns in the text.
const SHOWN_ROWS: usize = 20;

/// Explain a Session: its Turns, its damage, and what to do next
#[derive(Debug, Args)]
#[command(
    long_about = "Explain a Session: its Turns, its damage, and what to do next.\n\n\
        Reads the Log, also one that is damaged or being written, and changes nothing. Checks calls and their \
        results, how every Turn ended, whether the conversation could be sent again, damaged lines with their place, Events \
        that this version does not know, who has it open, what was spent, and where it comes from. A failure that a later \
        answer has superseded is listed and does not count. The exit code is 1 when a check fails.",
    after_long_help = "Examples:\n  pixir diagnose 20260721T101112-abcdef\n  \
        pixir diagnose 20260721T101112-abcdef --since-success --json"
)]
pub struct DiagnoseArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Show only Turns after the last one that was answered
    #[arg(long)]
    since_success: bool,
}

pub fn diagnose(args: &DiagnoseArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    let folder = root.workspace();
    // Unreadable settings are reported by `pixir doctor`; only the prices are needed here.
    let settings = context.load_settings(Some(folder)).map(|loaded| loaded.config);
    let prices = settings.as_ref().map(|config| config.prices.clone()).unwrap_or_default();
    let model = inspect::posture_model(&root, &id).unwrap_or_default();
    let replay = |history: History| replay_anatomy(&id, &model, history);
    let mut found = inspect::diagnose(&root, &id, &prices, replay)?;
    if args.since_success {
        found = found.since_success();
    }
    let envelope =
        context.success_envelope("diagnose", &found)?.with_error(failed_checks_report(&found));
    let envelope = envelope.with_session(&id, context.resume_command_of(&id, &root));
    Ok(context.print_envelope(&envelope, &diagnosis_text(&found, args.since_success)))
}

/// The checks that failed, if any did.
fn failed_checks_report(found: &Diagnosis) -> Option<Report> {
    if found.is_sound() {
        return None;
    }
    let failed = found.checks.iter().filter(|check| check.status == CheckStatus::Failed);
    let failed: Vec<&str> = failed.map(|check| check.id).collect();
    let report = Report::new(Kind::LogDamaged, format!("failed: {}", failed.join(", ")));
    let report = report.with_details(json!({ "checks": failed }));
    Some(report.with_next_actions(found.next_actions.clone()))
}

/// The parts of the next request that the Log alone determines.
fn replay_anatomy(id: &SessionId, model: &str, history: History) -> RequestAnatomy {
    let request = ModelRequest {
        model: model.to_owned(),
        effort: None,
        instructions: "".into(),
        project: None,
        tools: [].into(),
        history,
        contents: ResourceContents::default(),
        cache_key: String::new(),
        session: id.clone(),
        resends: 0,
        response_options: ResponseOptions::default(),
    };
    let body = serde_json::from_slice(&http_body(&request, FieldPolicy::OpenAi));
    analyze_request(&body.unwrap_or_default())
}

fn diagnosis_text(found: &Diagnosis, since_success: bool) -> String {
    let Diagnosis { session_id, events, bytes, .. } = found;
    let turns = counted(found.turns.len(), "Turn");
    let since = if since_success { " since the last success" } else { "" };
    let (events, bytes) = (counted(events.count, "Event"), counted(*bytes, "byte"));
    let mut text = format!("{session_id}: {turns}{since}, {events}, {bytes}\n");
    let hidden = found.turns.len().saturating_sub(SHOWN_ROWS);
    if hidden > 0 {
        writeln!(text, "  … {}, in full with --json", counted(hidden, "earlier Turn")).ok();
    }
    for turn in found.turns.iter().skip(hidden) {
        // Writing to a String cannot fail.
        writeln!(text, "  {}", turn_line(turn)).ok();
    }
    for check in &found.checks {
        let word = health_word(check.status);
        writeln!(text, "{word} {}: {}", check.id, one_line(&check.message, 300)).ok();
    }
    for found in found.damage.breaks.iter().take(SHOWN_ROWS) {
        let words = one_line(&found.message, 160);
        writeln!(text, "  line {}, offset {}: {words} ({})", found.line, found.offset, found.kind)
            .ok();
    }
    if found.damage.breaks.len() > SHOWN_ROWS {
        writeln!(text, "  and {} more", found.damage.breaks.len() - SHOWN_ROWS).ok();
    }
    for action in &found.next_actions {
        writeln!(text, "  try: {action}").ok();
    }
    text
}

fn turn_line(turn: &DiagnosedTurn) -> String {
    let seq = turn.seq.map(|seq| format!(" (Event {seq})")).unwrap_or_default();
    let undone = if turn.is_undone { ", taken back" } else { "" };
    let failed = match turn.tool_failures {
        0 => String::new(),
        count => format!(", {count} failed"),
    };
    let why = turn.error_message.as_deref().map(|why| format!(": {}", one_line(why, 80)));
    format!(
        "Turn {}{seq} {}{undone}, {}{failed}{}  {}",
        turn.number,
        turn.status,
        counted(turn.tool_calls, "tool call"),
        why.unwrap_or_default(),
        one_line(&turn.prompt, 60)
    )
}
