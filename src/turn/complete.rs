//! One model call: ask, listen, try again where that helps, and record the bill.

use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::budget::tell_wait;
use super::purse::{Hold, Reservation};
use super::{End, Settings, Turn, evidence};
use crate::disk;
use crate::error::{Kind, Report};
use crate::event::{
    Ephemeral, Extra, ProviderRetry, ProviderUsage, RateLimits, Status, TerminalStatus, Tokens,
};
use crate::history::History;
use crate::provider::{Completed, Item, ModelEvent, ProviderError, Sent, next_delay};
use crate::resource::{self, Contents};
use crate::secret::{Cleaner, Secrets};

/// What a call brought.
pub(super) struct Completion {
    pub items: Vec<Item>,
    pub end: Completed,
}

/// How far the attempts of one call have come.
struct Progress<'a> {
    started: Instant,
    first_byte: Option<Duration>,
    attempts: u32,
    shown: Shown,
    /// What failed attempts were billed for.
    spent: Option<Tokens>,
    /// What the call is expected to use up; held until its bill is paid.
    reservation: Option<Reservation>,
    /// What failed attempts were billed for; kept from others until the bill is paid.
    held: Option<Hold>,
    screen: Screen<'a>,
    /// How the last request travelled.
    sent: Sent,
    /// What the server said was left, the last time it did.
    limits: Option<Box<RateLimits>>,
    /// The conversation was too long, and was made shorter; that helps once or not at all.
    is_shortened: bool,
}

/// Takes Secrets out of what is shown live, so that it is what will be recorded.
struct Screen<'a> {
    text: Cleaner<'a>,
    reasoning: Cleaner<'a>,
}

impl<'a> Screen<'a> {
    fn new(secrets: &'a Secrets) -> Self {
        Self { text: Cleaner::new(secrets), reasoning: Cleaner::new(secrets) }
    }
}

impl Turn {
    pub(super) async fn complete(&self, iteration: u32) -> Result<Completion, End> {
        let mut progress = Progress {
            started: Instant::now(),
            reservation: None,
            held: None,
            first_byte: None,
            attempts: 0,
            shown: Shown::default(),
            sent: Sent::default(),
            limits: None,
            spent: None,
            is_shortened: false,
            screen: Screen::new(&self.settings.secrets),
        };
        loop {
            if let Err(end) = self.admit_request(iteration, &mut progress).await {
                let error = match &end {
                    End::Failed { error, .. } => Some((**error).clone()),
                    End::Interrupted => Some(self.stopped()),
                    End::Session(_) => None,
                };
                if let Some(error) = error.filter(|_| progress.attempts > 0) {
                    self.record_failure(iteration, &mut progress, &error).await?;
                }
                return Err(end);
            }
            progress.attempts += 1;
            let left = self.settings.total.saturating_sub(progress.started.elapsed());
            let attempt = tokio::time::timeout(left, self.attempt(&mut progress)).await;
            let attempt = attempt.unwrap_or_else(|_| {
                let message =
                    format!("the model took longer than {:?} in all", self.settings.total);
                Err(Stop::Failed(ProviderError::terminal(Kind::Timeout, message)))
            });
            let error = match attempt {
                Ok(completion) => {
                    let usage = self.bill(iteration, &progress);
                    self.record_success(usage, &completion).await?;
                    return Ok(completion);
                }
                Err(Stop::Failed(error)) => error,
                Err(Stop::Interrupted) => {
                    let error = self.stopped();
                    self.record_failure(iteration, &mut progress, &error).await?;
                    return Err(End::Interrupted);
                }
                Err(Stop::Spent(end)) => {
                    if let End::Failed { error, .. } = &end {
                        self.record_failure(iteration, &mut progress, error).await?;
                    }
                    return Err(end);
                }
                Err(Stop::End(end)) => return Err(end),
            };
            progress.limits = error.facts.rate_limits.clone().map(Box::new).or(progress.limits);
            if error.kind == Kind::ContextOverflow
                && !std::mem::replace(&mut progress.is_shortened, true)
            {
                // A model that helps with it reserves for itself.
                self.release(&mut progress);
                if self.recover(iteration).await? {
                    progress.shown.start_over();
                    continue;
                }
            }
            let delay =
                next_delay(&error, progress.attempts, &self.settings.retry, fastrand::f64())
                    .filter(|delay| progress.started.elapsed() + *delay < self.settings.total);
            let report = self.clean_echo(Report::describe(&error));
            let Some(delay) = delay else {
                self.record_failure(iteration, &mut progress, &report).await?;
                let status = terminal_status(&error);
                return Err(End::Failed { status, error: Box::new(report) });
            };
            self.context.emit(Ephemeral::ProviderRetry(ProviderRetry {
                attempt: progress.attempts + 1,
                max_attempts: self.settings.retry.max_attempts,
                delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                error: report,
            }));
            progress.shown.start_over();
            // Others may send while this one waits.
            self.release(&mut progress);
            let slept = self.context.cancel().run_until_cancelled(tokio::time::sleep(delay)).await;
            if slept.is_none() {
                let error = self.stopped();
                self.record_failure(iteration, &mut progress, &error).await?;
                return Err(End::Interrupted);
            }
        }
    }

