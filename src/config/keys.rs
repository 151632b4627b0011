//! The table of settings: names, who may set them, and what values they take.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{
    Config, CredentialKind, Durability, NetworkRule, Prices, SandboxLevel, Servers, SocketRule,
    Transport, duration, mcp,
};
use crate::event::PermissionMode;

/// One setting.
pub struct Key {
    /// Dotted, as in nested JSON objects.
    pub name: &'static str,
    pub shape: Shape,
    /// Whether a Workspace may set it: only what cannot widen trust.
    pub in_workspace: bool,
    /// Puts a value in its place, or says what was expected.
    pub set: fn(&mut Config, &Value) -> Result<(), String>,
}

/// How an environment variable's text becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Text,
    Number,
    Decimal,
    Switch,
    List,
    Object,
}

impl Shape {
    /// Reads what somebody typed; what does not fit stays text, for the error that names it.
    pub fn value_of(self, text: &str) -> Value {
        let as_text = || Value::from(text);
        match self {
            Shape::Text => as_text(),
            Shape::Number => text.trim().parse::<u64>().map_or_else(|_| as_text(), Value::from),
            Shape::Decimal => {
                let number = text.trim().parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                number.map_or_else(as_text, Value::from)
            }
            Shape::Switch => match text.trim() {
                "1" | "true" => Value::from(true),
                "0" | "false" => Value::from(false),
                _ => as_text(),
            },
            Shape::Object => serde_json::from_str(text).unwrap_or_else(|_| as_text()),
            Shape::List if text.trim_start().starts_with('[') => {
                serde_json::from_str(text).unwrap_or_else(|_| as_text())
            }
            Shape::List => text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
        }
    }
}

impl Key {
    /// The setting of this name.
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The name a person most likely meant, if any is near.
    pub fn nearest(name: &str) -> Option<&'static str> {
        let last = name.rsplit('.').next().unwrap_or(name);
        KEYS.iter()
            .map(|key| {
                let own_last = key.name.rsplit('.').next().unwrap_or(key.name);
                let whole = strsim::jaro_winkler(name, key.name);
                // A right name in the wrong group is as near as a misspelt one.
                let leaf = strsim::jaro_winkler(last, own_last) - 0.02;
                (whole.max(leaf), key.name)
            })
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .map(|(_, name)| name)
    }

    /// The environment variable that sets it: `retry.base_ms` is `PIXIR_RETRY_BASE_MS`.
    pub fn variable(&self) -> String {
        format!("PIXIR_{}", self.name.replace('.', "_").to_uppercase())
    }
}

const HOUR: u64 = 3_600_000;
const MANY: u64 = 1_000_000_000_000;
/// With less memory not even a shell starts.
const LEAST_MEMORY: u64 = 64 << 20;

