//! Secrets: known secret values are redacted once, where text enters Pixir.
//!
//! Log, Provider and screen then see the same bytes. Files that tools write are never altered.

mod echo;

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use parking_lot::RwLock;
use serde_json::Value;

pub use echo::redact_echo;

/// The parts of a variable's name that make its value a secret.
const SECRET_NAME_PARTS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"];

/// Variables with API keys of Providers; no setting passes them to commands.
const PROVIDER_KEYS: &[&str] = &[
    "OPENAI_API_KEY",
    "OPENAI_ADMIN_KEY",
    "AZURE_OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "MISTRAL_API_KEY",
    "GROQ_API_KEY",
    "DEEPSEEK_API_KEY",
    "OPENROUTER_API_KEY",
    "XAI_API_KEY",
];

/// The shortest environment value, and line of a value, that is redacted; shorter ones may be ordinary words.
const MIN_ENVIRONMENT_VALUE: usize = 12;

/// The shortest explicit value that is redacted; shorter ones occur in ordinary text.
const MIN_VALUE: usize = 4;

/// The beginning of the marker that replaces a value.
const MARKER: &str = "[redacted:";

/// The longest name in a marker, in bytes.
const MAX_MARKER_NAME: usize = 256;

/// The known secret values of this run; more can be added while it lasts.
#[derive(Default)]
pub struct Secrets(RwLock<Arc<SecretTable>>);

/// An immutable set of known values, with its matcher.
#[derive(Default)]
struct SecretTable {
    known: Vec<KnownSecret>,
    /// Built at the first search.
    matcher: OnceLock<Option<AhoCorasick>>,
}

#[derive(Clone)]
struct KnownSecret {
    value: String,
    replacement: String,
    /// The replacement with as many line ends as the value has.
    in_lines: String,
}

/// The position of a known value in the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSpan {
    pub range: Range<usize>,
    /// The text that is shown instead.
    pub marker: String,
    /// The number of line ends in the value, which are shown after the marker.
    pub line_ends: usize,
}

/// The ranges of markers such as `[redacted:NAME]` in a text, with any name.
pub fn find_markers(text: &[u8]) -> Vec<Range<usize>> {
    let starts = memchr::memmem::find_iter(text, MARKER);
    let end_of = |start: usize| {
        let name = &text[start + MARKER.len()..];
        let name = &name[..name.len().min(MAX_MARKER_NAME + 1)];
        let length = name.iter().position(|byte| matches!(byte, b'[' | b']' | b'\n' | b'\r'))?;
        (length > 0 && name[length] == b']').then_some(start + MARKER.len() + length + 1)
    };
    starts.filter_map(|start| Some(start..end_of(start)?)).collect()
}

/// Whether a text has a marker.
pub fn has_marker(text: &str) -> bool {
    !find_markers(text.as_bytes()).is_empty()
}

/// Whether the name of a variable says that its value is a secret.
pub fn is_secret_name(name: &str) -> bool {
    let shouted = name.to_ascii_uppercase();
    SECRET_NAME_PARTS.iter().any(|part| shouted.contains(part))
}

/// Whether a variable holds the key of a Provider, which goes to that Provider alone.
pub fn is_provider_key(name: &str) -> bool {
    PROVIDER_KEYS.iter().any(|key| name.eq_ignore_ascii_case(key))
}

