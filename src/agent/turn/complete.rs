//! One model call: send the request, read the stream, retry transient failures, and record the
//! usage.

use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::budget::notify_wait;
use super::usage_total::{Reservation, SpendHold};
use super::{Turn, TurnEnd, TurnSettings, search_evidence};
use crate::base::blocking;
use crate::base::error::{Kind, Report};
use crate::base::secret::{Secrets, StreamRedactor};
use crate::model::provider::{
    CompletedResponse, ModelEvent, OutputItem, ProviderError, SentRequest, next_retry_delay,
};
use crate::record::event::{
    Ephemeral, Extra, ProviderRetry, ProviderUsage, RateLimits, SessionStatus, TerminalStatus,
    TokenUsage,
};
use crate::record::history::History;
use crate::record::resource;
use crate::record::resource::ResourceContents;

/// The response of a call: its items and how it ended.
pub(super) struct Completion {
    pub items: Vec<OutputItem>,
    pub end: CompletedResponse,
}

/// State shared by the attempts of one call.
struct CallProgress<'a> {
    started: Instant,
    first_byte: Option<Duration>,
    attempts: u32,
    shown: ShownText,
    /// Tokens billed for failed attempts.
    spent: Option<TokenUsage>,
    /// Expected usage of the call; held until its actual usage is recorded.
    reservation: Option<Reservation>,
    /// Holds the cost of failed attempts until the usage of the call is recorded.
    spend_hold: Option<SpendHold>,
    delta_redactors: DeltaRedactors<'a>,
    /// Transport details of the last request.
    sent: SentRequest,
    /// Rate limits that the server reported last.
    limits: Option<Box<RateLimits>>,
    /// Whether compaction after a context overflow was tried; it is tried once.
    is_shortened: bool,
}

/// Redacts secrets in streamed deltas, so that they match what will be recorded.
struct DeltaRedactors<'a> {
    text: StreamRedactor<'a>,
    reasoning: StreamRedactor<'a>,
}

impl<'a> DeltaRedactors<'a> {
    fn new(secrets: &'a Secrets) -> Self {
        Self { text: StreamRedactor::new(secrets), reasoning: StreamRedactor::new(secrets) }
    }
}

impl Turn {
    pub(super) async fn complete(&self, iteration: u32) -> Result<Completion, TurnEnd> {
        let mut progress = CallProgress {
            started: Instant::now(),
            reservation: None,
            spend_hold: None,
            first_byte: None,
            attempts: 0,
            shown: ShownText::default(),
            sent: SentRequest::default(),
            limits: None,
            spent: None,
            is_shortened: false,
            delta_redactors: DeltaRedactors::new(&self.settings.secrets),
        };
        loop {
            if let Err(end) = self.admit_request(iteration, &mut progress).await {
                let error = match &end {
                    TurnEnd::Failed { error, .. } => Some((**error).clone()),
                    TurnEnd::Interrupted => Some(self.cancellation_report()),
                    TurnEnd::Session(_) => None,
                };
                if let Some(error) = error.filter(|_| progress.attempts > 0) {
                    self.record_failure(iteration, &mut progress, &error).await?;
                }
                return Err(end);
            }
            progress.attempts += 1;
            let left = self.settings.iteration_timeout.saturating_sub(progress.started.elapsed());
            let attempt = tokio::time::timeout(left, self.attempt(&mut progress)).await;
            let attempt = attempt.unwrap_or_else(|_| {
                let message = format!(
                    "the model took longer than {:?} in all",
                    self.settings.iteration_timeout
                );
                Err(AttemptError::Failed(ProviderError::terminal(Kind::Timeout, message)))
            });
            let error = match attempt {
                Ok(completion) => {
                    let usage = self.usage_event(iteration, &progress);
                    self.record_success(usage, &completion).await?;
                    return Ok(completion);
                }
                Err(AttemptError::Failed(error)) => error,
                Err(AttemptError::Interrupted) => {
                    let error = self.cancellation_report();
                    self.record_failure(iteration, &mut progress, &error).await?;
                    return Err(TurnEnd::Interrupted);
                }
                Err(AttemptError::OverBudget(end)) => {
                    if let TurnEnd::Failed { error, .. } = &end {
                        self.record_failure(iteration, &mut progress, error).await?;
                    }
                    return Err(end);
                }
                Err(AttemptError::TurnEnded(end)) => return Err(end),
            };
            progress.limits = error.facts.rate_limits.clone().map(Box::new).or(progress.limits);
            if error.kind == Kind::ContextOverflow
                && !std::mem::replace(&mut progress.is_shortened, true)
            {
                // Model-assisted compaction makes its own reservation.
                self.release_reservation(&mut progress);
                if self.compact_after_overflow(iteration).await? {
                    progress.shown.start_over();
                    continue;
                }
            }
            let delay =
                next_retry_delay(&error, progress.attempts, &self.settings.retry, fastrand::f64())
                    .filter(|delay| {
                        progress.started.elapsed() + *delay < self.settings.iteration_timeout
                    });
            let report = self.redact_echo(Report::describe(&error));
            let Some(delay) = delay else {
                self.record_failure(iteration, &mut progress, &report).await?;
                let status = terminal_status(&error);
                return Err(TurnEnd::Failed { status, error: Box::new(report) });
            };
            self.context.emit(Ephemeral::ProviderRetry(ProviderRetry {
                attempt: progress.attempts + 1,
                max_attempts: self.settings.retry.max_attempts,
                delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                error: report,
            }));
            progress.shown.start_over();
            // Other requests may be sent while this one waits.
            self.release_reservation(&mut progress);
            let slept = self.context.cancel().run_until_cancelled(tokio::time::sleep(delay)).await;
            if slept.is_none() {
                let error = self.cancellation_report();
                self.record_failure(iteration, &mut progress, &error).await?;
                return Err(TurnEnd::Interrupted);
            }
        }
    }

