//! `pixir compact`: replace older Turns in the model's window by a summary, with a preview.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::undo::session_options;
use crate::agent::harness::{Harness, SessionTarget, StartOptions};
use crate::agent::inspect;
use crate::agent::session::Session;
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::CliContext;
use crate::frontends::cli::arguments::whole_number_parser;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::session_arg::SessionArg;
use crate::record::compaction;
use crate::record::compaction::{CompactionSkipped, CompactionTrigger, KEPT_TURNS, WindowBudget};
use crate::record::event::{Canonical, HistoryCompaction, Seq};
use crate::record::history::History;
use crate::record::log::Log;
use crate::record::state_dir::StateRoot;
use crate::settings::config::{Config, ContextWindowSize, DEFAULT_MODEL};

/// Shown lines of the checkpoint.
const SHOWN_LINES: usize = 60;
/// Shown characters of a line of the checkpoint.
const SHOWN_WIDTH: usize = 160;

/// Summarize older Turns to make room in the model's window
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir compact [OPTIONS] [ID] [--keep-turns N] [--model-assisted]",
    long_about = "Summarize older Turns of a Session to make room in the model's window.\n\n\
        The last Turns stay word for word; the others become a checkpoint: what you said, what came of it, the files \
        touched, open tasks, the plan, active Skills. Old tool outputs are left out. The Log keeps everything, and \
        `pixir undo` past that point brings it back. No model is needed; with --model-assisted the Session's own model \
        summarizes the older Turns; if that fails, compaction works without it. Compaction also runs \
        automatically when the window is 90 % full.",
    after_long_help = "Examples:\n  pixir compact --last --dry-run\n  \
        pixir compact 20260721T101112-abcdef --keep-turns 4\n  pixir compact --last --model-assisted"
)]
pub struct CompactArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Keep this many Turns word for word
    #[arg(long, value_name = "N", value_parser = whole_number_parser::<i64, u32>(1))]
    keep_turns: Option<u32>,
    /// Let the Session's own model summarize the older Turns
    #[arg(long)]
    model_assisted: bool,
}

impl CompactArgs {
    fn kept_turns(&self) -> usize {
        self.keep_turns.map_or(KEPT_TURNS, |count| count as usize)
    }
}

pub fn compact(args: &CompactArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    if context.flags.dry_run {
        let reading = Log::read(&root, &id)?;
        let history = History::from_events(reading.events);
        let config = context.load_settings(Some(root.workspace()))?.config;
        let made = plan_compaction(&history, args, &config, &root, &id, context);
        return print_compaction(made.as_ref().ok(), None, &id, context);
    }
    let recorded = if args.model_assisted {
        compact_with_model(args, &root, &id, context)?
    } else {
        compact_without_model(args, None, &root, &id, context)?
    };
    let (fact, seq) = recorded.unzip();
    print_compaction(fact.as_ref(), seq, &id, context)
}

type RecordedCompaction = Option<(HistoryCompaction, Seq)>;

/// Plans the compaction without a model.
fn plan_compaction(
    history: &History,
    args: &CompactArgs,
    config: &Config,
    root: &StateRoot,
    id: &SessionId,
    context: &CliContext,
) -> Result<HistoryCompaction, CompactionSkipped> {
    let model = inspect::posture_model(root, id);
    let model = model.unwrap_or_else(|| DEFAULT_MODEL.to_owned());
    let endpoint = context.choose_credential(config).ok();
    let endpoint = endpoint.as_ref().map_or("", |chosen| chosen.credential.base_url());
    let window =
        ContextWindowSize::new(config.context_window, (config.home.clone(), endpoint), &model);
    // Instructions and tools are unknown outside a Turn, so only the conversation is counted.
    let space = WindowBudget { window: window.tokens(), fixed: 0 };
    let trigger = CompactionTrigger::Manual { keep: args.kept_turns() };
    compaction::plan_compaction(history, space, trigger).map(|plan| plan.fact)
}

/// Compacts without a model; `reason` says why a requested model was not used.
fn compact_without_model(
    args: &CompactArgs,
    reason: Option<String>,
    root: &StateRoot,
    id: &SessionId,
    context: &CliContext,
) -> Result<RecordedCompaction, Report> {
    let config = context.load_settings(Some(root.workspace()))?.config;
    in_runtime(async {
        let (session, _) = Session::open(root, id, session_options(&config))?;
        let history = session.history().await?;
        let Ok(mut fact) = plan_compaction(&history, args, &config, root, id, context) else {
            return Ok(None);
        };
        fact.fallback_reason = reason;
        let recorded = session.record(fact.clone().into()).await?;
        Ok(Some((fact, recorded.seq().unwrap_or_default())))
    })
}

