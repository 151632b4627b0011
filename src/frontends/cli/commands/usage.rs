//! `pixir usage`: tokens, cache hits and cost, per Session, model and day.

use std::time::Duration;

use clap::Args;

use crate::agent::inspect;
use crate::agent::inspect::{Spending, UsagePeriod, UsageSum};
use crate::base::error::{Report, counted};
use crate::base::id::SessionId;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::frontends::render::one_line;
use crate::model::provider::{format_duration, format_utc};
use crate::record::event::RateLimits;
use crate::record::log;
use crate::settings::config;

/// Shown Sessions, the most expensive first.
const FIRST_SCREEN: usize = 20;

/// How many Sessions that cannot be read are named.
const NAMED: usize = 5;

/// Sum up tokens, cache hits and cost
#[derive(Debug, Args)]
#[command(
    override_usage = "pixir usage [OPTIONS] [ID]",
    long_about = "Sum up tokens, cache hits and cost, per Session, model and day (UTC).\n\n\
        The sums are what the Providers have counted, read from the Logs. A cost is an estimate from the \
        `prices` of the config; without a price it stays unknown. What a Provider last said about its limits \
        is shown with the time at which they reset.",
    after_long_help = "Examples:\n  pixir usage\n  pixir usage --since 7d --all\n  \
        pixir usage 20260721T101112-abcdef --json"
)]
pub struct UsageArgs {
    /// Session id, or the beginning or end of one: only this Session and its Subagents; default: all of this
    /// Workspace
    #[arg(value_name = "ID", conflicts_with_all = ["all"])]
    id: Option<String>,
    /// Only calls of the last period, such as 7d or 12h
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// Include every Workspace that was used
    #[arg(long)]
    all: bool,
}

pub fn usage(args: &UsageArgs, context: &CliContext) -> Result<Exit, Report> {
    let window = usage_window(args.since.as_deref())?;
    let prices = context.load_user_settings()?.prices;
    let spending = if let Some(id) = &args.id {
        let (id, root) = context.find_session(id)?;
        let all = inspect::list_sessions(std::slice::from_ref(&root), usize::MAX);
        inspect::session_spending(&root, &id, &all, window, &prices)?
    } else {
        let roots = context.state_roots(args.all)?;
        let has_sessions = roots.iter().any(|root| !log::session_ids(root).is_empty());
        context.explain_closed_folders(args.all, has_sessions)?;
        inspect::sum_spending(&roots, window, &prices)
    };
    let exit = context.print_result("usage", &spending_text(&spending), &spending)?;
    if context.flags.json {
        return Ok(exit);
    }
    if spending.unreadable_lines > 0 {
        let lines = counted(spending.unreadable_lines, "damaged line");
        context.print_notice(&format!("skipped {lines}; `pixir verify` says where"));
    }
    if !spending.unreadable_sessions.is_empty() {
        context.print_notice(&missing_sessions_text(&spending.unreadable_sessions));
    }
    Ok(exit)
}

/// Says which Sessions are not in the sums.
fn missing_sessions_text(unreadable: &[SessionId]) -> String {
    let named: Vec<&str> = unreadable.iter().take(NAMED).map(SessionId::as_str).collect();
    let more = match unreadable.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    format!(
        "not in the sums, because the Log cannot be read: {named}{more}; `pixir verify ID` says why"
    )
}

fn usage_window(since: Option<&str>) -> Result<UsagePeriod, Report> {
    let Some(text) = since else { return Ok(UsagePeriod::default()) };
    let wrong =
        || bad_argument(format!("--since must be a duration such as 7d or 12h, not {text:?}"));
    let back: Duration = config::parse_duration(text).ok_or_else(wrong)?;
    let now = jiff::Timestamp::now().as_second();
    Ok(UsagePeriod { from: Some(now - i64::try_from(back.as_secs()).map_err(|_| wrong())?) })
}

/// The sums as a person reads them.
pub fn spending_text(spending: &Spending) -> String {
    if spending.total.calls == 0 {
        return "no Provider was called\n".to_owned();
    }
    let mut lines = vec![format!("total      {}", sum_line(&spending.total))];
    let groups = [("model", &spending.models), ("day (UTC)", &spending.days)];
    for (name, rows) in groups {
        lines.push(format!("\nby {name}"));
        let widest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        lines.extend(
            rows.iter().map(|row| {
                format!("  {:<widest$}  {}", one_line(&row.name, 60), sum_line(&row.sum))
            }),
        );
    }
    if spending.sessions.len() > 1 {
        lines.push("\nby Session".to_owned());
        let shown = spending.sessions.iter().take(FIRST_SCREEN);
        lines.extend(shown.map(|row| format!("  {}  {}", row.session_id, sum_line(&row.sum))));
        if spending.sessions.len() > FIRST_SCREEN {
            let more = spending.sessions.len() - FIRST_SCREEN;
            lines.push(format!("  and {more} more; `--json` lists all"));
        }
    }
    if let Some(limits) = &spending.limits {
        lines.push(format!("\nlimits, as the Provider said at {}", limits.seen_at));
        lines.extend(limit_lines(&limits.limits));
    }
    lines.join("\n") + "\n"
}

fn limit_lines(limits: &RateLimits) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, window) in [("primary", &limits.primary), ("secondary", &limits.secondary)] {
        let Some(window) = window else { continue };
        let long = window.window_minutes.map(|minutes| Duration::from_secs(minutes * 60));
        let long = long.map(|long| format!(" of {}", format_duration(long))).unwrap_or_default();
        let reset = window.resets_at.and_then(format_utc).map(|time| format!(", resets {time}"));
        let used = window.used_percent;
        lines.push(format!("  {name:<9}  {used:.0} %{long} used{}", reset.unwrap_or_default()));
    }
    for (name, left) in [("requests", &limits.requests), ("tokens", &limits.tokens)] {
        let Some(left) = left else { continue };
        let all = left.limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
        lines.push(format!("  {name:<9}  {}{all} left", left.remaining));
    }
    lines
}

fn sum_line(sum: &UsageSum) -> String {
    let calls = counted(sum.calls, "call");
    let failed = if sum.failed > 0 { format!(" ({} failed)", sum.failed) } else { String::new() };
    let hits = sum
        .cache_hit_rate
        .map_or_else(String::new, |rate| format!(" ({:.0} % cached)", rate * 100.0));
    let cost = match (sum.estimated_cost_usd, sum.calls_without_cost) {
        (None, _) => "cost unknown".to_owned(),
        (Some(cost), 0) => format!("${cost:.4}"),
        (Some(cost), count) => format!("${cost:.4} and {} of unknown cost", counted(count, "call")),
    };
    let (input, output) = (sum.tokens.input_tokens, sum.tokens.output_tokens);
    format!("{calls}{failed}  {input} in{hits}  {output} out  {cost}")
}
