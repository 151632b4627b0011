//! Evidence of hosted web search: bounded, and without the queries.

use serde_json::{Value, json};

use crate::model::provider::{Item, Source, WebSearch};

/// How many sources are recorded; the count of all of them is.
const MOST_SOURCES: usize = 20;
/// How many lengths of queries are recorded.
const MOST_LENGTHS: usize = 20;

/// What `provider_usage.web_search` says of a call, if anything was searched.
pub fn web_search(items: &[Item]) -> Option<Value> {
    let searches: Vec<&WebSearch> = items
        .iter()
        .filter_map(|item| match item {
            Item::WebSearch(search) => Some(search),
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
        Item::Message { citations, .. } => citations.as_slice(),
        _ => &[],
    });
    let mut sources: Vec<&Source> = Vec::new();
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
        "sources": listed(sources.into_iter()),
    }))
}

/// What a message's metadata says about the pages it refers to.
pub fn citations(citations: &[Source]) -> Option<Value> {
    (!citations.is_empty()).then(|| listed(citations.iter()))
}

fn listed<'a>(sources: impl Iterator<Item = &'a Source>) -> Value {
    let one = |source: &Source| json!({ "url": source.url, "title": source.title });
    sources.take(MOST_SOURCES).map(one).collect()
}
