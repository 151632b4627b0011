//! Footnotes: the numbered list of web pages that an answer cites, below it.
//!
//! The text was streamed before its citations were known, so nothing is inserted into it.

use serde_json::Value;

use super::sanitise::one_line;
use crate::record::event::AssistantMessage;

/// The widest title, in cells. Addresses get more, because a cut one could not be opened.
const TITLE_WIDTH: usize = 80;
const URL_WIDTH: usize = 500;

/// One line for each cited page.
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
