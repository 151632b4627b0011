//! The lease of an annex: whose it is, where it is, and what it was in the beginning.
//!
//! It is a file of the Home, so no repository can plant one. It is there before the annex is, and
//! whole when the annex is whole; until then its maker holds the kernel's lock on it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::id::SessionId;
use crate::paths::{self, Home};
use crate::snapshot::{Change, Hash, RawPath, State};

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

    /// Writes a lease that is not whole yet. While the answer is held, nobody clears it away.
    pub fn begin(&self, home: &Home) -> io::Result<Making> {
        DirBuilder::new().recursive(true).mode(0o700).create(home.annexes())?;
        // It is locked before it has its name: nobody ever sees one that is neither.
        let (mut file, draft) = self.draft(home)?;
        file.lock()?;
        file.write_all(&self.text()?)?;
        // A name that is taken stays another's.
        let linked = fs::hard_link(&draft, place(home, &self.child));
        fs::remove_file(draft)?;
        linked.map(|()| Making(file))
    }

    /// Replaces it.
    pub fn write(&self, home: &Home) -> io::Result<()> {
        let (mut file, draft) = self.draft(home)?;
        file.write_all(&self.text()?)?;
        fs::rename(draft, place(home, &self.child))
    }

    fn draft(&self, home: &Home) -> io::Result<(File, PathBuf)> {
        let place = home.annexes().join(format!(".{}.{:08x}.draft", self.child, fastrand::u32(..)));
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        Ok((options.open(&place)?, place))
    }

    /// Reads the lease of a child; `None` when it has none.
    pub fn read(home: &Home, child: &SessionId) -> io::Result<Option<Self>> {
        match fs::read(place(home, child)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every lease there is; one that cannot be read is passed over.
    pub fn all(home: &Home) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(home.annexes()) else { return Vec::new() };
        let lease = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let child = SessionId::parse(name.to_str()?.strip_suffix(".json")?).ok()?;
            Self::read(home, &child).ok().flatten()
        };
        let mut all: Vec<Self> = entries.flatten().filter_map(lease).collect();
        all.sort_by(|one, other| one.child.cmp(&other.child));
        all
    }

    /// Ends it.
    pub fn remove(&self, home: &Home) -> io::Result<()> {
        fs::remove_file(self.mention()).ok();
        fs::remove_file(place(home, &self.child))
    }

    /// Names the base among what the child's Session keeps: whoever clears away contents that nobody
    /// mentions finds it there.
    pub fn keep_base(&self) -> io::Result<()> {
        let place = self.mention();
        if let Some(folder) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(place)?;
        file.write_all(&self.text()?)
    }

    fn mention(&self) -> PathBuf {
        let folder = paths::session_folder(self.logs.as_ref(), &self.child);
        folder.join("snapshots").join("annex.json")
    }

    /// Whether somebody makes it at this moment.
    pub fn is_being_made(&self, home: &Home) -> bool {
        let file = File::open(place(home, &self.child));
        self.base.is_none() && file.is_ok_and(|file| file.try_lock().is_err())
    }

    /// The same for a Workspace that has the child's Log: it may have been moved since. `None` when it
    /// is about another's Session.
    pub fn brought_to(mut self, logs: &Path, home: &Home) -> io::Result<Option<Self>> {
        if self.logs.0 == logs {
            return Ok(Some(self));
        }
        if self.has_log() == Some(true) || !paths::log(logs, &self.child).exists() {
            return Ok(None);
        }
        if self.workspace == self.logs {
            self.workspace = RawPath(logs.to_owned());
        }
        self.logs = RawPath(logs.to_owned());
        self.write(home)?;
        Ok(Some(self))
    }

    /// How long ago it was written.
    pub fn age(&self, home: &Home) -> Duration {
        let written = fs::metadata(place(home, &self.child)).and_then(|found| found.modified());
        written.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
    }

    /// Whether its child's Log is where it should be; `None` when nobody can tell, because the
    /// Workspace is not there.
    pub fn has_log(&self) -> Option<bool> {
        let logs: &Path = self.logs.as_ref();
        logs.is_dir().then(|| paths::log(logs, &self.child).exists())
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

fn place(home: &Home, child: &SessionId) -> PathBuf {
    home.annexes().join(format!("{child}.json"))
}
