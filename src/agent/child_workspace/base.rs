//! The base of child Workspaces: one survey of the parent's Workspace, shared by all children that are made
//! at the same moment.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::AnnexError;
use super::tracked::tracked;
use crate::host::snapshot::{Hash, Limits, Manifest, Store, Survey, last_manifest};
use crate::host::workspace::Workspace;
use crate::settings::config::Workspaces;

/// How long a survey may take.
const SURVEY_TIME: Duration = Duration::from_mins(2);

/// The survey of a parent's Workspace that children start from, with the store that keeps its contents.
#[derive(Debug)]
pub struct Base {
    pub manifest: Manifest,
    pub hash: Hash,
    pub store: Store,
}

/// The last base of each Workspace.
#[derive(Debug, Default)]
pub struct Bases(Mutex<HashMap<PathBuf, Arc<Mutex<Option<Taken>>>>>);

#[derive(Debug)]
struct Taken {
    began: Instant,
    base: Arc<Base>,
}

impl Bases {
    /// The base of a Workspace, surveyed after `wished`. A caller that waited while another one surveyed
    /// shares that survey if it began after its own `wished`.
    pub fn take(
        &self,
        workspace: &Workspace,
        store: &Store,
        limits: Limits,
        wished: Instant,
    ) -> Result<Arc<Base>, AnnexError> {
        let slot = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(workspace.root().to_owned()).or_default())
        };
        let mut last = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = last.as_ref().filter(|taken| taken.began >= wished) {
            return Ok(Arc::clone(&taken.base));
        }
        let _hold = store.hold().map_err(AnnexError::Keep)?;
        let began = Instant::now();
        let read = if last.is_none() { last_manifest(store) } else { None };
        let known = last.as_ref().map(|taken| &taken.base.manifest).or(read.as_ref());
        let base = Arc::new(Base::of(workspace, store.clone(), limits, known)?);
        *last = Some(Taken { began, base: Arc::clone(&base) });
        Ok(base)
    }
}

impl Base {
    /// Surveys a Workspace and keeps all contents in a store.
    pub fn of(
        workspace: &Workspace,
        store: Store,
        limits: Limits,
        known: Option<&Manifest>,
    ) -> Result<Self, AnnexError> {
        let survey = Survey { workspace, store: &store, limits };
        let mut manifest = survey.take(known).map_err(AnnexError::Survey)?;
        // Files that git tracks are copied even where they are ignored.
        let mut rest = tracked(workspace.root());
        rest.retain(|path| {
            !manifest.entries.contains_key(path) && !manifest.left_out.contains_key(path)
        });
        survey.add(&mut manifest, &rest).map_err(AnnexError::Survey)?;
        if let Some((path, look)) = manifest.left_out.first_key_value() {
            let (path, bytes, limit) = (path.clone(), look.size, limits.file);
            return Err(AnnexError::TooLarge { path, bytes, limit });
        }
        let (hash, _) = manifest.keep(&store).map_err(AnnexError::Keep)?;
        Ok(Self { manifest, hash, store })
    }
}

/// The limits of a survey for a child Workspace.
pub fn limits(settings: &Workspaces) -> Limits {
    Limits {
        file: settings.largest_file,
        total: settings.largest_sum,
        is_git_counted: true,
        files: settings.most_files,
        time: SURVEY_TIME,
    }
}
