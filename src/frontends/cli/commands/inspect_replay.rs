//! `pixir inspect-replay`: the next request to the model, and how much of the window it takes.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::resume::refuse_missing_workspace;
use crate::agent::harness::{Harness, PreviewAssumptions, RequestPreview};
use crate::agent::inspect;
use crate::agent::inspect::{RequestAnatomy, TOKEN_METHOD, analyze_request};
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::arguments::whole_number_parser;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::session_arg::SessionArg;
use crate::frontends::cli::{CliContext, print_stdout};
use crate::frontends::render::{clean, one_line};
use crate::host::workspace::Workspace;
use crate::model::credential::Credential;
use crate::record::event::Seq;
use crate::record::history::History;
use crate::record::log::{Log, LogContents};
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;
use crate::settings::config::models::Model;
use crate::testing::scripted::DEMO_MODEL;

/// Placeholder for an endpoint; nothing is sent.
const UNUSED_ENDPOINT: &str = "http://127.0.0.1:9/v1";

/// Show the next request to the model, without sending it
#[derive(Debug, Args)]
#[command(
    long_about = "Show the next request to the model, without sending it.\n\n\
        It is built by the code that a Turn uses, from the Log as it is: instructions, tools, and what of the \
        conversation is replayed, each with an estimate of its tokens. Nothing is sent, started, locked or changed, and a \
        damaged Log is read as far as it can be. With --json --items the whole request is in the envelope.",
    after_long_help = "Examples:\n  pixir inspect-replay 20260721T101112-abcdef\n  \
        pixir inspect-replay 20260721T101112-abcdef --items --after-seq 40\n  \
        pixir inspect-replay 20260721T101112-abcdef --prompt \"go on\" --items --json"
)]
pub struct InspectReplayArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Assume that the Log ends with this seq
    #[arg(long, value_name = "N", value_parser = whole_number_parser::<u64, Seq>(0))]
    after_seq: Option<Seq>,
    /// Show every item
    #[arg(long)]
    items: bool,
    /// Assume this text as the next prompt
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
}

pub fn inspect_replay(args: &InspectReplayArgs, context: &CliContext) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    refuse_missing_workspace(&id, &root)?;
    let folder = root.workspace();
    let reading = Log::read(&root, &id)?;
    let holder = inspect::session_holder(&root, &id);
    let mut events = reading.events.clone();
    if let Some(last) = args.after_seq {
        events.retain(|event| event.seq().is_none_or(|seq| seq <= last));
    }
    let (events_in_all, events_looked_at) = (reading.events.len(), events.len());
    let history = History::from_events(events);
    let assumptions = PreviewAssumptions {
        prompt: args.prompt.as_deref(),
        is_running: holder.is_some() && args.after_seq.is_none(),
    };
    let (preview, mut notes) = build_preview(&root, &id, history, assumptions, context)?;
    let body: Value = preview
        .body
        .as_deref()
        .and_then(|body| serde_json::from_slice(body).ok())
        .ok_or_else(|| Report::new(Kind::Internal, "the request has no JSON form"))?;
    let anatomy = analyze_request(&body);
    notes.extend(preview_notes(&preview, &reading, holder));
    let window = Model::from_name(&preview.model).window();
    if context.flags.json {
        let mut output = json!({
            "workspace": folder.to_string_lossy(),
            "after_seq": args.after_seq,
            "events": { "in_all": events_in_all, "looked_at": events_looked_at },
            "model": preview.model,
            "effort": preview.effort,
            "permission_mode": preview.mode,
            "role": preview.role,
            "prompt_contract": preview.contract,
            "prompt_cache_key": preview.cache_key,
            "late_context": preview.late_context,
            "activates": preview.activated_skills,
            "orphan_calls": preview.orphans,
            "estimate": {
                "tokens": anatomy.estimated_tokens,
                "window": window,
                "method": TOKEN_METHOD,
            },
            "damaged_lines": reading.damage.len(),
            "notes": notes,
        });
        let mut taken_apart = json!(anatomy);
        if args.items {
            taken_apart["request"] = body;
        } else if let Some(fields) = taken_apart.as_object_mut() {
            fields.shift_remove("items");
        }
        output["replay"] = taken_apart;
        let envelope = context.success_envelope("inspect-replay", output)?;
        let envelope = envelope.with_session(&id, context.resume_command_of(&id, &root));
        context.print_envelope(&envelope, "");
    } else {
        print_stdout(&clean(&preview_text(&id, &preview, &anatomy, window, args.items)));
        for note in notes {
            context.print_notice(&format!("note: {note}"));
        }
    }
    Ok(if anatomy.is_valid { Exit::Answered } else { Exit::Error })
}