impl Secrets {
    /// Secrets with these names and values; values too short to search for are left out.
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self::default().with_values(values)
    }

    /// The environment values whose names mark them as secret, and the passwords in the addresses of
    /// proxies.
    pub fn from_environment(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self::new(vars.into_iter().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            if is_secret_name(&name) {
                let is_long = value.trim().len() >= MIN_ENVIRONMENT_VALUE;
                return is_long.then_some((name, value));
            }
            let is_proxy = name.to_ascii_uppercase().ends_with("_PROXY");
            let password = password_in(&value).filter(|_| is_proxy)?.to_owned();
            Some((name, password))
        }))
    }

    /// Adds more names and values.
    #[must_use]
    pub fn with_values(self, values: impl IntoIterator<Item = (String, String)>) -> Self {
        self.add_values(values);
        self
    }

    /// Adds more names and values, such as a token that has just been renewed.
    pub fn add_values(&self, values: impl IntoIterator<Item = (String, String)>) {
        let mut place = self.0.write();
        let mut known = place.known.clone();
        for (name, value) in values {
            let value = value.trim();
            add_known(&mut known, &name, value);
            if value.contains('\n') {
                // With line numbers, in a diff or with other line ends, only single lines of it match.
                add_known(&mut known, &name, &value.replace("\r\n", "\n"));
                add_known(&mut known, &name, &value.replace("\r\n", "\n").replace('\n', "\r\n"));
                let lines = value.lines().map(str::trim).filter(|line| is_secret_line(line));
                lines.for_each(|line| add_known(&mut known, &name, line));
            }
        }
        if known.len() == place.known.len() {
            return;
        }
        *place = Arc::new(SecretTable { known, matcher: OnceLock::new() });
    }

    fn table(&self) -> Arc<SecretTable> {
        Arc::clone(&self.0.read())
    }

    /// Replaces every known value; text without any is returned as it is.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.table().redact(text)
    }

    /// Replaces known values in every string of a JSON value, keys included.
    pub fn redact_value(&self, value: &mut Value) {
        let table = self.table();
        if !table.known.is_empty() {
            map_strings(value, &|text| table.redact(text));
        }
    }

    /// Replaces every known value in the bytes of a file, and keeps their number of lines.
    pub fn redact_file<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.table().redact_file(bytes)
    }

    /// Whether the bytes of a file have a known value.
    pub fn matches_bytes(&self, bytes: &[u8]) -> bool {
        self.table().matcher().is_some_and(|matcher| matcher.is_match(bytes))
    }

    /// The positions of known values in the bytes of a file.
    pub fn find_spans(&self, bytes: &[u8]) -> Vec<SecretSpan> {
        let table = self.table();
        let Some(matcher) = table.matcher() else { return Vec::new() };
        let spans = matcher.find_iter(bytes).map(|found| {
            let known = &table.known[found.pattern().as_usize()];
            let line_ends = known.in_lines.len() - known.replacement.len();
            SecretSpan { range: found.range(), marker: known.replacement.clone(), line_ends }
        });
        spans.collect()
    }

    /// Whether there is nothing to replace.
    pub fn is_empty(&self) -> bool {
        self.table().known.is_empty()
    }
}

impl SecretTable {
    /// The matcher of all values; `None` when there are none.
    fn matcher(&self) -> Option<&AhoCorasick> {
        if self.known.is_empty() {
            return None;
        }
        // A build fails only for a set too large for an automaton; nothing is redacted then. This kind
        // is quick to build; the search for candidates is the same in all kinds.
        let build = || {
            AhoCorasick::builder()
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .match_kind(MatchKind::LeftmostLongest)
                .build(self.known.iter().map(|known| known.value.as_bytes()))
                .ok()
        };
        self.matcher.get_or_init(build).as_ref()
    }

    fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.matcher() {
            Some(matcher) if matcher.is_match(text) => Cow::Owned(
                matcher.replace_all(text, &self.replacements(|known| &known.replacement)),
            ),
            _ => Cow::Borrowed(text),
        }
    }

    /// The replacement of each value, in the order of the matcher's patterns.
    fn replacements(&self, replacement: fn(&KnownSecret) -> &str) -> Vec<&str> {
        self.known.iter().map(replacement).collect()
    }

    fn redact_file<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.matcher() {
            Some(matcher) if matcher.is_match(bytes) => {
                let replacements = self.replacements(|known| &known.in_lines);
                Cow::Owned(matcher.replace_all_bytes(bytes, &replacements))
            }
            _ => Cow::Borrowed(bytes),
        }
    }

    /// The first position, from `from` on, where the rest of `bytes` may be the beginning of a secret.
    fn possible_start(&self, bytes: &[u8], from: usize) -> usize {
        let longest = self.known.iter().map(|known| known.value.len()).max().unwrap_or(0);
        let earliest = (bytes.len() + 1).saturating_sub(longest).max(from);
        let begins_a_secret = |start: &usize| {
            let rest = &bytes[*start..];
            self.known.iter().any(|known| {
                known.value.len() > rest.len() && known.value.as_bytes().starts_with(rest)
            })
        };
        (earliest..bytes.len()).find(begins_a_secret).unwrap_or(bytes.len())
    }
}

/// Changes every string of a JSON value, keys included.
fn map_strings(value: &mut Value, change: &impl Fn(&str) -> Cow<'_, str>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            if let Cow::Owned(changed) = change(text) {
                *text = changed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| map_strings(item, change)),
        Value::Object(map) => {
            let entries = std::mem::take(map);
            map.extend(entries.into_iter().map(|(key, mut item)| {
                map_strings(&mut item, change);
                (change(&key).into_owned(), item)
            }));
        }
    }
}

/// The password in an address such as `http://user:password@host`.
fn password_in(address: &str) -> Option<&str> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':').map(|(_, password)| password)
}

