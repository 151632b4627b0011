//! Files that commands of a Turn created or changed and that programs outside the sandbox execute,
//! such as git hooks; the end of the Turn names them to the user.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// How many files are named.
const NAMED: usize = 12;

/// The files that results of commands have listed so far.
#[derive(Debug, Default)]
pub(super) struct ProgramFiles(Mutex<BTreeSet<String>>);

impl ProgramFiles {
    /// Adds the files of one result.
    pub(super) fn add(&self, programs: &[PathBuf], root: &Path) {
        let short =
            |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let mut files = self.0.lock();
        files.extend(programs.iter().map(short));
    }

    /// The notice for the user, if there are files.
    pub(super) fn notice(&self) -> Option<String> {
        let files = self.0.lock();
        if files.is_empty() {
            return None;
        }
        let named: Vec<&str> = files.iter().take(NAMED).map(String::as_str).collect();
        let more = match files.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "commands made or changed files that programs outside the sandbox run when a folder is \
             opened or git runs a hook; look at them first: {}{more}",
            named.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_once_and_not_all_of_them() {
        let files = ProgramFiles::default();
        let root = Path::new("/w");
        files.add(&[], root);
        assert_eq!(files.notice(), None);
        files.add(&["/w/.envrc".into(), "/x/.envrc".into()], root);
        files.add(&["/w/.envrc".into()], root);
        let notice = files.notice().unwrap();
        assert!(notice.ends_with("first: .envrc, /x/.envrc"), "{notice}");
        let many: Vec<PathBuf> =
            (0..20).map(|number| format!("/w/.vscode/{number:02}").into()).collect();
        files.add(&many, root);
        assert!(
            files.notice().unwrap().ends_with(".vscode/10 and 10 more"),
            "{:?}",
            files.notice()
        );
    }
}