    /// Waits until the budget lets another request leave, and reserves what it may use up.
    async fn admit_request(&self, iteration: u32, progress: &mut Progress<'_>) -> Result<(), End> {
        if progress.reservation.is_none() {
            let Settings { budget, purse, model, .. } = &*self.settings;
            let history = self.context.recent().await?;
            let asked = Instant::now();
            let reserving = budget.reserve(model, purse, || self.reading(&history).tokens);
            let reserving = self.context.cancel().run_until_cancelled(reserving);
            let reserved = self.say_if_it_waits(iteration, reserving).await;
            // To wait for the budget is no time of the model.
            progress.started += asked.elapsed();
            progress.reservation = reserved.ok_or(End::Interrupted)??;
        }
        self.check_budget(progress)
    }

    /// Gives a reservation back between two attempts, except what the failed ones were billed for.
    fn release(&self, progress: &mut Progress<'_>) {
        let Settings { budget, purse, model, .. } = &*self.settings;
        if progress.reservation.is_some()
            && let Some(spent) = &progress.spent
        {
            progress.held = Some(purse.hold(budget.amount(model, spent)));
        }
        progress.reservation = None;
    }

    /// A request that is not let go at once says so, and once more when it leaves.
    async fn say_if_it_waits<T>(&self, iteration: u32, reserving: impl Future<Output = T>) -> T {
        let tell = |waits| {
            let status = if waits {
                Status::WaitingForBudget { iteration }
            } else {
                Status::Thinking { iteration }
            };
            self.context.emit(Ephemeral::Status(status));
        };
        tell_wait(reserving, tell).await
    }

    /// Asks the budget whether the request may be sent, and counts it.
    fn check_budget(&self, progress: &Progress<'_>) -> Result<(), End> {
        let Settings { budget, purse, model, .. } = &*self.settings;
        Ok(budget.count(model, purse, &progress.spent.clone().unwrap_or_default())?)
    }

    /// What the request shows of the Turn's Resources; most Turns have none.
    async fn contents(&self, history: &History) -> Contents {
        let wanted = resource::wanted(history);
        if wanted.is_empty() {
            return Contents::default();
        }
        let (resources, sight) = (self.settings.shelf.clone(), self.settings.sight.clone());
        let loading = move || resources.contents(&wanted, sight.sees());
        // A Turn without them goes on: the model is told that they are not at hand.
        disk::work(loading).await.unwrap_or_default()
    }

