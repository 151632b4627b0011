//! Usage: tokens and cost of Provider calls, summed per Session, model and day.
//!
//! Logs are streamed; only lines that look like a usage record (`provider_usage`) are parsed, and a damaged one is
//! counted and skipped. A repaired or forked Log repeats records of another, so each is taken once, by its id.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use crate::agent::inspect::SessionSummary;
use crate::base::id::SessionId;
use crate::record::event::{ProviderUsage, RateLimits, SubagentEvent, TokenUsage};
use crate::record::log;
use crate::record::log::LogError;
use crate::record::state_dir::StateRoot;
use crate::settings::config::Prices;

/// The bytes that mark a usage record in a Log of any version of Pixir.
const USAGE_MARK: &[u8] = br#","type":"provider_usage","data":"#;

/// The bytes that mark a fact about a Subagent in the Log of its parent.
const SUBAGENT_MARK: &[u8] = br#","type":"subagent_event","data":"#;

/// The longest usage record, in bytes; a longer line is skipped.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// The period whose usage records count.
#[derive(Debug, Clone, Copy, Default)]
pub struct UsagePeriod {
    /// Seconds since the epoch.
    pub from: Option<i64>,
}

/// Tokens, calls and cost of a group; its JSON form is a stable interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct UsageSum {
    pub calls: u64,
    pub failed: u64,
    pub retries: u64,
    #[serde(flatten)]
    pub tokens: TokenUsage,
    /// Cached input of all input, from 0 to 1.
    pub cache_hit_rate: Option<f64>,
    /// Absent when no call has a known cost.
    pub estimated_cost_usd: Option<f64>,
    /// Billed calls that are missing in the cost.
    pub calls_without_cost: u64,
    pub web_searches: u64,
}

/// The usage of a named group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsageRow {
    pub name: String,
    #[serde(flatten)]
    pub sum: UsageSum,
}

/// The usage of one Session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionUsageRow {
    pub session_id: SessionId,
    #[serde(serialize_with = "crate::base::paths::as_text")]
    pub workspace: PathBuf,
    #[serde(flatten)]
    pub sum: UsageSum,
}

/// The usage of some Sessions, in total and by group.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Spending {
    pub total: UsageSum,
    /// Those with most tokens first.
    pub models: Vec<UsageRow>,
    /// By UTC date, the last first.
    pub days: Vec<UsageRow>,
    /// Those with most tokens first.
    pub sessions: Vec<SessionUsageRow>,
    pub unreadable_lines: u64,
    /// Sessions whose Logs cannot be read, and so are missing in the sums.
    pub unreadable_sessions: Vec<SessionId>,
    /// The rate limits that a Provider reported last.
    pub limits: Option<SeenLimits>,
}

/// Rate limits, and when they were reported.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenLimits {
    pub seen_at: String,
    #[serde(flatten)]
    pub limits: RateLimits,
}

/// The usage of all Sessions of some Workspaces.
pub fn sum_spending(roots: &[StateRoot], window: UsagePeriod, prices: &Prices) -> Spending {
    let mut counting = UsageCounter::new(window, prices);
    for root in roots {
        for id in sorted_session_ids(root) {
            match log::open_file(root, &id) {
                Ok(file) => counting.count_log(root.workspace(), &id, &file),
                Err(error) => counting.add_missing(id, &error),
            }
        }
    }
    counting.finish()
}

/// The usage of one Session, with its Subagents and theirs. `all` are the Sessions of the same state root.
pub fn session_spending(
    root: &StateRoot,
    id: &SessionId,
    all: &[SessionSummary],
    window: UsagePeriod,
    prices: &Prices,
) -> Result<Spending, LogError> {
    let mut counting = UsageCounter::new(window, prices);
    counting.count_log(root.workspace(), id, &log::open_file(root, id)?);
    let mut counted = BTreeSet::from([id.clone()]);
    let mut parents = vec![id.clone()];
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|summary| is_child(summary, &parent));
        let children: Vec<SessionId> = children.map(|child| child.session_id.clone()).collect();
        for child in children {
            if !counted.insert(child.clone()) {
                continue;
            }
            match log::open_file(root, &child) {
                Ok(file) => counting.count_log(root.workspace(), &child, &file),
                Err(error) => counting.add_missing(child.clone(), &error),
            }
            parents.push(child);
        }
        // A Log that cannot be read does not name its parent; the parent's Log names the child.
        for child in std::mem::take(&mut counting.named).difference(&counted.clone()) {
            if let Err(error) = log::open_file(root, child) {
                counting.add_missing(child.clone(), &error);
                counted.insert(child.clone());
                parents.push(child.clone());
            }
        }
    }
    Ok(counting.finish())
}

fn is_child(summary: &SessionSummary, parent: &SessionId) -> bool {
    let origin = summary.origin.as_ref().filter(|origin| origin.kind == "child");
    origin.is_some_and(|origin| origin.parent_session_id == parent.as_str())
}

fn sorted_session_ids(root: &StateRoot) -> Vec<SessionId> {
    let mut ids = log::session_ids(root);
    // Originals come before their repaired copies.
    ids.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    ids
}

/// The fields of a usage record's line.
#[derive(Deserialize)]
struct UsageRecordLine {
    #[serde(default)]
    id: String,
    #[serde(default)]
    ts: String,
    data: ProviderUsage,
}

/// The fields of a line about a Subagent.
#[derive(Deserialize)]
struct SubagentLine {
    data: SubagentEvent,
}

