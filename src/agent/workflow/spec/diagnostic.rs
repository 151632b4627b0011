//! Diagnostics of a spec: every flaw with its JSON pointer, accepted words and a suggestion.

use serde_json::{Value, json};

use crate::base::error::{Explain, Explanation, Kind};

/// The most flaws that are listed; the rest is counted.
const MAX_FLAWS: usize = 100;

/// The most accepted words that are named in a line.
const MAX_NAMED_WORDS: usize = 30;

/// The most flaws that a model is shown at once.
const MAX_FLAWS_FOR_MODEL: usize = 20;

/// One flaw of a spec.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecDiagnostic {
    /// A JSON pointer; empty for the whole document.
    pub pointer: String,
    pub message: String,
    /// The keys or words that are accepted there.
    pub accepted: Vec<String>,
    /// The accepted word that was most likely meant.
    pub suggestion: Option<String>,
}

impl SpecDiagnostic {
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        let (pointer, message) = (pointer.into(), message.into());
        Self { pointer, message, accepted: Vec::new(), suggestion: None }
    }

    /// Adds the accepted words, and the one that is nearest to `given` as a suggestion.
    #[must_use]
    pub fn with_accepted<S: AsRef<str>>(mut self, given: &str, accepted: &[S]) -> Self {
        self.accepted = accepted.iter().map(|word| word.as_ref().to_owned()).collect();
        self.suggestion = nearest_word(given, &self.accepted);
        self
    }

    /// The flaw in one line, with the accepted words.
    pub fn to_line(&self) -> String {
        match self.accepted_line() {
            Some(choice) => format!("{self} ({choice})"),
            None => self.to_string(),
        }
    }

    fn accepted_line(&self) -> Option<String> {
        let (count, named) = (self.accepted.len(), self.accepted.iter().take(MAX_NAMED_WORDS));
        let named: Vec<&str> = named.map(String::as_str).collect();
        let more = count.saturating_sub(MAX_NAMED_WORDS);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        (count > 0).then(|| format!("accepted: {}{rest}", named.join(", ")))
    }

    /// The flaw as JSON.
    pub fn to_json(&self) -> Value {
        let mut facts = json!({ "json_pointer": self.pointer, "message": self.message });
        if !self.accepted.is_empty() {
            facts["accepted_keys"] = json!(self.accepted);
        }
        if let Some(meant) = &self.suggestion {
            facts["did_you_mean"] = json!(meant);
        }
        facts
    }
}

impl std::fmt::Display for SpecDiagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.pointer.is_empty() {
            write!(f, "{}: ", self.pointer)?;
        }
        f.write_str(&self.message)?;
        if let Some(meant) = &self.suggestion {
            write!(f, ", did you mean `{meant}`?")?;
        }
        Ok(())
    }
}

/// All flaws of a spec that cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecError {
    /// In the order of the file, and never empty.
    pub flaws: Vec<SpecDiagnostic>,
    /// How many more flaws there are.
    pub left_out: usize,
}

impl SpecError {
    /// An error with these flaws; `None` when there are none.
    pub fn from_flaws(mut flaws: Vec<SpecDiagnostic>) -> Option<Self> {
        let left_out = flaws.len().saturating_sub(MAX_FLAWS);
        flaws.truncate(MAX_FLAWS);
        (!flaws.is_empty()).then_some(Self { flaws, left_out })
    }

    pub fn single(flaw: SpecDiagnostic) -> Self {
        Self { flaws: vec![flaw], left_out: 0 }
    }

    /// The lines that a model needs to correct all flaws in one go; the first flaw itself is in the message.
    pub fn correction_lines(&self) -> Vec<String> {
        let first = self.flaws.first().and_then(SpecDiagnostic::accepted_line);
        let others =
            self.flaws.iter().skip(1).take(MAX_FLAWS_FOR_MODEL - 1).map(SpecDiagnostic::to_line);
        first.into_iter().chain(others).collect()
    }

