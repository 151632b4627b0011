//! Confining: a supervisor takes from itself what its command must not have, and cannot undo it.

use landlock::RulesetStatus;

use super::filter::{self, Freedom};
use super::rules::{self, Sight};
use super::spec::{Floor, Spec};
use super::{Level, capabilities};

/// Where a supervisor stands when it confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confined {
    /// In namespaces, with a world built for it.
    InOwnWorld,
    /// Beside everybody else.
    OnMachine,
}

/// Confines this process and everything it will start; an error says why that cannot be done.
pub fn confine(spec: &Spec, place: Confined) -> Result<Level, String> {
    if place == Confined::OnMachine && spec.floor == Floor::Full {
        return Err("namespaces are not to be had here, and `sandbox` is `required`".to_owned());
    }
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    if place == Confined::InOwnWorld {
        capabilities::limit_numbers(spec);
    }
    capabilities::limit(spec).map_err(|error| told("limits", &error))?;
    let sight = if place == Confined::InOwnWorld { Sight::OwnWorld } else { Sight::Machine };
    let status = rules::apply(spec, sight).map_err(|error| told("Landlock", &error))?;
    if status == RulesetStatus::NotEnforced {
        return Err("this kernel has no Landlock, or it is switched off".to_owned());
    }
    let mut freedom = match place {
        Confined::InOwnWorld => Freedom::in_own_world(),
        Confined::OnMachine => Freedom::without_world(spec),
    };
    // Only newer kernels keep a command from abstract sockets; on the machine's network there are
    // others to reach.
    freedom.local &=
        status == RulesetStatus::FullyEnforced || spec.network == super::Network::Closed;
    capabilities::give_up().map_err(|error| told("capabilities", &error))?;
    let programs = filter::programs(freedom).map_err(|error| told("seccomp", &error))?;
    for program in &programs {
        seccompiler::apply_filter(program).map_err(|error| told("seccomp", &error))?;
    }
    Ok(match place {
        Confined::InOwnWorld => Level::Full,
        Confined::OnMachine => Level::Partial,
    })
}
