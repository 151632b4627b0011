//! The Manifest that a Turn tracker knows: the state of the Workspace at the last survey.

use std::io;
use std::sync::Arc;

use super::record::save_as_last;
use super::record_line::SurveyResult;
use super::{ContentHash, ContentStore, FileState, Manifest};

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
        let mut manifest = Manifest::load(&hash, store).ok()?;
        invalidate_lost_contents(&mut manifest, store).ok()?;
        let manifest = Arc::new(manifest);
        let length = store.open_content_file(&hash).ok()??.metadata().ok()?.len();
        Some(Self { manifest, stored: Some((hash, length)) })
    }
}

/// Makes the fingerprints of files invalid whose contents are lost, so that the next survey reads and stores them
/// again.
fn invalidate_lost_contents(manifest: &mut Manifest, store: &ContentStore) -> io::Result<()> {
    let contents = manifest.entries.values().filter_map(|entry| match &entry.state {
        FileState::File { sha256, .. } => Some(sha256),
        FileState::Link { .. } => None,
    });
    let lost = store.find_lost_contents(contents)?;
    if lost.is_empty() {
        return Ok(());
    }
    for entry in manifest.entries.values_mut() {
        if let FileState::File { sha256, .. } = &entry.state
            && lost.contains(sha256)
        {
            entry.fingerprint.changed = i128::MIN;
        }
    }
    Ok(())
}
