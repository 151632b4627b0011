//! Resources in the input: always named, but their content is sent in the current Turn only.
//!
//! The names come before the content, so a later Turn drops the end of an item and leaves the bytes
//! before it unchanged.

use super::{Fold, json};
use crate::record::event::{Descriptor, ToolResult, UserMessage};
use crate::record::resource::{Contents, Part};

/// The start of a user message item.
const USER: &str = "{\"type\":\"message\",\"role\":\"user\",\"content\":[";

impl Fold<'_> {
    /// Writes a user message: its text, the names of its attachments and, in the current Turn, their content.
    pub(super) fn said(&mut self, message: &UserMessage, is_current: bool) {
        self.open_item(USER);
        text_part(self.out, &message.text);
        let attached: Vec<Descriptor> = message.descriptors().collect();
        if !attached.is_empty() {
            self.out.push(b',');
            text_part(self.out, &names(&attached));
        }
        let contents = self.reader.contents.filter(|_| is_current);
        let parts = attached.iter().filter_map(|own| contents?.attached(own));
        for part in parts {
            self.out.push(b',');
            match part {
                Part::Image(url) => image_part(self.out, url),
                Part::Text(text) => text_part(self.out, &text),
            }
        }
        self.out.extend_from_slice(b"]}");
    }

    /// Writes the output of a tool result, with its image in the current Turn.
    pub(super) fn result(&mut self, result: &ToolResult, is_current: bool) {
        let shown = self.reader.contents.filter(|_| is_current && result.ok);
        let image = result.descriptor().filter(|own| shown.is_some() && own.is_image());
        let (Some(contents), Some(image)) = (shown, image) else { return self.output(result) };
        let text = result.output.as_deref().unwrap_or_default();
        match Contents::image(contents, &image) {
            Ok(url) => {
                self.out.push(b'[');
                text_part(self.out, text);
                self.out.push(b',');
                image_part(self.out, url);
                self.out.push(b']');
            }
            Err(reason) => json(self.out, &format!("{text}\n[image not shown: {reason}]")),
        }
    }
}

fn names(attached: &[Descriptor]) -> String {
    let lines = attached.iter().map(|own| format!("\n- {}: {}", own.id, own.summary()));
    let lines: String = lines.collect();
    format!("[Attached; later shown again by resource_view]{lines}")
}

fn text_part(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"{\"type\":\"input_text\",\"text\":");
    json(out, text);
    out.push(b'}');
}

fn image_part(out: &mut Vec<u8>, url: &str) {
    out.extend_from_slice(b"{\"type\":\"input_image\",\"image_url\":");
    json(out, url);
    out.extend_from_slice(b",\"detail\":\"auto\"}");
}
