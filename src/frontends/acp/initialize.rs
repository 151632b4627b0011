//! The answer to `initialize`: capabilities and authentication methods.

use std::collections::HashMap;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AgentAuthCapabilities, AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal,
    Implementation, InitializeResponse, LogoutCapabilities, McpCapabilities, Meta,
    PromptCapabilities, SessionAdditionalDirectoriesCapabilities, SessionCapabilities,
    SessionCloseCapabilities, SessionDeleteCapabilities, SessionForkCapabilities,
    SessionListCapabilities, SessionResumeCapabilities,
};
use serde_json::json;

use super::capabilities::ClientCapabilities;
use super::host::SignIn;

/// The authentication method that opens a browser.
const CHATGPT: &str = "chatgpt";
/// The authentication method that uses the key from the environment.
const API_KEY: &str = "openai-api-key";
/// The authentication method that the client runs in a terminal.
const TERMINAL: &str = "chatgpt-terminal";
/// The flag with which `pixir acp` signs in instead of serving.
pub const LOGIN_FLAG: &str = "--login";

/// The answer to `initialize`, for any requested version.
pub fn initialize_response(client: ClientCapabilities, sees_images: bool) -> InitializeResponse {
    let session = SessionCapabilities::new()
        .list(SessionListCapabilities::new())
        .resume(SessionResumeCapabilities::new())
        .close(SessionCloseCapabilities::new())
        .delete(SessionDeleteCapabilities::new())
        .fork(SessionForkCapabilities::new())
        .additional_directories(SessionAdditionalDirectoriesCapabilities::new());
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(PromptCapabilities::new().image(sees_images).embedded_context(true))
        .mcp_capabilities(McpCapabilities::new().http(true))
        .session_capabilities(session)
        .auth(AgentAuthCapabilities::new().logout(LogoutCapabilities::new()));
    let version = env!("CARGO_PKG_VERSION");
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .auth_methods(auth_methods(client))
        .agent_info(Implementation::new("pixir", version).title("Pixir".to_owned()))
}

fn auth_methods(client: ClientCapabilities) -> Vec<AuthMethod> {
    let words = "Opens a browser to sign in".to_owned();
    let mut browser = AuthMethodAgent::new(CHATGPT, "Sign in with ChatGPT").description(words);
    if client.runs_old_logins
        && let Ok(program) = std::env::current_exe()
    {
        let (label, args) = ("Sign in with ChatGPT", ["login"]);
        let login = json!({ "label": label, "command": program, "args": args, "env": {} });
        browser = browser.meta(Meta::from_iter([("terminal-auth".to_owned(), login)]));
    }
    let words = "Uses OPENAI_API_KEY from the environment of Pixir".to_owned();
    let key = AuthMethodAgent::new(API_KEY, "OpenAI API key").description(words);
    let mut methods = vec![AuthMethod::Agent(browser), AuthMethod::Agent(key)];
    if client.runs_logins {
        let words = "Signs in on a terminal; works without a browser".to_owned();
        let terminal = AuthMethodTerminal::new(TERMINAL, "Sign in with ChatGPT on a terminal")
            .description(words)
            .args(vec![LOGIN_FLAG.to_owned()])
            .env(HashMap::new());
        methods.push(AuthMethod::Terminal(terminal));
    }
    methods
}

/// The way to sign in for the id of an authentication method.
pub fn sign_in_method(method: &str) -> Option<SignIn> {
    match method {
        CHATGPT => Some(SignIn::ChatGpt),
        API_KEY => Some(SignIn::ApiKey),
        _ => None,
    }
}
