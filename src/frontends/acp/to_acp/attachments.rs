//! Attachments of past messages and images of results, as content blocks.

use std::collections::HashMap;
use std::path::PathBuf;

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, EmbeddedResource, EmbeddedResourceResource, ImageContent,
    MessageId, ResourceLink, SessionUpdate, TextResourceContents,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::chunk;
use crate::agent::conversation::Conversation;
use crate::base::id::EventId;
use crate::record::event::{Canonical, ResourceDescriptor, ToolResult, UserMessage};
use crate::record::history::History;

/// How many bytes of attachments are sent with a replay; further ones are linked.
const MAX_SENT_BYTES: u64 = 24 << 20;

/// The attachments of a Session, by id.
#[derive(Debug, Default)]
pub struct Attachments(HashMap<String, StoredAttachment>);

/// An attachment on disk.
#[derive(Debug)]
struct StoredAttachment {
    path: PathBuf,
    /// The bytes, if they are sent.
    bytes: Option<Vec<u8>>,
}

impl Attachments {
    /// Loads the attachments of a history from disk. The newest are sent with their bytes first, because
    /// the user sees them first.
    pub fn load(conversation: &Conversation, history: &History) -> Self {
        let (mut all, mut room) = (HashMap::new(), MAX_SENT_BYTES);
        let live = history.live_backwards().flat_map(|(_, fact)| match fact {
            Canonical::UserMessage(message) => message.descriptors().collect(),
            Canonical::ToolResult(result) => image_of(result).into_iter().collect(),
            _ => Vec::new(),
        });
        for resource in live {
            if all.contains_key(&resource.id) {
                continue;
            }
            let is_shown = resource.is_image() || resource.kind == "text";
            let fits = is_shown && resource.bytes <= room;
            let bytes = fits.then(|| conversation.read_resource(&resource)).flatten();
            if bytes.is_some() {
                room -= resource.bytes;
            }
            let path = conversation.resource_path(&resource);
            all.insert(resource.id, StoredAttachment { path, bytes });
        }
        Self(all)
    }

    /// Loads the image of one result from disk.
    pub fn load_result_image(conversation: &Conversation, resource: &ResourceDescriptor) -> Self {
        let (path, bytes) =
            (conversation.resource_path(resource), conversation.read_resource(resource));
        Self(HashMap::from([(resource.id.clone(), StoredAttachment { path, bytes })]))
    }

    /// The image of a result, as content.
    pub fn result_image(&self, result: &ToolResult) -> Option<ContentBlock> {
        let resource = image_of(result)?;
        let is_here = self.0.get(&resource.id).is_some_and(|stored| stored.bytes.is_some());
        is_here.then(|| self.content_block(&resource))
    }

    /// The updates for a past message of the user, with its attachments.
    pub fn user_message(&self, id: &EventId, message: &UserMessage) -> Vec<SessionUpdate> {
        let id = id.to_string();
        let words = (!message.text.is_empty()).then(|| chunk(&id, &message.text));
        let attached = message.descriptors().map(|resource| {
            ContentChunk::new(self.content_block(&resource)).message_id(MessageId::new(id.clone()))
        });
        words.into_iter().chain(attached).map(SessionUpdate::UserMessageChunk).collect()
    }

    /// An attachment as content, or as a link when its bytes are not sent.
    fn content_block(&self, resource: &ResourceDescriptor) -> ContentBlock {
        let stored = self.0.get(&resource.id);
        let uri = stored.and_then(|stored| url::Url::from_file_path(&stored.path).ok());
        let uri = uri.map_or_else(|| format!("pixir:resource/{}", resource.id), String::from);
        let media_type = resource.media_type.clone();
        match stored.and_then(|stored| stored.bytes.as_deref()) {
            Some(bytes) if resource.is_image() => {
                ContentBlock::Image(ImageContent::new(BASE64.encode(bytes), media_type).uri(uri))
            }
            Some(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                let text = TextResourceContents::new(text, uri).mime_type(media_type);
                let text = EmbeddedResourceResource::TextResourceContents(text);
                ContentBlock::Resource(EmbeddedResource::new(text))
            }
            None => ContentBlock::ResourceLink(
                ResourceLink::new(resource.name.clone(), uri)
                    .mime_type(media_type)
                    .size(i64::try_from(resource.bytes).ok()),
            ),
        }
    }
}

/// The image of a result, if it has one.
pub fn image_of(result: &ToolResult) -> Option<ResourceDescriptor> {
    result.descriptor().filter(ResourceDescriptor::is_image)
}
