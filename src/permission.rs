//! Permissions: what a mode allows, judged from the plan of a call and never from its name.
//!
//! The floor holds in every mode and is not decided here: paths that leave the Workspace and
//! Pixir's own state are refused by the tools themselves.

use crate::event::PermissionMode;
use crate::tool::{Effect, Plan};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allow { rule: &'static str },
    Ask { rule: &'static str },
    Deny { rule: &'static str },
}

/// Judges a plan. A mode of another version is treated as the strictest one.
pub fn decide(mode: &PermissionMode, plan: &Plan) -> Decision {
    match (mode, plan.effect) {
        (_, Effect::Read) => Decision::Allow { rule: "reading" },
        (PermissionMode::Auto, Effect::Write | Effect::Execute) if plan.network => {
            Decision::Allow { rule: "network_declared" }
        }
        (PermissionMode::Auto, Effect::Write | Effect::Execute) => Decision::Allow { rule: "auto" },
        (PermissionMode::Ask, Effect::Write | Effect::Execute) => Decision::Ask { rule: "ask" },
        (PermissionMode::ReadOnly | PermissionMode::Other(_), Effect::Execute)
            if plan.is_held && !plan.network =>
        {
            Decision::Allow { rule: "read_only_sandbox" }
        }
        (PermissionMode::ReadOnly | PermissionMode::Other(_), Effect::Write | Effect::Execute) => {
            Decision::Deny { rule: "read_only" }
        }
    }
}

impl Decision {
    /// Whether it is worth a line in the Log: what every mode allows, and what `auto` allows by
    /// default, is not.
    pub fn is_recorded(self) -> bool {
        !matches!(self, Decision::Allow { rule: "reading" | "auto" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mode: &PermissionMode, effect: Effect, expected: Decision) {
        let plan = Plan::new(effect, String::new());
        assert_eq!(decide(mode, &plan), expected);
    }

    #[test]
    fn a_command_that_the_kernel_holds_may_run_where_nothing_may_change() {
        let held = Plan { is_held: true, ..Plan::new(Effect::Execute, String::new()) };
        let decision = decide(&PermissionMode::ReadOnly, &held);
        assert_eq!(decision, Decision::Allow { rule: "read_only_sandbox" });
        assert!(decision.is_recorded());
        let online = Plan { network: true, ..held };
        assert_eq!(
            decide(&PermissionMode::ReadOnly, &online),
            Decision::Deny { rule: "read_only" }
        );
        let decision = decide(&PermissionMode::Auto, &online);
        assert_eq!(decision, Decision::Allow { rule: "network_declared" });
        assert!(decision.is_recorded());
    }

    #[test]
    fn reading_is_always_allowed_and_changing_depends_on_the_mode() {
        let strange = || PermissionMode::Other("from_the_future".to_owned());
        check(&PermissionMode::ReadOnly, Effect::Read, Decision::Allow { rule: "reading" });
        check(&strange(), Effect::Read, Decision::Allow { rule: "reading" });
        check(&PermissionMode::Auto, Effect::Execute, Decision::Allow { rule: "auto" });
        check(&PermissionMode::Ask, Effect::Write, Decision::Ask { rule: "ask" });
        check(&PermissionMode::ReadOnly, Effect::Write, Decision::Deny { rule: "read_only" });
        check(&strange(), Effect::Execute, Decision::Deny { rule: "read_only" });
    }
}
