//! Cover layers: an overlay layer above a folder that hides files by name.
//!
//! A mount over a file covers that file, and moves with it when the user moves or replaces it. A whiteout
//! in the upper layer of an overlay covers a name, regardless of which file has it later.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid};

/// A layer that covers names in a folder.
#[derive(Debug)]
pub struct CoverLayer {
    /// The hidden paths.
    pub hidden: Vec<PathBuf>,
}

impl CoverLayer {
    /// Creates the layer for `folder` in the empty folder `place`. Hidden paths below a file or a link are
    /// left out.
    pub fn new(folder: &Path, place: &Path, hidden: &[PathBuf]) -> io::Result<Self> {
        let mut folders = vec![copy_folder(folder, place)?];
        let mut layer = Self { hidden: Vec::new() };
        for path in hidden {
            let Ok(inside) = path.strip_prefix(folder) else { continue };
            if make_parents(folder, place, inside, &mut folders)? {
                let mode = Mode::empty();
                // An overlay treats a character device with the number 0 as a whiteout.
                rustix::fs::mknodat(CWD, place.join(inside), FileType::CharacterDevice, mode, 0)?;
                layer.hidden.push(path.clone());
            }
        }
        // Times are copied last, because creating an entry changes the times of its folder.
        folders.iter().try_for_each(LayerFolder::copy_times)?;
        Ok(layer)
    }
}

/// Creates the folders above a name; false when one of them is not a folder.
fn make_parents(
    folder: &Path,
    place: &Path,
    inside: &Path,
    folders: &mut Vec<LayerFolder>,
) -> io::Result<bool> {
    let mut above: Vec<&Path> = inside.ancestors().skip(1).collect();
    above.reverse();
    // The first one is the folder itself.
    for way in above.into_iter().skip(1) {
        let below = folder.join(way);
        if !fs::symlink_metadata(&below).is_ok_and(|found| found.is_dir()) {
            return Ok(false);
        }
        if fs::symlink_metadata(place.join(way)).is_err() {
            folders.push(copy_folder(&below, &place.join(way))?);
        }
    }
    Ok(true)
}

/// Creates a folder with the mode and owner of another one, because an overlay shows those of its upper layer.
fn copy_folder(like: &Path, place: &Path) -> io::Result<LayerFolder> {
    let found = fs::symlink_metadata(like)?;
    rustix::fs::mkdir(place, Mode::RWXU)?;
    // In a user namespace only the user is mapped; setting another owner fails, and the folder stays the user's.
    let (user, group) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
    rustix::fs::chown(place, Some(user), Some(group)).ok();
    rustix::fs::chmod(place, Mode::from_raw_mode(found.mode() & 0o7777))?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(found.atime(), found.atime_nsec()),
        last_modification: time(found.mtime(), found.mtime_nsec()),
    };
    Ok(LayerFolder { place: place.to_owned(), times })
}

/// A folder of a cover layer, and the times of the original.
struct LayerFolder {
    place: PathBuf,
    times: Timestamps,
}

impl LayerFolder {
    fn copy_times(&self) -> io::Result<()> {
        Ok(rustix::fs::utimensat(CWD, &self.place, &self.times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}
