//! Landlock rules: what a command may read and write in the mounts that it sees.

use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use super::scratch;
use super::spec::{Network, SandboxSpec};

/// The newest version of Landlock whose rights are requested; an older kernel enforces those it knows.
const NEWEST_ABI: ABI = ABI::V9;
/// The first version that keeps a command from abstract sockets outside.
const ABSTRACT_SOCKETS: ABI = ABI::V6;
/// The first version that keeps a command from named sockets outside the folders that it may write.
const NAMED_SOCKETS: ABI = ABI::V9;
/// Devices without stored content.
pub const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// The pseudoterminals that a command creates. They are allowed only with its own mounts, which show no
/// others: with the host's mounts, a command could read what the user types.
const TERMINALS: &[&str] = &["/dev/ptmx", "/dev/pts"];
/// Folders that a command with its own mounts may write besides those of its spec.
const PRIVATE_FOLDERS: &[&str] = &["/tmp", "/var/tmp", "/dev/shm"];

/// The mounts that a command sees: its own or those of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountVisibility {
    OwnMounts,
    HostMounts,
}

/// The Landlock rules that the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LandlockEnforcement {
    /// Whether any rule is enforced.
    pub any: bool,
    /// Whether abstract sockets outside are out of reach.
    pub abstract_sockets: bool,
    /// Whether named sockets outside the writable folders are out of reach.
    pub named_sockets: bool,
}

/// Applies the rules to this process and all its descendants; returns what the kernel enforces.
pub fn apply_landlock(
    spec: &SandboxSpec,
    visibility: MountVisibility,
) -> Result<LandlockEnforcement, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST_ABI))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    if visibility == MountVisibility::HostMounts && spec.network == Network::Closed {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let mut ruleset = ruleset.create()?;
    ruleset = allow_paths(ruleset, ["/"], AccessFs::ReadDir.into())?;
    ruleset =
        allow_paths(ruleset, readable_paths(spec, visibility), AccessFs::from_read(NEWEST_ABI))?;
    ruleset = allow_paths(ruleset, DEVICES, device_rights())?;
    ruleset = allow_writing(ruleset, spec, visibility)?;
    ruleset = match visibility {
        MountVisibility::OwnMounts => {
            let ruleset = allow_paths(ruleset, TERMINALS, device_rights())?;
            let ruleset = allow_paths(ruleset, &spec.caches.places, write_rights())?;
            allow_paths(ruleset, PRIVATE_FOLDERS, write_rights())?
        }
        MountVisibility::HostMounts => {
            let private = spec.caches.private_variables().into_iter().map(|(_, folder)| folder);
            let ruleset = allow_paths(ruleset, private, write_rights())?;
            allow_paths(ruleset, [scratch::temp_folder(&spec.scratch)], write_rights())?
        }
    };
    let status = ruleset.restrict_self()?;
    let has = |version: ABI| match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi >= version,
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => false,
    };
    Ok(LandlockEnforcement {
        any: status.ruleset != RulesetStatus::NotEnforced,
        abstract_sockets: has(ABSTRACT_SOCKETS),
        named_sockets: has(NAMED_SOCKETS),
    })
}

/// Allows writing beneath the writable folders. In a folder with a hidden path that no mount covers, only the
/// existing entries around it can be read: files that a command creates directly in such a folder are write-only.
fn allow_writing(
    mut ruleset: RulesetCreated,
    spec: &SandboxSpec,
    visibility: MountVisibility,
) -> Result<RulesetCreated, RulesetError> {
    for root in &spec.writable {
        let is_inside =
            |path: &&PathBuf| path.starts_with(root) && visibility == MountVisibility::HostMounts;
        let denied: Vec<PathBuf> = spec.hidden.iter().filter(is_inside).cloned().collect();
        if denied.is_empty() {
            ruleset = allow_without_links(ruleset, root, write_rights())?;
            continue;
        }
        let reading = AccessFs::ReadFile | AccessFs::Execute;
        ruleset = allow_without_links(ruleset, root, write_rights() & !reading)?;
        let mut allowed = Vec::new();
        collect_around_denied(root, &denied, &mut allowed);
        ruleset = allow_paths(ruleset, allowed, reading)?;
    }
    Ok(ruleset)
}

/// Allows rights beneath a path without following a link, which a command of another supervisor may have created.
fn allow_without_links(
    ruleset: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let Ok(descriptor) = opened else { return Ok(ruleset) };
    let Ok(found) = fstat(&descriptor) else { return Ok(ruleset) };
    let is_folder = FileType::from_raw_mode(found.st_mode).is_dir();
    let rights = if is_folder { rights } else { rights & AccessFs::from_file(NEWEST_ABI) };
    ruleset.add_rule(PathBeneath::new(descriptor, rights))
}

fn write_rights() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEWEST_ABI) & !(AccessFs::MakeChar | AccessFs::MakeBlock)
}

fn device_rights() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev
}

/// The readable paths: everything but devices, and with the host's mounts also without hidden paths and closed
/// homes.
fn readable_paths(spec: &SandboxSpec, visibility: MountVisibility) -> Vec<PathBuf> {
    let mut denied = vec![PathBuf::from("/dev")];
    if visibility == MountVisibility::HostMounts {
        denied.extend(spec.hidden.iter().chain(&spec.closed_homes).cloned());
    }
    let mut allowed = Vec::new();
    collect_around_denied(Path::new("/"), &denied, &mut allowed);
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let seen = spec.shown.iter().chain(&spec.viewed).chain(&spec.caches.places);
    for path in seen.filter(|path| !is_link(path)) {
        if denied.iter().any(|denied| denied.starts_with(path)) {
            collect_around_denied(path, &denied, &mut allowed);
        } else {
            allowed.push(path.clone());
        }
    }
    allowed
}

/// Collects the entries around denied paths: a right on a folder applies to everything beneath it, so the siblings
/// of a denied path are allowed one by one.
fn collect_around_denied(folder: &Path, denied: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        // A link needs no right, because access through it is decided by the rights on its target.
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            continue;
        }
        let path = entry.path();
        if denied.contains(&path) {
            continue;
        }
        if denied.iter().any(|denied| denied.starts_with(&path)) {
            collect_around_denied(&path, denied, allowed);
        } else {
            allowed.push(path);
        }
    }
}

fn allow_paths<P: AsRef<Path>>(
    mut ruleset: RulesetCreated,
    paths: impl IntoIterator<Item = P>,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    for path in paths {
        // A path that is missing or unreachable needs no rule.
        let Ok(descriptor) = PathFd::new(&path) else { continue };
        let is_folder = path.as_ref().is_dir();
        let rights = if is_folder { rights } else { rights & AccessFs::from_file(NEWEST_ABI) };
        ruleset = ruleset.add_rule(PathBeneath::new(descriptor, rights))?;
    }
    Ok(ruleset)
}
