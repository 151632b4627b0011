//! Sessions that may not be read: whose files they are, and what to do.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::CliContext;
use crate::base::error::{Kind, Report};
use crate::base::paths::quote_shell_word;
use crate::frontends::render::one_line;
use crate::record::state_dir;

impl CliContext {
    /// Prints which folders with Sessions may not be read. If no other Session was found either, that is an
    /// error: an empty list would claim that there are no Sessions.
    pub fn explain_closed_folders(&self, all: bool, found_any: bool) -> Result<(), Report> {
        let closed = self.closed_folders(all)?;
        let Some(first) = closed.first() else { return Ok(()) };
        if found_any {
            for folder in &closed {
                self.print_notice(&unreadable_folder_message(folder));
            }
            return Ok(());
        }
        Err(Report::new(Kind::ReadFailed, unreadable_folder_message(first))
            .with_next_actions(vec![unreadable_folder_action(first)]))
    }

    fn closed_folders(&self, all: bool) -> Result<Vec<PathBuf>, Report> {
        let home = self.home()?;
        let workspaces = self.workspaces(all)?;
        let closed =
            workspaces.iter().flat_map(|workspace| state_dir::unreadable_roots(&home, workspace));
        Ok(closed.collect())
    }
}

fn unreadable_folder_message(folder: &Path) -> String {
    let (path, owner) = (folder.display(), owner_text(folder));
    format!("Sessions in {path} cannot be read: permission denied{owner}")
}

fn unreadable_folder_action(folder: &Path) -> String {
    if owner_id(folder).is_some_and(is_current_user) {
        let path = quote_shell_word(&folder.to_string_lossy());
        return format!("change its permissions: chmod u+rwx {path}");
    }
    "run pixir as the owner of the folder, or change its permissions".to_owned()
}

fn owner_id(path: &Path) -> Option<u32> {
    path.symlink_metadata().ok().map(|facts| facts.uid())
}

fn is_current_user(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

/// The owner of a file, to append to a message; empty if unknown.
pub fn owner_text(path: &Path) -> String {
    let Some(uid) = owner_id(path) else { return String::new() };
    if is_current_user(uid) {
        return " (it belongs to you)".to_owned();
    }
    let name = user_name(uid).map_or_else(|| format!("user {uid}"), |name| one_line(&name, 40));
    format!(" (it belongs to {name})")
}

/// The name of a user by the local table of users; no other service is asked.
fn user_name(uid: u32) -> Option<String> {
    let table = std::fs::read_to_string("/etc/passwd").ok()?;
    table.lines().find_map(|row| {
        let mut fields = row.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    })
}
