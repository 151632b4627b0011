//! Sockets with a name: neither a read-only mount nor Landlock keeps a command from connecting to
//! one, so those outside the Workspace are covered up by name.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where the kernel lists them.
const LIST: &str = "/proc/net/unix";

/// The sockets of this machine that exist and that `is_covered` does not already hide.
pub fn foreign(is_covered: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let list = std::fs::read(LIST).unwrap_or_default();
    let named = paths(&String::from_utf8_lossy(&list));
    let is_socket = |path: &PathBuf| {
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
    };
    named.into_iter().filter(|path| !is_covered(path)).filter(is_socket).collect()
}

/// The absolute paths in the kernel's list; a name that begins with `@` is abstract.
fn paths(list: &str) -> BTreeSet<PathBuf> {
    // What stands before the path has no slash.
    let path = |line: &str| Some(PathBuf::from(line.get(line.find(" /")? + 1..)?));
    list.lines().skip(1).filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_the_file_system_count() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 15123 /run/a b.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 15124 @/tmp/.X11-unix/X0\n\
            0000000000000000: 00000003 00000000 00000000 0001 03  1520\n";
        let expected: BTreeSet<PathBuf> = [PathBuf::from("/run/a b.sock")].into();
        assert_eq!(paths(list), expected);
    }
}