/// Every setting there is.
pub const KEYS: &[Key] = &[
    workspace("model", Shape::Text, |config, value| put(&mut config.model, word(value)?)),
    workspace("effort", Shape::Text, |config, value| put(&mut config.effort, Some(word(value)?))),
    user("permission_mode", Shape::Text, |config, value| {
        put(&mut config.permission_mode, mode(value)?)
    }),
    user("acp.mode", Shape::Text, |config, value| put(&mut config.acp_mode, Some(mode(value)?))),
    workspace("max_iterations", Shape::Number, |config, value| {
        let most: u32 = count(value, 0..=1_000_000)?;
        put(&mut config.max_iterations, (most > 0).then_some(most))
    }),
    user("max_tokens_total", Shape::Number, |config, value| {
        put(&mut config.budget.max_tokens_total, Some(number(value, &(1..=MANY))?))
    }),
    user("max_cost", Shape::Decimal, |config, value| {
        put(&mut config.budget.max_cost, Some(dollars(value)?))
    }),
    user("max_requests", Shape::Number, |config, value| {
        put(&mut config.budget.max_requests, Some(number(value, &(1..=MANY))?))
    }),
    user("timeout", Shape::Text, |config, value| {
        put(&mut config.budget.timeout, Some(span(value)?))
    }),
    user("prices", Shape::Object, |config, value| put(&mut config.prices, Prices::read(value)?)),
    user("web_search", Shape::Switch, |config, value| put(&mut config.web_search, switch(value)?)),
    user("providers", Shape::Object, |config, value| {
        put(&mut config.servers, Servers::read(value)?)
    }),
    user("provider", Shape::Text, |config, value| put(&mut config.provider, Some(word(value)?))),
    user("mcp_servers", Shape::Object, |config, value| {
        put(&mut config.mcp.servers, mcp::read(value)?)
    }),
    user("mcp.wait_ms", Shape::Number, |config, value| {
        put(&mut config.mcp.wait, millis(value, 0..=HOUR)?)
    }),
    user("mcp.connect_ms", Shape::Number, |config, value| {
        put(&mut config.mcp.connect, millis(value, 1..=HOUR)?)
    }),
    user("mcp.call_ms", Shape::Number, |config, value| {
        put(&mut config.mcp.call, millis(value, 1..=24 * HOUR)?)
    }),
    user("credential", Shape::Text, |config, value| {
        put(&mut config.credential, Some(credential(value)?))
    }),
    user("durability", Shape::Text, |config, value| {
        put(&mut config.durability, durability(value)?)
    }),
    user("retry.max_attempts", Shape::Number, |config, value| {
        put(&mut config.retry.max_attempts, count(value, 1..=100)?)
    }),
    user("retry.base_ms", Shape::Number, |config, value| {
        put(&mut config.retry.base, millis(value, 0..=HOUR)?)
    }),
    user("retry.cap_ms", Shape::Number, |config, value| {
        put(&mut config.retry.cap, millis(value, 0..=HOUR)?)
    }),
    user("retry.retry_after_cap_ms", Shape::Number, |config, value| {
        put(&mut config.retry.retry_after_cap, millis(value, 0..=24 * HOUR)?)
    }),
    user("stream.idle_ms", Shape::Number, |config, value| {
        put(&mut config.stream.idle, millis(value, 1..=24 * HOUR)?)
    }),
    user("stream.total_ms", Shape::Number, |config, value| {
        put(&mut config.stream.total, millis(value, 1..=24 * HOUR)?)
    }),
    user("stream.connect_ms", Shape::Number, |config, value| {
        put(&mut config.stream.connect, millis(value, 1..=HOUR)?)
    }),
    user("transport", Shape::Text, |config, value| {
        put(&mut config.transport, Some(transport(value)?))
    }),
    user("tls.extra_roots", Shape::List, |config, value| {
        put(&mut config.extra_roots, files(value)?)
    }),
    user("subagents.max_running", Shape::Number, |config, value| {
        put(&mut config.subagents.max_running, count(value, 1..=4_096)?)
    }),
    user("subagents.max_in_process", Shape::Number, |config, value| {
        put(&mut config.subagents.max_in_process, count(value, 1..=4_096)?)
    }),
    user("subagents.max_per_run", Shape::Number, |config, value| {
        put(&mut config.subagents.max_per_run, count(value, 1..=100_000)?)
    }),
    user("subagents.max_depth", Shape::Number, |config, value| {
        put(&mut config.subagents.max_depth, count(value, 0..=8)?)
    }),
    user("subagents.timeout_ms", Shape::Number, |config, value| {
        put(&mut config.subagents.timeout, millis(value, 1..=24 * HOUR)?)
    }),
    user("subagents.max_timeout_ms", Shape::Number, |config, value| {
        put(&mut config.subagents.max_timeout, millis(value, 1..=24 * HOUR)?)
    }),
    user("subagents.retries", Shape::Number, |config, value| {
        put(&mut config.subagents.retries, count(value, 0..=5)?)
    }),
    workspace("bash.timeout_ms", Shape::Number, |config, value| {
        put(&mut config.bash.timeout, millis(value, 1..=24 * HOUR)?)
    }),
    user("bash.max_timeout_ms", Shape::Number, |config, value| {
        put(&mut config.bash.max_timeout, millis(value, 1..=24 * HOUR)?)
    }),
    user("bash.max_commands", Shape::Number, |config, value| {
        put(&mut config.bash.max_commands, count(value, 1..=1_000)?)
    }),
    user("bash.max_background", Shape::Number, |config, value| {
        put(&mut config.bash.max_background, count(value, 0..=1_000)?)
    }),
    user("bash.drain_ms", Shape::Number, |config, value| {
        put(&mut config.bash.drain, millis(value, 0..=60_000)?)
    }),
    user("bash.env", Shape::List, |config, value| put(&mut config.bash.env, variables(value)?)),
    user("bash.shell", Shape::Text, |config, value| {
        put(&mut config.bash.shell, Some(shell(value)?))
    }),
    workspace("sandbox", Shape::Text, |config, value| {
        put(&mut config.sandbox.level, sandbox_level(value)?)
    }),
    workspace("sandbox.level", Shape::Text, |config, value| {
        put(&mut config.sandbox.level, sandbox_level(value)?)
    }),
    workspace("sandbox.network", Shape::Text, |config, value| {
        put(&mut config.sandbox.network, network_rule(value)?)
    }),
    workspace("sandbox.local_sockets", Shape::Text, |config, value| {
        put(&mut config.sandbox.local_sockets, socket_rule(value)?)
    }),
    workspace("sandbox.write", Shape::List, |config, value| {
        put(&mut config.sandbox.write, places(value)?)
    }),
    workspace("sandbox.read", Shape::List, |config, value| {
        put(&mut config.sandbox.read, places(value)?)
    }),
    workspace("sandbox.caches", Shape::List, |config, value| {
        put(&mut config.sandbox.caches, places(value)?)
    }),
    workspace("sandbox.max_cache_bytes", Shape::Number, |config, value| {
        put(&mut config.sandbox.cache_bytes, number(value, &(0..=MANY * 1000))?)
    }),
    workspace("sandbox.hide", Shape::List, |config, value| {
        config.sandbox.hide.extend(places(value)?);
        Ok(())
    }),
    workspace("sandbox.max_processes", Shape::Number, |config, value| {
        put(&mut config.sandbox.processes, number(value, &(16..=1_000_000))?)
    }),
    workspace("sandbox.max_file_bytes", Shape::Number, |config, value| {
        put(&mut config.sandbox.file_bytes, number(value, &(1..=MANY * 1000))?)
    }),
    workspace("sandbox.max_open_files", Shape::Number, |config, value| {
        put(&mut config.sandbox.open_files, number(value, &(64..=MANY))?)
    }),
    workspace("sandbox.max_process_bytes", Shape::Number, |config, value| {
        put(&mut config.sandbox.process_bytes, number(value, &(LEAST_MEMORY..=MANY * 1000))?)
    }),
    workspace("sandbox.max_shared_memory_bytes", Shape::Number, |config, value| {
        put(&mut config.sandbox.shared_bytes, number(value, &(1..=MANY * 1000))?)
    }),
    workspace("sandbox.max_memory_bytes", Shape::Number, |config, value| {
        put(&mut config.sandbox.memory_bytes, number(value, &(LEAST_MEMORY..=MANY * 1000))?)
    }),
    user("grace.turn_ms", Shape::Number, |config, value| {
        put(&mut config.grace.turn, millis(value, 0..=60_000)?)
    }),
    user("grace.process_ms", Shape::Number, |config, value| {
        put(&mut config.grace.process, millis(value, 0..=60_000)?)
    }),
    workspace("output_limit", Shape::Number, |config, value| {
        put(&mut config.output_limit, count(value, 1_024..=1_048_576)?)
    }),
    user("context_window", Shape::Number, |config, value| {
        put(&mut config.context_window, Some(number(value, &(1_000..=MANY))?))
    }),
    user("compaction.auto", Shape::Switch, |config, value| {
        put(&mut config.compaction.auto, switch(value)?)
    }),
    user("compaction.model_assisted", Shape::Switch, |config, value| {
        put(&mut config.compaction.model_assisted, switch(value)?)
    }),
    user("workspaces.max_files", Shape::Number, |config, value| {
        put(&mut config.workspaces.most_files, count(value, 1..=10_000_000)?)
    }),
    user("workspaces.max_bytes", Shape::Number, |config, value| {
        put(&mut config.workspaces.largest_sum, count(value, 1..=1_099_511_627_776)?)
    }),
    user("workspaces.max_file_bytes", Shape::Number, |config, value| {
        put(&mut config.workspaces.largest_file, count(value, 1..=1_099_511_627_776)?)
    }),
    user("undo.enabled", Shape::Switch, |config, value| {
        put(&mut config.undo.enabled, switch(value)?)
    }),
    user("undo.max_file_bytes", Shape::Number, |config, value| {
        put(&mut config.undo.largest_file, count(value, 0..=1_073_741_824)?)
    }),
    user("undo.max_bytes", Shape::Number, |config, value| {
        put(&mut config.undo.max_bytes, count(value, 0..=1_099_511_627_776)?)
    }),
    user("undo.max_files", Shape::Number, |config, value| {
        put(&mut config.undo.max_files, count(value, 0..=1_000_000_000)?)
    }),
    user("undo.max_total_bytes", Shape::Number, |config, value| {
        put(&mut config.undo.max_bytes, count(value, 0..=1_099_511_627_776)?)
    }),
    user("instructions_limit", Shape::Number, |config, value| {
        put(&mut config.instructions_limit, count(value, 0..=1_048_576)?)
    }),
];

