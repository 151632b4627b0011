//! Compaction of a Session: planned without a model; a model may write the summary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;

use super::TurnSettings;
use super::budget::{BudgetRefusal, notify_wait};
use super::usage_total::Reservation;
use crate::base::id::SessionId;
use crate::base::tokens::estimate_tokens;
use crate::model::provider::{
    CompletedResponse, ModelEvent, ModelRequest, OutputItem, ResponseOptions,
};
use crate::record::compaction;
use crate::record::compaction::{CompactionPlan, CompactionSkipped, CompactionTrigger, ModelNotes};
use crate::record::event::{Canonical, Event, Extra, ProviderUsage, TokenUsage, UserMessage};
use crate::record::history::History;
use crate::record::resource::ResourceContents;
use crate::settings::config::AnswerSchema;

/// How much of the window the transcript for the model may take, in percent.
const TRANSCRIPT_PERCENT: u64 = 60;
/// How long the model may take; the Turn waits for it.
const MODEL_TIMEOUT: Duration = Duration::from_mins(2);

/// A compaction and the usage of its model call, to be recorded.
#[derive(Debug)]
pub struct CompactionResult {
    pub plan: CompactionPlan,
    /// Usage of the model call, whether it succeeded or not.
    pub usage_record: Option<ProviderUsage>,
}

impl CompactionResult {
    /// The facts to record, in order.
    pub fn into_facts(self) -> impl Iterator<Item = Canonical> {
        let record = self.usage_record.map(Canonical::from);
        record.into_iter().chain([self.plan.fact.into()])
    }
}

/// Plans the compaction of a History; records and changes nothing. `tell_waiting` is called with
/// true when the request to the model waits for the budget, and with false when it is sent after
/// that.
pub async fn compact(
    settings: &TurnSettings,
    session: &SessionId,
    history: &History,
    trigger: CompactionTrigger,
    asks_model: bool,
    tell_waiting: impl Fn(bool),
) -> Result<CompactionResult, CompactionSkipped> {
    let plan = compaction::plan_compaction(history, settings.compaction_room(), trigger)?;
    if !asks_model || plan.checkpoint.is_none() {
        return Ok(CompactionResult { plan, usage_record: None });
    }
    let most = settings.window.tokens() * TRANSCRIPT_PERCENT / 100;
    let transcript = compaction::transcript_for_model(history, plan.fact.to_seq, most);
    let reserving = notify_wait(reserve(settings, &transcript), tell_waiting);
    let reservation = match reserving.await {
        Ok(reservation) => reservation,
        Err(spent) => {
            let plan = plan.without_model(&spent.report.message);
            return Ok(CompactionResult { plan, usage_record: None });
        }
    };
    let (notes, record) = ask_model(settings, session, transcript).await;
    settings.usage_total.add_call(&record, settings.budget.prices());
    drop(reservation);
    let plan = match notes {
        Ok(notes) => match plan.with_notes(notes) {
            Ok(plan) => plan,
            Err(refused) => {
                let (plan, reason) = *refused;
                plan.without_model(reason)
            }
        },
        Err(reason) => plan.without_model(&settings.secrets.redact_server_error(&reason)),
    };
    Ok(CompactionResult { plan, usage_record: Some(record) })
}

/// Waits until the budget admits the request.
async fn reserve(
    settings: &TurnSettings,
    transcript: &str,
) -> Result<Option<Reservation>, BudgetRefusal> {
    let TurnSettings { budget, usage_total, model, .. } = settings;
    let reservation = budget.reserve(model, usage_total, || estimate_tokens(transcript)).await?;
    budget.check_and_count(model, usage_total, &TokenUsage::default())?;
    Ok(reservation)
}

/// Asks the Session's model once for notes, and checks its answer against the schema.
async fn ask_model(
    settings: &TurnSettings,
    session: &SessionId,
    transcript: String,
) -> (Result<ModelNotes, String>, ProviderUsage) {
    let started = Instant::now();
    let mut record = ProviderUsage {
        model: settings.model.clone(),
        extra: Extra::from_iter([("purpose".to_owned(), json!("compaction"))]),
        ..ProviderUsage::default()
    };
    let schema = match AnswerSchema::parse(&compaction::notes_schema().to_string()) {
        Ok(schema) => schema,
        Err(reason) => return (Err(reason), record),
    };
    let request = ModelRequest {
        model: settings.model.clone(),
        effort: settings.effort.clone(),
        instructions: compaction::NOTES_INSTRUCTIONS.into(),
        project: None,
        tools: Vec::new().into(),
        history: single_message_history(session, transcript),
        contents: ResourceContents::default(),
        cache_key: String::new(),
        response_options: ResponseOptions {
            web_search: false,
            answer_schema: Some(schema.clone()),
        },
        session: session.clone(),
        resends: 1,
    };
    let listening = read_answer(settings, request, &mut record);
    let patience = MODEL_TIMEOUT.min(settings.iteration_timeout);
    let patience = settings.budget.time_left().map_or(patience, |left| patience.min(left));
    let answer = tokio::time::timeout(patience, listening).await;
    let answer = answer.unwrap_or_else(|_| Err("it took too long".to_owned()));
    let notes = answer.and_then(|text| {
        let text = settings.secrets.redact(&text).into_owned();
        schema.check(&text).map_err(|misses| {
            let reasons: Vec<String> = misses.iter().map(ToString::to_string).collect();
            format!("its answer does not fit: {}", reasons.join("; "))
        })?;
        let mut value = serde_json::Deserializer::from_str(&text);
        ModelNotes::deserialize(&mut value).map_err(|error| error.to_string())
    });
    record.duration_ms = u64::try_from(started.elapsed().as_millis()).ok();
    record.status = Some(if record.usage.is_some() { "completed" } else { "failed" }.to_owned());
    record.estimated_cost_usd =
        record.billed().and_then(|tokens| settings.budget.prices().cost(&record.model, &tokens));
    (notes, record)
}

async fn read_answer(
    settings: &TurnSettings,
    request: ModelRequest,
    record: &mut ProviderUsage,
) -> Result<String, String> {
    let mut stream = settings.provider.stream(request);
    let mut answer = String::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(ModelEvent::Sent(sent)) => {
                record.transport = Some(sent.transport.to_owned()).filter(|name| !name.is_empty());
            }
            Ok(ModelEvent::Item(OutputItem::Message { text, is_refusal: false, .. })) => {
                answer = text;
            }
            Ok(ModelEvent::FailedUsage(tokens)) => record.failed_usage = Some(Box::new(tokens)),
            Ok(ModelEvent::Completed(CompletedResponse {
                usage, incomplete, response_id, ..
            })) => {
                record.usage = usage;
                record.response_id = response_id;
                return match incomplete {
                    Some(reason) => Err(format!("its answer was cut: {reason}")),
                    None => Ok(answer),
                };
            }
            Ok(_) => {}
            Err(error) => {
                record.error_kind = Some(error.kind.name().to_owned());
                return Err(error.message);
            }
        }
    }
    Err("the stream ended before the response was complete".to_owned())
}

/// An in-memory History of one message.
fn single_message_history(session: &SessionId, text: String) -> History {
    let message = UserMessage { text, ..UserMessage::default() };
    History::from_events(vec![Arc::new(Event::new_hypothetical(session.clone(), message.into()))])
}
