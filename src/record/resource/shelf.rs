//! The Resources of a Session: those that its Log names, those that its Turn shows, and their bytes.
//!
//! Loaded contents are a cache of one Turn: every request of the Turn shows the same bytes, even if the files
//! change meanwhile.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::attach::Attachment;
use super::contents::{Contents, Loaded};
use super::sniff::{Image, Nature};
use super::store::{Lost, Store};
use super::{IMAGES_SUM, INLINED, INLINED_SUM, MOST_IMAGES, plain_name};
use crate::base::files::StateFolder;
use crate::base::secret::Secrets;
use crate::record::event::{Canonical, Descriptor, Extra};
use crate::record::history::History;

/// Shown in place of an image to a model that accepts none.
const BLIND: &str = "this model takes no images";

/// The Resources of one Session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Shelf(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: Vec<Descriptor>,
    /// The images of the current Turn, by hash, and how many bytes they are.
    shown: Vec<String>,
    shown_bytes: u64,
    loaded: Arc<HashMap<String, Loaded>>,
}

/// Whether an image is new to the Turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Showing {
    Now,
    /// The Turn shows it already.
    Already,
    /// The Turn shows as many images as it may.
    Full,
}

impl Shelf {
    /// The Resources of the Session with this folder.
    pub fn new(session_folder: &StateFolder) -> Self {
        let (store, state) = (Store::new(session_folder), Mutex::default());
        Self(Arc::new(Inner { store, state }))
    }

    /// Stores attachments durably, and returns their descriptors for the Log. Known Secrets are redacted in
    /// texts first, so that stored bytes may be shown.
    pub fn take(&self, files: Vec<Attachment>, secrets: &Secrets) -> io::Result<Vec<Descriptor>> {
        let mut room = INLINED_SUM;
        let mut taken = Vec::with_capacity(files.len());
        for Attachment { name, bytes, nature } in files {
            let name = secrets.clean(&name).into_owned();
            taken.push(match nature {
                Nature::Image(image) => self.keep_image(&name, &bytes, image)?,
                Nature::Text => {
                    let bytes = secrets.clean_file(&bytes);
                    let text = String::from_utf8_lossy(&bytes);
                    let inlined = head(&text, INLINED.min(room));
                    room -= inlined;
                    let text = Descriptor {
                        kind: "text".to_owned(),
                        media_type: "text/plain".to_owned(),
                        inlined: Some(inlined as u64),
                        ..Descriptor::default()
                    };
                    self.keep(&name, &bytes, text)?
                }
                Nature::File(media_type) => {
                    let (kind, media_type) = ("file".to_owned(), media_type.to_owned());
                    self.keep(
                        &name,
                        &bytes,
                        Descriptor { kind, media_type, ..Descriptor::default() },
                    )?
                }
            });
        }
        Ok(taken)
    }

    /// Stores an image that a Tool has read.
    pub fn keep_image(&self, name: &str, bytes: &[u8], image: Image) -> io::Result<Descriptor> {
        let Image { media_type, width, height } = image;
        let (kind, media_type) = ("image".to_owned(), media_type.to_owned());
        let (width, height) = (Some(width), Some(height));
        self.keep(
            name,
            bytes,
            Descriptor { kind, media_type, width, height, ..Descriptor::default() },
        )
    }

    fn keep(&self, name: &str, bytes: &[u8], draft: Descriptor) -> io::Result<Descriptor> {
        let sha256 = self.0.store.put(bytes)?;
        let descriptor = Descriptor {
            id: format!("res_{}", &sha256[..16]),
            name: plain_name(Path::new(name)),
            bytes: bytes.len() as u64,
            sha256: Some(sha256),
            extra: Extra::new(),
            ..draft
        };
        self.state().learn(descriptor.clone());
        Ok(descriptor)
    }

    /// Adds the Resources that a History names.
    #[must_use]
    pub fn knowing(self, history: &History) -> Self {
        self.state().read(history);
        self
    }

