//! `pixir mcp`: list MCP servers, and test one.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::base::error::{Kind, Report, counted};
use crate::base::secret::Secrets;
use crate::frontends::cli::exit::Exit;
use crate::frontends::cli::runner::in_runtime;
use crate::frontends::cli::{CliContext, bad_argument};
use crate::frontends::render::one_line;
use crate::frontends::signals::SignalListener;
use crate::host::process::CommandRunner;
use crate::settings::config::{Config, McpServer, McpTransport};
use crate::tools::mcp::{McpContext, McpProbe, display_address, probe_server};

/// Show MCP servers, or test one
#[derive(Debug, Args)]
#[command(
    long_about = "Show MCP servers, or test one.\n\n\
        Servers are configured in `mcp_servers` of your config.json, by name: a program with `command`, `args` \
        and `env`, or an address with `url` and `headers`. A Workspace may have an .mcp.json, which \
        takes effect once you trust it (see `pixir trust`). Values of `env` and `headers` are never shown; \
        `${NAME}` takes a value from the environment, in `command` and `args` from the entry's own `env` \
        first. An invalid entry is listed as broken, \
        with its error, and does not affect the others. Programs run outside the sandbox, with your rights.\n\n\
        A test waits 10 s at most, or as long as --timeout says.\n\n\
        With --json, the output of `list` is a list of {name, transport, place, origin, trusted}, with the \
        names in `env` (transport stdio) or `headers` (http), or the `problem` (broken). That of `test` is \
        {name, transport, server: {name, version}, protocol, instructions, tools: [{name, description, \
        read_only}], tools_left_out, took_ms}.",
    after_long_help = "Examples:\n  pixir mcp\n  pixir mcp list --json\n  pixir mcp test files"
)]
pub struct McpArgs {
    #[command(subcommand)]
    action: Option<McpAction>,
}

#[derive(Debug, Subcommand)]
enum McpAction {
    /// List the servers that a Session would use here
    List,
    /// Connect to a server and show what it offers
    Test {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
    },
}

pub fn mcp(args: &McpArgs, context: &CliContext) -> Result<Exit, Report> {
    let folder = context.current_folder()?;
    let loaded = context.load_settings(Some(&folder))?;
    for notice in &loaded.notices {
        context.print_notice(notice);
    }
    let config = loaded.config;
    match args.action.as_ref().unwrap_or(&McpAction::List) {
        McpAction::List => {
            let servers = &config.mcp.servers;
            if servers.is_empty() {
                context.print_notice("there are no MCP servers; see `pixir mcp --help`");
            }
            let output: Vec<Value> = servers.iter().map(server_json).collect();
            context.print_result("mcp", &servers_text(servers), output)
        }
        McpAction::Test { name } => test_server(name, &config, folder, context),
    }
}

/// Default time limit of a test, because a person waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit of this test: `--timeout`, else `TEST_TIMEOUT` at most.
fn test_timeout(named: bool, config: &Config) -> Duration {
    match config.budget.timeout {
        Some(asked) if named => asked,
        _ => config.mcp.connect.min(TEST_TIMEOUT),
    }
}

/// What to do about a server that did not answer.
fn timeout_next_actions(server: &McpServer) -> Vec<String> {
    let check = match server.transport {
        McpTransport::Http { .. } => "check that the server at its `url` runs and answers",
        _ => "start its command by hand, and see whether it waits for something",
    };
    vec![check.to_owned(), "give it longer, such as `--timeout 60s`, if it is slow".to_owned()]
}

fn test_server(
    name: &str,
    config: &Config,
    folder: PathBuf,
    context: &CliContext,
) -> Result<Exit, Report> {
    let servers = &config.mcp.servers;
    let Some(server) = servers.iter().find(|server| server.name == name) else {
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        let next = match names.as_slice() {
            [] => "add it to `mcp_servers` in your config.json".to_owned(),
            names => format!("use one of: {}", names.join(", ")),
        };
        return Err(
            bad_argument(format!("there is no MCP server `{name}`")).with_next_actions(vec![next])
        );
    };
    let mut connection = connect_environment(config, folder, context)?;
    connection.limits.connect = test_timeout(context.flags.timeout.is_some(), config);
    let secrets = Arc::clone(&connection.secrets);
    let probed = in_runtime(async {
        let mut signals = SignalListener::listen();
        tokio::select! {
            probed = probe_server(server, &connection) => probed.map_err(Report::from),
            _ = signals.next() => Err(Report::new(Kind::Interrupted, "the test was interrupted")),
        }
    });
    let took = context.started.elapsed();
    let clean = |mut report: Report| {
        report.message = format!("MCP server `{name}`: {}", secrets.redact(&report.message));
        secrets.redact_value(&mut report.details);
        if report.kind == Kind::Timeout.name() {
            return report.with_next_actions(timeout_next_actions(server));
        }
        report
    };
    let probe = probed.map_err(clean)?;
    let mut output = probe_json(server, &probe, took);
    secrets.redact_value(&mut output);
    context.print_result("mcp", &secrets.redact(&probe_text(name, &probe, took)), output)
}

