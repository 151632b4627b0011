//! The callback listener: waits on a loopback port for the browser's redirect with a code.
//!
//! It implements just enough HTTP: one path, one method, a check of the host, and a connection that is closed after
//! every answer, so that the browser cannot reuse a connection to this listener for a later sign-in.

use std::net::Ipv4Addr;
use std::time::Duration;

use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use url::Url;

/// The path of the redirect URI.
pub const CALLBACK_PATH: &str = "/auth/callback";

/// The longest request that is read, in bytes.
const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// The timeout of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The capacity of the channel for redirects; one sign-in has fewer.
const QUEUE: usize = 4;

const DONE: &str = "Pixir has what it needs. You can close this page and go back to the terminal.";
const FAILED: &str = "The sign-in did not succeed. The terminal says why.";
const UNEXPECTED: &str = "This is not the sign-in that Pixir waits for. Pixir keeps waiting.";

/// The result that a redirect carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redirect {
    Code(String),
    Refused { code: String, message: String },
}

/// The listener of one sign-in.
pub struct CallbackListener {
    listener: TcpListener,
    port: u16,
    state: String,
}

impl CallbackListener {
    /// Binds the first free port.
    pub async fn bind(ports: &[u16], state: &str) -> Option<Self> {
        for port in ports {
            let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await else {
                continue;
            };
            let Ok(address) = listener.local_addr() else { continue };
            return Some(Self { listener, port: address.port(), state: state.to_owned() });
        }
        None
    }

    /// The redirect URI, which must be the same in the authorize request and in the exchange.
    pub fn redirect_uri(&self) -> String {
        format!("http://127.0.0.1:{}{CALLBACK_PATH}", self.port)
    }

    /// Waits for the redirect with the right state; all other requests are refused.
    pub async fn wait_for_redirect(&self) -> Redirect {
        let (found, mut finds) = mpsc::channel(QUEUE);
        // Dropping the set ends all connections. Each has its own task, so a silent one does not block the others.
        let mut visitors = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                find = finds.recv() => if let Some(redirect) = find { return redirect },
                visitor = self.listener.accept() => if let Ok((socket, _)) = visitor {
                    while visitors.try_join_next().is_some() {}
                    let (found, port, state) = (found.clone(), self.port, self.state.clone());
                    visitors.spawn(async move {
                        let visit = serve_connection(socket, port, &state);
                        if let Ok(Some(redirect)) = tokio::time::timeout(CONNECTION_TIMEOUT, visit).await {
                            found.try_send(redirect).ok();
                        }
                    });
                },
            }
        }
    }
}

async fn serve_connection(mut socket: TcpStream, port: u16, state: &str) -> Option<Redirect> {
    let mut bytes = Vec::new();
    while memchr::memmem::find(&bytes, b"\r\n\r\n").is_none() {
        if bytes.len() > MAX_REQUEST_BYTES || socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let (status, words, redirect) = judge_request(&String::from_utf8_lossy(&bytes), port, state);
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Pixir</title>\
         <body style=\"font-family:sans-serif;margin:4em\"><p>{words}</p>"
    );
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nreferrer-policy: no-referrer\r\n\
         content-security-policy: default-src 'none'; style-src 'unsafe-inline'\r\n\
         x-content-type-options: nosniff\r\nconnection: close\r\n\r\n{page}",
        page.len()
    );
    // The redirect counts even if the browser has closed the connection.
    if socket.write_all(answer.as_bytes()).await.is_ok() {
        socket.shutdown().await.ok();
    }
    redirect
}

/// The status, the text and the redirect of a request. The texts are constants: nothing of a request is echoed.
fn judge_request(
    head: &str,
    port: u16,
    state: &str,
) -> (&'static str, &'static str, Option<Redirect>) {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut hosts = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        .map(|(_, value)| value.trim());
    let own = format!("127.0.0.1:{port}");
    if hosts.next() != Some(own.as_str()) || hosts.next().is_some() {
        return ("421 Misdirected Request", UNEXPECTED, None);
    }
    let path = target.split('?').next().unwrap_or_default();
    if path != CALLBACK_PATH {
        return ("404 Not Found", UNEXPECTED, None);
    }
    if method != "GET" {
        return ("405 Method Not Allowed", UNEXPECTED, None);
    }
    let Ok(url) = Url::parse(&format!("http://{own}{target}")) else {
        return ("400 Bad Request", UNEXPECTED, None);
    };
    match parse_redirect(&url, state) {
        Some(Ok(code)) => ("200 OK", DONE, Some(Redirect::Code(code))),
        Some(Err((code, message))) => ("200 OK", FAILED, Some(Redirect::Refused { code, message })),
        None => ("400 Bad Request", UNEXPECTED, None),
    }
}