    /// Begins a Turn after this History with these attachments. Resources stay known, also where the Session does
    /// not hold their Events any more; the loaded contents of the Turn before are dropped.
    pub fn begin_turn(&self, history: &History, attached: &[Descriptor]) {
        let known = std::mem::take(&mut self.state().known);
        let mut turn = State { known, ..State::default() };
        turn.read(history);
        for own in attached {
            turn.learn(own.clone());
            if own.is_image() {
                turn.show(own);
            }
        }
        *self.state() = turn;
    }

    /// Counts an image as shown by the Turn, if the limits allow it.
    pub fn show(&self, image: &Descriptor) -> Showing {
        let mut state = self.state();
        if image.sha256.as_ref().is_some_and(|sha256| state.shown.contains(sha256)) {
            return Showing::Already;
        }
        if state.shown.len() == MOST_IMAGES || state.shown_bytes + image.bytes > IMAGES_SUM {
            return Showing::Full;
        }
        state.show(image);
        Showing::Now
    }

    /// The Resource with this id.
    pub fn find(&self, id: &str) -> Option<Descriptor> {
        self.state().known.iter().find(|own| own.id == id).cloned()
    }

    /// Every id, the newest first.
    pub fn ids(&self) -> Vec<String> {
        self.state().known.iter().rev().map(|own| own.id.clone()).collect()
    }

    /// The bytes of a Resource.
    pub fn bytes(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Lost> {
        let sha256 = descriptor.sha256.as_deref().ok_or(Lost::Missing)?;
        self.0.store.get(sha256, descriptor.bytes)
    }

    /// The path of a Resource's bytes.
    pub fn path(&self, descriptor: &Descriptor) -> PathBuf {
        self.0.store.path(descriptor.sha256.as_deref().unwrap_or_default())
    }

    /// Loads the contents that a request shows; those that the Turn has shown before are not read again.
    pub fn contents(&self, wanted: &[Descriptor], sees_images: bool) -> Contents {
        let mut loaded = Arc::clone(&self.state().loaded);
        for descriptor in wanted {
            let Some(sha256) = &descriptor.sha256 else { continue };
            if !loaded.contains_key(sha256) {
                let content = self.load(descriptor, sees_images);
                Arc::make_mut(&mut loaded).insert(sha256.clone(), content);
            }
        }
        self.state().loaded = Arc::clone(&loaded);
        Contents(loaded)
    }

    fn load(&self, descriptor: &Descriptor, sees_images: bool) -> Loaded {
        if descriptor.is_image() && !sees_images {
            return Loaded::Withheld(BLIND.into());
        }
        match self.bytes(descriptor) {
            Err(lost) => Loaded::Withheld(lost.to_string().into()),
            Ok(bytes) if descriptor.is_image() => {
                let media_type = &descriptor.media_type;
                Loaded::Image(format!("data:{media_type};base64,{}", STANDARD.encode(bytes)).into())
            }
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(INLINED)]);
                Loaded::Text(text.into())
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn read(&mut self, history: &History) {
        for fact in history.facts() {
            match fact {
                Canonical::UserMessage(message) => {
                    message.descriptors().for_each(|own| self.learn(own));
                }
                Canonical::ToolResult(result) => {
                    result.descriptor().into_iter().for_each(|own| self.learn(own));
                }
                _ => {}
            }
        }
    }

    fn learn(&mut self, descriptor: Descriptor) {
        // The first name stays, because the model has read it.
        if !self.known.iter().any(|own| own.id == descriptor.id) {
            self.known.push(descriptor);
        }
    }

    fn show(&mut self, image: &Descriptor) {
        self.shown.extend(image.sha256.clone());
        self.shown_bytes += image.bytes;
    }
}

/// How many bytes of a text fit into `space`: whole characters, and whole lines unless that drops more than half.
pub fn head(text: &str, room: usize) -> usize {
    if text.len() <= room {
        return text.len();
    }
    let end = text.floor_char_boundary(room);
    match text[..end].rfind('\n') {
        Some(newline) if newline >= end / 2 => newline + 1,
        _ => end,
    }
}
