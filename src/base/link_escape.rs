//! Escape by link: whether a path that the user typed leaves the Workspace through one of its links.
//!
//! A checkout can bring such a link under a harmless name. A user who types that name has not chosen the
//! file that it leads to.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// More links than this are a loop, as in the kernel.
const MOST_LINKS: usize = 40;

/// The file outside `root` that `path` reaches through a link inside `root`. `root` is a real path; `path` is
/// relative to the current directory. Paths that leave by `..` or by links outside `root` are `None`.
pub fn escape_by_link(root: &Path, path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let mut rest = reversed_parts(&path);
    let mut place = PathBuf::new();
    let mut links = 0;
    let mut is_led = false;
    while let Some(part) = rest.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        let next = place.join(&part);
        match fs::read_link(&next) {
            Ok(target) if links < MOST_LINKS => {
                links += 1;
                is_led |= place.starts_with(root);
                rest.extend(reversed_parts(&target));
            }
            Err(error) if error.kind() == ErrorKind::InvalidInput => place = next,
            // A part that cannot be followed, such as a link of `/proc`, ends the resolution.
            Ok(_) | Err(_) => return is_led.then_some(next),
        }
    }
    (is_led && !place.starts_with(root)).then_some(place)
}

fn reversed_parts(path: &Path) -> Vec<OsString> {
    let mut parts: Vec<OsString> = path
        .components()
        .map(|part| part.as_os_str().to_owned())
        .filter(|part| part != ".")
        .collect();
    parts.reverse();
    parts
}
