//! The manual of settings: what each is for, and what it is in a Config.
//!
//! Names, bounds and who may set what are in the table of keys; what a value must look like is asked of
//! the key itself, so that no page and no command can say something else than the loader does.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::keys::{KEYS, Key};
use super::{Config, Durability, Transport};
use crate::paths::Home;

/// What there is to say about one setting.
pub struct Entry {
    pub name: &'static str,
    /// One sentence without a full stop.
    pub about: &'static str,
    /// What it is in a Config; `null` when nobody has set it and there is no default.
    pub show: fn(&Config) -> Value,
}

/// A second name of a setting, and the setting.
const ALIASES: &[(&str, &str)] = &[("sandbox", "sandbox.level")];

/// The setting that is meant by a name.
pub fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// Every setting once, in the order of the table.
pub fn entries() -> impl Iterator<Item = (&'static Key, &'static Entry)> {
    let is_own = |key: &&Key| canonical(key.name) == key.name;
    KEYS.iter().filter(is_own).filter_map(|key| find(key.name).map(|entry| (key, entry)))
}

/// What there is to say about a setting.
pub fn find(name: &str) -> Option<&'static Entry> {
    MANUAL.iter().find(|entry| entry.name == canonical(name))
}

/// What a setting accepts, in the words of whoever would refuse it.
pub fn accepts(key: &Key) -> String {
    let mut config = Config::new(Home::new(PathBuf::new()));
    let refusal = (key.set)(&mut config, &Value::Null).err().unwrap_or_default();
    let words = refusal.strip_suffix(", not nothing").unwrap_or(&refusal);
    words.strip_prefix("must be ").unwrap_or(words).to_owned()
}

/// Every setting as a page.
pub fn reference() -> String {
    let mut page = "# Settings\n\n\
        Written by a test from the table of settings.\n\n\
        Weakest first: the default, your `~/.pixir/config.json`, the Workspace's `.pixir/config.json`, the environment, a flag. \
        In files, a dot is an object inside an object: `retry.base_ms` is `{\"retry\": {\"base_ms\": 500}}`. A Workspace \
        may set what is marked so; everything else in its file needs your trust (`pixir trust`), and what would widen the sandbox too. \
        `pixir config list --origin` shows what holds here, and who said so; `pixir config set KEY VALUE` changes your file.\n"
        .to_owned();
    let defaults = Config::new(Home::new(PathBuf::new()));
    for (key, entry) in entries() {
        let default = match (entry.show)(&defaults) {
            Value::Null => "none".to_owned(),
            value => format!("`{value}`"),
        };
        let scope = if key.in_workspace { "you, or a Workspace" } else { "you" };
        // Writing to a String cannot fail.
        write!(
            page,
            "\n## `{}`\n\n{}.\n\n- accepts: {}\n- default: {default}\n- set by: {scope}\n- environment: `{}`\n",
            key.name,
            entry.about,
            accepts(key),
            key.variable()
        )
        .ok();
        for (alias, _) in ALIASES.iter().filter(|(_, name)| *name == key.name) {
            writeln!(page, "- also written: `{alias}`").ok();
        }
    }
    page
}

const fn entry(name: &'static str, about: &'static str, show: fn(&Config) -> Value) -> Entry {
    Entry { name, about, show }
}