type Set = fn(&mut Config, &Value) -> Result<(), String>;

const fn user(name: &'static str, shape: Shape, set: Set) -> Key {
    Key { name, shape, in_workspace: false, set }
}

const fn workspace(name: &'static str, shape: Shape, set: Set) -> Key {
    Key { name, shape, in_workspace: true, set }
}

#[expect(clippy::unnecessary_wraps, reason = "it is the last word of every setter")]
fn put<T>(place: &mut T, value: T) -> Result<(), String> {
    *place = value;
    Ok(())
}

/// A name without blanks and control characters.
fn word(value: &Value) -> Result<String, String> {
    let fits = |text: &&str| {
        (1..=200).contains(&text.len())
            && text.chars().all(|c| !c.is_whitespace() && !c.is_control())
    };
    let found = value.as_str().filter(fits);
    found.map(str::to_owned).ok_or_else(|| expected("must be one word of text", value))
}

fn number(value: &Value, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let wanted = || format!("must be a whole number from {} to {}", range.start(), range.end());
    value.as_u64().filter(|n| range.contains(n)).ok_or_else(|| expected(&wanted(), value))
}

fn count<T: TryFrom<u64>>(value: &Value, range: RangeInclusive<u64>) -> Result<T, String> {
    T::try_from(number(value, &range)?).map_err(|_| expected("is too large", value))
}

