//! Resources in the input: named wherever they were, shown on the current Turn alone.
//!
//! What names them stands first and stays for ever; what shows them stands behind it. So a later
//! Turn drops the end of an item and changes nothing before it.

use super::{Fold, json};
use crate::event::{Descriptor, ToolResult, UserMessage};
use crate::resource::{Contents, Part};

/// How a message of the user begins.
const USER: &str = "{\"type\":\"message\",\"role\":\"user\",\"content\":[";

impl Fold<'_> {
    /// What the user said, and what belongs to it.
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

    /// What a tool answered, and the image that belongs to it.
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
            Err(reason) => json(self.out, &format!("{text}\n[it is not shown: {reason}]")),
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
