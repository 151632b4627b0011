//! Secrets in the entry of an MCP server, and its display without them.

use std::borrow::Cow;

use url::Url;

use crate::base::secret::is_secret_name;
use crate::settings::config::{McpServer, McpTransport};

/// The shortest value that is hidden because of its name, in bytes.
const MIN_NAMED_SECRET_BYTES: usize = 8;
/// The shortest value that is hidden because it looks like a token, in bytes.
const MIN_TOKEN_BYTES: usize = 16;
/// Headers that are not secret.
const OPEN_HEADERS: [&str; 5] =
    ["accept", "accept-language", "content-type", "user-agent", "x-client-name"];

/// The secret values of an entry, with their names.
pub fn server_secrets(server: &McpServer) -> Vec<(String, String)> {
    let mut found = Vec::new();
    match &server.transport {
        McpTransport::Stdio { args, env, .. } => {
            found.extend(env.iter().filter(|(name, value)| is_secret(name, value)).cloned());
            let name = || format!("{}_ARGUMENT", server.name.to_uppercase());
            found.extend(args.iter().filter(|arg| is_token(arg)).map(|arg| (name(), arg.clone())));
        }
        McpTransport::Http { url, headers } => {
            let is_open =
                |name: &str| OPEN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own));
            for (name, value) in headers.iter().filter(|(name, _)| !is_open(name)) {
                // The credential follows a scheme such as `Bearer`.
                let last = value.rsplit(' ').next().unwrap_or(value);
                if last.len() >= MIN_NAMED_SECRET_BYTES {
                    found.push((name.clone(), last.to_owned()));
                }
            }
            found.extend(url_secrets(url));
        }
        McpTransport::Broken { .. } => {}
    }
    found
}

fn url_secrets(url: &str) -> Vec<(String, String)> {
    let Ok(url) = Url::parse(url) else { return Vec::new() };
    let password = url.password().map(|password| ("password".to_owned(), password.to_owned()));
    let asked = url.query_pairs().filter(|(name, value)| is_secret(name, value));
    let asked = asked.map(|(name, value)| (name.into_owned(), value.into_owned()));
    password.into_iter().chain(asked).collect()
}

fn is_secret(name: &str, value: &str) -> bool {
    (is_secret_name(name) && value.len() >= MIN_NAMED_SECRET_BYTES) || is_token(value)
}

/// Whether a value looks like a token: long, with letters and digits, neither a path nor an address.
fn is_token(value: &str) -> bool {
    value.len() >= MIN_TOKEN_BYTES
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.=+".contains(&byte))
        && value.bytes().any(|byte| byte.is_ascii_digit())
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !value.starts_with('-')
}

/// The command or address of a server, without secrets.
pub fn display_address(server: &McpServer) -> String {
    let secrets = server_secrets(server);
    let hide = |text: &str| {
        secrets.iter().fold(text.to_owned(), |text, (_, value)| text.replace(value, "…"))
    };
    match &server.transport {
        McpTransport::Stdio { command, args, .. } => {
            let words = std::iter::once(command).chain(args);
            let words: Vec<Cow<'_, str>> = words.map(|word| hide(word).into()).collect();
            words.join(" ")
        }
        McpTransport::Http { url, .. } => match Url::parse(url) {
            Ok(mut parsed) => {
                parsed.set_password(None).ok();
                let is_asking = parsed.query().is_some();
                parsed.set_query(None);
                let mark = if is_asking { "?…" } else { "" };
                format!("{parsed}{mark}")
            }
            Err(_) => "an address that cannot be read".to_owned(),
        },
        McpTransport::Broken { key, .. } => key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_secret_and_settings_are_not() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env = vec![
            pair("API_KEY", "short-but-told"),
            pair("GITHUB_PAT", "ghp_0123456789abcdef"),
            pair("NODE_ENV", "production-environment"),
            pair("DEBUG", "true"),
            pair("ROOT", "/home/user/projects/number1"),
        ];
        let args = vec!["-y".to_owned(), "--token".to_owned(), "tok_0123456789abcdef".to_owned()];
        let server = McpServer::stdio("files", "npx", args, env);
        let names: Vec<String> =
            server_secrets(&server).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["API_KEY", "GITHUB_PAT", "FILES_ARGUMENT"]);
        assert_eq!(display_address(&server), "npx -y --token …");
    }

    #[test]
    fn an_address_is_shown_without_its_keys() {
        let headers = vec![
            ("Authorization".to_owned(), "Bearer abcdefgh".to_owned()),
            ("Accept".to_owned(), "text/event-stream".to_owned()),
        ];
        let url = "https://u:passwords@x.example/mcp?api_key=0123456789&page=2";
        let server = McpServer::http("web", url, headers);
        let values: Vec<String> =
            server_secrets(&server).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["abcdefgh", "passwords", "0123456789"]);
        assert_eq!(display_address(&server), "https://u@x.example/mcp?…");
    }
}
