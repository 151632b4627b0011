//! The contents of Resources that one request shows. The Log alone decides which are shown.
//!
//! A Turn shows what was attached to its user message and the images of its own results, in every
//! request, so that its prefix stays the same bytes. Earlier Turns are replayed with descriptors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::base::text::printable::control_picture;
use crate::record::event::{Canonical, ResourceDescriptor};
use crate::record::history::History;

/// Loaded contents by the hash of their bytes; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ResourceContents(pub(super) Arc<HashMap<String, LoadedContent>>);

/// The loaded content of one Resource.
#[derive(Debug, Clone)]
pub(super) enum LoadedContent {
    /// A data URL.
    Image(Arc<str>),
    /// The beginning of a text.
    Text(Arc<str>),
    /// The reason why the content is not shown.
    Withheld(Arc<str>),
}

/// The part of a message that shows a Resource to the model.
#[derive(Debug, PartialEq, Eq)]
pub enum ContentPart<'a> {
    /// A data URL.
    Image(&'a str),
    Text(Cow<'a, str>),
}

impl ResourceContents {
    /// The part for a Resource that the user attached; `None` where its descriptor is enough.
    pub fn attachment_part(&self, descriptor: &ResourceDescriptor) -> Option<ContentPart<'_>> {
        let ResourceDescriptor { id, name, .. } = descriptor;
        if !descriptor.is_image() && !descriptor.is_text() {
            return None;
        }
        Some(match self.loaded(descriptor) {
            Ok(LoadedContent::Image(url)) => ContentPart::Image(url),
            Ok(LoadedContent::Text(text)) => {
                ContentPart::Text(inline_text(descriptor, text).into())
            }
            Ok(LoadedContent::Withheld(reason)) => {
                ContentPart::Text(format!("[{id} {name} is not shown: {reason}]").into())
            }
            Err(reason) => {
                ContentPart::Text(format!("[{id} {name} is not shown: {reason}]").into())
            }
        })
    }

    /// The data URL of the image of a result, or why it is not shown.
    pub fn image(&self, descriptor: &ResourceDescriptor) -> Result<&str, &str> {
        match self.loaded(descriptor)? {
            LoadedContent::Image(url) => Ok(url),
            LoadedContent::Withheld(reason) => Err(reason),
            LoadedContent::Text(_) => Err("it is not an image"),
        }
    }

    fn loaded(&self, descriptor: &ResourceDescriptor) -> Result<&LoadedContent, &'static str> {
        let sha256 = descriptor.sha256.as_deref().ok_or("another version of Pixir stored it")?;
        self.0.get(sha256).ok_or("its bytes are not loaded")
    }
}

/// The descriptors of the Resources that the current Turn of a History shows.
pub fn shown_resources(history: &History) -> Vec<ResourceDescriptor> {
    let mut wanted = Vec::new();
    for fact in history.facts().rev() {
        match fact {
            Canonical::ToolResult(result) => {
                wanted.extend(result.descriptor().filter(ResourceDescriptor::is_image));
            }
            Canonical::UserMessage(message) => {
                let is_shown = |own: &ResourceDescriptor| own.is_image() || own.is_text();
                wanted.extend(message.descriptors().filter(is_shown));
                break;
            }
            _ => {}
        }
    }
    wanted
}

fn inline_text(descriptor: &ResourceDescriptor, text: &str) -> String {
    let ResourceDescriptor { id, name, bytes, .. } = descriptor;
    let length = usize::try_from(descriptor.inlined.unwrap_or_default()).unwrap_or_default();
    let shown = &text[..text.floor_char_boundary(length.min(text.len()))];
    if shown.is_empty() {
        return format!(
            "[{id} {name} is not shown: the Turn's limit is reached; resource_view shows it]"
        );
    }
    let text = escape_controls(shown);
    let gap = if text.ends_with('\n') { "" } else { "\n" };
    if shown.len() as u64 == *bytes {
        return format!("[{id} {name}]\n{text}{gap}[end of {name}]");
    }
    let next = shown.len();
    format!(
        "[{id} {name}]\n{text}{gap}[{next} of {bytes} bytes; next: resource_view, offset {next}]"
    )
}

/// Text for a model: control characters, other than tab and newline, are replaced by visible symbols.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    let is_odd = |c: char| c.is_control() && c != '\t' && c != '\n';
    if !text.contains(is_odd) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_odd(c) { control_picture(c) } else { c };
    Cow::Owned(text.replace("\r\n", "\n").chars().map(shown).collect())
}
