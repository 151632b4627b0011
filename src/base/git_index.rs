//! Git index reader: the paths that git tracks, read from the file itself.
//!
//! Starting git would cost more than reading, and a repository can make git start programs.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};

/// The largest index that is read.
const LARGEST_INDEX: u64 = 256 << 20;
/// The largest `.git` file that is read.
const LARGEST_POINTER: u64 = 64 << 10;
/// Length of the fixed fields of an entry before its hash.
const FIXED_LENGTH: usize = 40;
/// Offset of the mode in an entry.
const MODE_OFFSET: usize = 24;
/// The flag of an entry that has two more bytes of flags.
const EXTENDED_FLAG: u16 = 0x4000;
/// The longest path that an index may hold.
const LONGEST_PATH: usize = 64 << 10;

/// The lengths of the hashes that a repository may use: SHA-1 and SHA-256.
pub const HASH_LENGTHS: [usize; 2] = [20, 32];

/// One tracked path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry<'i> {
    /// The path relative to the top of the work tree.
    pub path: &'i [u8],
    /// The type bits of a file, a link or another repository.
    pub mode: u32,
}

/// The index of the repository whose `.git` this is: a folder, or a file that names one.
pub fn index_file(git: &Path) -> Option<PathBuf> {
    git_folder(git).map(|folder| folder.join("index"))
}

/// The files that make up the index of the repository whose `.git` this is. A split index has a second
/// file.
pub fn index_files(git: &Path) -> Vec<PathBuf> {
    let Some(folder) = git_folder(git) else { return Vec::new() };
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let is_index = |name: &str| name == "index" || name.starts_with("sharedindex.");
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_index));
    named.map(|entry| entry.path()).collect()
}

/// Identity, size and times of an index file, which differ after every write of git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexStamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The stamp of the index of the repository whose `.git` this is.
pub fn index_stamp(git: &Path) -> Option<IndexStamp> {
    let stat = std::fs::metadata(index_file(git)?).ok()?;
    Some(IndexStamp {
        inode: stat.ino(),
        size: stat.len(),
        modified: (stat.mtime(), stat.mtime_nsec()),
        changed: (stat.ctime(), stat.ctime_nsec()),
    })
}

/// The folder of the repository whose `.git` this is.
pub fn git_folder(git: &Path) -> Option<PathBuf> {
    if git.is_dir() {
        return Some(git.to_owned());
    }
    let mut pointer = String::new();
    open_regular_file(git)?.take(LARGEST_POINTER).read_to_string(&mut pointer).ok()?;
    Some(git.parent()?.join(pointer.strip_prefix("gitdir:")?.trim()))
}

/// Opens an index for reading; `None` when it is not a regular file, or is too large.
pub fn open_index(path: &Path) -> Option<BufReader<File>> {
    let file = open_regular_file(path)?;
    let is_sane = file.metadata().ok()?.len() <= LARGEST_INDEX;
    is_sane.then(|| BufReader::with_capacity(64 << 10, file))
}

/// The number of entries in the headers of the index; 0 without an index. The largest shared file of a split index
/// counts, so the number may be too high.
pub fn entry_count(git: &Path) -> usize {
    let counts = index_files(git).into_iter().map(|file| {
        let is_shared = !file.ends_with("index");
        (is_shared, file_entry_count(&file))
    });
    let (shared, own): (Vec<_>, Vec<_>) = counts.partition(|(is_shared, _)| *is_shared);
    let largest = |counts: Vec<(bool, usize)>| counts.into_iter().map(|(_, count)| count).max();
    largest(own).unwrap_or_default().saturating_add(largest(shared).unwrap_or_default())
}

/// The number of entries in the header of one file of an index.
fn file_entry_count(file: &Path) -> usize {
    let mut head = [0; 12];
    match open_index(file).map(|mut index| index.read_exact(&mut head)) {
        Some(Ok(())) if head.starts_with(b"DIRC") => {
            usize::try_from(read_u32(&head, 8)).unwrap_or_default()
        }
        _ => 0,
    }
}

/// Opens a regular file without blocking on a pipe.
fn open_regular_file(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}

/// Visits the entries of an index of version 2, 3 or 4 in their order, until `visit` returns `Break`.
pub fn visit_entries<T>(
    mut index: impl BufRead,
    hash_length: usize,
    mut visit: impl FnMut(IndexEntry<'_>) -> ControlFlow<T>,
) -> io::Result<Option<T>> {
    let mut head = [0; 12];
    index.read_exact(&mut head)?;
    let version = read_u32(&head, 4);
    if !head.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut path = Vec::new();
    let mut fixed = vec![0; FIXED_LENGTH + hash_length + 2];
    for _ in 0..read_u32(&head, 8) {
        let mode = read_entry(&mut index, version, &mut fixed, &mut path)?;
        if let ControlFlow::Break(found) = visit(IndexEntry { path: &path, mode }) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Reads one entry; `path` holds the previous path before the call, and the path of the entry after it.
fn read_entry(
    index: &mut impl BufRead,
    version: u32,
    fixed: &mut [u8],
    path: &mut Vec<u8>,
) -> io::Result<u32> {
    index.read_exact(fixed)?;
    let mode = read_u32(fixed, MODE_OFFSET);
    let flags = fixed.last_chunk().map_or(0, |flags| u16::from_be_bytes(*flags));
    let mut length = fixed.len();
    if version > 2 && flags & EXTENDED_FLAG != 0 {
        index.read_exact(&mut [0; 2])?;
        length += 2;
    }
    if version == 4 {
        // The entry holds only the part that differs from the path before.
        let less = read_offset_number(index)?;
        let kept = path.len().checked_sub(less).ok_or(io::ErrorKind::InvalidData)?;
        path.truncate(kept);
    } else {
        path.clear();
    }
    let before = path.len();
    index.by_ref().take(LONGEST_PATH as u64).read_until(0, path)?;
    if path.pop() != Some(0) || path.len() > LONGEST_PATH {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if version < 4 {
        // Entries are padded to multiples of eight with at least one zero, which was read above.
        length += path.len() - before + 1;
        let padding = length.next_multiple_of(8) - length;
        index.read_exact(&mut [0; 8][..padding])?;
    }
    Ok(mode)
}

/// Reads a number in git's variable-length encoding.
fn read_offset_number(index: &mut impl BufRead) -> io::Result<usize> {
    let mut byte = [0];
    index.read_exact(&mut byte)?;
    let mut value = usize::from(byte[0] & 0x7f);
    while byte[0] & 0x80 != 0 {
        index.read_exact(&mut byte)?;
        let next = value.checked_add(1).and_then(|value| value.checked_mul(128));
        value = next.ok_or(io::ErrorKind::InvalidData)? + usize::from(byte[0] & 0x7f);
    }
    Ok(value)
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_be_bytes)
}
