//! The base of child Workspaces: one survey of the parent's Workspace, shared by all children that are made
//! at the same moment.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ChildWorkspaceError;
use super::git_tracked::read_tracked_paths;
use crate::host::snapshot::{
    ContentHash, ContentStore, Manifest, Survey, SurveyLimits, load_last_manifest,
};
use crate::host::workspace::Workspace;
use crate::settings::config::WorkspaceCopyLimits;

/// How long a survey may take.
const SURVEY_TIMEOUT: Duration = Duration::from_mins(2);

/// The survey of a parent's Workspace that children start from, with the store that keeps its contents.
#[derive(Debug)]
pub struct BaseManifest {
    pub manifest: Manifest,
    pub hash: ContentHash,
    pub store: ContentStore,
}

/// The last base of each Workspace.
#[derive(Debug, Default)]
pub struct BaseCache(Mutex<HashMap<PathBuf, Arc<Mutex<Option<CachedBase>>>>>);

#[derive(Debug)]
struct CachedBase {
    began: Instant,
    base: Arc<BaseManifest>,
}

impl BaseCache {
    /// The base of a Workspace, surveyed after `requested_at`. A caller that waited for another caller's
    /// survey shares it if it began after its own `requested_at`.
    pub fn get_or_survey(
        &self,
        workspace: &Workspace,
        store: &ContentStore,
        limits: SurveyLimits,
        requested_at: Instant,
    ) -> Result<Arc<BaseManifest>, ChildWorkspaceError> {
        let slot = {
            let mut known = self.0.lock();
            Arc::clone(known.entry(workspace.root().to_owned()).or_default())
        };
        let mut last = slot.lock();
        if let Some(cached) = last.as_ref().filter(|cached| cached.began >= requested_at) {
            return Ok(Arc::clone(&cached.base));
        }
        let _hold = store.lock_shared().map_err(ChildWorkspaceError::Storage)?;
        let began = Instant::now();
        let read = if last.is_none() { load_last_manifest(store) } else { None };
        let known = last.as_ref().map(|cached| &cached.base.manifest).or(read.as_ref());
        let base = Arc::new(BaseManifest::survey(workspace, store.clone(), limits, known)?);
        *last = Some(CachedBase { began, base: Arc::clone(&base) });
        Ok(base)
    }
}

impl BaseManifest {
    /// Surveys a Workspace and keeps all contents in a store.
    pub fn survey(
        workspace: &Workspace,
        store: ContentStore,
        limits: SurveyLimits,
        known: Option<&Manifest>,
    ) -> Result<Self, ChildWorkspaceError> {
        let survey = Survey { workspace, store: &store, limits };
        let mut manifest = survey.run(known).map_err(ChildWorkspaceError::Survey)?;
        // Files that git tracks are copied even where they are ignored.
        let mut rest = read_tracked_paths(workspace.root());
        rest.retain(|path| {
            !manifest.entries.contains_key(path) && !manifest.too_large.contains_key(path)
        });
        survey.add_paths(&mut manifest, &rest).map_err(ChildWorkspaceError::Survey)?;
        if let Some((path, look)) = manifest.too_large.first_key_value() {
            let (path, bytes, limit) = (path.clone(), look.size, limits.file);
            return Err(ChildWorkspaceError::TooLarge { path, bytes, limit });
        }
        let (hash, _) = manifest.save(&store).map_err(ChildWorkspaceError::Storage)?;
        Ok(Self { manifest, hash, store })
    }
}

/// The limits of a survey for a child Workspace.
pub fn survey_limits(settings: &WorkspaceCopyLimits) -> SurveyLimits {
    SurveyLimits {
        file: settings.largest_file,
        total: settings.largest_sum,
        is_git_counted: true,
        is_stored: true,
        files: settings.most_files,
        time: SURVEY_TIMEOUT,
        refused: None,
    }
}