/// Builds the request with the settings that a resume would have.
fn build_preview(
    root: &StateRoot,
    id: &SessionId,
    history: History,
    assumptions: PreviewAssumptions<'_>,
    context: &CliContext,
) -> Result<(RequestPreview, Vec<String>), Report> {
    let mut notes = Vec::new();
    let stored_model = inspect::posture_model(root, id);
    let folder = root.workspace();
    let loaded = context.load_settings(Some(folder))?;
    let mut config = loaded.config;
    notes.extend(loaded.notices);
    if let Some(model) =
        crate::frontends::cli::named_server::fitting_model(&config, stored_model.as_deref())
    {
        config.model = model;
        config.model_named = true;
    }
    let credential = preview_credential(&config, stored_model.as_deref(), context, &mut notes)?;
    let workspace = Workspace::open(folder)?;
    let harness = Harness::open(context.harness_options(config, credential)?);
    let preview = harness.preview(&workspace, id, history, assumptions)?;
    notes.extend(preview.notices.iter().cloned());
    Ok((preview, notes))
}

/// The credential decides which fields are sent; without one, the request is shown as with an API key.
fn preview_credential(
    config: &Config,
    stored_model: Option<&str>,
    context: &CliContext,
    notes: &mut Vec<String>,
) -> Result<Credential, Report> {
    let model = stored_model.filter(|_| !config.model_named).unwrap_or(&config.model);
    let nowhere = || Credential::new(None, UNUSED_ENDPOINT).map_err(Report::from);
    if model == DEMO_MODEL {
        return nowhere();
    }
    match context.choose_credential(config) {
        Ok(chosen) => Ok(chosen.credential),
        Err(report) => {
            notes.push(format!("{}; shown as with an API key", report.message));
            nowhere()
        }
    }
}

fn preview_notes(
    preview: &RequestPreview,
    reading: &LogContents,
    holder: Option<u32>,
) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(pid) = holder {
        notes.push(format!("process {pid} has the Session open: it may be past this already"));
    }
    if !reading.damage.is_empty() {
        let places = counted(reading.damage.len(), "damaged place");
        notes.push(format!("{places} in the Log; see `pixir diagnose`"));
    }
    if !preview.activated_skills.is_empty() {
        let names = preview.activated_skills.join(", ");
        notes.push(format!(
            "the prompt would activate: {names}; the dynamic context of these skills is not run here"
        ));
    }
    if preview.orphans > 0 {
        let calls = counted(preview.orphans, "call");
        notes.push(format!("{calls} without a result: each is sent with one that says so"));
    }
    if !preview.servers.is_empty() {
        let names = preview.servers.join(", ");
        notes.push(format!("tools of MCP servers are not in it, because none is started: {names}"));
    }
    notes
}

fn preview_text(
    id: &SessionId,
    preview: &RequestPreview,
    anatomy: &RequestAnatomy,
    window: u64,
    items: bool,
) -> String {
    let effort = preview.effort.as_deref().map(|effort| format!(", effort {effort}"));
    let mut text = format!(
        "{id}: the next request to {}{} ({}, {} mode)\n",
        preview.model,
        effort.unwrap_or_default(),
        preview.contract,
        preview.mode,
    );
    for part in &anatomy.parts {
        // Writing to a String cannot fail.
        writeln!(
            text,
            "  {:<13} {:>5}  {:>9} bytes  about {:>7} tokens",
            part.name, part.count, part.bytes, part.estimated_tokens
        )
        .ok();
    }
    let share = anatomy.estimated_tokens.saturating_mul(100) / window.max(1);
    writeln!(text, "  in all about {} of {window} tokens, {share} %", anatomy.estimated_tokens)
        .ok();
    if items {
        for item in &anatomy.items {
            let what = [item.role.as_deref(), item.name.as_deref()];
            let what = what.into_iter().flatten().collect::<Vec<_>>().join(" ");
            writeln!(
                text,
                "  {:>4}  {:<21} {:<12} {:>7} tokens  {}",
                item.index,
                one_line(&item.kind, 21),
                one_line(&what, 30),
                item.estimated_tokens,
                one_line(&item.excerpt, 70)
            )
            .ok();
        }
    } else {
        let counts: Vec<String> =
            anatomy.counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(text, "  items: {}", counts.join(", ")).ok();
    }
    for problem in &anatomy.problems {
        writeln!(text, "  INVALID {problem}").ok();
    }
    if anatomy.is_valid {
        text.push_str("  valid: every call has its output\n");
    }
    text
}
