//! The Manifest that a Turn tracker knows: the state of the Workspace at the last survey.

use std::io;
use std::sync::Arc;

use super::record::save_as_last;
use super::record_line::SurveyResult;
use super::{ContentHash, ContentStore, Manifest};

/// A Manifest, and the hash and length of its file if it is stored.
#[derive(Debug, Clone)]
pub(super) struct KnownManifest {
    pub(super) manifest: Arc<Manifest>,
    pub(super) stored: Option<(ContentHash, u64)>,
}

impl KnownManifest {
    /// Stores the Manifest, unless the store already has it.
    pub(super) fn ensure_stored(self, store: &ContentStore) -> io::Result<(SurveyResult, Self)> {
        let kept = match self.stored.filter(|(hash, length)| store.refresh_if_whole(hash, *length))
        {
            Some(kept) => kept,
            None => save_as_last(&self.manifest, store)?,
        };
        Ok((SurveyResult::All(kept.0), Self { stored: Some(kept), ..self }))
    }

    /// The entry for a later Manifest, which is not stored yet unless it is equal.
    pub(super) fn replaced_by(self, manifest: Arc<Manifest>) -> Self {
        if Arc::ptr_eq(&self.manifest, &manifest) || self.manifest == manifest {
            self
        } else {
            Self { manifest, stored: None }
        }
    }

    /// Loads the Manifest of the last survey of this Workspace, possibly by another Session.
    pub(super) fn load_last(store: &ContentStore) -> Option<Self> {
        let hash = store.last_manifest_hash()?;
        let manifest = Arc::new(Manifest::load(&hash, store).ok()?);
        let length = store.open_content_file(&hash).ok()??.metadata().ok()?.len();
        Some(Self { manifest, stored: Some((hash, length)) })
    }
}
