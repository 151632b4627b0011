//! Sessions that may not be read: whose files they are, and what to do.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Context;
use crate::error::{Kind, Report};
use crate::render::one_line;
use crate::state;

impl Context {
    /// Says which folders with Sessions may not be read. Where nothing else was found either, that is an
    /// error: an empty list would claim that there are no Sessions.
    pub fn explain_closed_folders(&self, all: bool, found_any: bool) -> Result<(), Report> {
        let closed = self.closed_folders(all)?;
        let Some(first) = closed.first() else { return Ok(()) };
        if found_any {
            for folder in &closed {
                self.notice(&message(folder));
            }
            return Ok(());
        }
        Err(Report::new(Kind::ReadFailed, message(first)).with_next_actions(vec![
            "run pixir as the user to whom the folder belongs, or change its permissions".into(),
        ]))
    }

    fn closed_folders(&self, all: bool) -> Result<Vec<PathBuf>, Report> {
        let home = self.home()?;
        let workspaces = self.workspaces(all)?;
        let closed = workspaces.iter().flat_map(|workspace| state::unreadable(&home, workspace));
        Ok(closed.collect())
    }
}

fn message(folder: &Path) -> String {
    let (path, owner) = (folder.display(), owner(folder));
    format!("Sessions in {path} cannot be read: permission denied{owner}")
}

/// Whose file it is, as far as that can be seen.
pub fn owner(path: &Path) -> String {
    let Ok(facts) = path.symlink_metadata() else { return String::new() };
    let uid = facts.uid();
    if uid == rustix::process::geteuid().as_raw() {
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