fn millis(value: &Value, range: RangeInclusive<u64>) -> Result<Duration, String> {
    number(value, &range).map(Duration::from_millis)
}

fn dollars(value: &Value) -> Result<f64, String> {
    let fits = |amount: &f64| (0.0..=1e9).contains(amount) && *amount > 0.0;
    let found = value.as_f64().filter(fits);
    found.ok_or_else(|| expected("must be an amount of dollars above 0", value))
}

fn span(value: &Value) -> Result<Duration, String> {
    let found = match value {
        Value::Number(number) => duration(&number.to_string()),
        value => value.as_str().and_then(duration),
    };
    found.ok_or_else(|| expected("must be a duration such as 90s, 10m or 1h30m", value))
}

fn switch(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| expected("must be true or false", value))
}

fn credential(value: &Value) -> Result<CredentialKind, String> {
    let kinds = [CredentialKind::ChatGpt, CredentialKind::ApiKey];
    let named = kinds.into_iter().find(|kind| value.as_str() == Some(kind.name()));
    named.ok_or_else(|| expected("must be \"chatgpt\" or \"api-key\"", value))
}

fn mode(value: &Value) -> Result<PermissionMode, String> {
    let wanted = "must be \"auto\", \"ask\" or \"read_only\"";
    match value.as_str().map(PermissionMode::from_text) {
        None | Some(PermissionMode::Other(_)) => Err(expected(wanted, value)),
        Some(mode) => Ok(mode),
    }
}

