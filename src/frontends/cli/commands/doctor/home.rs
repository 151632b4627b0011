//! Checks of Pixir's home folder: permissions, unreadable files, leftovers and free space.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use super::{Check, Health, or_well};
use crate::base::error::{Kind, Report};
use crate::base::files::StateDir;
use crate::base::locked_file::Ledger;
use crate::base::paths::Home;
use crate::frontends::cli::Context;

/// Free bytes below which there is a warning.
const LITTLE: u64 = 100 << 20;

/// Free bytes below which the Log cannot be written.
const NOTHING: u64 = 4 << 20;

/// Largest cache that is read.
const LARGEST_CACHE: u64 = 4 << 20;

pub fn home(context: &Context) -> Vec<Check> {
    const ID: &str = "home";
    let home = match context.home() {
        Ok(home) => home,
        Err(report) => return vec![Check::failed(ID, &report)],
    };
    let folder = home.folder();
    let found = match fs::metadata(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let is_link = fs::symlink_metadata(folder).is_ok();
            if is_link {
                let check = Check::at(ID, folder, "is a dangling link").failing();
                return vec![check.kind(Kind::UnsafeStatePath).next("repair or remove the link")];
            }
            let message = format!("{} is made when it is needed", folder.display());
            return vec![Check::new(ID, Health::Passed, message)];
        }
        Err(error) => {
            let check = Check::at(ID, folder, format!("cannot be looked at: {error}")).failing();
            return vec![check.kind(Kind::ReadFailed).next("name another folder in PIXIR_HOME")];
        }
        Ok(found) if !found.is_dir() => {
            let check = Check::at(ID, folder, "is not a folder").failing();
            return vec![
                check
                    .kind(Kind::UnsafeStatePath)
                    .next("move it away, or name another in PIXIR_HOME"),
            ];
        }
        Ok(found) => found,
    };
    let mut checks = Vec::new();
    if found.permissions().mode() & 0o022 != 0 {
        let check = Check::at(ID, folder, "can be written by others").failing();
        checks.push(check.kind(Kind::UnsafeStatePath).next("chmod 700 that folder"));
    } else if found.permissions().mode() & 0o077 != 0 {
        let check = Check::at(ID, folder, "can be looked into by others");
        checks.push(check.kind(Kind::UnsafeStatePath).next("chmod 700 that folder"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        let check = Check::at(ID, folder, "belongs to another user");
        checks.push(check.kind(Kind::UnsafeStatePath).next("chown that folder, or set PIXIR_HOME"));
    }
    checks.extend(ledgers(&home));
    checks.extend(caches(&home));
    checks.extend(leftovers(folder));
    checks.extend(folders(folder));
    let mut checks = or_well(checks, ID, format!("{} is private", folder.display()));
    checks.push(room("disk", folder));
    checks
}

/// Files of permissions, grants and trust that cannot be read; they grant nothing.
fn ledgers(home: &Home) -> Vec<Check> {
    [home.permissions(), home.grants(), home.trust()]
        .into_iter()
        .filter_map(|path| {
            let error = Ledger::<Value>::at(path.clone()).read().err()?;
            let mut check = Check::failed("home", &Report::describe(&error));
            check.details["path"] = Value::from(path.to_string_lossy());
            Some(check.next("correct it, or move it away; until then it grants nothing"))
        })
        .collect()
}

/// Caches that cannot be read; they may be deleted.
fn caches(home: &Home) -> Vec<Check> {
    let Ok(folder) = StateDir::open_root(home.folder()) else { return Vec::new() };
    let unusable = |name: &&str| match folder.read(name, LARGEST_CACHE) {
        Ok(None) => false,
        Ok(Some(bytes)) => {
            !serde_json::from_slice::<Value>(&bytes).is_ok_and(|value| value.is_object())
        }
        Err(_) => true,
    };
    let caches = [Home::WORKSPACES, Home::MODELS].into_iter().filter(unusable);
    caches
        .map(|name| {
            let path = home.folder().join(name);
            let check = Check::at("home", &path, "is a cache that cannot be read");
            check.kind(Kind::InvalidConfig).next("delete it; it is made again")
        })
        .collect()
}

/// Temporary files that a killed process left.
fn leftovers(folder: &Path) -> Vec<Check> {
    let names = StateDir::open_root(folder).and_then(|folder| folder.names());
    let is_draft = |name: &str| {
        let is_old = [".workspaces.", ".ledger.", ".config.", ".auth.", ".models."]
            .iter()
            .any(|start| name.starts_with(start));
        is_old || (name.starts_with('.') && name.ends_with(".pixir-new"))
    };
    let names = names.unwrap_or_default().into_iter();
    names
        .filter(|name| name.to_str().is_some_and(is_draft))
        .map(|name| {
            let path = folder.join(name);
            let check = Check::at("leftovers", &path, "was left by a process that was killed");
            check.kind(Kind::UnsafeStatePath).next("remove it with `pixir gc --apply`")
        })
        .collect()
}

/// `skills` and `agents` entries that are not readable folders.
pub fn folders(state: &Path) -> Vec<Check> {
    ["skills", "agents"]
        .into_iter()
        .map(|name| state.join(name))
        .filter(|path| path.symlink_metadata().is_ok())
        .filter_map(|path| {
            let problem = match fs::read_dir(&path) {
                Ok(_) => return None,
                Err(error) => format!("cannot be read as a folder: {error}"),
            };
            let check = Check::at("folders", &path, problem);
            Some(
                check
                    .kind(Kind::ReadFailed)
                    .next("make it a folder that you can read, or move it away"),
            )
        })
        .collect()
}

/// Free space on the file system of a folder.
pub fn room(id: &'static str, folder: &Path) -> Check {
    let Ok(found) = rustix::fs::statvfs(folder) else {
        return Check::new(id, Health::Passed, "free space is unknown");
    };
    judged_room(id, folder, found.f_bavail.saturating_mul(found.f_frsize), found.f_favail)
}

fn judged_room(id: &'static str, folder: &Path, bytes: u64, names: u64) -> Check {
    let free = format!("has {} MB free", bytes >> 20);
    let check = Check::at(id, folder, free).next("free space on that disk");
    // Some file systems have no inode limit and report 0.
    match (bytes, names) {
        (..NOTHING, _) => check.kind(Kind::LogWriteFailed).failing(),
        (..LITTLE, _) | (_, 1..100) => check.kind(Kind::LogWriteFailed),
        _ => Check::new(id, Health::Passed, format!("{} MB free", bytes >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_a_warning_and_a_full_one_a_failure() {
        for (bytes, names, expected) in [
            (1 << 40, 0, Health::Passed),
            (1 << 40, 1 << 20, Health::Passed),
            (1 << 40, 7, Health::Warning),
            (50 << 20, 1 << 20, Health::Warning),
            (1 << 20, 1 << 20, Health::Failed),
            (0, 0, Health::Failed),
        ] {
            let check = judged_room("disk", Path::new("/x"), bytes, names);
            assert_eq!(check.status, expected, "{bytes} {names}");
        }
    }
}
