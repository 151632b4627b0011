//! Footnotes: the pages that an answer refers to, numbered, behind it.
//!
//! The text was streamed before anybody knew what it cites, so nothing is inserted into it.

use serde_json::Value;

use super::sanitise::one_line;
use crate::event::AssistantMessage;

/// The widest title; an address is shown whole, or it could not be opened.
const TITLE_WIDTH: usize = 80;
const URL_WIDTH: usize = 500;

/// One line for each page.
pub fn footnotes(message: &AssistantMessage) -> Vec<String> {
    let metadata = message.metadata.as_ref();
    let cited = metadata.and_then(|metadata| metadata.get("citations")).and_then(Value::as_array);
    let line = |(place, citation): (usize, &Value)| {
        let text = |name: &str| citation.get(name).and_then(Value::as_str).unwrap_or_default();
        let url = one_line(text("url"), URL_WIDTH);
        match one_line(text("title"), TITLE_WIDTH).as_str() {
            "" => format!("[{}] {url}", place + 1),
            title => format!("[{}] {title}: {url}", place + 1),
        }
    };
    cited.into_iter().flatten().enumerate().map(line).collect()
}