    /// Waits until the budget admits another request, and reserves its expected usage.
    async fn admit_request(
        &self,
        iteration: u32,
        progress: &mut CallProgress<'_>,
    ) -> Result<(), TurnEnd> {
        if progress.reservation.is_none() {
            let TurnSettings { budget, usage_total, model, .. } = &*self.settings;
            let history = self.context.recent_history().await?;
            let asked = Instant::now();
            let reserving =
                budget.reserve(model, usage_total, || self.measure_pressure(&history).tokens);
            let reserving = self.context.cancel().run_until_cancelled(reserving);
            let reserved = self.report_budget_wait(iteration, reserving).await;
            // Time spent waiting for the budget does not count against the model's time limit.
            progress.started += asked.elapsed();
            progress.reservation = reserved.ok_or(TurnEnd::Interrupted)??;
        }
        self.check_budget(progress)
    }

    /// Releases the reservation between two attempts, and holds what failed attempts were billed
    /// for.
    fn release_reservation(&self, progress: &mut CallProgress<'_>) {
        let TurnSettings { budget, usage_total, model, .. } = &*self.settings;
        if progress.reservation.is_some()
            && let Some(spent) = &progress.spent
        {
            progress.spend_hold = Some(usage_total.hold(budget.amount(model, spent)));
        }
        progress.reservation = None;
    }

    /// Emits a status when a request has to wait for the budget, and another when it is sent.
    async fn report_budget_wait<T>(&self, iteration: u32, reserving: impl Future<Output = T>) -> T {
        let after = SessionStatus::Thinking { iteration };
        notify_wait(reserving, |waits| self.emit_budget_wait(waits, iteration, &after)).await
    }

    /// Emits that a request waits for the budget, or the status after the wait.
    pub(super) fn emit_budget_wait(&self, waits: bool, iteration: u32, after: &SessionStatus) {
        let waiting = SessionStatus::WaitingForBudget { iteration };
        self.context.emit(Ephemeral::Status(if waits { waiting } else { after.clone() }));
    }

    /// Asks the budget whether the request may be sent, and counts it.
    fn check_budget(&self, progress: &CallProgress<'_>) -> Result<(), TurnEnd> {
        let TurnSettings { budget, usage_total, model, .. } = &*self.settings;
        Ok(budget.check_and_count(
            model,
            usage_total,
            &progress.spent.clone().unwrap_or_default(),
        )?)
    }

    /// Contents of Resources that the request shows; most Turns have none.
    async fn load_contents(&self, history: &History) -> ResourceContents {
        let wanted = resource::shown_resources(history);
        if wanted.is_empty() {
            return ResourceContents::default();
        }
        let (resources, image_support) =
            (self.settings.resources.clone(), self.settings.image_support.clone());
        let loading = move || resources.load_contents(&wanted, image_support.is_supported());
        // On failure the Turn continues: the request says that the contents are not available.
        blocking::run_blocking(loading).await.unwrap_or_default()
    }