    /// One line: that `what` cannot be used, its first flaw, and how many more there are.
    pub fn headline(&self, what: &str) -> String {
        let first = self.flaws.first().map(|first| format!(": {first}")).unwrap_or_default();
        let more = (self.flaws.len() + self.left_out).saturating_sub(1);
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        format!("{what} cannot be used{first}{more}")
    }

    /// Maps all pointers by `origin`, also the pointer of another step at the end of a message.
    #[must_use]
    pub fn map_pointers(mut self, origin: impl Fn(&str) -> String) -> Self {
        for flaw in &mut self.flaws {
            flaw.pointer = origin(&flaw.pointer);
            if let Some((words, place)) = flaw.message.rsplit_once(" /steps/")
                && place.parse::<usize>().is_ok()
            {
                flaw.message = format!("{words} {}", origin(&format!("/steps/{place}")));
            }
        }
        self
    }
}

impl std::fmt::Display for SpecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.headline("the workflow"))
    }
}

impl std::error::Error for SpecError {}

impl Explain for SpecError {
    fn explain(&self) -> Explanation {
        let flaws: Vec<Value> = self.flaws.iter().map(SpecDiagnostic::to_json).collect();
        let first = self.flaws.first().and_then(SpecDiagnostic::accepted_line);
        let details = json!({ "flaws": flaws, "left_out": self.left_out });
        Explanation { kind: Kind::InvalidArgs, details, next_actions: Vec::from_iter(first) }
            .with_next_action(
                "correct the listed keys and try again; docs/workflows.md describes every key",
            )
    }
}

/// The pointer to a part of the value at `pointer`.
pub fn child_pointer(pointer: &str, part: &str) -> String {
    format!("{pointer}/{}", part.replace('~', "~0").replace('/', "~1"))
}

/// Untrusted text, shortened and without control characters, for a message.
pub fn quoted(text: &str) -> String {
    let mut short: String =
        text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(40).is_some() {
        short.push_str("...");
    }
    format!("`{short}`")
}

/// Accepted words, and what people write instead.
const SYNONYMS: &[(&str, &str)] = &[
    ("role", "agent agent_type persona"),
    ("task", "prompt instructions message run"),
    ("depends_on", "depend_on deps dependencies after requires needs_steps"),
    ("needs", "inputs input"),
    ("step", "from"),
    ("pointer", "path"),
    ("output", "outputs output_schema schema"),
    ("posture", "mode permission_mode sandbox_mode"),
    ("workspace", "workspace_mode isolation"),
    ("read_set", "reads"),
    ("write_set", "writes files"),
    ("timeout_ms", "timeout timeout_seconds"),
    ("retries", "retry max_retries"),
    ("on_failure", "on_error continue_on_error"),
    ("verify", "checks tests verification"),
    ("command", "cmd"),
    ("gate", "review approval"),
    ("apply", "apply_from merge"),
    ("effort", "reasoning_effort"),
    ("max_concurrency", "concurrency max_parallel"),
    ("limits", "max_concurrency timeout_ms"),
    ("parameters", "params args inputs"),
    ("steps", "tasks jobs nodes"),
    ("name", "title"),
    ("cost_usd", "cost max_cost"),
    ("tokens", "max_tokens"),
    ("type", "kind"),
    ("read_only", "readonly read-only"),
    ("write", "writer"),
    ("abort", "stop fail"),
    ("continue", "ignore"),
];

/// The accepted word that was most likely meant.
pub fn nearest_word(given: &str, accepted: &[String]) -> Option<String> {
    let lower = given.to_lowercase();
    let is_meant = |(word, others): &&(&str, &str)| {
        others.split(' ').any(|own| own == lower) && accepted.iter().any(|own| own == word)
    };
    if let Some((word, _)) = SYNONYMS.iter().find(is_meant) {
        return Some((*word).to_owned());
    }
    // A long text is no typing error, and comparing it is slow.
    if given.len() > 100 {
        return None;
    }
    accepted
        .iter()
        .map(|word| (strsim::jaro_winkler(&lower, &word.to_lowercase()), word))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, word)| word.clone())
}