fn connect_environment(
    config: &Config,
    workspace: PathBuf,
    context: &CliContext,
) -> Result<McpContext, Report> {
    let secrets = Arc::new(Secrets::from_environment(context.environment.variables()));
    let home = context.environment.get("HOME").map(PathBuf::from);
    Ok(McpContext {
        commands: CommandRunner::new(context.process_host()?, config),
        http: context.http_settings(config),
        workspace,
        home: home.filter(|home| home.is_absolute()).unwrap_or_else(|| PathBuf::from("/")),
        secrets,
        limits: config.mcp.clone(),
    })
}

fn servers_text(servers: &[McpServer]) -> String {
    let width = servers.iter().map(|server| server.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for server in servers {
        let name = one_line(&server.name, 64);
        let trust = if server.is_trusted { ", trusted" } else { "" };
        let origin = server.origin.name();
        let place = match &server.transport {
            McpTransport::Broken { key, problem } => one_line(&format!("{key}: {problem}"), 200),
            _ => one_line(&display_address(server), 200),
        };
        // Writing to a String cannot fail.
        writeln!(text, "{name:width$}  {}  {place}  ({origin}{trust})", transport_name(server))
            .ok();
    }
    text
}

fn transport_name(server: &McpServer) -> &'static str {
    match server.transport {
        McpTransport::Stdio { .. } => "stdio",
        McpTransport::Http { .. } => "http",
        McpTransport::Broken { .. } => "broken",
    }
}

fn server_json(server: &McpServer) -> Value {
    let names: Vec<&str> = server.private_values().iter().map(|(name, _)| name.as_str()).collect();
    let mut entry = json!({
        "name": server.name,
        "transport": transport_name(server),
        "place": display_address(server),
        "origin": server.origin.name(),
        "trusted": server.is_trusted,
    });
    match &server.transport {
        McpTransport::Stdio { .. } => entry["env"] = json!(names),
        McpTransport::Http { .. } => entry["headers"] = json!(names),
        McpTransport::Broken { problem, .. } => entry["problem"] = json!(problem),
    }
    entry
}

fn probe_json(server: &McpServer, probe: &McpProbe, took: Duration) -> Value {
    let tools: Vec<Value> = probe
        .tools
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "read_only": tool.is_read_only,
            })
        })
        .collect();
    json!({
        "name": server.name,
        "transport": transport_name(server),
        "server": { "name": probe.name, "version": probe.version },
        "protocol": probe.protocol,
        "instructions": probe.instructions,
        "tools": tools,
        "tools_left_out": probe.left_out,
        "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    })
}

fn probe_text(name: &str, probe: &McpProbe, took: Duration) -> String {
    let own = probe.name.as_deref().unwrap_or("without a name");
    let version = probe.version.as_deref().unwrap_or_default();
    let mut text = format!(
        "{name}: {} {}, MCP {}, {}, {} ms\n",
        one_line(own, 100),
        one_line(version, 50),
        one_line(&probe.protocol, 30),
        counted(probe.tools.len(), "tool"),
        took.as_millis()
    );
    for tool in &probe.tools {
        let mark = if tool.is_read_only { " (reads only)" } else { "" };
        // Writing to a String cannot fail.
        writeln!(text, "  {}{mark}  {}", tool.name, one_line(&tool.description, 100)).ok();
    }
    if probe.left_out > 0 {
        writeln!(text, "  and {} more, which are left out", probe.left_out).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::paths::Home;

    #[test]
    fn a_person_waits_ten_seconds_unless_they_say_otherwise() {
        let mut config = Config::new(Home::new("/nowhere"));
        assert_eq!(test_timeout(false, &config), TEST_TIMEOUT);
        config.budget.timeout = Some(Duration::from_hours(1));
        assert_eq!(test_timeout(false, &config), TEST_TIMEOUT, "that one is for Turns");
        assert_eq!(test_timeout(true, &config), Duration::from_hours(1));
        config.mcp.connect = Duration::from_secs(3);
        assert_eq!(test_timeout(false, &config), Duration::from_secs(3));
    }
}
