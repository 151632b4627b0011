//! Resource descriptors: the metadata of a Resource in the Log; its bytes are in a separate file.
//!
//! The Log, listeners and the screen get a descriptor and never the bytes. Only the Provider may see more, and
//! only for a Turn.

#![expect(missing_docs, reason = "field names are the wire contract; docs/events.md shows them")]

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, ToolResult, UserMessage};

/// The metadata of a Resource. The aliases are field names of the first Pixir.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ResourceDescriptor {
    #[serde(alias = "resource_id")]
    pub id: String,
    /// `image`, `text` or `file`.
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub name: String,
    #[serde(default, alias = "mime_type")]
    pub media_type: String,
    #[serde(default, alias = "size_bytes")]
    pub bytes: u64,
    /// The hash of the stored bytes; the first Pixir stored elsewhere and does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// How many bytes of a text the model sees on the Turn to which it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inlined: Option<u64>,
    #[serde(flatten)]
    pub extra: Extra,
}

impl ResourceDescriptor {
    /// Reads a descriptor of a Log; `None` for any other value.
    pub fn from_value(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok().filter(|descriptor| !descriptor.id.is_empty())
    }

    /// Whether the Resource is an image.
    pub fn is_image(&self) -> bool {
        self.kind == "image"
    }

    /// Whether the Resource is text.
    pub fn is_text(&self) -> bool {
        self.kind == "text"
    }

    /// A summary without the id: `shot.png (image/png, 640x480, 1234 bytes)`.
    pub fn summary(&self) -> String {
        let Self { name, media_type, bytes, .. } = self;
        match (self.width, self.height) {
            (Some(width), Some(height)) => {
                format!("{name} ({media_type}, {width}x{height}, {bytes} bytes)")
            }
            _ => format!("{name} ({media_type}, {bytes} bytes)"),
        }
    }
}

impl UserMessage {
    /// The Resources that are attached to the message.
    pub fn descriptors(&self) -> impl Iterator<Item = ResourceDescriptor> {
        self.resources.iter().filter_map(ResourceDescriptor::from_value)
    }
}

impl ToolResult {
    /// The Resource that belongs to the result: an image is shown with it for the rest of its Turn.
    pub fn descriptor(&self) -> Option<ResourceDescriptor> {
        ResourceDescriptor::from_value(self.details.get("resource")?)
    }
}