/// Compacts with the Session's own model, or without one when there is no credential.
fn compact_with_model(
    args: &CompactArgs,
    root: &StateRoot,
    id: &SessionId,
    context: &CliContext,
) -> Result<RecordedCompaction, Report> {
    let model = inspect::posture_model(root, id);
    let opened = match context.prepare_turn(root.workspace(), model.as_deref()) {
        Ok(opened) => opened,
        Err(report) if is_not_authenticated(&report) => {
            return compact_without_model(args, Some(report.message), root, id, context);
        }
        Err(report) => return Err(report),
    };
    in_runtime(async {
        // Keeps the server of the embedded model running.
        let (credential, _demo) = opened.access.connect().await?;
        let harness = Harness::open(context.harness_options(opened.loaded.config, credential)?);
        let start = StartOptions {
            workspace: root.workspace().to_owned(),
            session: SessionTarget::Resume(id.clone()),
            can_ask: false,
            mcp_servers: Vec::new(),
        };
        let conversation = harness.start(start).await?;
        let made = conversation.compact(Some(args.kept_turns()), true).await;
        conversation.close().await;
        harness.shut_down().await;
        let event = made?;
        Ok(event.and_then(|event| match event.fact() {
            Some(Canonical::HistoryCompaction(fact)) => Some((fact.clone(), event.seq()?)),
            _ => None,
        }))
    })
}

fn is_not_authenticated(report: &Report) -> bool {
    [Kind::NotAuthenticated, Kind::AuthRefused].iter().any(|kind| report.kind == kind.name())
}

/// The compaction as text for a person.
fn preview_text(fact: &HistoryCompaction, id: &SessionId) -> String {
    let count = |number: Option<u64>| number.unwrap_or_default();
    let mut text = format!(
        "the conversation of {id} becomes about {} tokens instead of {}",
        count(fact.tokens_after),
        count(fact.tokens_before)
    );
    if let Some(window) = fact.window_tokens {
        write!(text, " (the model's window has {window})").ok();
    }
    text.push('\n');
    if count(fact.turns_compacted) > 0 {
        let turns = counted(count(fact.turns_compacted), "Turn");
        let are = if fact.turns_compacted == Some(1) { "is" } else { "are" };
        let (from, to) = (fact.from_seq, fact.to_seq);
        writeln!(text, "  {turns} {are} summarized (Events {from} to {to})").ok();
    }
    writeln!(text, "  {} as before", counted(count(fact.turns_kept), "Turn")).ok();
    if count(fact.outputs_pruned) > 0 {
        let pruned = counted(count(fact.outputs_pruned), "old output or argument");
        writeln!(text, "  left out of them: {pruned}").ok();
    }
    if let Some(reason) = &fact.fallback_reason {
        writeln!(text, "  the model did not help: {reason}").ok();
    }
    if let Value::String(summary) = &fact.summary {
        text.push_str("  the model reads in their place:\n\n");
        let lines: Vec<&str> = summary.lines().filter(|line| is_outline(line)).collect();
        for line in lines.iter().take(SHOWN_LINES) {
            writeln!(text, "  | {}", shorten_line(line)).ok();
        }
        if lines.len() > SHOWN_LINES {
            let more = counted(lines.len() - SHOWN_LINES, "more line");
            writeln!(text, "  | … {more}; --json shows all").ok();
        }
        text.push('\n');
    }
    text
}

/// Whether a line is a heading, a list item or the end of a sentence; other lines are left out of the preview.
fn is_outline(line: &str) -> bool {
    line.is_empty() || line.starts_with("- ") || line.ends_with([':', '.'])
}

/// Cuts a line of the preview; `--json` has all of it.
fn shorten_line(line: &str) -> String {
    match line.char_indices().nth(SHOWN_WIDTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn print_compaction(
    fact: Option<&HistoryCompaction>,
    seq: Option<Seq>,
    id: &SessionId,
    context: &CliContext,
) -> Result<Exit, Report> {
    let is_dry_run = context.flags.dry_run;
    let output = json!({
        "compacted": fact.is_some() && !is_dry_run,
        "dry_run": is_dry_run,
        "seq": seq,
        "compaction": fact,
        "reason": fact.is_none().then(|| CompactionSkipped::Small.to_string()),
    });
    let Some(fact) = fact else {
        let words = "there is nothing to compact: it would not become smaller\n";
        return context.print_result("compact", words, output);
    };
    let mut text = preview_text(fact, id);
    match seq {
        Some(seq) => writeln!(text, "recorded as Event {seq}; the Log keeps everything").ok(),
        None => writeln!(text, "nothing was changed (dry run)").ok(),
    };
    context.print_result("compact", &text, output)
}
