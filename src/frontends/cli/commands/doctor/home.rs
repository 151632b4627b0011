//! Checks of Pixir's home folder: permissions, unreadable files, leftovers and free space.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use super::{CheckStatus, DoctorCheck, or_passed};
use crate::base::error::{Kind, Report};
use crate::base::files::StateDir;
use crate::base::locked_file::LockedFile;
use crate::base::paths::Home;
use crate::frontends::cli::CliContext;

/// Free bytes below which there is a warning.
const LOW_SPACE: u64 = 100 << 20;

/// Free bytes below which the Log cannot be written.
const NO_SPACE: u64 = 4 << 20;

/// Largest cache that is read.
const LARGEST_CACHE: u64 = 4 << 20;

pub fn check_home(context: &CliContext) -> Vec<DoctorCheck> {
    const ID: &str = "home";
    let home = match context.home() {
        Ok(home) => home,
        Err(report) => return vec![DoctorCheck::from_report(ID, &report)],
    };
    let folder = home.path();
    let found = match fs::metadata(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let is_link = fs::symlink_metadata(folder).is_ok();
            if is_link {
                let check =
                    DoctorCheck::warning_at(ID, folder, "is a dangling link").into_failure();
                return vec![
                    check
                        .with_kind(Kind::UnsafeStatePath)
                        .with_next_action("repair or remove the link"),
                ];
            }
            let message = format!("{} is made when it is needed", folder.display());
            return vec![DoctorCheck::new(ID, CheckStatus::Passed, message)];
        }
        Err(error) => {
            let check = DoctorCheck::warning_at(ID, folder, format!("cannot be read: {error}"))
                .into_failure();
            return vec![
                check
                    .with_kind(Kind::ReadFailed)
                    .with_next_action("name another folder in PIXIR_HOME"),
            ];
        }
        Ok(found) if !found.is_dir() => {
            let check = DoctorCheck::warning_at(ID, folder, "is not a folder").into_failure();
            return vec![
                check
                    .with_kind(Kind::UnsafeStatePath)
                    .with_next_action("move it away, or name another in PIXIR_HOME"),
            ];
        }
        Ok(found) => found,
    };
    let mut checks = Vec::new();
    if found.permissions().mode() & 0o022 != 0 {
        let check = DoctorCheck::warning_at(ID, folder, "can be written by others").into_failure();
        checks
            .push(check.with_kind(Kind::UnsafeStatePath).with_next_action("chmod 700 that folder"));
    } else if found.permissions().mode() & 0o077 != 0 {
        let check = DoctorCheck::warning_at(ID, folder, "can be read by others");
        checks
            .push(check.with_kind(Kind::UnsafeStatePath).with_next_action("chmod 700 that folder"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        let check = DoctorCheck::warning_at(ID, folder, "belongs to another user");
        checks.push(
            check
                .with_kind(Kind::UnsafeStatePath)
                .with_next_action("chown that folder, or set PIXIR_HOME"),
        );
    }
    checks.extend(check_grant_files(&home));
    checks.extend(check_caches(&home));
    checks.extend(check_leftover_drafts(folder));
    checks.extend(check_folders(folder));
    let mut checks = or_passed(checks, ID, format!("{} is private", folder.display()));
    checks.push(check_free_space("disk", folder));
    checks
}

/// Files of permissions, grants and trust that cannot be read; they grant nothing.
fn check_grant_files(home: &Home) -> Vec<DoctorCheck> {
    [home.permissions_file(), home.grants_file(), home.trust_file()]
        .into_iter()
        .filter_map(|path| {
            let error = LockedFile::<Value>::new(path.clone()).read().err()?;
            let mut check = DoctorCheck::from_report("home", &Report::describe(&error));
            check.details["path"] = Value::from(path.to_string_lossy());
            Some(
                check.with_next_action("correct it, or move it away; until then it grants nothing"),
            )
        })
        .collect()
}

/// Caches that cannot be read; they may be deleted.
fn check_caches(home: &Home) -> Vec<DoctorCheck> {
    let Ok(folder) = StateDir::open_root(home.path()) else { return Vec::new() };
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
            let path = home.path().join(name);
            let check = DoctorCheck::warning_at("home", &path, "is a cache that cannot be read");
            check.with_kind(Kind::InvalidConfig).with_next_action("delete it; it is made again")
        })
        .collect()
}

/// Temporary files that a killed process left.
fn check_leftover_drafts(folder: &Path) -> Vec<DoctorCheck> {
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
            let check = DoctorCheck::warning_at(
                "leftovers",
                &path,
                "was left by a process that was killed",
            );
            check
                .with_kind(Kind::UnsafeStatePath)
                .with_next_action("remove it with `pixir gc --apply`")
        })
        .collect()
}

/// `skills` and `agents` entries that are not readable folders.
pub fn check_folders(state: &Path) -> Vec<DoctorCheck> {
    ["skills", "agents"]
        .into_iter()
        .map(|name| state.join(name))
        .filter(|path| path.symlink_metadata().is_ok())
        .filter_map(|path| {
            let problem = match fs::read_dir(&path) {
                Ok(_) => return None,
                Err(error) => format!("cannot be read as a folder: {error}"),
            };
            let check = DoctorCheck::warning_at("folders", &path, problem);
            Some(
                check
                    .with_kind(Kind::ReadFailed)
                    .with_next_action("make it a folder that you can read, or move it away"),
            )
        })
        .collect()
}

/// Free space on the file system of a folder.
pub fn check_free_space(id: &'static str, folder: &Path) -> DoctorCheck {
    let Ok(found) = rustix::fs::statvfs(folder) else {
        return DoctorCheck::new(id, CheckStatus::Passed, "free space is unknown");
    };
    free_space_check(id, folder, found.f_bavail.saturating_mul(found.f_frsize), found.f_favail)
}

fn free_space_check(id: &'static str, folder: &Path, bytes: u64, names: u64) -> DoctorCheck {
    let free = format!("has {} MB free", bytes >> 20);
    let check =
        DoctorCheck::warning_at(id, folder, free).with_next_action("free space on that disk");
    // Some file systems have no inode limit and report 0.
    match (bytes, names) {
        (..NO_SPACE, _) => check.with_kind(Kind::LogWriteFailed).into_failure(),
        (..LOW_SPACE, _) | (_, 1..100) => check.with_kind(Kind::LogWriteFailed),
        _ => DoctorCheck::new(id, CheckStatus::Passed, format!("{} MB free", bytes >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_a_warning_and_a_full_one_a_failure() {
        for (bytes, names, expected) in [
            (1 << 40, 0, CheckStatus::Passed),
            (1 << 40, 1 << 20, CheckStatus::Passed),
            (1 << 40, 7, CheckStatus::Warning),
            (50 << 20, 1 << 20, CheckStatus::Warning),
            (1 << 20, 1 << 20, CheckStatus::Failed),
            (0, 0, CheckStatus::Failed),
        ] {
            let check = free_space_check("disk", Path::new("/x"), bytes, names);
            assert_eq!(check.status, expected, "{bytes} {names}");
        }
    }
}
