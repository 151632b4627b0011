//! Confinement of a supervisor: it drops, for good, the rights that its command must not have.

use super::filter::{self, Freedom};
use super::rules::{self, Enforced, Sight};
use super::spec::{Floor, Network, Sockets, Spec};
use super::{CacheAccess, Level, LocalSockets, capabilities};

/// Whether a supervisor is in namespaces of its own when it confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confined {
    /// In its own namespaces, with mounts built for the command.
    InOwnWorld,
    /// In the namespaces of the host.
    OnMachine,
}

/// The restrictions of a process that has confined itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    pub level: Level,
    pub sockets: LocalSockets,
    pub caches: CacheAccess,
}

/// Confines this process and all its descendants; an error says why that is impossible.
pub fn confine(spec: &Spec, place: Confined) -> Result<Enforcement, String> {
    if place == Confined::OnMachine && spec.floor == Floor::Full {
        return Err("namespaces are not available here, and `sandbox` is `required`".to_owned());
    }
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    if place == Confined::InOwnWorld {
        spec.limits.apply_to_namespaces();
    }
    spec.limits.apply().map_err(|error| told("limits", &error))?;
    let sight = if place == Confined::InOwnWorld { Sight::OwnWorld } else { Sight::Machine };
    let enforced = rules::apply(spec, sight).map_err(|error| told("Landlock", &error))?;
    if !enforced.any {
        return Err(
            "Landlock is not available: this kernel lacks it, or it is switched off".to_owned()
        );
    }
    let is_harmless = may_use_sockets(spec, place, enforced);
    let local = is_harmless || spec.local_sockets;
    let freedom = match place {
        Confined::InOwnWorld => Freedom::in_own_world(local),
        Confined::OnMachine => Freedom::without_world(spec, local),
    };
    capabilities::give_up().map_err(|error| told("capabilities", &error))?;
    let programs = filter::programs(freedom).map_err(|error| told("seccomp", &error))?;
    for program in &programs {
        seccompiler::apply_filter(program).map_err(|error| told("seccomp", &error))?;
    }
    let level = match place {
        Confined::InOwnWorld => Level::Full,
        Confined::OnMachine => Level::Partial,
    };
    let sockets = if is_harmless { LocalSockets::Harmless } else { LocalSockets::OnDeclaration };
    Ok(Enforcement { level, sockets, caches: spec.caches.access })
}

/// Whether every command may make sockets with names: only when those of other programs are out of reach.
fn may_use_sockets(spec: &Spec, place: Confined, enforced: Enforced) -> bool {
    let is_covered = place == Confined::InOwnWorld && spec.sockets == Sockets::Covered;
    // A network namespace has abstract sockets of its own.
    let has_own_network = place == Confined::InOwnWorld && spec.network == Network::Closed;
    (is_covered || enforced.named_sockets) && (has_own_network || enforced.abstract_sockets)
}
