//! Resources in the input: always named, but their content is sent in the current Turn only.
//!
//! The names come before the content, so a later Turn drops the end of an item and leaves the bytes
//! before it unchanged.

use super::{InputWriter, write_json};
use crate::record::event::{ResourceDescriptor, ToolResult, UserMessage};
use crate::record::resource::{ContentPart, ResourceContents};

/// The start of a user message item.
const USER_MESSAGE_START: &str = "{\"type\":\"message\",\"role\":\"user\",\"content\":[";

impl InputWriter<'_> {
    /// Writes a user message: its text, the names of its attachments and, in the current Turn, their content.
    pub(super) fn write_user_content(&mut self, message: &UserMessage, is_current: bool) {
        self.begin_item(USER_MESSAGE_START);
        write_text_part(self.out, &message.text);
        let attached: Vec<ResourceDescriptor> = message.descriptors().collect();
        if !attached.is_empty() {
            self.out.push(b',');
            write_text_part(self.out, &attachment_list(&attached));
        }
        let contents = self.options.contents.filter(|_| is_current);
        let parts = attached.iter().filter_map(|own| contents?.attachment_part(own));
        for part in parts {
            self.out.push(b',');
            match part {
                ContentPart::Image(url) => write_image_part(self.out, url),
                ContentPart::Text(text) => write_text_part(self.out, &text),
            }
        }
        self.out.extend_from_slice(b"]}");
    }

    /// Writes the output of a tool result, with its image in the current Turn.
    pub(super) fn write_result(&mut self, result: &ToolResult, is_current: bool) {
        let shown = self.options.contents.filter(|_| is_current && result.ok);
        let image = result.descriptor().filter(|own| shown.is_some() && own.is_image());
        let (Some(contents), Some(image)) = (shown, image) else {
            return self.write_output(result);
        };
        let text = result.output.as_deref().unwrap_or_default();
        match ResourceContents::image(contents, &image) {
            Ok(url) => {
                self.out.push(b'[');
                write_text_part(self.out, text);
                self.out.push(b',');
                write_image_part(self.out, url);
                self.out.push(b']');
            }
            Err(reason) => write_json(self.out, &format!("{text}\n[image not shown: {reason}]")),
        }
    }
}

fn attachment_list(attached: &[ResourceDescriptor]) -> String {
    let lines = attached.iter().map(|own| format!("\n- {}: {}", own.id, own.summary()));
    let lines: String = lines.collect();
    format!("[Attached; later shown again by resource_view]{lines}")
}

fn write_text_part(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"{\"type\":\"input_text\",\"text\":");
    write_json(out, text);
    out.push(b'}');
}

fn write_image_part(out: &mut Vec<u8>, url: &str) {
    out.extend_from_slice(b"{\"type\":\"input_image\",\"image_url\":");
    write_json(out, url);
    out.extend_from_slice(b",\"detail\":\"auto\"}");
}
