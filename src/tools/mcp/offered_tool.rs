//! Tools of MCP servers as they are offered to a model.

use std::collections::HashSet;
use std::sync::Arc;

use rmcp::model::Tool;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{sanitize_schema, sanitize_text, tool_name};
use crate::base::id::hex;
use crate::model::tool_spec::ToolSchema;
use crate::settings::config::{McpServer, McpTransport};
use crate::tools::tool::CallEffect;

/// How many tools of one server are offered.
pub const MAX_OFFERED_TOOLS: usize = 128;

/// One tool of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// The name that the model uses.
    pub name: String,
    /// The server's own name for it.
    pub own_name: String,
    pub description: String,
    pub schema: ToolSchema,
    /// The worst effect of a call: to execute, unless a trusted server declares the tool read-only.
    pub effect: CallEffect,
    /// Digest of the server and its declaration of the tool, to which approvals are bound.
    pub identity: String,
}

impl OfferedTool {
    /// The tools that are offered, by name, and how many are left out.
    pub fn from_tools(
        server: &McpServer,
        slug: &str,
        mut tools: Vec<Tool>,
    ) -> (Vec<Arc<OfferedTool>>, usize) {
        tools.sort_by(|one, other| one.name.cmp(&other.name));
        tools.dedup_by(|later, earlier| later.name == earlier.name);
        let left_out = tools.len().saturating_sub(MAX_OFFERED_TOOLS);
        tools.truncate(MAX_OFFERED_TOOLS);
        let mut taken = HashSet::new();
        let mut offers: Vec<Arc<OfferedTool>> = Vec::with_capacity(tools.len());
        for tool in tools {
            let offer = Self::from_tool(server, slug, &tool, &taken);
            taken.insert(offer.name.clone());
            offers.push(Arc::new(offer));
        }
        (offers, left_out)
    }

    fn from_tool(server: &McpServer, slug: &str, tool: &Tool, taken: &HashSet<String>) -> Self {
        let hints = tool.annotations.as_ref();
        let says_it_reads = hints.and_then(|hints| hints.read_only_hint) == Some(true);
        let effect =
            if says_it_reads && server.is_trusted { CallEffect::Read } else { CallEffect::Execute };
        let description = tool.description.as_deref().or(tool.title.as_deref());
        let description =
            sanitize_text::tool_description(&server.name, description.unwrap_or_default());
        let schema = sanitize_schema::sanitize_schema(&tool.input_schema);
        Self {
            name: tool_name::tool_name(slug, &tool.name, taken),
            own_name: tool.name.clone().into_owned(),
            identity: tool_identity(server, &tool.name, &description, &schema),
            description,
            schema: schema.into(),
            effect,
        }
    }
}

/// The digest of a server's address and its declaration of a tool.
fn tool_identity(server: &McpServer, tool: &str, manual: &str, schema: &Value) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    match &server.transport {
        McpTransport::Stdio { command, args, env, folder } => {
            add("stdio");
            add(command);
            // The count keeps arguments and environment apart; both can change what the command does.
            add(&args.len().to_string());
            for arg in args {
                add(arg);
            }
            for (name, value) in env {
                add(name);
                add(value);
            }
            add(&format!("{folder:?}"));
        }
        McpTransport::Http { url, headers } => {
            add("http");
            add(url);
            // Header values are credentials, which are renewed.
            for (name, _) in headers {
                add(name);
            }
        }
        // A broken entry offers no tools.
        McpTransport::Broken { key, .. } => add(key),
    }
    [server.name.as_str(), tool, manual, &schema.to_string()].into_iter().for_each(add);
    hex(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools(value: &Value) -> Vec<Tool> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn other_arguments_or_another_environment_are_another_tool() {
        let listed_tools = tools(&json!([{"name": "look", "inputSchema": {}}]));
        let identity = |args: &[&str], env: &[(&str, &str)]| {
            let args = args.iter().map(|arg| (*arg).into()).collect();
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let server = McpServer::stdio("s", "x", args, env);
            OfferedTool::from_tools(&server, "s", listed_tools.clone()).0[0].identity.clone()
        };
        let all = [
            identity(&[], &[]),
            identity(&[], &[("A", "1")]),
            identity(&[], &[("A", "2")]),
            identity(&["A", "1"], &[]),
            identity(&["A"], &[("1", "B")]),
            identity(&["A", "1", "B"], &[]),
        ];
        let different: HashSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        assert_eq!(identity(&[], &[("A", "1")]), all[1]);
    }

    #[test]
    fn a_tool_reads_only_when_a_trusted_server_says_so() {
        let listed_tools = tools(&json!([
            {"name": "look", "inputSchema": {}, "annotations": {"readOnlyHint": true}},
            {"name": "do", "inputSchema": {}, "annotations": {"readOnlyHint": false}},
            {"name": "what", "inputSchema": {}},
        ]));
        let untrusted = McpServer::stdio("s", "x", Vec::new(), Vec::new());
        let trusted = McpServer { is_trusted: true, ..untrusted.clone() };
        let effects = |server: &McpServer| -> Vec<(String, CallEffect)> {
            let (offers, _) = OfferedTool::from_tools(server, "s", listed_tools.clone());
            offers.iter().map(|offer| (offer.own_name.clone(), offer.effect)).collect()
        };
        let named = |effect| ["do", "look", "what"].map(|name| (name.to_owned(), effect)).to_vec();
        assert_eq!(effects(&untrusted), named(CallEffect::Execute));
        let mut expected = named(CallEffect::Execute);
        expected[1].1 = CallEffect::Read;
        assert_eq!(effects(&trusted), expected);
    }

    #[test]
    fn there_is_an_end_to_what_is_offered() {
        let many: Vec<Value> =
            (0..10_000).map(|n| json!({"name": format!("t{n}"), "inputSchema": {}})).collect();
        let server = McpServer::stdio("s", "x", Vec::new(), Vec::new());
        let (offers, left_out) = OfferedTool::from_tools(&server, "s", tools(&json!(many)));
        assert_eq!((offers.len(), left_out), (MAX_OFFERED_TOOLS, 10_000 - MAX_OFFERED_TOOLS));
    }

    #[test]
    fn a_tool_that_changed_is_another_one() {
        let identity = |server: &McpServer, description: &str| {
            let listed_tools =
                json!([{"name": "a", "description": description, "inputSchema": {}}]);
            OfferedTool::from_tools(server, "s", tools(&listed_tools)).0[0].identity.clone()
        };
        let server = McpServer::stdio("s", "x", Vec::new(), Vec::new());
        let other = McpServer::stdio("s", "y", Vec::new(), Vec::new());
        assert_eq!(identity(&server, "one"), identity(&server, "one"));
        assert_ne!(identity(&server, "one"), identity(&server, "two"));
        assert_ne!(identity(&server, "one"), identity(&other, "one"));
    }
}
