//! File metadata that is copied from a replaced file to the new one: owner, attributes and mode.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{Gid, Mode, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use super::OpenFile;

/// Mode bits that survive a rewrite; a changed program loses its set-user-id and set-group-id bits.
const KEPT_MODE: u32 = 0o1777;
/// Mode bits that do not survive a rewrite.
const DROPPED_MODE: u32 = 0o6000;

/// The maximum size of a list of attributes, and of an attribute, that is copied.
const ATTRIBUTE_LIMIT: usize = 64 * 1024;

/// The attribute with the POSIX access list: rights of named users and groups.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Copies owner, attributes and mode of the old file to the new one; returns notes about what could not
/// be copied. No user may get more access than before, so mode and access list must succeed.
pub fn copy_metadata(existing: &OpenFile, new: &File) -> Result<Vec<String>, Errno> {
    let old = &existing.stat;
    let mut notes = Vec::new();
    let now = rustix::fs::fstat(new)?;
    if (old.st_uid, old.st_gid) != (now.st_uid, now.st_gid) {
        let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        if rustix::fs::fchown(new, Some(owner), Some(group)).is_err() {
            rustix::fs::fchown(new, None, Some(group)).ok();
        }
        notes.extend(changed_owner(old, &rustix::fs::fstat(new)?));
    }
    if !copy_attributes(&existing.file, new) {
        // A folder may have a default access list, which its new files get.
        match rustix::fs::fremovexattr(new, ACCESS_LIST) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno),
        }
    }
    notes.extend(copy_mode(old, new)?);
    Ok(notes)
}

/// Sets the mode of the old file, as far as a rewrite keeps it.
pub fn copy_mode(old: &Stat, file: &File) -> Result<Option<String>, Errno> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(old.st_mode & KEPT_MODE))?;
    let dropped = old.st_mode & DROPPED_MODE != 0;
    Ok(dropped.then(|| "its set-user-id or set-group-id bit was dropped".to_owned()))
}

fn changed_owner(old: &Stat, now: &Stat) -> Option<String> {
    let (before, after) = ((old.st_uid, old.st_gid), (now.st_uid, now.st_gid));
    (before != after).then(|| {
        format!(
            "its owner is now {}:{}, because only root may keep {}:{}",
            after.0, after.1, before.0, before.1
        )
    })
}

/// Copies the extended attributes, as far as possible; true when an access list was copied.
fn copy_attributes(old: &impl AsFd, new: &impl AsFd) -> bool {
    let mut names = vec![0; ATTRIBUTE_LIMIT];
    let Ok(length) = rustix::fs::flistxattr(old, &mut names[..]) else { return false };
    let mut value = vec![0; ATTRIBUTE_LIMIT];
    let mut has_access_list = false;
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // Capabilities of a program are not copied to changed content.
        if name == b"security.capability" {
            continue;
        }
        if let Ok(length) = rustix::fs::fgetxattr(old, name, &mut value[..]) {
            let set = rustix::fs::fsetxattr(new, name, &value[..length], XattrFlags::empty());
            has_access_list |= set.is_ok() && name == ACCESS_LIST.as_bytes();
        }
    }
    has_access_list
}
