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
use super::spec::{Network, Spec};

/// The newest version of Landlock whose rights are requested; an older kernel enforces those it knows.
const NEWEST: ABI = ABI::V9;
/// The first version that keeps a command from abstract sockets outside.
const ABSTRACT_SOCKETS: ABI = ABI::V6;
/// The first version that keeps a command from sockets with names outside what it may write.
const NAMED_SOCKETS: ABI = ABI::V9;
/// Devices without content of their own.
pub const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// The terminals that a command makes for itself. Allowed only with mounts of its own, where there are no
/// others: on the host's, a command could read what the user types.
const TERMINALS: &[&str] = &["/dev/ptmx", "/dev/pts"];
/// Folders that a command with mounts of its own may write beside those of its spec.
const OWN_FOLDERS: &[&str] = &["/tmp", "/var/tmp", "/dev/shm"];

/// Whether the command sees mounts of its own or those of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    OwnWorld,
    Machine,
}

/// Which of the Landlock rules the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforced {
    /// Whether any rule is enforced.
    pub any: bool,
    /// Whether abstract sockets outside are out of reach.
    pub abstract_sockets: bool,
    /// Whether sockets with names outside the writable folders are out of reach.
    pub named_sockets: bool,
}

/// Applies the rules to this process and all its descendants; returns what the kernel enforces.
pub fn apply(spec: &Spec, sight: Sight) -> Result<Enforced, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    if sight == Sight::Machine && spec.network == Network::Closed {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let mut ruleset = ruleset.create()?;
    ruleset = allow(ruleset, ["/"], AccessFs::ReadDir.into())?;
    ruleset = allow(ruleset, readable(spec, sight), AccessFs::from_read(NEWEST))?;
    ruleset = allow(ruleset, DEVICES, device_rights())?;
    ruleset = allow_writing(ruleset, spec, sight)?;
    ruleset = match sight {
        Sight::OwnWorld => {
            let ruleset = allow(ruleset, TERMINALS, device_rights())?;
            let ruleset = allow(ruleset, &spec.caches.places, writing())?;
            allow(ruleset, OWN_FOLDERS, writing())?
        }
        Sight::Machine => {
            let private = spec.caches.environment().into_iter().map(|(_, folder)| folder);
            let ruleset = allow(ruleset, private, writing())?;
            allow(ruleset, [scratch::temp(&spec.scratch)], writing())?
        }
    };
    let status = ruleset.restrict_self()?;
    let has = |version: ABI| match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi >= version,
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => false,
    };
    Ok(Enforced {
        any: status.ruleset != RulesetStatus::NotEnforced,
        abstract_sockets: has(ABSTRACT_SOCKETS),
        named_sockets: has(NAMED_SOCKETS),
    })
}

/// Allows writing beneath the writable folders. Where a hidden path lies in one and no mount covers it, only the
/// existing entries around it can be read: files that a command makes directly in such a folder are write-only.
fn allow_writing(
    mut ruleset: RulesetCreated,
    spec: &Spec,
    sight: Sight,
) -> Result<RulesetCreated, RulesetError> {
    for root in &spec.writable {
        let is_inside = |path: &&PathBuf| path.starts_with(root) && sight == Sight::Machine;
        let denied: Vec<PathBuf> = spec.hidden.iter().filter(is_inside).cloned().collect();
        if denied.is_empty() {
            ruleset = allow_exactly(ruleset, root, writing())?;
            continue;
        }
        let reading = AccessFs::ReadFile | AccessFs::Execute;
        ruleset = allow_exactly(ruleset, root, writing() & !reading)?;
        let mut allowed = Vec::new();
        spread(root, &denied, &mut allowed);
        ruleset = allow(ruleset, allowed, reading)?;
    }
    Ok(ruleset)
}

/// Allows rights beneath a path without following a link: a command of another supervisor may put one there.
fn allow_exactly(
    ruleset: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let Ok(descriptor) = opened else { return Ok(ruleset) };
    let Ok(found) = fstat(&descriptor) else { return Ok(ruleset) };
    let is_folder = FileType::from_raw_mode(found.st_mode).is_dir();
    let rights = if is_folder { rights } else { rights & AccessFs::from_file(NEWEST) };
    ruleset.add_rule(PathBeneath::new(descriptor, rights))
}

fn writing() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEWEST) & !(AccessFs::MakeChar | AccessFs::MakeBlock)
}

fn device_rights() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev
}

/// The readable paths: everything but devices, and with the host's mounts also without hidden paths and closed
/// homes.
fn readable(spec: &Spec, sight: Sight) -> Vec<PathBuf> {
    let mut denied = vec![PathBuf::from("/dev")];
    if sight == Sight::Machine {
        denied.extend(spec.hidden.iter().chain(&spec.closed).cloned());
    }
    let mut allowed = Vec::new();
    spread(Path::new("/"), &denied, &mut allowed);
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let seen = spec.shown.iter().chain(&spec.viewed).chain(&spec.caches.places);
    for path in seen.filter(|path| !is_link(path)) {
        if denied.iter().any(|denied| denied.starts_with(path)) {
            spread(path, &denied, &mut allowed);
        } else {
            allowed.push(path.clone());
        }
    }
    allowed
}

/// Collects the entries around denied paths: a right on a folder holds for everything beneath it, so the siblings
/// of a denied path are allowed one by one.
fn spread(folder: &Path, denied: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        // A link is followed to where the rights of its target hold.
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            continue;
        }
        let path = entry.path();
        if denied.contains(&path) {
            continue;
        }
        if denied.iter().any(|denied| denied.starts_with(&path)) {
            spread(&path, denied, allowed);
        } else {
            allowed.push(path);
        }
    }
}

fn allow<P: AsRef<Path>>(
    mut ruleset: RulesetCreated,
    paths: impl IntoIterator<Item = P>,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    for path in paths {
        // A path that is missing or unreachable needs no rule.
        let Ok(descriptor) = PathFd::new(&path) else { continue };
        let is_folder = path.as_ref().is_dir();
        let rights = if is_folder { rights } else { rights & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(descriptor, rights))?;
    }
    Ok(ruleset)
}
