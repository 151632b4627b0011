//! Converts results of MCP calls to tool results: text stays text, images become Resources, and
//! everything else is described in a line, so that nothing is dropped silently.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};

use super::sanitize_text;
use crate::record::resource::{ContentKind, MAX_IMAGE_BYTES, Resources, detect_content};
use crate::tools::files::show_image;
use crate::tools::tool::ToolOutput;

/// The longest name in a line that describes a part.
const LONGEST_NAME: usize = 200;
/// How many blocks of an answer are converted; its bytes are bounded as well.
const MOST_BLOCKS: usize = 100_000;

/// Whether a result may have images to be stored, which blocks on the disk.
pub fn has_images(result: &CallToolResult) -> bool {
    result
        .content
        .iter()
        .any(|block| matches!(block, ContentBlock::Image(_) | ContentBlock::Resource(_)))
}

/// The tool result of a call; `limit` bounds its structured content, in bytes.
pub fn tool_output(result: CallToolResult, resources: &Resources, limit: usize) -> ToolOutput {
    let mut answer = ToolOutputBuilder { resources, lines: Vec::new(), resource: None };
    let count = result.content.len();
    for block in result.content.into_iter().take(MOST_BLOCKS) {
        answer.add_block(block);
    }
    if count > MOST_BLOCKS {
        answer.lines.push(format!("[{} more parts are left out]", count - MOST_BLOCKS));
    }
    let mut details = json!({});
    if let Some(structured) = result.structured_content {
        let text = structured.to_string();
        // Structured content repeats the text of a server that sends both.
        if answer.lines.is_empty() {
            answer.lines.push(text.clone());
        }
        if text.len() <= limit {
            details["structured"] = structured;
        }
    }
    if let Some(resource) = answer.resource {
        details["resource"] = resource;
    }
    let text = match answer.lines.join("\n") {
        text if text.is_empty() => "(no output)".to_owned(),
        text => text,
    };
    ToolOutput::new(!result.is_error.unwrap_or(false), text, details)
}

/// Why an answer is not a valid tool result.
pub fn explain_invalid_result(answer: &Value) -> String {
    let Some(fields) = answer.as_object() else {
        return format!("it is {}, not an object", json_type_name(answer));
    };
    match fields.get("content") {
        None if fields.is_empty() => return "it is empty, without `content`".to_owned(),
        None if !fields.contains_key("structuredContent") => {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            return format!("it has no `content`, only {}", short_name(&names.join(", ")));
        }
        None => {}
        Some(Value::Array(parts)) => {
            for (place, part) in parts.iter().enumerate() {
                if let Err(error) = serde_json::from_value::<ContentBlock>(part.clone()) {
                    let kind = part.get("type").map(|kind| format!(" of type {kind}"));
                    let kind = short_name(&kind.unwrap_or_default());
                    let kind = if kind.is_empty() { kind } else { format!(" {kind}") };
                    let error = short_name(&error.to_string());
                    return format!(
                        "part {}{kind} of `content` cannot be read: {error}",
                        place + 1
                    );
                }
            }
        }
        Some(other) => return format!("`content` is {}, not a list", json_type_name(other)),
    }
    match fields.get("isError") {
        Some(odd) if !odd.is_boolean() => format!("`isError` is {}", json_type_name(odd)),
        _ => "its type is unknown".to_owned(),
    }
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

struct ToolOutputBuilder<'a> {
    resources: &'a Resources,
    lines: Vec<String>,
    /// The one image that is shown with the result.
    resource: Option<Value>,
}