fn durability(value: &Value) -> Result<Durability, String> {
    match value.as_str() {
        Some("turn") => Ok(Durability::Turn),
        Some("event") => Ok(Durability::Event),
        Some("none") => Ok(Durability::None),
        _ => Err(expected("must be \"turn\", \"event\" or \"none\"", value)),
    }
}

fn transport(value: &Value) -> Result<Transport, String> {
    match value.as_str() {
        Some("auto") => Ok(Transport::Auto),
        Some("websocket") => Ok(Transport::WebSocket),
        Some("sse") => Ok(Transport::Sse),
        _ => Err(expected("must be \"auto\", \"websocket\" or \"sse\"", value)),
    }
}

fn sandbox_level(value: &Value) -> Result<SandboxLevel, String> {
    let named = SandboxLevel::ALL.into_iter().find(|level| value.as_str() == Some(level.name()));
    named.ok_or_else(|| {
        expected("must be \"workspace\", \"read-only\", \"required\" or \"off\"", value)
    })
}

fn network_rule(value: &Value) -> Result<NetworkRule, String> {
    let named = NetworkRule::ALL.into_iter().find(|rule| value.as_str() == Some(rule.name()));
    named.ok_or_else(|| expected("must be \"declare\", \"allow\" or \"deny\"", value))
}

fn socket_rule(value: &Value) -> Result<SocketRule, String> {
    let named = SocketRule::ALL.into_iter().find(|rule| value.as_str() == Some(rule.name()));
    named.ok_or_else(|| expected("must be \"ask\", \"declare\" or \"deny\"", value))
}

/// Absolute paths, or such that begin with `~/`.
fn places(value: &Value) -> Result<Vec<PathBuf>, String> {
    let wanted = || expected("must be a list of paths that begin with / or ~/", value);
    let is_plain = |path: &PathBuf| {
        (path.is_absolute() || path.starts_with("~"))
            && !path.components().any(|part| part == std::path::Component::ParentDir)
    };
    let path = |item: &Value| item.as_str().map(PathBuf::from).filter(is_plain);
    let list = value.as_array().ok_or_else(wanted)?;
    list.iter().map(|item| path(item).ok_or_else(wanted)).collect()
}

fn files(value: &Value) -> Result<Vec<PathBuf>, String> {
    let wanted = || expected("must be a list of absolute paths", value);
    let path = |item: &Value| item.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
    let list = value.as_array().ok_or_else(wanted)?;
    list.iter().map(|item| path(item).ok_or_else(wanted)).collect()
}

fn variables(value: &Value) -> Result<Vec<String>, String> {
    let wanted = || expected("must be a list of environment variable names", value);
    let is_name = |text: &&str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let list = value.as_array().ok_or_else(wanted)?;
    list.iter()
        .map(|item| item.as_str().filter(is_name).map(str::to_owned).ok_or_else(wanted))
        .collect()
}

fn shell(value: &Value) -> Result<PathBuf, String> {
    let path = value.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
    path.ok_or_else(|| expected("must be an absolute path", value))
}

/// Says what was wanted and what came, without echoing long values.
fn expected(wanted: &str, value: &Value) -> String {
    let found = match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(given) => given.to_string(),
        Value::Number(given) => given.to_string(),
        Value::String(given) if given.len() <= 40 => format!("{given:?}"),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    format!("{wanted}, not {found}")
}
