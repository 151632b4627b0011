//! Evidence of hosted web search: bounded, and without the queries.

use serde_json::{Value, json};

use crate::model::provider::{OutputItem, WebSearch, WebSource};

/// How many sources are recorded; the count includes all of them.
const MOST_SOURCES: usize = 20;
/// How many lengths of queries are recorded.
const MOST_LENGTHS: usize = 20;

/// The value of `provider_usage.web_search` for a call; `None` without a search.
pub fn web_search(items: &[OutputItem]) -> Option<Value> {
    let searches: Vec<&WebSearch> = items
        .iter()
        .filter_map(|item| match item {
            OutputItem::WebSearch(search) => Some(search),
            _ => None,
        })
        .collect();
    if searches.is_empty() {
        return None;
    }
    let mut actions = serde_json::Map::new();
    for search in &searches {
        let count = actions.get(&search.action).and_then(Value::as_u64).unwrap_or(0);
        actions.insert(search.action.clone(), json!(count + 1));
    }
    let lengths: Vec<usize> =
        searches.iter().flat_map(|search| search.query_lengths.iter().copied()).collect();
    let cited = items.iter().flat_map(|item| match item {
        OutputItem::Message { citations, .. } => citations.as_slice(),
        _ => &[],
    });
    let mut sources: Vec<&WebSource> = Vec::new();
    for source in searches.iter().flat_map(|search| &search.sources).chain(cited) {
        if !sources.iter().any(|known| known.url == source.url) {
            sources.push(source);
        }
    }
    Some(json!({
        "calls": searches.len(),
        "actions": actions,
        "queries": lengths.len(),
        "query_lengths": lengths.iter().take(MOST_LENGTHS).collect::<Vec<_>>(),
        "sources_total": sources.len(),
        "sources": source_list(sources.into_iter()),
    }))
}

/// The metadata of a message for the pages that it cites.
pub fn citations(citations: &[WebSource]) -> Option<Value> {
    (!citations.is_empty()).then(|| source_list(citations.iter()))
}

fn source_list<'a>(sources: impl Iterator<Item = &'a WebSource>) -> Value {
    let one = |source: &WebSource| json!({ "url": source.url, "title": source.title });
    sources.take(MOST_SOURCES).map(one).collect()
}
