//! The lease of an annex: whose it is, where it is, and what it was in the beginning.
//!
//! It is a file of the Home, so no repository can plant one. It is there before the annex is, and
//! whole when the annex is whole; until then its maker holds the kernel's lock on it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Mode;
use super::ending::remove_below;
use crate::files::{Durability, StateDir, StateError, StateFolder};
use crate::id::SessionId;
use crate::paths::Home;
use crate::snapshot::{Change, Hash, RawPath, State};
use crate::state::StateRoot;

/// No lease is larger: it names the texts that merges made.
const LARGEST: u64 = 64 * 1024 * 1024;

/// The name of the file that keeps the base among what the child's Session keeps.
const MENTION: &str = "annex.json";

/// What is known of one annex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub child: SessionId,
    pub parent: SessionId,
    /// The name under which the parent knows the child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent: Option<String>,
    pub mode: Mode,
    /// The Workspace that holds both Logs.
    pub logs: RawPath,
    /// The folder of its state, when that is not in the Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RawPath>,
    /// The parent's Workspace: what was copied, and where changes go.
    pub workspace: RawPath,
    /// Where the child works.
    pub folder: RawPath,
    /// The Manifest of what it found there; `None` until everything was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Hash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// What merges made from two texts. To compare such a text once more could find the same change
    /// again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub woven: Vec<Woven>,
}

/// A text that was made from two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Woven {
    pub path: RawPath,
    /// What the child had.
    pub left: State,
    /// What the parent has since.
    pub result: State,
}

impl Woven {
    /// Whether it is about this change, and nobody has touched either side since.
    pub fn is(&self, change: &Change, now: Option<&State>) -> bool {
        self.path.0 == change.path
            && Some(&self.left) == change.to.as_ref()
            && Some(&self.result) == now
    }
}

/// The branch of a worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    pub name: String,
    /// The commit that it began with.
    pub start: String,
    /// The top of the parent's repository.
    pub top: RawPath,
    /// What all worktrees of that repository share.
    pub common: RawPath,
}