    async fn attempt(&self, progress: &mut Progress<'_>) -> Result<Completion, Stop> {
        let history = self.context.recent().await.map_err(|error| Stop::End(error.into()))?;
        let contents = self.contents(&history).await;
        let (tools, resends) = (self.toolbox().specs(), self.resends(progress.attempts));
        let session = self.context.session_id();
        let request = self.settings.request(session, history, contents, tools, resends);
        let mut stream = self.settings.provider.stream(request);
        let mut items = Vec::new();
        let mut is_parted = false;
        loop {
            let heard = self.context.cancel().run_until_cancelled(stream.next()).await;
            let Some(heard) = heard else { return Err(Stop::Interrupted) };
            match heard {
                Some(Ok(ModelEvent::Sent(sent))) => self.note_sent(sent, progress)?,
                Some(Ok(ModelEvent::Alive)) => {
                    progress.first_byte.get_or_insert_with(|| progress.started.elapsed());
                }
                Some(Ok(ModelEvent::TextDelta(delta))) => {
                    if let Some(news) = progress.shown.text(delta) {
                        if std::mem::take(&mut is_parted) {
                            // An empty piece parts two messages of one response.
                            self.context.emit(Ephemeral::TextDelta(String::new()));
                        }
                        self.show(news, &mut progress.screen.text, Ephemeral::TextDelta);
                    }
                }
                Some(Ok(ModelEvent::ReasoningDelta(delta))) => {
                    if progress.shown.may_show_reasoning() {
                        let cleaner = &mut progress.screen.reasoning;
                        self.show(delta, cleaner, Ephemeral::ReasoningDelta);
                    }
                }
                Some(Ok(ModelEvent::Limits(limits))) => progress.limits = Some(limits),
                Some(Ok(ModelEvent::Billed(tokens))) => {
                    progress.spent.get_or_insert_default().add(&tokens);
                }
                Some(Ok(ModelEvent::Item(item))) => {
                    self.show_held(&mut progress.screen);
                    is_parted |= matches!(item, Item::Message { .. });
                    items.push(item);
                }
                Some(Ok(ModelEvent::Completed(end))) => {
                    self.show_held(&mut progress.screen);
                    return Ok(Completion { items, end });
                }
                Some(Err(error)) => return Err(Stop::Failed(error)),
                None => {
                    let message = "the stream ended without its last word";
                    return Err(Stop::Failed(ProviderError::passing(
                        Kind::InvalidResponse,
                        message,
                    )));
                }
            }
        }
    }

    /// How often a request may be sent anew below us; a first one always once.
    fn resends(&self, attempts: u32) -> u32 {
        let left = self.settings.retry.max_attempts.saturating_sub(attempts);
        if attempts == 1 { left.max(1) } else { left }
    }

    /// A request that is sent anew is an attempt like any other: it is shown like one, and the
    /// budget is asked before it leaves.
    fn note_sent(&self, mut sent: Sent, progress: &mut Progress<'_>) -> Result<(), Stop> {
        if let Some(error) = sent.after.take() {
            self.check_budget(progress).map_err(Stop::Spent)?;
            progress.attempts += 1;
            self.context.emit(Ephemeral::ProviderRetry(ProviderRetry {
                attempt: progress.attempts,
                max_attempts: self.settings.retry.max_attempts,
                delay_ms: 0,
                error: self.clean_echo(Report::describe(&*error)),
            }));
            progress.shown.start_over();
        }
        progress.sent = sent;
        Ok(())
    }

    /// Shows what is certain by now.
    fn show(&self, news: String, cleaner: &mut Cleaner<'_>, event: fn(String) -> Ephemeral) {
        if self.settings.secrets.is_empty() {
            self.context.emit(event(news));
            return;
        }
        self.show_bytes(cleaner.push(news.as_bytes()).into_owned(), event);
    }

    /// Around Secrets, text is cut between whole characters.
    fn show_bytes(&self, bytes: Vec<u8>, event: fn(String) -> Ephemeral) {
        let text = String::from_utf8(bytes);
        let text = text.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        if !text.is_empty() {
            self.context.emit(event(text));
        }
    }

    /// Shows what waited for its next letter, when none will come.
    fn show_held(&self, screen: &mut Screen<'_>) {
        self.show_bytes(screen.reasoning.finish(), Ephemeral::ReasoningDelta);
        self.show_bytes(screen.text.finish(), Ephemeral::TextDelta);
    }