struct UsageCounter<'a> {
    window: UsagePeriod,
    prices: &'a Prices,
    seen: HashSet<String>,
    models: BTreeMap<String, UsageSum>,
    days: BTreeMap<String, UsageSum>,
    /// The Sessions of Subagents that the Logs name.
    named: BTreeSet<SessionId>,
    /// The sums so far, without the models and days.
    spending: Spending,
}

impl<'a> UsageCounter<'a> {
    fn new(window: UsagePeriod, prices: &'a Prices) -> Self {
        Self {
            window,
            prices,
            seen: HashSet::new(),
            models: BTreeMap::new(),
            days: BTreeMap::new(),
            named: BTreeSet::new(),
            spending: Spending::default(),
        }
    }

    fn count_log(&mut self, workspace: &Path, id: &SessionId, file: &File) {
        let mut reader = BufReader::with_capacity(256 << 10, file);
        let mut sum = UsageSum::default();
        let mut line = Vec::new();
        let (usages, subagents) =
            (memmem::Finder::new(USAGE_MARK), memmem::Finder::new(SUBAGENT_MARK));
        loop {
            line.clear();
            match reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) => break,
                // The rest of an overlong line comes as separate lines, none of which is a usage record.
                Ok(_) if !line.ends_with(b"\n") && line.len() as u64 == MAX_LINE_BYTES => {
                    self.spending.unreadable_lines += 1;
                }
                Ok(_) if usages.find(&line).is_some() => self.count_usage(&line, &mut sum),
                Ok(_) if subagents.find(&line).is_some() => self.add_subagent(&line),
                Ok(_) => {}
                // When the disk fails in the middle, the part that was read counts.
                Err(_) => {
                    self.spending.unreadable_lines += 1;
                    break;
                }
            }
        }
        if sum.calls > 0 {
            sum.finish();
            let (session_id, workspace) = (id.clone(), workspace.to_owned());
            self.spending.sessions.push(SessionUsageRow { session_id, workspace, sum });
        }
    }

    /// Lists a Log that cannot be opened. One that does not exist was deleted, or never written.
    fn add_missing(&mut self, id: SessionId, error: &LogError) {
        if !matches!(error, LogError::NotFound { .. }) {
            self.spending.unreadable_sessions.push(id);
        }
    }

    fn add_subagent(&mut self, line: &[u8]) {
        let Ok(SubagentLine { data }) = serde_json::from_slice::<SubagentLine>(line) else {
            return;
        };
        // A fork has copies of its original's Events; those Subagents are not its own.
        let child = data.child_session_id.as_deref().filter(|_| !data.is_copy());
        self.named.extend(child.and_then(|id| SessionId::parse(id).ok()));
    }

    fn count_usage(&mut self, line: &[u8], session: &mut UsageSum) {
        let Ok(UsageRecordLine { id, ts, data }) = serde_json::from_slice::<UsageRecordLine>(line)
        else {
            self.spending.unreadable_lines += 1;
            return;
        };
        let moment = ts.parse::<jiff::Timestamp>().ok();
        let is_old = |from: i64| moment.is_none_or(|moment| moment.as_second() < from);
        if self.window.from.is_some_and(is_old) || (!id.is_empty() && !self.seen.insert(id)) {
            return;
        }
        if let Some(limits) = &data.rate_limits
            && self.spending.limits.as_ref().is_none_or(|newest| newest.seen_at <= ts)
        {
            self.spending.limits =
                Some(SeenLimits { seen_at: ts.clone(), limits: (**limits).clone() });
        }
        let tokens = data.billed();
        let cost =
            data.estimated_cost_usd.or_else(|| self.prices.cost(&data.model, tokens.as_ref()?));
        let day = moment
            .map_or_else(|| "unknown".to_owned(), |moment| moment.strftime("%Y-%m-%d").to_string());
        let model = if data.model.is_empty() { "unknown" } else { &data.model };
        let model = self.models.entry(model.to_owned()).or_default();
        for sum in [&mut self.spending.total, model, self.days.entry(day).or_default(), session] {
            sum.add_usage(&data, cost);
        }
    }

    fn finish(self) -> Spending {
        let rows = |group: BTreeMap<String, UsageSum>| -> Vec<UsageRow> {
            let row = |(name, mut sum): (String, UsageSum)| {
                sum.finish();
                UsageRow { name, sum }
            };
            group.into_iter().map(row).collect()
        };
        let mut spending = self.spending;
        spending.total.finish();
        spending.models = rows(self.models);
        spending.models.sort_by_key(|row| Reverse(row.sum.tokens.total_tokens));
        spending.days = rows(self.days);
        spending.days.reverse();
        spending.sessions.sort_by_key(|row| Reverse(row.sum.tokens.total_tokens));
        spending
    }
}

impl UsageSum {
    fn add_usage(&mut self, usage: &ProviderUsage, cost: Option<f64>) {
        self.calls += 1;
        self.failed += u64::from(usage.status.as_deref() == Some("failed"));
        self.retries += u64::from(usage.retries);
        let searched = usage.extra.get("web_search").and_then(|search| search.get("calls"));
        self.web_searches += searched.and_then(serde_json::Value::as_u64).unwrap_or(0);
        let Some(tokens) = usage.billed() else { return };
        self.tokens.add(&tokens);
        match cost {
            Some(cost) => *self.estimated_cost_usd.get_or_insert(0.0) += cost,
            None => self.calls_without_cost += 1,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate; counts are far below 2^52")]
    fn finish(&mut self) {
        let TokenUsage { input_tokens, cached_tokens, .. } = self.tokens;
        if input_tokens > 0 {
            let cached = cached_tokens.min(input_tokens);
            self.cache_hit_rate = Some(cached as f64 / input_tokens as f64);
        }
    }
}
