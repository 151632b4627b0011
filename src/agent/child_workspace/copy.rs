//! Copies a Workspace out of the content store: the files as they were surveyed, whatever happens to them
//! meanwhile.
//!
//! Contents are shared with the store where the file system can do that, and copied by the kernel
//! where it cannot.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};

use super::base::BaseManifest;
use crate::base::files::StateDir;
use crate::host::snapshot::{ContentHash, FileState, ManifestEntry, parallel_map};

/// How much is read at once where the kernel does not copy.
const COPY_BUFFER: usize = 64 << 10;
/// How many files and links one thread copies before it takes the next ones; small copies need one thread.
const ENTRIES_PER_GROUP: usize = 1_000;

/// Makes a copy in a new folder that only its owner can access.
pub fn copy_workspace(
    base: &BaseManifest,
    parent_folder: &StateDir,
    name: &OsStr,
) -> io::Result<StateDir> {
    let root = parent_folder.create_new_dir(name)?;
    let copier = Copier { base, root, can_share: AtomicBool::new(true) };
    for folder in base.manifest.folders.keys() {
        rustix::fs::mkdirat(&copier.root, folder, Mode::RWXU)?;
    }
    let entries: Vec<_> = base.manifest.entries.iter().collect();
    let groups: Vec<_> = entries.chunks(ENTRIES_PER_GROUP).collect();
    let results = parallel_map(&groups, |group| {
        group.iter().try_for_each(|(path, entry)| copier.copy_entry(path, entry))
    });
    results.into_iter().collect::<io::Result<()>>()?;
    // Modes are set last, those of inner folders first: a folder may be read-only.
    for (folder, mode) in base.manifest.folders.iter().rev() {
        let mode = Mode::from_raw_mode(*mode);
        rustix::fs::chmodat(&copier.root, folder, mode, AtFlags::empty())?;
    }
    Ok(copier.root)
}

/// Forces everything of a file system to the disk, a copy included.
pub fn sync_file_system(folder: &StateDir) -> io::Result<()> {
    Ok(rustix::fs::syncfs(folder)?)
}

struct Copier<'b> {
    base: &'b BaseManifest,
    root: StateDir,
    /// Whether the file system can let two files share their content; known after one try.
    can_share: AtomicBool,
}

impl Copier<'_> {
    fn copy_entry(&self, path: &Path, entry: &ManifestEntry) -> io::Result<()> {
        let copied = match &entry.state {
            FileState::Link { target } => {
                rustix::fs::symlinkat(target.as_ref(), &self.root, path).map_err(Into::into)
            }
            FileState::File { sha256, mode } => {
                self.copy_file(path, sha256, *mode, entry.fingerprint.size)
            }
        };
        copied.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    fn copy_file(
        &self,
        path: &Path,
        content: &ContentHash,
        mode: u32,
        size: u64,
    ) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::RUSR | Mode::WUSR)?;
        if size > 0 {
            if let Some(stored) = self.base.store.open_content_file(content)? {
                self.copy_whole_content(&stored, &file, size)?;
            } else {
                // The content is in a segment, together with others.
                let bytes = self.base.store.get(content)?;
                File::from(file.try_clone()?).write_all(&bytes)?;
            }
        }
        Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?)
    }

    fn copy_whole_content(&self, stored: &File, file: &OwnedFd, size: u64) -> io::Result<()> {
        if rustix::fs::fstat(stored)?.st_size != size.cast_signed() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its content was cut"));
        }
        self.copy_content(stored, file, size)
    }

    fn copy_content(&self, from: &File, to: &OwnedFd, size: u64) -> io::Result<()> {
        if self.can_share.load(Ordering::Relaxed) {
            match rustix::fs::ioctl_ficlone(to, from) {
                Ok(()) => return Ok(()),
                Err(_) => self.can_share.store(false, Ordering::Relaxed),
            }
        }
        let mut to = File::from(to.try_clone()?);
        // `io::copy` between two files lets the kernel copy, where the file systems support it.
        let copied = match io::copy(&mut from.take(size), &mut to) {
            Ok(copied) => copied,
            Err(error) => {
                tracing::debug!(%error, "the kernel did not copy a file");
                to.set_len(0)?;
                to.rewind()?;
                copy_by_reading(from, &mut to, size)?
            }
        };
        if copied == size { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

fn copy_by_reading(mut from: &File, to: &mut File, size: u64) -> io::Result<u64> {
    from.rewind()?;
    let mut from = from.take(size);
    let mut buffer = vec![0; COPY_BUFFER];
    let mut copied = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(count) => {
                to.write_all(&buffer[..count])?;
                copied += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
