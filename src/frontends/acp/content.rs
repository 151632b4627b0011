//! Prompt content: turns the blocks of a prompt into one text and its attachments, in order.
//!
//! Nothing is dropped silently: a block that cannot be used is replaced by a note, which the model and
//! the Log both have. A linked file is attached where it can be opened.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::agent::conversation::{Attachment, ResolvedLink};
use crate::host::rpc::RpcError;

/// How many attachments a Turn takes, and how many bytes of them.
const MAX_ATTACHMENTS: usize = 20;
const MAX_ATTACHED_BYTES: usize = 48 << 20;
/// The reason for an attachment beyond these limits.
const ATTACHMENT_LIMIT_REACHED: &str = "the limit for attachments is reached";

/// The longest context of a client, in bytes.
const MAX_CONTEXT_BYTES: usize = 16 << 10;

/// The content of a `session/prompt` request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptContent {
    blocks: Vec<PromptBlock>,
    /// Context from the client for the model, such as the cursor position.
    pub context: Option<String>,
}

/// A block of a prompt.
#[derive(Debug, Clone, PartialEq)]
enum PromptBlock {
    Text(String),
    /// A link to a file or another resource.
    Link {
        uri: String,
        name: String,
    },
    /// Embedded content.
    Content {
        name: String,
        uri: Option<String>,
        content: BlockContent,
    },
    /// A block that cannot be used, and why.
    Unusable {
        why: String,
    },
}

/// Embedded content, not decoded yet: large content is decoded on a blocking thread.
#[derive(Debug, Clone, PartialEq)]
enum BlockContent {
    Text(String),
    /// Bytes in base64.
    Blob(String),
    /// An image in base64, according to its block.
    Image(String),
}

/// A prompt as text and attachments, for a Turn.
#[derive(Debug, Default)]
pub struct ComposedPrompt {
    pub text: String,
    pub attachments: Vec<Attachment>,
    /// Size of the attachments so far.
    attached_bytes: usize,
    /// Linked files that were attached.
    linked: Vec<PathBuf>,
}

impl PromptContent {
    /// Reads the parameters of `session/prompt`.
    pub fn read(params: &Value) -> Result<Self, RpcError> {
        let blocks = params.get("prompt").and_then(Value::as_array);
        let blocks = blocks.ok_or_else(|| RpcError::invalid_params("`prompt` must be a list"))?;
        let blocks: Vec<PromptBlock> = blocks.iter().map(PromptBlock::read).collect();
        let is_not_blank = |block: &PromptBlock| !matches!(block, PromptBlock::Text(text) if text.trim().is_empty());
        if !blocks.iter().any(is_not_blank) {
            return Err(RpcError::invalid_params("the prompt is empty"));
        }
        Ok(Self { blocks, context: client_context(params.get("_meta")) })
    }

    /// The text at the start of the prompt; empty when it starts with another block.
    pub fn first_text(&self) -> &str {
        match self.blocks.first() {
            Some(PromptBlock::Text(text)) => text,
            _ => "",
        }
    }

    /// The same prompt with another first text.
    #[must_use]
    pub fn beginning_with(mut self, text: &str) -> Self {
        if let Some(PromptBlock::Text(first)) = self.blocks.first_mut() {
            text.clone_into(first);
        }
        self
    }

    /// Whether the prompt has nothing but blank text.
    pub fn is_empty(&self) -> bool {
        self.blocks
            .iter()
            .all(|block| matches!(block, PromptBlock::Text(text) if text.trim().is_empty()))
    }

    /// Composes the prompt for a Workspace; `open` opens linked files. May block on large attachments.
    pub fn compose(self, workspace: &Path, open: impl Fn(&Path) -> ResolvedLink) -> ComposedPrompt {
        let mut composed = ComposedPrompt::default();
        let mut was_text = None;
        for block in self.blocks {
            let is_text = matches!(block, PromptBlock::Text(_));
            let words = match block {
                PromptBlock::Text(text) => text,
                PromptBlock::Link { uri, name } => {
                    composed.attach_link(&uri, &name, workspace, &open)
                }
                PromptBlock::Content { name, uri, content } => {
                    composed.attach_content(&name, uri.as_deref(), content)
                }
                PromptBlock::Unusable { why } => format!("[{why}]"),
            };
            match was_text.replace(is_text) {
                // Two texts in a row are two paragraphs; around a link they are one sentence.
                Some(true) if is_text => composed.text.push('\n'),
                Some(_) if needs_space(&composed.text, &words) => composed.text.push(' '),
                _ => {}
            }
            composed.text.push_str(&words);
        }
        composed
    }
}

/// Whether a space is needed between a link and its neighbour.
fn needs_space(before: &str, after: &str) -> bool {
    let ends =
        before.chars().next_back().is_some_and(|c| !c.is_whitespace() && !"([{<\"'".contains(c));
    let begins = after.chars().next().is_some_and(|c| c.is_alphanumeric() || "`[".contains(c));
    ends && begins
}

impl ComposedPrompt {
    /// Attaches a linked file, and returns the text that replaces the block: the file's path, which the
    /// model can read, or a link for other addresses.
    fn attach_link(
        &mut self,
        uri: &str,
        name: &str,
        workspace: &Path,
        open: impl Fn(&Path) -> ResolvedLink,
    ) -> String {
        let Some((path, place)) = file_path(uri) else { return format!("[{name}]({uri})") };
        let shown = path.strip_prefix(workspace).unwrap_or(&path);
        let shown = if shown.as_os_str().is_empty() { Path::new(".") } else { shown };
        let shown = format!("`{}{place}`", shown.display());
        if self.linked.contains(&path) {
            return shown;
        }
        let refused = |reason: &str| format!("{shown} [not attached: {reason}]");
        // The client is not asked for a file that exceeds the limits.
        if !self.fits(0) {
            return refused(ATTACHMENT_LIMIT_REACHED);
        }
        match open(&path) {
            ResolvedLink::Folder => shown,
            ResolvedLink::Refused(reason) => refused(&reason),
            ResolvedLink::Attached(attachment) => {
                if !self.reserve(attachment.size()) {
                    return refused(ATTACHMENT_LIMIT_REACHED);
                }
                self.linked.push(path);
                self.attachments.push(attachment);
                shown
            }
        }
    }