const MANUAL: &[Entry] = &[
    entry("model", "The model that is asked", |c| json!(c.model)),
    entry(
        "effort",
        "How hard the model thinks, such as low, medium or high; without it, the model's own default",
        |c| json!(c.effort),
    ),
    entry(
        "permission_mode",
        "What happens unasked: everything, nothing that changes something, or nothing at all",
        |c| json!(c.permission_mode.as_str()),
    ),
    entry(
        "acp.mode",
        "The same for Sessions of editors; without it they ask, or are as strict as everywhere",
        |c| json!(c.acp_mode.as_ref().map(crate::event::PermissionMode::as_str)),
    ),
    entry("max_iterations", "How many calls of the model a Turn may make; 0 for no limit", |c| {
        json!(c.max_iterations.unwrap_or(0))
    }),
    entry("max_tokens_total", "How many tokens a whole Session may use", |c| {
        json!(c.budget.max_tokens_total)
    }),
    entry("max_cost", "How many dollars a whole Session may cost; needs the model's price", |c| {
        json!(c.budget.max_cost)
    }),
    entry("max_requests", "How many requests a run may make, retries included", |c| {
        json!(c.budget.max_requests)
    }),
    entry("timeout", "How long a run may take", |c| {
        json!(c.budget.timeout.map(|span| format!("{}ms", span.as_millis())))
    }),
    entry(
        "prices",
        "Dollars per million tokens, by model: `{\"m\": {\"input\": 1, \"cached_input\": 0.1, \"output\": 8}}`",
        |c| c.prices.shown(),
    ),
    entry("web_search", "Whether the Provider may search the web for the model", |c| {
        json!(c.web_search)
    }),
    entry(
        "providers",
        "Other servers that speak the dialect, by name: `base_url`, `key_env`, `policy`, `models`",
        |c| c.servers.shown(),
    ),
    entry("provider", "Which of `providers` is asked", |c| json!(c.provider)),
    entry(
        "mcp_servers",
        "Programs and addresses that offer tools, by name; see `pixir mcp --help`",
        |c| {
            // Names alone: arguments, variables and headers may hold secrets.
            json!(c.mcp.servers.iter().map(|server| &server.name).collect::<Vec<_>>())
        },
    ),
    entry(
        "mcp.wait_ms",
        "How long the first Turn waits for servers that are still starting",
        |c| millis(c.mcp.wait),
    ),
    entry("mcp.connect_ms", "How long a server may take to say what it offers", |c| {
        millis(c.mcp.connect)
    }),
    entry("mcp.call_ms", "How long one call of a server's tool may take", |c| millis(c.mcp.call)),
    entry(
        "credential",
        "Who pays; without it, the subscription if there is one, else the key",
        |c| json!(c.credential.map(super::CredentialKind::name)),
    ),
    entry(
        "durability",
        "When the Log is forced to the disk: at the commit points of a Turn, at every Event, or never",
        |c| {
            json!(match c.durability {
                Durability::Turn => "turn",
                Durability::Event => "event",
                Durability::None => "none",
            })
        },
    ),
    entry("retry.max_attempts", "How often a Provider call is tried in all", |c| {
        json!(c.retry.max_attempts)
    }),
    entry("retry.base_ms", "The first wait between two attempts; later ones double", |c| {
        millis(c.retry.base)
    }),
    entry("retry.cap_ms", "The longest wait that Pixir chooses itself", |c| millis(c.retry.cap)),
    entry("retry.retry_after_cap_ms", "The longest wait that a Provider may ask for", |c| {
        millis(c.retry.retry_after_cap)
    }),
    entry("stream.idle_ms", "How long a Provider may be silent", |c| millis(c.stream.idle)),
    entry("stream.total_ms", "How long one Provider call may take", |c| millis(c.stream.total)),
    entry("stream.connect_ms", "How long a connection may take", |c| millis(c.stream.connect)),
    entry("transport", "Which wire is used; without it, what the endpoint prefers", |c| {
        json!(c.transport.map(|transport| match transport {
            Transport::Auto => "auto",
            Transport::WebSocket => "websocket",
            Transport::Sse => "sse",
        }))
    }),
    entry("tls.extra_roots", "Certificate files that are trusted beside the system's", |c| {
        json!(c.extra_roots)
    }),
    entry("bash.timeout_ms", "How long a command may take that does not ask for more", |c| {
        millis(c.bash.timeout)
    }),
    entry("bash.max_timeout_ms", "How long a command may ask for", |c| millis(c.bash.max_timeout)),
    entry(
        "bash.max_commands",
        "How many commands run at once, in all Sessions of the process",
        |c| json!(c.bash.max_commands),
    ),
    entry("bash.max_background", "How many commands a Session may have in the background", |c| {
        json!(c.bash.max_background)
    }),
    entry("bash.drain_ms", "How long children of a command may finish by themselves", |c| {
        millis(c.bash.drain)
    }),
    entry(
        "bash.env",
        "Variables that commands inherit beyond the built-in list; never keys of Providers",
        |c| json!(c.bash.env),
    ),
    entry("bash.shell", "The shell that reads commands", |c| json!(c.bash.shell)),
    entry(
        "sandbox.level",
        "How commands are held by the kernel; `required` runs nothing where not all of it is to be had",
        |c| json!(c.sandbox.level.name()),
    ),
    entry(
        "sandbox.network",
        "Which commands get the network: those that say so, all, or none",
        |c| json!(c.sandbox.network.name()),
    ),
    entry(
        "sandbox.local_sockets",
        "Which commands may use Unix sockets where those of other programs cannot be hidden: those that ask for it and that you allow (none in `auto`), those that ask for it, or none",
        |c| json!(c.sandbox.local_sockets.name()),
    ),
    entry("sandbox.write", "What commands may write beside the Workspace", |c| {
        json!(c.sandbox.write)
    }),
    entry(
        "sandbox.read",
        "What commands may read in home folders, beside tool chains, caches and settings without secrets; credentials in it stay hidden unless they are named exactly",
        |c| json!(c.sandbox.read),
    ),
    entry(
        "sandbox.caches",
        "Package caches that commands write through a private layer: nothing they write there is seen outside",
        |c| json!(c.sandbox.caches),
    ),
    entry(
        "sandbox.max_cache_bytes",
        "How many bytes the private layers over caches may have; larger ones are removed when no command uses them",
        |c| json!(c.sandbox.cache_bytes),
    ),
    entry(
        "sandbox.hide",
        "What commands cannot read, beside credentials and most of home folders; lists of several files add up",
        |c| json!(c.sandbox.hide),
    ),
    entry("sandbox.max_processes", "How many processes a command may have", |c| {
        json!(c.sandbox.processes)
    }),
    entry("sandbox.max_file_bytes", "How large a file may become that a command writes", |c| {
        json!(c.sandbox.file_bytes)
    }),
    entry(
        "sandbox.max_open_files",
        "How many files each process of a command may have open",
        |c| json!(c.sandbox.open_files),
    ),
    entry(
        "sandbox.max_process_bytes",
        "How much private memory each process of a command may have. By default as much as there are addresses: sanitizers reserve terabytes, and would not start with less",
        |c| json!(c.sandbox.process_bytes),
    ),
    entry(
        "sandbox.max_shared_memory_bytes",
        "How much `/dev/shm` of a command may hold; never more than a quarter of the memory of the machine or container",
        |c| json!(c.sandbox.shared_bytes),
    ),
    entry(
        "sandbox.max_memory_bytes",
        "How much memory all processes of a command may take, where Pixir can make a control group (cgroup v2, delegated); never more than seven eighths of the memory of the machine or container",
        |c| json!(c.sandbox.memory_bytes),
    ),
    entry("grace.turn_ms", "How long an interrupted Turn may take to end by itself", |c| {
        millis(c.grace.turn)
    }),
    entry("grace.process_ms", "How long a process has between TERM and KILL", |c| {
        millis(c.grace.process)
    }),
    entry("output_limit", "How many bytes of one tool result reach the model", |c| {
        json!(c.output_limit)
    }),
    entry(
        "undo.enabled",
        "Whether what files were is kept, so that Turns can be taken back",
        |c| json!(c.undo.enabled),
    ),
    entry("undo.max_file_bytes", "The largest file that is kept for what commands change", |c| {
        json!(c.undo.largest_file)
    }),
    entry(
        "undo.max_bytes",
        "How many bytes are kept for undo in a Workspace; beyond that only changes of file tools are covered",
        |c| json!(c.undo.max_bytes),
    ),
    entry(
        "undo.max_files",
        "How many files that git does not hold are kept for what commands change; beyond that only changes of \
         file tools are covered",
        |c| json!(c.undo.max_files),
    ),
    entry("undo.max_total_bytes", "Earlier name of `undo.max_bytes`", |c| json!(c.undo.max_bytes)),
    entry("subagents.max_running", "How many Subagents of one Session run at a time", |c| {
        json!(c.subagents.max_running)
    }),
    entry(
        "subagents.max_in_process",
        "How many run at a time in this process, whoever started them",
        |c| json!(c.subagents.max_in_process),
    ),
    entry(
        "subagents.max_per_run",
        "How many may be started in one run, all generations together",
        |c| json!(c.subagents.max_per_run),
    ),
    entry(
        "subagents.max_depth",
        "How deep Subagents may start Subagents; 0 for none at all",
        |c| json!(c.subagents.max_depth),
    ),
    entry(
        "subagents.timeout_ms",
        "How long one may work, without the time it waits for its turn",
        |c| millis(c.subagents.timeout),
    ),
    entry("subagents.max_timeout_ms", "The longest time that the model may ask for", |c| {
        millis(c.subagents.max_timeout)
    }),
    entry(
        "subagents.retries",
        "How often one that only reads is tried again when the Provider fails in passing",
        |c| json!(c.subagents.retries),
    ),
    entry("workspaces.max_files", "How many files a copy for a Subagent may have", |c| {
        json!(c.workspaces.most_files)
    }),
    entry("workspaces.max_bytes", "How large such a copy may be", |c| {
        json!(c.workspaces.largest_sum)
    }),
    entry("workspaces.max_file_bytes", "The largest file of such a copy", |c| {
        json!(c.workspaces.largest_file)
    }),
    entry(
        "context_window",
        "How many tokens the model's window has; without it, as the table of models says",
        |c| json!(c.context_window),
    ),
    entry("compaction.auto", "Whether room is made by itself when the window fills up", |c| {
        json!(c.compaction.auto)
    }),
    entry(
        "compaction.model_assisted",
        "Whether the Session's own model puts old Turns into words for it",
        |c| json!(c.compaction.model_assisted),
    ),
    entry("instructions_limit", "How many bytes of the chain of AGENTS.md reach the model", |c| {
        json!(c.instructions_limit)
    }),
];

fn millis(span: Duration) -> Value {
    json!(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_in_the_manual_and_nothing_else() {
        for key in KEYS {
            let entry = find(key.name);
            assert!(entry.is_some(), "{} is not in the manual", key.name);
            assert!(!accepts(key).is_empty(), "{}", key.name);
        }
        for entry in MANUAL {
            assert!(Key::find(entry.name).is_some(), "{} is no setting", entry.name);
            assert!(!entry.about.ends_with('.'), "{}", entry.name);
        }
    }

    #[test]
    fn a_default_that_is_shown_is_one_that_is_accepted() {
        let defaults = Config::new(Home::new(PathBuf::new()));
        for (key, entry) in entries().filter(|(key, _)| key.name != "mcp_servers") {
            let value = (entry.show)(&defaults);
            if value.is_null() {
                continue;
            }
            let mut config = defaults.clone();
            assert_eq!((key.set)(&mut config, &value), Ok(()), "{} {value}", key.name);
            assert_eq!((entry.show)(&config), value, "{}", key.name);
        }
    }
}