fn add_known(known: &mut Vec<KnownSecret>, name: &str, value: &str) {
    if value.len() < MIN_VALUE || known.iter().any(|known| known.value == value) {
        return;
    }
    let replacement = format!("{MARKER}{name}]");
    let in_lines = replacement.clone() + &"\n".repeat(value.matches('\n').count());
    known.push(KnownSecret { value: value.to_owned(), replacement, in_lines });
}

/// Whether a line of a secret is secret by itself; the frame of a PEM block is not.
fn is_secret_line(line: &str) -> bool {
    line.len() >= MIN_ENVIRONMENT_VALUE && !line.starts_with("-----")
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} known)", self.table().known.len())
    }
}

/// Replaces known values in a stream of bytes, also those split over two chunks.
///
/// Only bytes that may be the beginning of a secret are held back, so live output is not delayed.
pub struct StreamRedactor<'a> {
    secrets: &'a Secrets,
    held: Vec<u8>,
    replacement: fn(&KnownSecret) -> &str,
}

impl<'a> StreamRedactor<'a> {
    /// A redactor at the beginning of a stream.
    pub fn new(secrets: &'a Secrets) -> Self {
        Self { secrets, held: Vec::new(), replacement: |known| &known.replacement }
    }

    /// A redactor for a file, which keeps the number of its lines.
    pub fn for_file(secrets: &'a Secrets) -> Self {
        Self { replacement: |known| &known.in_lines, ..Self::new(secrets) }
    }

