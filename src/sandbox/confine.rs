//! Confining: a supervisor takes from itself what its command must not have, and cannot undo it.

use super::filter::{self, Freedom};
use super::rules::{self, Enforced, Sight};
use super::spec::{Floor, Network, Sockets, Spec};
use super::{CacheAccess, Level, LocalSockets, capabilities};

/// Where a supervisor stands when it confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confined {
    /// In namespaces, with a world built for it.
    InOwnWorld,
    /// Beside everybody else.
    OnMachine,
}

/// What holds a process that has confined itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    pub level: Level,
    pub sockets: LocalSockets,
    pub caches: CacheAccess,
}

/// Confines this process and everything it will start; an error says why that cannot be done.
pub fn confine(spec: &Spec, place: Confined) -> Result<Enforcement, String> {
    if place == Confined::OnMachine && spec.floor == Floor::Full {
        return Err("namespaces are not to be had here, and `sandbox` is `required`".to_owned());
    }
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    if place == Confined::InOwnWorld {
        spec.limits.apply_to_namespaces();
    }
    spec.limits.apply().map_err(|error| told("limits", &error))?;
    let sight = if place == Confined::InOwnWorld { Sight::OwnWorld } else { Sight::Machine };
    let enforced = rules::apply(spec, sight).map_err(|error| told("Landlock", &error))?;
    if !enforced.any {
        return Err("this kernel has no Landlock, or it is switched off".to_owned());
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

/// Whether every command may make sockets with names: only while no other program's can be reached.
fn may_use_sockets(spec: &Spec, place: Confined, enforced: Enforced) -> bool {
    let is_covered = place == Confined::InOwnWorld && spec.sockets == Sockets::Covered;
    // A network namespace has abstract sockets of its own.
    let has_own_network = place == Confined::InOwnWorld && spec.network == Network::Closed;
    (is_covered || enforced.named_sockets) && (has_own_network || enforced.abstract_sockets)
}