    /// Counts another attachment; false when it exceeds the limits.
    fn reserve(&mut self, bytes: usize) -> bool {
        let fits = self.fits(bytes);
        self.attached_bytes += if fits { bytes } else { 0 };
        fits
    }

    fn fits(&self, bytes: usize) -> bool {
        self.attachments.len() < MAX_ATTACHMENTS
            && self.attached_bytes + bytes <= MAX_ATTACHED_BYTES
    }

    /// Attaches embedded content, and returns the text that replaces the block.
    fn attach_content(&mut self, name: &str, uri: Option<&str>, content: BlockContent) -> String {
        let is_image = matches!(content, BlockContent::Image(_));
        let bytes = match content {
            BlockContent::Text(text) => Some(text.into_bytes()),
            BlockContent::Blob(data) | BlockContent::Image(data) => decode_base64(&data),
        };
        let Some(bytes) = bytes else {
            let what = if is_image { "an image" } else { name };
            return format!("[{what} that is not valid base64]");
        };
        if !self.reserve(bytes.len()) {
            return format!("[{name} is not attached: {ATTACHMENT_LIMIT_REACHED}]");
        }
        match Attachment::from_bytes(name, bytes) {
            Ok(attachment) if is_image && !attachment.is_image() => {
                format!("[{name} is not attached: it is declared as an image, but is not one]")
            }
            Ok(attachment) => {
                let shown = match uri {
                    Some(uri) => format!("[attached: {} from {uri}]", attachment.name()),
                    None => format!("[attached: {}]", attachment.name()),
                };
                self.attachments.push(attachment);
                shown
            }
            Err(error) => format!("[{error}]"),
        }
    }
}

impl PromptBlock {
    fn read(value: &Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let unusable = |why: &str| PromptBlock::Unusable { why: why.to_owned() };
        match text("type").as_deref() {
            Some("text") => text("text").map_or_else(
                || unusable("a text block without text was left out"),
                PromptBlock::Text,
            ),
            Some("resource_link") => {
                let Some(uri) = text("uri") else {
                    return unusable("a link without a URI was left out");
                };
                let name = text("title").or_else(|| text("name")).filter(|name| !name.is_empty());
                let name = name.unwrap_or_else(|| last_part(&uri));
                PromptBlock::Link { uri, name }
            }
            Some("image") => {
                let uri = text("uri");
                let media = text("mimeType").unwrap_or_default();
                let name = uri.as_deref().map_or_else(
                    || format!("image.{}", media.rsplit('/').next().unwrap_or("bin")),
                    last_part,
                );
                match text("data") {
                    Some(data) => {
                        PromptBlock::Content { name, uri: None, content: BlockContent::Image(data) }
                    }
                    // Some clients link an image instead of embedding it.
                    None => match uri {
                        Some(uri) => PromptBlock::Link { uri, name },
                        None => unusable("an image without content was left out"),
                    },
                }
            }
            Some("resource") => Self::resource(value.get("resource").unwrap_or(&Value::Null)),
            Some("audio") => {
                unusable("an audio recording was left out: Pixir does not support audio")
            }
            Some(other) => {
                let name: String = other.chars().filter(char::is_ascii_graphic).take(40).collect();
                PromptBlock::Unusable { why: format!("a block of type {name} was left out") }
            }
            None => unusable("a block without a type was left out"),
        }
    }

    fn resource(value: &Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let uri = text("uri").unwrap_or("resource").to_owned();
        let name = last_part(&uri);
        let content = match (text("text"), text("blob")) {
            (Some(text), _) => BlockContent::Text(text.to_owned()),
            (None, Some(blob)) => BlockContent::Blob(blob.to_owned()),
            (None, None) => {
                return PromptBlock::Unusable { why: format!("{name} came without content") };
            }
        };
        PromptBlock::Content { name, uri: Some(uri), content }
    }
}

/// The client's context for the model, under the names that clients use.
fn client_context(meta: Option<&Value>) -> Option<String> {
    let meta = meta?;
    let paths = ["/presenter_context", "/pixir/presenter_context", "/pixir/context"];
    let found = paths.into_iter().find_map(|path| meta.pointer(path))?;
    let text = match found {
        Value::String(text) => text.clone(),
        Value::Null => return None,
        other => other.to_string(),
    };
    let mut end = text.len().min(MAX_CONTEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = text.get(..end).unwrap_or_default().trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The path of a `file:` URI, and its fragment.
fn file_path(uri: &str) -> Option<(PathBuf, String)> {
    let address = url::Url::parse(uri).ok().filter(|address| address.scheme() == "file")?;
    let place = address.fragment().map(|place| format!("#{place}")).unwrap_or_default();
    Some((address.to_file_path().ok()?, place))
}

fn last_part(uri: &str) -> String {
    if let Some((path, _)) = file_path(uri)
        && let Some(name) = path.file_name()
    {
        return name.to_string_lossy().into_owned();
    }
    let path = uri.split(['?', '#']).next().unwrap_or(uri);
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    if name.is_empty() { "resource".to_owned() } else { name.to_owned() }
}

/// Decodes base64, also when it has line breaks.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if let Ok(bytes) = BASE64.decode(text) {
        return Some(bytes);
    }
    let plain: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64.decode(plain).ok()
}