    /// Takes a chunk, and returns the bytes that later chunks cannot change.
    pub fn push<'c>(&mut self, chunk: &'c [u8]) -> Cow<'c, [u8]> {
        let table = self.secrets.table();
        let Some(matcher) = table.matcher() else { return Cow::Borrowed(chunk) };
        self.held.extend_from_slice(chunk);
        let bytes = std::mem::take(&mut self.held);
        let mut hold_from = table.possible_start(&bytes, 0);
        let mut cleaned = Vec::with_capacity(bytes.len());
        let mut done = 0;
        for found in matcher.find_iter(&bytes) {
            if found.start() >= hold_from {
                break;
            }
            cleaned.extend_from_slice(&bytes[done..found.start()]);
            let known = &table.known[found.pattern().as_usize()];
            cleaned.extend_from_slice((self.replacement)(known).as_bytes());
            done = found.end();
            // A match may reach into the held part; the bytes that it took begin no other secret.
            if done > hold_from {
                hold_from = table.possible_start(&bytes, done);
            }
        }
        cleaned.extend_from_slice(&bytes[done..hold_from]);
        self.held.extend_from_slice(&bytes[hold_from..]);
        Cow::Owned(cleaned)
    }

    /// Returns the bytes that were held back, at the end of the stream; another stream may follow.
    pub fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        let table = self.secrets.table();
        let Some(matcher) = table.matcher() else { return held };
        matcher.replace_all_bytes(&held, &table.replacements(self.replacement))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        Secrets::new(values.iter().enumerate().map(|(i, v)| (format!("S{i}"), (*v).to_owned())))
    }

    fn streamed(secrets: &Secrets, chunks: &[&[u8]]) -> Vec<u8> {
        let mut cleaner = StreamRedactor::new(secrets);
        let mut bytes = Vec::new();
        for chunk in chunks {
            bytes.extend_from_slice(&cleaner.push(chunk));
        }
        bytes.extend_from_slice(&cleaner.finish());
        bytes
    }

    #[test]
    fn only_long_values_with_telling_names_are_taken_from_the_environment() {
        let vars = [
            ("MY_API_KEY", "abcdefghijkl"),
            ("github_token", "mnopqrstuvwx"),
            ("SHORT_SECRET", "tooshort"),
            ("EDITOR", "a-very-long-editor-name"),
        ];
        let secrets = Secrets::from_environment(vars.map(|(n, v)| (n.into(), v.into())));
        let text = "abcdefghijkl mnopqrstuvwx tooshort a-very-long-editor-name";
        assert_eq!(
            secrets.redact(text),
            "[redacted:MY_API_KEY] [redacted:github_token] tooshort a-very-long-editor-name"
        );
    }

    #[test]
    fn the_password_of_a_proxy_is_a_secret() {
        let vars = [
            ("https_proxy", "http://me:hunter2secret@proxy.example:8080/"),
            ("ALL_PROXY", "socks5://proxy.example:1080"),
            ("HOMEPAGE", "http://me:not-a-proxy@example"),
        ];
        let secrets = Secrets::from_environment(vars.map(|(n, v)| (n.into(), v.into())));
        let text = "http://me:hunter2secret@proxy.example not-a-proxy";
        assert_eq!(
            secrets.redact(text),
            "http://me:[redacted:https_proxy]@proxy.example not-a-proxy"
        );
    }

    #[test]
    fn each_line_of_a_long_secret_is_one_and_files_keep_their_lines() {
        let pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\nAAo=\n-----END KEY-----";
        let secrets = Secrets::new([("PEM".to_owned(), pem.to_owned())]);
        assert_eq!(secrets.redact(pem), "[redacted:PEM]");
        assert_eq!(
            secrets.redact("  2\tMIIEvQIBADANBg\n+kqhkiG9w0BAQEF"),
            "  2\t[redacted:PEM]\n+[redacted:PEM]"
        );
        for pem in [pem.to_owned(), pem.replace('\n', "\r\n")] {
            let file = format!("a\n{pem}\nb\n");
            let cleaned = secrets.redact_file(file.as_bytes());
            assert_eq!(cleaned, &b"a\n[redacted:PEM]\n\n\n\n\nb\n"[..]);
        }
    }

    #[test]
    fn a_marker_is_told_from_text_that_only_begins_like_one() {
        let found = |text: &str| -> Vec<String> {
            find_markers(text.as_bytes()).into_iter().map(|range| text[range].to_owned()).collect()
        };
        assert_eq!(found("a [redacted:A]x[redacted:b.c-9]"), ["[redacted:A]", "[redacted:b.c-9]"]);
        assert_eq!(found("[redacted:[redacted:A]]"), ["[redacted:A]"]);
        for text in
            ["", "[redacted:]", "[redacted:A", "[redacted:A\nB]", "[redacted A]", "redacted:A]"]
        {
            assert!(!has_marker(text), "{text:?}");
        }
        let long = format!("[redacted:{}]", "a".repeat(MAX_MARKER_NAME + 1));
        assert!(!has_marker(&long));
    }

    #[test]
    fn without_secrets_nothing_is_copied() {
        let none = Secrets::default();
        assert!(none.is_empty());
        assert!(matches!(none.redact("text"), Cow::Borrowed("text")));
        assert!(matches!(StreamRedactor::new(&none).push(b"text"), Cow::Borrowed(_)));
        assert!(matches!(secrets(&["hidden-value"]).redact("text"), Cow::Borrowed("text")));
    }

    #[test]
    fn the_longest_of_two_secrets_wins() {
        let secrets = secrets(&["secret-value", "secret-value-long"]);
        assert_eq!(secrets.redact("secret-value-long"), "[redacted:S1]");
        assert_eq!(secrets.redact("secret-value-lon"), "[redacted:S0]-lon");
    }

    #[test]
    fn json_is_cleaned_in_strings_and_keys() {
        let mut value = json!({"a": ["x hidden-value"], "hidden-value": 1, "n": null});
        secrets(&["hidden-value"]).redact_value(&mut value);
        assert_eq!(value, json!({"a": ["x [redacted:S0]"], "[redacted:S0]": 1, "n": null}));
    }

    #[test]
    fn a_secret_can_become_known_late() {
        let secrets = Secrets::default();
        let mut cleaner = StreamRedactor::new(&secrets);
        assert_eq!(&*cleaner.push(b"token-one "), b"token-one ");
        secrets.add_values([("T".to_owned(), "token-one".to_owned())]);
        assert_eq!(&*cleaner.push(b"token-one "), b"[redacted:T] ");
        assert_eq!(secrets.redact("a token-one"), "a [redacted:T]");
        assert!(!secrets.is_empty());
    }

    #[test]
    fn debug_never_shows_a_value() {
        let shown = format!("{:?}", secrets(&["hidden-value"]));
        assert_eq!(shown, "Secrets(1 known)");
    }

    #[test]
    fn a_secret_split_at_any_position_is_replaced() {
        let secrets = secrets(&["secret-value", "secret-value-long", "value-long!"]);
        let text = b"a secret-value b secret-value-long! c secret-valu";
        let whole = secrets.redact(std::str::from_utf8(text).unwrap()).into_owned();
        for first in 0..text.len() {
            for second in first..text.len() {
                let chunks = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(streamed(&secrets, &chunks), whole.as_bytes(), "{first} {second}");
            }
        }
    }

    #[test]
    fn ordinary_live_output_is_not_held_back() {
        let secrets = secrets(&["secret-value-that-is-quite-long"]);
        assert_eq!(&*StreamRedactor::new(&secrets).push(b"Continue? "), b"Continue? ");
    }

    proptest! {
        #[test]
        fn streaming_equals_cleaning_at_once(
            text in "[abc]{0,60}",
            values in prop::collection::vec("[abc]{4,9}", 1..4),
            size in 1_usize..12,
        ) {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let secrets = secrets(&values);
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let whole = secrets.redact(&text);
            prop_assert_eq!(streamed(&secrets, &chunks), whole.as_bytes());
        }
    }
}
