//! Compaction of a Session: planned without a model; a model may write the summary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;

use super::Settings;
use super::budget::{BudgetRefusal, tell_wait};
use super::purse::Reservation;
use crate::base::id::SessionId;
use crate::base::tokens::estimate;
use crate::model::provider::{Completed, Item, ModelEvent, Request, Wishes};
use crate::record::compaction;
use crate::record::compaction::{Notes, Nothing, Plan, Trigger};
use crate::record::event::{Canonical, Event, Extra, ProviderUsage, Tokens, UserMessage};
use crate::record::history::History;
use crate::record::resource::Contents;
use crate::settings::config::AnswerSchema;

/// How much of the window the transcript for the model may take, in percent.
const TRANSCRIPT: u64 = 60;
/// How long the model may take; the Turn waits for it.
const PATIENCE: Duration = Duration::from_mins(2);

/// A compaction and the usage of its model call, to be recorded.
#[derive(Debug)]
pub struct Compacted {
    pub plan: Plan,
    /// Usage of the model call, whether it succeeded or not.
    pub bill: Option<ProviderUsage>,
}

impl Compacted {
    /// The facts, in their order.
    pub fn into_facts(self) -> impl Iterator<Item = Canonical> {
        let bill = self.bill.map(Canonical::from);
        bill.into_iter().chain([self.plan.fact.into()])
    }
}

/// Plans the compaction of a History; records and changes nothing. `tell_waiting` is called with
/// true when the request to the model waits for the budget, and with false when it is sent after
/// that.
pub async fn compact(
    settings: &Settings,
    session: &SessionId,
    history: &History,
    trigger: Trigger,
    asks_model: bool,
    tell_waiting: impl Fn(bool),
) -> Result<Compacted, Nothing> {
    let plan = compaction::plan(history, settings.room(), trigger)?;
    if !asks_model || plan.checkpoint.is_none() {
        return Ok(Compacted { plan, bill: None });
    }
    let most = settings.window.tokens() * TRANSCRIPT / 100;
    let transcript = compaction::transcript(history, plan.fact.to_seq, most);
    let reserving = tell_wait(reserve(settings, &transcript), tell_waiting);
    let reservation = match reserving.await {
        Ok(reservation) => reservation,
        Err(spent) => {
            let plan = plan.without_model(&spent.report.message);
            return Ok(Compacted { plan, bill: None });
        }
    };
    let (said, bill) = ask(settings, session, transcript).await;
    settings.purse.pay(&bill, settings.budget.prices());
    drop(reservation);
    let plan = match said {
        Ok(notes) => match plan.with_notes(notes) {
            Ok(plan) => plan,
            Err(refused) => {
                let (plan, reason) = *refused;
                plan.without_model(reason)
            }
        },
        Err(reason) => plan.without_model(&settings.secrets.clean_echo(&reason)),
    };
    Ok(Compacted { plan, bill: Some(bill) })
}

/// Waits until the budget admits the request.
async fn reserve(
    settings: &Settings,
    transcript: &str,
) -> Result<Option<Reservation>, BudgetRefusal> {
    let Settings { budget, purse, model, .. } = settings;
    let reservation = budget.reserve(model, purse, || estimate(transcript)).await?;
    budget.count(model, purse, &Tokens::default())?;
    Ok(reservation)
}

/// Asks the Session's model once for notes, and checks its answer against the schema.
async fn ask(
    settings: &Settings,
    session: &SessionId,
    transcript: String,
) -> (Result<Notes, String>, ProviderUsage) {
    let started = Instant::now();
    let mut bill = ProviderUsage {
        model: settings.model.clone(),
        extra: Extra::from_iter([("purpose".to_owned(), json!("compaction"))]),
        ..ProviderUsage::default()
    };
    let schema = match AnswerSchema::parse(&compaction::schema().to_string()) {
        Ok(schema) => schema,
        Err(reason) => return (Err(reason), bill),
    };
    let request = Request {
        model: settings.model.clone(),
        effort: settings.effort.clone(),
        instructions: compaction::INSTRUCTIONS.into(),
        project: None,
        tools: Vec::new().into(),
        history: alone(session, transcript),
        contents: Contents::default(),
        cache_key: String::new(),
        wishes: Wishes { web_search: false, answer_schema: Some(schema.clone()) },
        session: session.clone(),
        resends: 1,
    };
    let listening = listen(settings, request, &mut bill);
    let patience = PATIENCE.min(settings.total);
    let patience = settings.budget.left().map_or(patience, |left| patience.min(left));
    let heard = tokio::time::timeout(patience, listening).await;
    let heard = heard.unwrap_or_else(|_| Err("it took too long".to_owned()));
    let said = heard.and_then(|text| {
        let text = settings.secrets.clean(&text).into_owned();
        schema.check(&text).map_err(|misses| {
            let told: Vec<String> = misses.iter().map(ToString::to_string).collect();
            format!("its answer does not fit: {}", told.join("; "))
        })?;
        let mut value = serde_json::Deserializer::from_str(&text);
        Notes::deserialize(&mut value).map_err(|error| error.to_string())
    });
    bill.duration_ms = u64::try_from(started.elapsed().as_millis()).ok();
    bill.status = Some(if bill.usage.is_some() { "completed" } else { "failed" }.to_owned());
    bill.estimated_cost_usd =
        bill.billed().and_then(|tokens| settings.budget.prices().cost(&bill.model, &tokens));
    (said, bill)
}

async fn listen(
    settings: &Settings,
    request: Request,
    bill: &mut ProviderUsage,
) -> Result<String, String> {
    let mut stream = settings.provider.stream(request);
    let mut answer = String::new();
    while let Some(heard) = stream.next().await {
        match heard {
            Ok(ModelEvent::Sent(sent)) => {
                bill.transport = Some(sent.transport.to_owned()).filter(|name| !name.is_empty());
            }
            Ok(ModelEvent::Item(Item::Message { text, is_refusal: false, .. })) => answer = text,
            Ok(ModelEvent::Billed(tokens)) => bill.failed_usage = Some(Box::new(tokens)),
            Ok(ModelEvent::Completed(Completed { usage, incomplete, response_id, .. })) => {
                bill.usage = usage;
                bill.response_id = response_id;
                return match incomplete {
                    Some(reason) => Err(format!("its answer was cut: {reason}")),
                    None => Ok(answer),
                };
            }
            Ok(_) => {}
            Err(error) => {
                bill.error_kind = Some(error.kind.name().to_owned());
                return Err(error.message);
            }
        }
    }
    Err("the stream ended before the response was complete".to_owned())
}

/// An in-memory History of one message.
fn alone(session: &SessionId, text: String) -> History {
    let message = UserMessage { text, ..UserMessage::default() };
    History::from_events(vec![Arc::new(Event::supposed(session.clone(), message.into()))])
}