    async fn attempt(&self, progress: &mut CallProgress<'_>) -> Result<Completion, AttemptError> {
        let history = self
            .context
            .recent_history()
            .await
            .map_err(|error| AttemptError::TurnEnded(error.into()))?;
        let contents = self.load_contents(&history).await;
        let (tools, resends) = (self.toolbox().specs(), self.resend_limit(progress.attempts));
        let session = self.context.session_id();
        let request = self.settings.request(session, history, contents, tools, resends);
        let mut stream = self.settings.provider.stream(request);
        let mut items = Vec::new();
        let mut is_parted = false;
        loop {
            let item = self.context.cancel().run_until_cancelled(stream.next()).await;
            let Some(item) = item else { return Err(AttemptError::Interrupted) };
            match item {
                Some(Ok(ModelEvent::Sent(sent))) => self.count_resend(sent, progress)?,
                Some(Ok(ModelEvent::FirstByte)) => {
                    progress.first_byte.get_or_insert_with(|| progress.started.elapsed());
                }
                Some(Ok(ModelEvent::TextDelta(delta))) => {
                    if let Some(news) = progress.shown.add_delta(delta) {
                        if std::mem::take(&mut is_parted) {
                            // An empty delta separates two messages of one response.
                            self.context.emit(Ephemeral::TextDelta(String::new()));
                        }
                        self.emit_delta(
                            news,
                            &mut progress.delta_redactors.text,
                            Ephemeral::TextDelta,
                        );
                    }
                }
                Some(Ok(ModelEvent::ReasoningDelta(delta))) => {
                    if progress.shown.may_show_reasoning() {
                        let cleaner = &mut progress.delta_redactors.reasoning;
                        self.emit_delta(delta, cleaner, Ephemeral::ReasoningDelta);
                    }
                }
                Some(Ok(ModelEvent::Limits(limits))) => progress.limits = Some(limits),
                Some(Ok(ModelEvent::FailedUsage(tokens))) => {
                    progress.spent.get_or_insert_default().add(&tokens);
                }
                Some(Ok(ModelEvent::Item(item))) => {
                    self.flush_deltas(&mut progress.delta_redactors);
                    is_parted |= matches!(item, OutputItem::Message { .. });
                    items.push(item);
                }
                Some(Ok(ModelEvent::Completed(end))) => {
                    self.flush_deltas(&mut progress.delta_redactors);
                    return Ok(Completion { items, end });
                }
                Some(Err(error)) => return Err(AttemptError::Failed(error)),
                None => {
                    let message = "the stream ended before the response was complete";
                    return Err(AttemptError::Failed(ProviderError::transient(
                        Kind::InvalidResponse,
                        message,
                    )));
                }
            }
        }
    }

    /// How often the Provider may resend the request by itself; at least once on the first attempt.
    fn resend_limit(&self, attempts: u32) -> u32 {
        let left = self.settings.retry.max_attempts.saturating_sub(attempts);
        if attempts == 1 { left.max(1) } else { left }
    }

    /// Counts a request that the Provider resent as another attempt: checks the budget and shows it
    /// as a retry.
    fn count_resend(
        &self,
        mut sent: SentRequest,
        progress: &mut CallProgress<'_>,
    ) -> Result<(), AttemptError> {
        if let Some(error) = sent.previous_error.take() {
            self.check_budget(progress).map_err(AttemptError::OverBudget)?;
            progress.attempts += 1;
            self.context.emit(Ephemeral::ProviderRetry(ProviderRetry {
                attempt: progress.attempts,
                max_attempts: self.settings.retry.max_attempts,
                delay_ms: 0,
                error: self.redact_echo(Report::describe(&*error)),
            }));
            progress.shown.start_over();
        }
        progress.sent = sent;
        Ok(())
    }

    /// Emits the part of a delta that cannot be the beginning of a secret.
    fn emit_delta(
        &self,
        news: String,
        cleaner: &mut StreamRedactor<'_>,
        event: fn(String) -> Ephemeral,
    ) {
        if self.settings.secrets.is_empty() {
            self.context.emit(event(news));
            return;
        }
        self.emit_bytes(cleaner.push(news.as_bytes()).into_owned(), event);
    }

    /// Emits cleaned bytes as text; the cleaner cuts between whole characters.
    fn emit_bytes(&self, bytes: Vec<u8>, event: fn(String) -> Ephemeral) {
        let text = String::from_utf8(bytes);
        let text = text.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        if !text.is_empty() {
            self.context.emit(event(text));
        }
    }