type RedirectError = (String, String);

/// Parses a redirect; `None` when its state is not that of this sign-in.
pub fn parse_redirect(url: &Url, state: &str) -> Option<Result<String, RedirectError>> {
    let only = |name: &str| {
        let mut values = url.query_pairs().filter(|(own, _)| own == name);
        let first = values.next().map(|(_, value)| value.into_owned());
        first.filter(|value| !value.is_empty() && values.next().is_none())
    };
    if !only("state").is_some_and(|found| eq_constant_time(&found, state)) {
        return None;
    }
    if let Some(error) = only("error") {
        let message = only("error_description").unwrap_or_else(|| error.clone());
        return Some(Err((error, message)));
    }
    let missing = || ("missing_code".to_owned(), "the redirect had no code".to_owned());
    Some(only("code").ok_or_else(missing))
}

/// Compares two texts in constant time, so that the time reveals nothing about them.
pub fn eq_constant_time(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(line: &str, host: &str) -> String {
        format!("{line} HTTP/1.1\r\nAccept: */*\r\nHost: {host}\r\n\r\n")
    }

    #[track_caller]
    fn check(line: &str, host: &str, status: &str, redirect: Option<&Redirect>) {
        let (found, words, brought) = judge_request(&head(line, host), 1455, "the-state");
        assert!(found.starts_with(status), "{line} {host}: {found}");
        assert_eq!(brought.as_ref(), redirect, "{line} {host}");
        assert!(!words.contains('<'));
    }

    #[test]
    fn only_the_right_visitor_counts() {
        let own = "127.0.0.1:1455";
        let code = Redirect::Code("c+1".to_owned());
        check("GET /auth/callback?code=c%2B1&state=the-state", own, "200", Some(&code));
        check("GET /auth/callback?code=c&state=other", own, "400", None);
        check("GET /auth/callback?code=c", own, "400", None);
        check("GET /auth/callback?code=c&state=the-state&state=other", own, "400", None);
        check("GET /auth/callback?error=x&state=other", own, "400", None);
        check("POST /auth/callback?code=c&state=the-state", own, "405", None);
        check("GET /?code=c&state=the-state", own, "404", None);
        check("GET /auth/callback/?code=c&state=the-state", own, "404", None);
        for host in ["localhost:1455", "127.0.0.1", "127.0.0.1:1457", "evil.example:1455", ""] {
            check("GET /auth/callback?code=c&state=the-state", host, "421", None);
        }
        let refused =
            Redirect::Refused { code: "access_denied".into(), message: "<b>no</b>".into() };
        let line = "GET /auth/callback?error=access_denied&error_description=%3Cb%3Eno%3C/b%3E&state=the-state";
        check(line, own, "200", Some(&refused));
        let (status, _, brought) =
            judge_request(&head("GET /auth/callback?state=the-state", own), 1455, "the-state");
        assert!(status.starts_with("200") && matches!(brought, Some(Redirect::Refused { .. })));
    }

    #[test]
    fn two_hosts_are_none() {
        let head =
            "GET /auth/callback?code=c&state=s HTTP/1.1\r\nHost: 127.0.0.1:1\r\nhost: x\r\n\r\n";
        assert!(judge_request(head, 1, "s").0.starts_with("421"));
    }

    #[tokio::test]
    async fn a_silent_connection_does_not_block_others() {
        let callback = CallbackListener::bind(&[0], "s").await.unwrap();
        let address = ("127.0.0.1", callback.port);
        let _silent = TcpStream::connect(address).await.unwrap();
        let visit = async {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let host = format!("127.0.0.1:{}", callback.port);
            let head = head("GET /auth/callback?code=c&state=s", &host);
            socket.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let (redirect, answer) = tokio::join!(callback.wait_for_redirect(), visit);
        assert_eq!(redirect, Redirect::Code("c".to_owned()));
        assert!(answer.contains("connection: close"), "{answer}");
    }
}
