//! The Resources of a Session: those that its Log names, those that its Turn shows, and their bytes.
//!
//! Loaded contents are a cache of one Turn: every request of the Turn shows the same bytes, even if the files
//! change meanwhile.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;

use super::attach::Attachment;
use super::contents::{LoadedContent, ResourceContents};
use super::sniff::{ContentKind, ImageHeader};
use super::store::{ResourceReadError, ResourceStore};
use super::{
    MAX_INLINED_BYTES, MAX_TURN_IMAGE_BYTES, MAX_TURN_IMAGES, MAX_TURN_INLINED_BYTES, display_name,
};
use crate::base::files::StatePath;
use crate::base::secret::Secrets;
use crate::record::event::{Canonical, Extra, ResourceDescriptor};
use crate::record::history::History;

/// The text in place of an image, for a model that accepts none.
const NO_IMAGES: &str = "this model takes no images";

/// The Resources of one Session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Resources(Arc<ResourcesInner>);

#[derive(Debug)]
struct ResourcesInner {
    store: ResourceStore,
    state: Mutex<ResourcesState>,
}

#[derive(Debug, Default)]
struct ResourcesState {
    known: Vec<ResourceDescriptor>,
    /// The images of the current Turn, by hash, and how many bytes they are.
    shown: Vec<String>,
    shown_bytes: u64,
    loaded: Arc<HashMap<String, LoadedContent>>,
}

/// Whether an image is new to the Turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShowResult {
    Now,
    /// The Turn shows the image already.
    Already,
    /// The Turn shows as many images as it may.
    Full,
}

impl Resources {
    /// The Resources of the Session with this folder.
    pub fn new(session_folder: &StatePath) -> Self {
        let (store, state) = (ResourceStore::new(session_folder), Mutex::default());
        Self(Arc::new(ResourcesInner { store, state }))
    }

    /// Stores attachments durably, and returns their descriptors for the Log. Known Secrets are redacted in
    /// texts first, so that stored bytes may be shown.
    pub fn store_attachments(
        &self,
        files: Vec<Attachment>,
        secrets: &Secrets,
    ) -> io::Result<Vec<ResourceDescriptor>> {
        let mut space = MAX_TURN_INLINED_BYTES;
        let mut taken = Vec::with_capacity(files.len());
        for Attachment { name, bytes, content_kind: nature } in files {
            let name = secrets.redact(&name).into_owned();
            taken.push(match nature {
                ContentKind::Image(image) => self.store_image(&name, &bytes, image)?,
                ContentKind::Text => {
                    let bytes = secrets.redact_file(&bytes);
                    let text = String::from_utf8_lossy(&bytes);
                    let inlined = fitting_prefix(&text, MAX_INLINED_BYTES.min(space));
                    space -= inlined;
                    let text = ResourceDescriptor {
                        kind: "text".to_owned(),
                        media_type: "text/plain".to_owned(),
                        inlined: Some(inlined as u64),
                        ..ResourceDescriptor::default()
                    };
                    self.store_bytes(&name, &bytes, text)?
                }
                ContentKind::File(media_type) => {
                    let (kind, media_type) = ("file".to_owned(), media_type.to_owned());
                    self.store_bytes(
                        &name,
                        &bytes,
                        ResourceDescriptor { kind, media_type, ..ResourceDescriptor::default() },
                    )?
                }
            });
        }
        Ok(taken)
    }

    /// Stores an image that a Tool has read.
    pub fn store_image(
        &self,
        name: &str,
        bytes: &[u8],
        image: ImageHeader,
    ) -> io::Result<ResourceDescriptor> {
        let ImageHeader { media_type, width, height } = image;
        let (kind, media_type) = ("image".to_owned(), media_type.to_owned());
        let (width, height) = (Some(width), Some(height));
        self.store_bytes(
            name,
            bytes,
            ResourceDescriptor { kind, media_type, width, height, ..ResourceDescriptor::default() },
        )
    }

    fn store_bytes(
        &self,
        name: &str,
        bytes: &[u8],
        draft: ResourceDescriptor,
    ) -> io::Result<ResourceDescriptor> {
        let sha256 = self.0.store.store_bytes(bytes)?;
        let descriptor = ResourceDescriptor {
            id: format!("res_{}", &sha256[..16]),
            name: display_name(Path::new(name)),
            bytes: bytes.len() as u64,
            sha256: Some(sha256),
            extra: Extra::new(),
            ..draft
        };
        self.0.state.lock().add_known(descriptor.clone());
        Ok(descriptor)
    }

    /// Adds the Resources that a History names.
    #[must_use]
    pub fn with_history(self, history: &History) -> Self {
        self.0.state.lock().add_from_history(history);
        self
    }

