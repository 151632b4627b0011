//! Path of a folder of Pixir's state, which need not exist yet: a root, and the path below it.

use std::path::{Component, Path, PathBuf};

use super::{StateAccess, StateDir, StateError, UnsafeEntry};

/// The path of a state folder: a root that the user chose, and the components below it, which are
/// opened one by one. Making and comparing it needs no access to the disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StatePath {
    root: PathBuf,
    below: PathBuf,
    access: StateAccess,
}

impl StatePath {
    /// The path of a root.
    pub fn root(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), below: PathBuf::new(), access: StateAccess::Own }
    }

    /// This folder, opened only to be read.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { access: StateAccess::ReadOnly, ..self }
    }

    /// A folder inside this one.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        Self { below: self.below.join(name), ..self.clone() }
    }

    /// The folder that holds this one; a root holds itself.
    #[must_use]
    pub fn parent(&self) -> Self {
        let below = self.below.parent().map(Path::to_owned).unwrap_or_default();
        Self { below, ..self.clone() }
    }

    /// The whole path.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.below)
    }

    /// Opens the folder; `None` when it, or a folder on the way, is missing.
    pub fn open(&self) -> Result<Option<StateDir>, StateError> {
        let mut folder = match StateDir::open_root(&self.root) {
            Ok(root) => root.with_access(self.access),
            Err(error) if error.io_kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for part in self.parts() {
            match folder.open_dir(part?)? {
                Some(inner) => folder = inner,
                None => return Ok(None),
            }
        }
        Ok(Some(folder))
    }

    /// Opens the folder, and makes what is missing below the root.
    pub fn create(&self) -> Result<StateDir, StateError> {
        let mut folder = StateDir::open_root(&self.root)?.with_access(self.access);
        for part in self.parts() {
            folder = folder.create_dir(part?)?;
        }
        Ok(folder)
    }

    /// Opens the folder, and makes what is missing, the root included.
    pub fn create_with_root(&self) -> Result<StateDir, StateError> {
        StateDir::create_root(&self.root)?;
        self.create()
    }

    fn parts(&self) -> impl Iterator<Item = Result<&std::ffi::OsStr, StateError>> {
        self.below.components().map(|part| match part {
            Component::Normal(name) => Ok(name),
            _ => Err(StateError::Unsafe { path: self.path(), found: UnsafeEntry::Name }),
        })
    }
}