    /// Emits text that was held back as a possible beginning of a secret.
    fn flush_deltas(&self, delta_redactors: &mut DeltaRedactors<'_>) {
        self.emit_bytes(delta_redactors.reasoning.finish(), Ephemeral::ReasoningDelta);
        self.emit_bytes(delta_redactors.text.finish(), Ephemeral::TextDelta);
    }

    fn usage_event(&self, iteration: u32, progress: &CallProgress<'_>) -> ProviderUsage {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ProviderUsage {
            model: self.settings.model.clone(),
            iteration,
            transport: Some(progress.sent.transport.to_owned()).filter(|name| !name.is_empty()),
            fallback_reason: progress
                .sent
                .fallback_reason
                .clone()
                .map(|text| self.redact_text(text)),
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
        usage_record: ProviderUsage,
        completion: &Completion,
    ) -> Result<(), TurnEnd> {
        let end = &completion.end;
        let status = if end.incomplete.is_some() { "incomplete" } else { "completed" };
        let mut usage_record = ProviderUsage {
            status: Some(status.to_owned()),
            usage: end.usage.clone(),
            response_id: end.response_id.clone(),
            ..usage_record
        };
        if let Some(mut searched) = search_evidence::web_search(&completion.items) {
            self.settings.secrets.redact_value(&mut searched);
            usage_record.extra.insert("web_search".to_owned(), searched);
        }
        self.record_usage(usage_record).await
    }

    /// Records the usage of a call and adds it to the `UsageTotal`.
    async fn record_usage(&self, usage_record: ProviderUsage) -> Result<(), TurnEnd> {
        let usage_record = self.with_cost(usage_record);
        self.context.record(usage_record.clone()).await?;
        self.settings.usage_total.add_call(&usage_record, self.settings.budget.prices());
        Ok(())
    }

    /// Adds the estimated cost, where the price is known.
    fn with_cost(&self, mut usage_record: ProviderUsage) -> ProviderUsage {
        let prices = self.settings.budget.prices();
        usage_record.estimated_cost_usd =
            usage_record.billed().and_then(|tokens| prices.cost(&usage_record.model, &tokens));
        usage_record
    }

    async fn record_failure(
        &self,
        iteration: u32,
        progress: &mut CallProgress<'_>,
        error: &Report,
    ) -> Result<(), TurnEnd> {
        let usage_record = ProviderUsage {
            status: Some("failed".to_owned()),
            error_kind: Some(error.kind.clone()),
            ..self.usage_event(iteration, progress)
        };
        self.flush_deltas(&mut progress.delta_redactors);
        self.record_usage(usage_record).await?;
        self.record_partial(progress.shown.longest_text().to_owned(), error).await
    }
}

/// Why an attempt has no response.
enum AttemptError {
    Failed(ProviderError),
    Interrupted,
    /// The budget forbids another request.
    OverBudget(TurnEnd),
    TurnEnded(TurnEnd),
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

/// Streamed text of a call over all its attempts, so that a retry repeats nothing.
#[derive(Default)]
pub(super) struct ShownText {
    /// Shown text of earlier attempts.
    before: String,
    /// Text of this attempt.
    current: String,
    /// Whether this attempt differs from the shown text: then its deltas are not shown, only its
    /// whole text at its end.
    diverged: bool,
    /// The attempt whose reasoning was shown.
    reasoning: Option<u32>,
    attempts: u32,
}

impl ShownText {
    /// Adds a delta and returns the part that was not shown yet.
    pub(super) fn add_delta(&mut self, delta: String) -> Option<String> {
        let known = self.before.as_bytes().get(self.current.len()..).unwrap_or_default();
        let shared = known.len().min(delta.len());
        let repeats = known[..shared] == delta.as_bytes()[..shared];
        self.current.push_str(&delta);
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
        if self.current.len() <= self.before.len() {
            return None;
        }
        // This attempt is now longer than the shown text: everything further is new.
        let news = self.current.get(self.before.len()..).unwrap_or_default().to_owned();
        self.before.clear();
        Some(news)
    }

    fn may_show_reasoning(&mut self) -> bool {
        *self.reasoning.get_or_insert(self.attempts) == self.attempts
    }

    /// Starts the next attempt.
    pub(super) fn start_over(&mut self) {
        let now = std::mem::take(&mut self.current);
        if !self.diverged && now.len() > self.before.len() {
            self.before = now;
        }
        self.diverged = false;
        self.attempts += 1;
    }

    /// The longest text that arrived, for the record.
    fn longest_text(&self) -> &str {
        if self.current.len() >= self.before.len() { &self.current } else { &self.before }
    }
}
