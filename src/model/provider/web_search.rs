//! Web searches and citations of a Provider, reduced to bounded records.
//!
//! Queries are counted and measured but never stored, for privacy.

use serde_json::Value;

use super::{WebSearch, WebSource};

/// The most sources that are kept per item.
const MAX_SOURCES: usize = 50;
/// The longest address and title that are kept, in characters.
const MAX_SOURCE_CHARS: usize = 500;

/// Reads a `web_search_call` item.
pub fn parse_web_search(item: &Value) -> WebSearch {
    let action = item.get("action").unwrap_or(&Value::Null);
    let text = |name: &str| action.get(name).and_then(Value::as_str);
    let list = |name: &str| action.get(name).and_then(Value::as_array).into_iter().flatten();
    let mut queries: Vec<usize> =
        list("queries").filter_map(Value::as_str).map(|query| query.chars().count()).collect();
    if queries.is_empty() {
        queries.extend(text("query").map(|query| query.chars().count()));
    }
    let mut sources: Vec<WebSource> =
        list("sources").filter_map(parse_source).take(MAX_SOURCES).collect();
    if sources.is_empty() {
        sources.extend(parse_source(action));
    }
    let action = text("type").unwrap_or("search").chars().take(40).collect();
    queries.truncate(MAX_SOURCES);
    WebSearch { action, query_lengths: queries, sources }
}

/// The pages that a message refers to, each once, in the order of the text.
pub fn parse_citations(item: &Value) -> Vec<WebSource> {
    let parts = item.get("content").and_then(Value::as_array).into_iter().flatten();
    let notes =
        parts.filter_map(|part| part.get("annotations").and_then(Value::as_array)).flatten();
    let mut found: Vec<WebSource> = Vec::new();
    for note in notes.filter(|note| note["type"] == "url_citation") {
        // Some gateways nest the citation.
        let Some(source) = parse_source(note.get("url_citation").unwrap_or(note)) else { continue };
        if found.len() < MAX_SOURCES && !found.iter().any(|known| known.url == source.url) {
            found.push(source);
        }
    }
    found
}

/// Parses a source; only `http` and `https` addresses count.
fn parse_source(value: &Value) -> Option<WebSource> {
    let text = |name: &str| {
        let text = value.get(name).and_then(Value::as_str).unwrap_or_default();
        text.chars().take(MAX_SOURCE_CHARS).collect::<String>()
    };
    let url = text("url");
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    is_web.then(|| WebSource { url, title: text("title") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_search_keeps_lengths_and_sources_but_no_words() {
        let item = json!({"type": "web_search_call", "action": {
            "type": "search", "queries": ["secret plan", "é"],
            "sources": [{"type": "url", "url": "https://a.example/x"}, {"url": "file:///etc/passwd"}],
        }});
        let search = parse_web_search(&item);
        assert_eq!(search.query_lengths, [11, 1]);
        assert_eq!(search.sources.len(), 1);
        assert!(!format!("{search:?}").contains("secret"));
        let old = parse_web_search(&json!({"action": {"type": "search", "query": "abc"}}));
        assert_eq!(old.query_lengths, [3]);
        let page =
            parse_web_search(&json!({"action": {"type": "open_page", "url": "https://b.example"}}));
        assert_eq!((page.action.as_str(), page.sources.len()), ("open_page", 1));
        assert_eq!(parse_web_search(&json!(null)).query_lengths, Vec::<usize>::new());
    }

    #[test]
    fn citations_are_read_flat_and_nested_and_each_once() {
        let note = |url: &str| json!({"type": "url_citation", "url": url, "title": "T"});
        let item = json!({"content": [{"type": "output_text", "text": "x", "annotations": [
            note("https://a.example"), note("https://a.example"), {"type": "file_citation"},
            {"type": "url_citation", "url_citation": {"url": "https://b.example", "title": "B"}},
            note("javascript:alert(1)"),
        ]}]});
        let found = parse_citations(&item);
        let urls: Vec<&str> = found.iter().map(|source| source.url.as_str()).collect();
        assert_eq!(urls, ["https://a.example", "https://b.example"]);
    }
}
