//! Writes of file tools: the state of each file before and after, as lines of the Turn's Record.

use std::io;
use std::path::Path;

use super::TurnTracker;
use crate::host::snapshot::known_manifest::KnownManifest;
use crate::host::snapshot::record::unix_nanos;
use crate::host::snapshot::record_line::RecordLine;
use crate::host::snapshot::{ContentHash, FileState, FolderChange, RawPath, content, survey};

impl TurnTracker {
    /// Records the state of a file before a tool writes it: `content` is what the tool found, with the
    /// mode.
    pub fn before_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.0.turn_state.lock().turn else { return Ok(()) };
        if self.is_unreported(path, content) {
            let _alone = self.0.surveying.lock();
            self.with_progress(|progress| self.record_unreported_changes(turn, progress))?;
        }
        let _hold = self.0.store.lock_shared()?;
        let state = match content {
            _ if self.is_of_running_command(path) => None,
            Some(_) => self.store_content(content)?,
            // A path without content for the tool may be a link or a special file.
            None => content::read_state(&self.0.workspace, path, Some(&self.0.store))?,
        };
        let made = match &state {
            Some(_) => Vec::new(),
            None => self.missing_folders_above(path),
        };
        {
            let mut turn_state = self.0.turn_state.lock();
            turn_state.touched.insert(path.to_owned());
            turn_state.touched_since.insert(path.to_owned());
        }
        let path = RawPath(path.to_owned());
        self.append_line(turn, &RecordLine::Found { path, state, made, at: unix_nanos() })
    }

    /// Whether a file differs from the last survey although the watch did not report it.
    fn is_unreported(&self, path: &Path, content: Option<(&[u8], u32)>) -> bool {
        let turn_state = self.0.turn_state.lock();
        let Some(known) = turn_state.last.as_ref().filter(|_| turn_state.has_relied_on_watch)
        else {
            return false;
        };
        let found = content.map(|(bytes, mode)| FileState::File {
            sha256: ContentHash::digest(bytes),
            mode: mode & 0o7777,
        });
        let is_other = known.manifest.state(path) != found.as_ref();
        is_other && turn_state.watch.as_ref().is_some_and(|watch| !watch.was_reported(path))
    }

    /// Whether a command that still runs created a file, because the previous survey did not find the
    /// file.
    fn is_of_running_command(&self, path: &Path) -> bool {
        let turn_state = self.0.turn_state.lock();
        let is_known = |KnownManifest { manifest, .. }: &KnownManifest| {
            manifest.state(path).is_some() || manifest.too_large.contains_key(path)
        };
        let is_new = turn_state.is_running
            && !turn_state.touched.contains(path)
            && !turn_state.last.as_ref().is_some_and(is_known);
        drop(turn_state);
        is_new && survey::is_covered(&self.0.workspace, path)
    }

    /// Records the state of a file after a tool has written or removed it.
    pub fn after_write(&self, path: &Path, content: Option<(&[u8], u32)>) -> io::Result<()> {
        let Some(turn) = self.0.turn_state.lock().turn else { return Ok(()) };
        let _hold = self.0.store.lock_shared()?;
        let state = self.store_content(content)?;
        self.append_line(
            turn,
            &RecordLine::Left { path: RawPath(path.to_owned()), state, at: unix_nanos() },
        )
    }

    /// Records the current state of a file that may have changed.
    pub fn after_change(&self, path: &Path) -> io::Result<()> {
        let Some(turn) = self.0.turn_state.lock().turn else { return Ok(()) };
        let _hold = self.0.store.lock_shared()?;
        let state = content::read_state(&self.0.workspace, path, Some(&self.0.store))?;
        self.append_line(
            turn,
            &RecordLine::Left { path: RawPath(path.to_owned()), state, at: unix_nanos() },
        )
    }

    /// Records that Pixir created or removed a folder, or changed its mode.
    pub fn folder_changed(&self, folder: FolderChange) -> io::Result<()> {
        let Some(turn) = self.0.turn_state.lock().turn else { return Ok(()) };
        self.append_line(turn, &RecordLine::Folder(folder))
    }

    fn store_content(&self, content: Option<(&[u8], u32)>) -> io::Result<Option<FileState>> {
        let keep = |(bytes, mode): (&[u8], u32)| {
            Ok(FileState::File { sha256: self.0.store.put(bytes)?, mode: mode & 0o7777 })
        };
        content.map(keep).transpose()
    }

    /// The missing folders above a path, outermost first.
    fn missing_folders_above(&self, path: &Path) -> Vec<RawPath> {
        let above = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        let missing = above.take_while(|folder| self.0.workspace.stat_no_follow(folder).is_err());
        let mut missing: Vec<RawPath> = missing.map(|folder| RawPath(folder.to_owned())).collect();
        missing.reverse();
        missing
    }
}
