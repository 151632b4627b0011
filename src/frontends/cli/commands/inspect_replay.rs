//! `pixir inspect-replay`: the next request to the model, and how much of the window it takes.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use super::resume::refuse_gone;
use crate::agent::harness::{Harness, Preview, Supposed};
use crate::agent::inspect;
use crate::agent::inspect::{Anatomy, METHOD, anatomy};
use crate::base::error::{Kind, Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::arguments::whole;
use crate::frontends::cli::chosen::Chosen;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{Context, say};
use crate::frontends::render::{clean, one_line};
use crate::host::workspace::Workspace;
use crate::model::credential::Credential;
use crate::record::event::Seq;
use crate::record::history::History;
use crate::record::log::{Log, Reading};
use crate::record::state_dir::StateRoot;
use crate::settings::config::Config;
use crate::settings::config::models::Model;
use crate::testing::scripted::DEMO_MODEL;

/// Placeholder for an endpoint; nothing is sent.
const NOWHERE: &str = "http://127.0.0.1:9/v1";

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
    session: Chosen,
    /// Assume that the Log ends with this seq
    #[arg(long, value_name = "N", value_parser = whole::<u64, Seq>(0))]
    after_seq: Option<Seq>,
    /// Show every item
    #[arg(long)]
    items: bool,
    /// Assume this text as the next prompt
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
}

pub fn inspect_replay(args: &InspectReplayArgs, context: &Context) -> Result<Exit, Report> {
    let (id, root) = args.session.find(context)?;
    refuse_gone(&id, &root)?;
    let folder = root.workspace();
    let reading = Log::read(&root, &id)?;
    let holder = inspect::holder_of(&root, &id);
    let mut events = reading.events.clone();
    if let Some(last) = args.after_seq {
        events.retain(|event| event.seq().is_none_or(|seq| seq <= last));
    }
    let (events_in_all, events_looked_at) = (reading.events.len(), events.len());
    let history = History::from_events(events);
    let supposed = Supposed {
        prompt: args.prompt.as_deref(),
        is_running: holder.is_some() && args.after_seq.is_none(),
    };
    let (preview, mut notes) = preview(&root, &id, history, supposed, context)?;
    let body: Value = preview
        .body
        .as_deref()
        .and_then(|body| serde_json::from_slice(body).ok())
        .ok_or_else(|| Report::new(Kind::Internal, "the request has no JSON form"))?;
    let anatomy = anatomy(&body);
    notes.extend(notes_of(&preview, &reading, holder));
    let window = Model::named(&preview.model).window();
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
            "activates": preview.activates,
            "orphan_calls": preview.orphans,
            "estimate": {
                "tokens": anatomy.estimated_tokens,
                "window": window,
                "method": METHOD,
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
        let envelope = context.envelope("inspect-replay", output)?;
        let envelope = envelope.of_session(&id, context.resume_command_of(&id, &root));
        context.answer(&envelope, "");
    } else {
        say(&clean(&told(&id, &preview, &anatomy, window, args.items)));
        for note in notes {
            context.notice(&format!("note: {note}"));
        }
    }
    Ok(if anatomy.is_valid { Exit::Answered } else { Exit::Error })
}

/// Builds the request with the settings that a resume would have.
fn preview(
    root: &StateRoot,
    id: &SessionId,
    history: History,
    supposed: Supposed<'_>,
    context: &Context,
) -> Result<(Preview, Vec<String>), Report> {
    let mut notes = Vec::new();
    let stored_model = inspect::posture_model(root, id);
    let folder = root.workspace();
    let loaded = context.settings(Some(folder))?;
    let mut config = loaded.config;
    notes.extend(loaded.notices);
    if let Some(model) =
        crate::frontends::cli::named_server::fitting_model(&config, stored_model.as_deref())
    {
        config.model = model;
        config.model_named = true;
    }
    let credential = access(&config, stored_model.as_deref(), context, &mut notes)?;
    let workspace = Workspace::open(folder)?;
    let harness = Harness::open(context.door(config, credential)?);
    let preview = harness.preview(&workspace, id, history, supposed)?;
    notes.extend(preview.notices.iter().cloned());
    Ok((preview, notes))
}

/// The credential decides which fields are sent; without one, the request is shown as with an API key.
fn access(
    config: &Config,
    stored_model: Option<&str>,
    context: &Context,
    notes: &mut Vec<String>,
) -> Result<Credential, Report> {
    let model = stored_model.filter(|_| !config.model_named).unwrap_or(&config.model);
    let nowhere = || Credential::new(None, NOWHERE).map_err(Report::from);
    if model == DEMO_MODEL {
        return nowhere();
    }
    match context.chosen(config) {
        Ok(chosen) => Ok(chosen.credential),
        Err(report) => {
            notes.push(format!("{}; shown as with an API key", report.message));
            nowhere()
        }
    }
}

fn notes_of(preview: &Preview, reading: &Reading, holder: Option<u32>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(pid) = holder {
        notes.push(format!("process {pid} has the Session open: it may be past this already"));
    }
    if !reading.damage.is_empty() {
        let places = counted(reading.damage.len(), "damaged place");
        notes.push(format!("{places} in the Log; see `pixir diagnose`"));
    }
    if !preview.activates.is_empty() {
        let names = preview.activates.join(", ");
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

fn told(id: &SessionId, preview: &Preview, anatomy: &Anatomy, window: u64, items: bool) -> String {
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
