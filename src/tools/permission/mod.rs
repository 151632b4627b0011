//! Permissions: what a mode allows, judged from the plan of a call and never from its name.
//!
//! Checks that hold in every mode are made by the tools themselves: they refuse paths that leave
//! the Workspace or its write bounds, and Pixir's own state.

mod approval;
mod harmless;
mod options;
mod prefix;
mod script;
mod shell;
mod text_program;

pub use approval::{Approval, Approvals, CallKind, Scope, Subject, digest, sorted};
pub use script::{Scripts, scripts};

use crate::record::event::PermissionMode;
use crate::settings::config::SocketRule;
use crate::tools::tool::{Effect, Plan};

/// The rule that denies Unix sockets to a call in `auto`.
pub const SOCKETS_UNASKED: &str = "local_sockets_unasked";

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allow {
        rule: &'static str,
    },
    /// Allowed without a question, in a read-only sandbox.
    Hold {
        rule: &'static str,
    },
    Ask {
        rule: &'static str,
    },
    Deny {
        rule: &'static str,
    },
}

/// Whether a command can run in a read-only sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    Possible,
    Impossible,
}

/// Decides about a plan. A mode of another version is treated as the strictest one.
pub fn decide(mode: &PermissionMode, plan: &Plan, hold: Hold) -> Decision {
    match (mode, plan.effect) {
        (_, Effect::Read) => Decision::Allow { rule: "reading" },
        // A command that reaches the socket of another program, such as Docker's, can leave the
        // sandbox.
        (PermissionMode::Auto, Effect::Execute) if plan.local_sockets == Some(SocketRule::Ask) => {
            Decision::Deny { rule: SOCKETS_UNASKED }
        }
        (PermissionMode::Auto, Effect::Write | Effect::Execute) if plan.network => {
            Decision::Allow { rule: "network_declared" }
        }
        (PermissionMode::Auto, Effect::Write | Effect::Execute) => Decision::Allow { rule: "auto" },
        (PermissionMode::Ask, Effect::Execute)
            if hold == Hold::Possible && !plan.network && plainly_looks(plan) =>
        {
            Decision::Hold { rule: "plainly_read_only" }
        }
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
    /// Whether it is recorded in the Log: in `auto`, only unusual decisions are.
    pub fn is_recorded(self, mode: &PermissionMode) -> bool {
        *mode != PermissionMode::Auto
            || !matches!(self, Decision::Allow { rule: "reading" | "auto" })
    }
}

/// Each command and redirection in a shell text, for display; empty if it cannot be parsed.
pub fn parts(command: &str) -> Vec<String> {
    shell::Script::parse(command).map(|script| script.parts()).unwrap_or_default()
}

/// The prefix that could be offered as a lasting approval of this command.
pub fn offered_prefix(command: &str) -> Option<Vec<String>> {
    prefix::offered(command)
}

fn plainly_looks(plan: &Plan) -> bool {
    plan.command.as_deref().is_some_and(harmless::only_looks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> Plan {
        Plan { command: Some(text.to_owned()), ..Plan::new(Effect::Execute, text.to_owned()) }
    }

    #[track_caller]
    fn check(mode: &PermissionMode, effect: Effect, expected: Decision) {
        let plan = Plan::new(effect, String::new());
        assert_eq!(decide(mode, &plan, Hold::Possible), expected);
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

    #[test]
    fn a_command_that_the_kernel_holds_may_run_where_nothing_may_change() {
        let held = Plan { is_held: true, ..Plan::new(Effect::Execute, String::new()) };
        let decision = decide(&PermissionMode::ReadOnly, &held, Hold::Possible);
        assert_eq!(decision, Decision::Allow { rule: "read_only_sandbox" });
        let online = Plan { network: true, ..held };
        let denied = Decision::Deny { rule: "read_only" };
        assert_eq!(decide(&PermissionMode::ReadOnly, &online, Hold::Possible), denied);
        let decision = decide(&PermissionMode::Auto, &online, Hold::Possible);
        assert_eq!(decision, Decision::Allow { rule: "network_declared" });
        assert!(decision.is_recorded(&PermissionMode::Auto));
        for (rule, expected) in [
            (SocketRule::Ask, Decision::Deny { rule: SOCKETS_UNASKED }),
            (SocketRule::Declare, Decision::Allow { rule: "network_declared" }),
        ] {
            let plan = Plan { local_sockets: Some(rule), ..online.clone() };
            assert_eq!(decide(&PermissionMode::Auto, &plan, Hold::Possible), expected);
            let asked = Decision::Ask { rule: "ask" };
            assert_eq!(decide(&PermissionMode::Ask, &plan, Hold::Possible), asked);
        }
    }

    #[test]
    fn a_plain_look_is_not_asked_where_the_kernel_holds_it() {
        let ask = PermissionMode::Ask;
        let held = Decision::Hold { rule: "plainly_read_only" };
        let asked = Decision::Ask { rule: "ask" };
        assert_eq!(decide(&ask, &command("ls -la"), Hold::Possible), held);
        assert_eq!(decide(&ask, &command("ls -la"), Hold::Impossible), asked);
        assert_eq!(decide(&ask, &command("rm x"), Hold::Possible), asked);
        let online = Plan { network: true, ..command("ls") };
        assert_eq!(decide(&ask, &online, Hold::Possible), asked);
    }

    #[test]
    fn every_decision_is_recorded_but_the_usual_ones_of_auto() {
        let reading = Decision::Allow { rule: "reading" };
        assert!(!reading.is_recorded(&PermissionMode::Auto));
        assert!(reading.is_recorded(&PermissionMode::Ask));
        assert!(reading.is_recorded(&PermissionMode::ReadOnly));
        assert!(Decision::Deny { rule: "x" }.is_recorded(&PermissionMode::Auto));
    }
}