impl ToolOutputBuilder<'_> {
    fn add_block(&mut self, block: ContentBlock) {
        match block {
            ContentBlock::Text(text) => self.lines.push(text.text),
            ContentBlock::Image(image) => self.add_image("image", &image.data),
            ContentBlock::Audio(audio) => {
                let kind = short_name(&audio.mime_type);
                let bytes = audio.data.len() / 4 * 3;
                self.lines.push(format!("[audio {kind}, {bytes} bytes: it cannot be shown]"));
            }
            ContentBlock::ResourceLink(link) => {
                let (title, uri) = (short_name(&link.name), short_name(&link.uri));
                self.lines.push(format!("[link to {title}: {uri}]"));
            }
            ContentBlock::Resource(embedded) => self.add_resource(embedded.resource),
            _ => self.lines.push("[a part of an unknown type]".to_owned()),
        }
    }

    fn add_resource(&mut self, contents: ResourceContents) {
        match contents {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                self.lines.push(format!("[resource {}]\n{text}", short_name(&uri)));
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = mime_type.unwrap_or_default();
                if kind.starts_with("image/") {
                    return self.add_image(&uri, &blob);
                }
                let (uri, kind, bytes) = (short_name(&uri), short_name(&kind), blob.len() / 4 * 3);
                let line = format!("[resource {uri} {kind}, {bytes} bytes: it cannot be shown]");
                self.lines.push(line);
            }
            _ => self.lines.push("[a resource of an unknown type]".to_owned()),
        }
    }

    fn add_image(&mut self, title: &str, data: &str) {
        let line = self.store_image(title, data).unwrap_or_else(|reason| {
            format!("[{}: it cannot be shown, because {reason}]", short_name(title))
        });
        self.lines.push(line);
    }

    fn store_image(&mut self, title: &str, data: &str) -> Result<String, String> {
        let too_large = data.len() as u64 / 4 * 3 > MAX_IMAGE_BYTES;
        if too_large {
            return Err(format!("it has more than {MAX_IMAGE_BYTES} bytes"));
        }
        let bytes = STANDARD.decode(data.trim()).map_err(|_| "it is not base64".to_owned())?;
        let nature = detect_content(&bytes).map_err(|flaw| flaw.to_string())?;
        let ContentKind::Image(image) = nature else { return Err("it is no image".to_owned()) };
        let kept = self.resources.store_image(title, &bytes, image);
        let kept = kept.map_err(|error| format!("it cannot be stored: {error}"))?;
        if self.resource.is_some() {
            let (summary, id) = (kept.summary(), &kept.id);
            return Ok(format!("image {summary}, resource {id}: `resource_view` shows it"));
        }
        let mut shown =
            show_image(self.resources, &kept).map_err(|error| error.message.to_string())?;
        self.resource = shown.details.get_mut("resource").map(Value::take);
        Ok(shown.text)
    }
}

fn short_name(text: &str) -> String {
    sanitize_text::clean_line(text, LONGEST_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One red pixel.
    const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";

    fn output_of(result: &Value) -> (ToolOutput, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let resources =
            Resources::new(&crate::base::files::StatePath::root(folder.path()).join("session"));
        let result = serde_json::from_value(result.clone()).unwrap();
        (tool_output(result, &resources, 1000), folder)
    }

    #[test]
    fn every_kind_of_content_is_shown() {
        let image = json!({"type": "image", "data": PIXEL, "mimeType": "image/png"});
        let (output, _folder) = output_of(&json!({"content": [
            {"type": "text", "text": "hello"},
            image, image,
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "resource", "resource": {"uri": "file:///y", "text": "inner"}},
            {"type": "resource", "resource": {"uri": "z", "blob": "AAAA", "mimeType": "a/b"}},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        ]}));
        assert!(output.ok);
        assert_eq!(output.details["resource"]["kind"], "image");
        let lines: Vec<&str> = output.text.lines().collect();
        assert_eq!(lines[0], "hello");
        assert!(lines[1].starts_with("image ") && lines[2].contains("resource_view"), "{lines:?}");
        assert_eq!(lines[3], "[audio audio/wav, 3 bytes: it cannot be shown]");
        assert_eq!(lines[4], "[link to x: file:///x]");
        assert_eq!((lines[5], lines[6]), ("[resource file:///y]", "inner"));
        assert_eq!(lines[7], "[resource z a/b, 3 bytes: it cannot be shown]");
        assert!(lines[8].contains("cannot be shown"), "{lines:?}");
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_named() {
        for (answer, words) in [
            (json!("x"), "it is a text, not an object"),
            (json!({}), "it is empty"),
            (json!({"toolResult": 1, "x": 2}), "no `content`, only toolResult, x"),
            (json!({"content": "nonsense"}), "`content` is a text, not a list"),
            (
                json!({"content": [{"type": "text", "text": "a"}, {"type": "hologram"}]}),
                r#"part 2 of type "hologram" of `content` cannot be read: "#,
            ),
            (json!({"content": ["a"]}), "part 1 of `content` cannot be read: "),
            (json!({"content": [], "isError": "no"}), "`isError` is a text"),
        ] {
            let flaw = explain_invalid_result(&answer);
            assert!(flaw.contains(words), "{answer}: {flaw}");
        }
    }

    #[test]
    fn structured_content_is_shown_once() {
        let (output, _folder) = output_of(&json!({"structuredContent": {"a": 1}, "isError": true}));
        assert_eq!((output.ok, output.text.as_str()), (false, r#"{"a":1}"#));
        assert_eq!(output.details["structured"]["a"], 1);
        let (output, _folder) = output_of(
            &json!({"content": [{"type": "text", "text": "one"}], "structuredContent": {"a": 1}}),
        );
        assert_eq!(output.text, "one");
        let (output, _folder) = output_of(&json!({"content": []}));
        assert_eq!(output.text, "(no output)");
    }
}