/// Says to others that somebody still makes this annex.
#[derive(Debug)]
pub struct Making(#[expect(dead_code, reason = "held, not read")] File);

impl Lease {
    /// What belongs to the annex on disk: the folder of the child, or the one around it.
    pub fn site(&self, home: &Home) -> PathBuf {
        home.annexes().join(self.child.as_str())
    }

    /// Removes what belongs to the annex on disk.
    pub fn remove_site(&self, home: &Home) -> io::Result<()> {
        let Some(folder) = open_folder(home)? else { return Err(io::ErrorKind::NotFound.into()) };
        remove_below(&folder, self.child.as_str().as_ref())
    }

    /// Writes a lease that is not whole yet. While the answer is held, nobody clears it away.
    pub fn begin(&self, home: &Home) -> io::Result<Making> {
        let folder = create_folder(home)?;
        // It is locked before it has its name: nobody ever sees one that is neither.
        let draft = OsString::from(format!(".{}.{:08x}.draft", self.child, fastrand::u32(..)));
        let mut file = folder.create_new(&draft)?;
        let written = file.lock().and_then(|()| file.write_all(&self.text()?));
        // A name that is taken stays another's.
        let linked = written
            .and_then(|()| folder.link(&draft, name_of(&self.child)).map_err(io::Error::from));
        folder.remove_file(draft)?;
        linked.map(|()| Making(file))
    }

    /// Replaces it.
    pub fn write(&self, home: &Home) -> io::Result<()> {
        let folder = create_folder(home)?;
        Ok(folder.replace(name_of(&self.child), &self.text()?, Durability::Lazy)?)
    }

    /// Reads the lease of a child; `None` when it has none.
    pub fn read(home: &Home, child: &SessionId) -> io::Result<Option<Self>> {
        let Some(folder) = open_folder(home)? else { return Ok(None) };
        Self::read_in(&folder, child)
    }

    fn read_in(folder: &StateDir, child: &SessionId) -> io::Result<Option<Self>> {
        let read = folder.read(name_of(child), LARGEST)?;
        read.map(|text| serde_json::from_slice(&text).map_err(io::Error::from)).transpose()
    }

    /// Every lease there is; one that cannot be read is passed over.
    pub fn all(home: &Home) -> Vec<Self> {
        let Ok(Some(folder)) = open_folder(home) else { return Vec::new() };
        let lease = |name: OsString| {
            let child = SessionId::parse(name.to_str()?.strip_suffix(".json")?).ok()?;
            Self::read_in(&folder, &child).ok().flatten()
        };
        let names = folder.names().unwrap_or_default().into_iter();
        let mut all: Vec<Self> = names.filter_map(lease).collect();
        all.sort_by(|one, other| one.child.cmp(&other.child));
        all
    }

    /// Ends it.
    pub fn remove(&self, home: &Home) -> io::Result<()> {
        if let Ok(Some(folder)) = self.mention_folder().open() {
            folder.remove_file(MENTION).ok();
        }
        let folder = open_folder(home)?;
        let is_removed =
            folder.map(|folder| folder.remove_file(name_of(&self.child))).transpose()?;
        is_removed.filter(|removed| *removed).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    /// Names the base among what the child's Session keeps: whoever clears away contents that nobody
    /// mentions finds it there.
    pub fn keep_base(&self) -> io::Result<()> {
        let folder = self.mention_folder().create()?;
        Ok(folder.replace(MENTION, &self.text()?, Durability::Lazy)?)
    }

    fn mention_folder(&self) -> StateFolder {
        self.state_root().session_folder(&self.child).join("snapshots")
    }

    /// The state that holds both Logs.
    pub fn state_root(&self) -> StateRoot {
        let workspace: &Path = self.logs.as_ref();
        match &self.state {
            None => StateRoot::in_workspace(workspace),
            Some(folder) => StateRoot::in_folder(workspace, &folder.0),
        }
    }

    /// Whether somebody makes it at this moment.
    pub fn is_being_made(&self, home: &Home) -> bool {
        let file = self.open(home);
        self.base.is_none() && file.is_some_and(|file| file.try_lock().is_err())
    }

    /// The same for a Workspace that has the child's Log: it may have been moved since. `None` when it
    /// is about another's Session.
    pub fn brought_to(mut self, logs: &StateRoot, home: &Home) -> io::Result<Option<Self>> {
        if self.state_root().folder().path() == logs.folder().path() {
            return Ok(Some(self));
        }
        if self.has_log() == Some(true) || !logs.has_log(&self.child) {
            return Ok(None);
        }
        if self.workspace == self.logs {
            self.workspace = RawPath(logs.workspace().to_owned());
        }
        self.logs = RawPath(logs.workspace().to_owned());
        self.state = elsewhere(logs);
        self.write(home)?;
        Ok(Some(self))
    }

    /// How long ago it was written.
    pub fn age(&self, home: &Home) -> Duration {
        let written = self.open(home).and_then(|file| file.metadata().ok()?.modified().ok());
        written.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
    }

    fn open(&self, home: &Home) -> Option<File> {
        open_folder(home).ok()??.open_file(name_of(&self.child)).ok()?
    }

    /// Whether its child's Log is where it should be; `None` when nobody can tell, because the
    /// Workspace is not there.
    pub fn has_log(&self) -> Option<bool> {
        let logs: &Path = self.logs.as_ref();
        logs.is_dir().then(|| self.state_root().has_log(&self.child))
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

/// The folder of a state that is not in its Workspace.
pub fn elsewhere(logs: &StateRoot) -> Option<RawPath> {
    (!logs.is_in_workspace()).then(|| RawPath(logs.folder().path()))
}

fn name_of(child: &SessionId) -> OsString {
    OsString::from(format!("{child}.json"))
}

/// The folder of all leases; `None` when there is none.
fn open_folder(home: &Home) -> Result<Option<StateDir>, StateError> {
    StateFolder::root(home.folder()).join(Home::ANNEXES).open()
}

/// The folder of all leases, made where it is missing.
pub fn create_folder(home: &Home) -> Result<StateDir, StateError> {
    StateDir::create_root(home.folder())?.create_dir(Home::ANNEXES)
}