    /// Begins a Turn after this History with these attachments. Resources stay known, also where the Session does
    /// not hold their Events any more; the loaded contents of the Turn before are dropped.
    pub fn begin_turn(&self, history: &History, attached: &[ResourceDescriptor]) {
        let known = std::mem::take(&mut self.0.state.lock().known);
        let mut turn = ResourcesState { known, ..ResourcesState::default() };
        turn.add_from_history(history);
        for own in attached {
            turn.add_known(own.clone());
            if own.is_image() {
                turn.count_shown(own);
            }
        }
        *self.0.state.lock() = turn;
    }

    /// Counts an image as shown by the Turn, if the limits allow it.
    pub fn try_show_image(&self, image: &ResourceDescriptor) -> ShowResult {
        let mut state = self.0.state.lock();
        if image.sha256.as_ref().is_some_and(|sha256| state.shown.contains(sha256)) {
            return ShowResult::Already;
        }
        if state.shown.len() == MAX_TURN_IMAGES
            || state.shown_bytes + image.bytes > MAX_TURN_IMAGE_BYTES
        {
            return ShowResult::Full;
        }
        state.count_shown(image);
        ShowResult::Now
    }

    /// The Resource with this id.
    pub fn find(&self, id: &str) -> Option<ResourceDescriptor> {
        self.0.state.lock().known.iter().find(|own| own.id == id).cloned()
    }

    /// Every id, the newest first.
    pub fn ids(&self) -> Vec<String> {
        self.0.state.lock().known.iter().rev().map(|own| own.id.clone()).collect()
    }

    /// The bytes of a Resource.
    pub fn bytes(&self, descriptor: &ResourceDescriptor) -> Result<Vec<u8>, ResourceReadError> {
        let sha256 = descriptor.sha256.as_deref().ok_or(ResourceReadError::Missing)?;
        self.0.store.read_bytes(sha256, descriptor.bytes)
    }

    /// The path of a Resource's bytes.
    pub fn path(&self, descriptor: &ResourceDescriptor) -> PathBuf {
        self.0.store.path(descriptor.sha256.as_deref().unwrap_or_default())
    }

    /// Loads the contents that a request shows; those that the Turn has shown before are not read again.
    pub fn load_contents(
        &self,
        wanted: &[ResourceDescriptor],
        sees_images: bool,
    ) -> ResourceContents {
        let mut loaded = Arc::clone(&self.0.state.lock().loaded);
        for descriptor in wanted {
            let Some(sha256) = &descriptor.sha256 else { continue };
            if !loaded.contains_key(sha256) {
                let content = self.load(descriptor, sees_images);
                Arc::make_mut(&mut loaded).insert(sha256.clone(), content);
            }
        }
        self.0.state.lock().loaded = Arc::clone(&loaded);
        ResourceContents(loaded)
    }

    fn load(&self, descriptor: &ResourceDescriptor, sees_images: bool) -> LoadedContent {
        if descriptor.is_image() && !sees_images {
            return LoadedContent::Withheld(NO_IMAGES.into());
        }
        match self.bytes(descriptor) {
            Err(lost) => LoadedContent::Withheld(lost.to_string().into()),
            Ok(bytes) if descriptor.is_image() => {
                let media_type = &descriptor.media_type;
                LoadedContent::Image(
                    format!("data:{media_type};base64,{}", STANDARD.encode(bytes)).into(),
                )
            }
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_INLINED_BYTES)]);
                LoadedContent::Text(text.into())
            }
        }
    }
}

impl ResourcesState {
    fn add_from_history(&mut self, history: &History) {
        for fact in history.facts() {
            match fact {
                Canonical::UserMessage(message) => {
                    message.descriptors().for_each(|own| self.add_known(own));
                }
                Canonical::ToolResult(result) => {
                    result.descriptor().into_iter().for_each(|own| self.add_known(own));
                }
                _ => {}
            }
        }
    }

    fn add_known(&mut self, descriptor: ResourceDescriptor) {
        // The first name stays, because the model has read it.
        if !self.known.iter().any(|own| own.id == descriptor.id) {
            self.known.push(descriptor);
        }
    }

    fn count_shown(&mut self, image: &ResourceDescriptor) {
        self.shown.extend(image.sha256.clone());
        self.shown_bytes += image.bytes;
    }
}

/// How many bytes of a text fit into `space`: whole characters, and whole lines unless that drops more than half.
pub fn fitting_prefix(text: &str, space: usize) -> usize {
    if text.len() <= space {
        return text.len();
    }
    let end = text.floor_char_boundary(space);
    match text[..end].rfind('\n') {
        Some(newline) if newline >= end / 2 => newline + 1,
        _ => end,
    }
}