    fn bill(&self, iteration: u32, progress: &Progress<'_>) -> ProviderUsage {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ProviderUsage {
            model: self.settings.model.clone(),
            iteration,
            transport: Some(progress.sent.transport.to_owned()).filter(|name| !name.is_empty()),
            fallback_reason: progress.sent.fallback_reason.clone().map(|text| self.cleaned(text)),
            continuation: progress.sent.continuation.clone(),
            reasoning_dropped: progress.sent.is_without_reasoning,
            retries: progress.attempts.saturating_sub(1),
            first_byte_ms: progress.first_byte.map(millis),
            duration_ms: Some(millis(progress.started.elapsed())),
            prompt_contract: Some(self.settings.prompt.contract.to_owned()),
            prompt_cache_key: Some(self.settings.prompt.cache_key.clone()),
            failed_usage: progress.spent.clone().map(Box::new),
            rate_limits: progress.limits.clone(),
            extra: Extra::new(),
            ..ProviderUsage::default()
        }
    }

    async fn record_success(
        &self,
        bill: ProviderUsage,
        completion: &Completion,
    ) -> Result<(), End> {
        let end = &completion.end;
        let status = if end.incomplete.is_some() { "incomplete" } else { "completed" };
        let mut bill = ProviderUsage {
            status: Some(status.to_owned()),
            usage: end.usage.clone(),
            response_id: end.response_id.clone(),
            ..bill
        };
        if let Some(mut searched) = evidence::web_search(&completion.items) {
            self.settings.secrets.clean_value(&mut searched);
            bill.extra.insert("web_search".to_owned(), searched);
        }
        self.pay(bill).await
    }

    /// Records a bill, and takes it from the Purse.
    async fn pay(&self, bill: ProviderUsage) -> Result<(), End> {
        let bill = self.priced(bill);
        self.context.record(bill.clone()).await?;
        self.settings.purse.pay(&bill, self.settings.budget.prices());
        Ok(())
    }

    /// Adds what it cost, where that is known.
    fn priced(&self, mut bill: ProviderUsage) -> ProviderUsage {
        let prices = self.settings.budget.prices();
        bill.estimated_cost_usd =
            bill.billed().and_then(|tokens| prices.cost(&bill.model, &tokens));
        bill
    }

    async fn record_failure(
        &self,
        iteration: u32,
        progress: &mut Progress<'_>,
        error: &Report,
    ) -> Result<(), End> {
        let bill = ProviderUsage {
            status: Some("failed".to_owned()),
            error_kind: Some(error.kind.clone()),
            ..self.bill(iteration, progress)
        };
        self.show_held(&mut progress.screen);
        self.pay(bill).await?;
        self.keep_partial(progress.shown.kept().to_owned(), error).await
    }
}

/// Why an attempt brought nothing.
enum Stop {
    Failed(ProviderError),
    Interrupted,
    /// The budget forbids another request.
    Spent(End),
    End(End),
}

fn terminal_status(error: &ProviderError) -> TerminalStatus {
    match error.kind {
        Kind::NotAuthenticated
        | Kind::AuthRefused
        | Kind::InsecureTransport
        | Kind::ModelNotSupported
        | Kind::InvalidConfig => TerminalStatus::ConfigurationError,
        _ => TerminalStatus::ProviderError,
    }
}

/// What the user has already seen of this call, over all attempts: nothing is shown twice.
#[derive(Default)]
pub(super) struct Shown {
    /// Text of earlier attempts that is on the screen.
    before: String,
    /// Text of this attempt.
    now: String,
    /// This attempt says something else: it is not streamed, and comes whole at its end.
    diverged: bool,
    /// The attempt whose reasoning is on the screen.
    reasoning: Option<u32>,
    attempts: u32,
}

impl Shown {
    /// Takes a delta and gives what of it is news.
    pub(super) fn text(&mut self, delta: String) -> Option<String> {
        let known = self.before.as_bytes().get(self.now.len()..).unwrap_or_default();
        let shared = known.len().min(delta.len());
        let repeats = known[..shared] == delta.as_bytes()[..shared];
        self.now.push_str(&delta);
        if self.diverged {
            return None;
        }
        if self.before.is_empty() {
            return Some(delta);
        }
        if !repeats {
            self.diverged = true;
            return None;
        }
        if self.now.len() <= self.before.len() {
            return None;
        }
        // It has overtaken what is on the screen: from here on everything is news.
        let news = self.now.get(self.before.len()..).unwrap_or_default().to_owned();
        self.before.clear();
        Some(news)
    }

    fn may_show_reasoning(&mut self) -> bool {
        *self.reasoning.get_or_insert(self.attempts) == self.attempts
    }

    /// A new attempt begins.
    pub(super) fn start_over(&mut self) {
        let now = std::mem::take(&mut self.now);
        if !self.diverged && now.len() > self.before.len() {
            self.before = now;
        }
        self.diverged = false;
        self.attempts += 1;
    }

    /// The longest text that arrived, for the record.
    fn kept(&self) -> &str {
        if self.now.len() >= self.before.len() { &self.now } else { &self.before }
    }
}
