//! Confinement of a supervisor: it permanently drops the rights that its command must not have.

use super::landlock_rules::{self, LandlockEnforcement, MountVisibility};
use super::seccomp_filter::{self, SyscallPolicy};
use super::spec::{Network, RequiredEnforcement, SandboxSpec, SocketExposure};
use super::{CacheAccess, EnforcementLevel, LocalSockets, capabilities};

/// The namespaces of a supervisor when it confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Its own namespaces, with mounts built for the command.
    OwnNamespaces,
    /// The namespaces of the host.
    HostNamespaces,
}

/// The restrictions of a process that has confined itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    pub level: EnforcementLevel,
    pub sockets: LocalSockets,
    pub caches: CacheAccess,
}

/// Confines this process and all its descendants; an error says why that is impossible.
pub fn confine(spec: &SandboxSpec, place: Isolation) -> Result<Enforcement, String> {
    if place == Isolation::HostNamespaces && spec.required == RequiredEnforcement::Full {
        return Err("namespaces are not available here, and `sandbox` is `required`".to_owned());
    }
    let describe = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    if place == Isolation::OwnNamespaces {
        spec.limits.apply_to_namespaces();
    }
    spec.limits.apply().map_err(|error| describe("limits", &error))?;
    let visibility = if place == Isolation::OwnNamespaces {
        MountVisibility::OwnMounts
    } else {
        MountVisibility::HostMounts
    };
    let enforced = landlock_rules::apply_landlock(spec, visibility)
        .map_err(|error| describe("Landlock", &error))?;
    if !enforced.any {
        return Err(
            "Landlock is not available: this kernel lacks it, or it is switched off".to_owned()
        );
    }
    let is_harmless = can_make_named_sockets(spec, place, enforced);
    let local = is_harmless || spec.local_sockets;
    let policy = match place {
        Isolation::OwnNamespaces => SyscallPolicy::for_own_namespaces(local),
        Isolation::HostNamespaces => SyscallPolicy::for_host(spec, local),
    };
    capabilities::drop_capabilities().map_err(|error| describe("capabilities", &error))?;
    let programs =
        seccomp_filter::compile_programs(policy).map_err(|error| describe("seccomp", &error))?;
    for program in &programs {
        seccompiler::apply_filter(program).map_err(|error| describe("seccomp", &error))?;
    }
    let level = match place {
        Isolation::OwnNamespaces => EnforcementLevel::Full,
        Isolation::HostNamespaces => EnforcementLevel::Partial,
    };
    let sockets = if is_harmless { LocalSockets::Harmless } else { LocalSockets::OnDeclaration };
    Ok(Enforcement { level, sockets, caches: spec.caches.access })
}

/// Whether every command may create named sockets: only when those of other programs are out of reach.
fn can_make_named_sockets(
    spec: &SandboxSpec,
    place: Isolation,
    enforced: LandlockEnforcement,
) -> bool {
    let is_covered = place == Isolation::OwnNamespaces && spec.sockets == SocketExposure::Covered;
    // A network namespace has its own abstract sockets.
    let has_own_network = place == Isolation::OwnNamespaces && spec.network == Network::Closed;
    (is_covered || enforced.named_sockets) && (has_own_network || enforced.abstract_sockets)
}
