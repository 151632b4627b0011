//! Order of the paths in a Manifest, and sorting by it.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use parking_lot::Mutex;

use super::parallel::parallel_map;

/// Sorts the list of each thread in parallel, and merges them.
pub fn merge_sorted<T: AsRef<Path> + Send>(lists: &[Mutex<Vec<T>>]) -> Vec<T> {
    let taken = |list: &Mutex<Vec<T>>| std::mem::take(&mut *list.lock());
    let mut lists = parallel_map(lists, |list| {
        let mut list = taken(list);
        list.sort_unstable_by(|one, other| compare_by_components(one.as_ref(), other.as_ref()));
        list
    });
    // A stable sort merges sorted lists in linear time.
    let mut all: Vec<T> = lists.drain(..).flatten().collect();
    all.sort_by(|one, other| compare_by_components(one.as_ref(), other.as_ref()));
    all
}

/// The order of `Path` for relative paths without `.` and doubled slashes, several times faster: a slash
/// sorts before any byte of a name.
fn compare_by_components(one: &Path, other: &Path) -> Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let one = one.as_os_str().as_bytes();
    let other = other.as_os_str().as_bytes();
    let differs = one.iter().zip(other).position(|(own, its)| own != its);
    match differs.and_then(|at| Some((one.get(at)?, other.get(at)?))) {
        Some((own, its)) => rank(own).cmp(&rank(its)),
        None => one.len().cmp(&other.len()),
    }
}
