//! Cache of sandbox specs: a spec is valid as long as the names from which it was computed are unchanged.
//!
//! Computing a spec compares some hundred names with each other. Most commands find the same names as the
//! previous command, so only the names are checked again.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Profile;
use super::git::RepositoryPaths;
use super::name_record::NameRecord;
use super::spec::{Network, SandboxSpec, add_missing};

/// The maximum number of specs in the cache: with and without network, in two permission modes.
const MOST_SPECS: usize = 4;

/// The inputs of a spec, except names of the file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecBasis {
    pub profile: Profile,
    pub network: Network,
    /// Whether the call declared Unix sockets.
    pub local_sockets: bool,
    pub workspace: PathBuf,
    pub extra_roots: Vec<PathBuf>,
    pub scratch: PathBuf,
    pub writable: Vec<PathBuf>,
    pub protected: Vec<PathBuf>,
    pub must_be_absent: Vec<PathBuf>,
    /// Names of git settings, if a command could change their targets.
    pub git_settings: Vec<PathBuf>,
    /// Files from which git reads the user's settings.
    pub git_files: Vec<PathBuf>,
    /// Read-only folders in which repositories of a Workspace keep their data.
    pub repositories: Vec<PathBuf>,
    /// Folders that commands can write, or could write in another permission mode.
    pub reach: Vec<PathBuf>,
    /// Hidden names other than credentials.
    pub hidden_names: Vec<PathBuf>,
    /// Earlier targets of links to hidden paths.
    pub earlier_targets: Vec<PathBuf>,
    /// The top of the repository that the Workspace belongs to.
    pub repository_top: PathBuf,
}

impl SpecBasis {
    /// Adds the paths of a repository.
    pub fn add_repository(&mut self, repository: RepositoryPaths) {
        add_missing(&mut self.writable, repository.writable);
        add_missing(&mut self.protected, repository.protected);
        add_missing(&mut self.must_be_absent, repository.must_be_absent);
    }
}

/// The specs of the last commands; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RecentSpecs(Arc<Mutex<Vec<RecentSpec>>>);

/// The names from which a spec was computed.
#[derive(Debug)]
pub struct RecordedNames {
    /// The entries at these names.
    pub record: NameRecord,
    /// Hidden names that were missing, in folders that are visible without a view.
    pub missing: Vec<PathBuf>,
}

#[derive(Debug)]
struct RecentSpec {
    basis: SpecBasis,
    names: Arc<RecordedNames>,
    spec: SandboxSpec,
}

impl RecentSpecs {
    /// The spec with this basis, if the names from which it was computed are unchanged.
    pub fn find(&self, basis: &SpecBasis) -> Option<SandboxSpec> {
        let specs = self.0.lock();
        let found = specs.iter().find(|own| own.basis == *basis)?;
        let names = Arc::clone(&found.names);
        let spec = found.spec.clone();
        drop(specs);
        names.record.is_current().then_some(spec)
    }

    /// Adds a spec, and drops the oldest when there are too many.
    pub fn insert(&self, basis: SpecBasis, names: RecordedNames, spec: SandboxSpec) {
        let mut specs = self.0.lock();
        specs.retain(|own| own.basis != basis);
        if specs.len() >= MOST_SPECS {
            specs.remove(0);
        }
        specs.push(RecentSpec { basis, names: Arc::new(names), spec });
    }

    /// The names from which a spec was computed.
    pub fn recorded_names(&self, spec: &SandboxSpec) -> Option<Arc<RecordedNames>> {
        let is_same = |own: &&RecentSpec| {
            own.spec.inode_digest == spec.inode_digest && own.spec.hidden == spec.hidden
        };
        self.0.lock().iter().find(is_same).map(|own| Arc::clone(&own.names))
    }
}
