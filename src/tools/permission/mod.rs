//! Permission decisions: what a mode allows, judged from the plan of a call and never from its name.
//!
//! Checks that hold in every mode are made by the tools themselves: they refuse paths that leave
//! the Workspace or its write bounds, and Pixir's own state.

mod approval;
mod options;
mod prefix;
mod read_only;
mod script_files;
mod shell;
mod text_program;

pub use approval::{
    Approval, ApprovalScope, ApprovalStore, ApprovalSubject, CallKind, approval_digest,
    canonical_digest, sort_keys,
};
pub use script_files::{ScriptFiles, find_script_files};

use crate::record::event::PermissionMode;
use crate::settings::config::SocketRule;
use crate::tools::tool::{CallEffect, CallPlan};

/// The rule that denies Unix sockets to a call in `auto`.
pub const SOCKETS_UNASKED: &str = "local_sockets_unasked";

/// A permission decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allow {
        rule: &'static str,
    },
    /// Allowed without a question, in a read-only sandbox.
    AllowReadOnly {
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
pub enum SandboxAvailability {
    Available,
    Unavailable,
}

/// Decides about a planned call. A mode of another version is treated as the strictest one.
pub fn decide_call(
    mode: &PermissionMode,
    plan: &CallPlan,
    sandbox: SandboxAvailability,
) -> Decision {
    match (mode, plan.effect) {
        (_, CallEffect::Read) => Decision::Allow { rule: "reading" },
        // A command that reaches the socket of another program, such as Docker's, can leave the
        // sandbox.
        (PermissionMode::Auto, CallEffect::Execute)
            if plan.local_sockets == Some(SocketRule::Ask) =>
        {
            Decision::Deny { rule: SOCKETS_UNASKED }
        }
        (PermissionMode::Auto, CallEffect::Write | CallEffect::Execute) if plan.network => {
            Decision::Allow { rule: "network_declared" }
        }
        (PermissionMode::Auto, CallEffect::Write | CallEffect::Execute) => {
            Decision::Allow { rule: "auto" }
        }
        (PermissionMode::Ask, CallEffect::Execute)
            if sandbox == SandboxAvailability::Available
                && !plan.network
                && is_plainly_read_only(plan) =>
        {
            Decision::AllowReadOnly { rule: "plainly_read_only" }
        }
        (PermissionMode::Ask, CallEffect::Write | CallEffect::Execute) => {
            Decision::Ask { rule: "ask" }
        }
        (PermissionMode::ReadOnly | PermissionMode::Other(_), CallEffect::Execute)
            if plan.is_sandboxed_read_only && !plan.network =>
        {
            Decision::Allow { rule: "read_only_sandbox" }
        }
        (
            PermissionMode::ReadOnly | PermissionMode::Other(_),
            CallEffect::Write | CallEffect::Execute,
        ) => Decision::Deny { rule: "read_only" },
    }
}

impl Decision {
    /// Whether the decision is recorded in the Log: in `auto`, only unusual decisions are.
    pub fn is_recorded(self, mode: &PermissionMode) -> bool {
        *mode != PermissionMode::Auto
            || !matches!(self, Decision::Allow { rule: "reading" | "auto" })
    }
}

/// Each command and redirection in a shell text, for display; empty if it cannot be parsed.
pub fn command_parts(command: &str) -> Vec<String> {
    shell::ShellScript::parse(command).map(|script| script.parts()).unwrap_or_default()
}

/// The prefix that could be offered as a lasting approval of this command.
pub fn offered_prefix(command: &str) -> Option<Vec<String>> {
    prefix::offer_prefix(command)
}

fn is_plainly_read_only(plan: &CallPlan) -> bool {
    plan.command.as_deref().is_some_and(read_only::is_read_only_script)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> CallPlan {
        CallPlan {
            command: Some(text.to_owned()),
            ..CallPlan::new(CallEffect::Execute, text.to_owned())
        }
    }

    #[track_caller]
    fn check(mode: &PermissionMode, effect: CallEffect, expected: Decision) {
        let plan = CallPlan::new(effect, String::new());
        assert_eq!(decide_call(mode, &plan, SandboxAvailability::Available), expected);
    }

    #[test]
    fn reading_is_always_allowed_and_changing_depends_on_the_mode() {
        let strange = || PermissionMode::Other("from_the_future".to_owned());
        check(&PermissionMode::ReadOnly, CallEffect::Read, Decision::Allow { rule: "reading" });
        check(&strange(), CallEffect::Read, Decision::Allow { rule: "reading" });
        check(&PermissionMode::Auto, CallEffect::Execute, Decision::Allow { rule: "auto" });
        check(&PermissionMode::Ask, CallEffect::Write, Decision::Ask { rule: "ask" });
        check(&PermissionMode::ReadOnly, CallEffect::Write, Decision::Deny { rule: "read_only" });
        check(&strange(), CallEffect::Execute, Decision::Deny { rule: "read_only" });
    }

    #[test]
    fn a_command_that_the_kernel_holds_may_run_where_nothing_may_change() {
        let held = CallPlan {
            is_sandboxed_read_only: true,
            ..CallPlan::new(CallEffect::Execute, String::new())
        };
        let decision =
            decide_call(&PermissionMode::ReadOnly, &held, SandboxAvailability::Available);
        assert_eq!(decision, Decision::Allow { rule: "read_only_sandbox" });
        let online = CallPlan { network: true, ..held };
        let denied = Decision::Deny { rule: "read_only" };
        assert_eq!(
            decide_call(&PermissionMode::ReadOnly, &online, SandboxAvailability::Available),
            denied
        );
        let decision = decide_call(&PermissionMode::Auto, &online, SandboxAvailability::Available);
        assert_eq!(decision, Decision::Allow { rule: "network_declared" });
        assert!(decision.is_recorded(&PermissionMode::Auto));
        for (rule, expected) in [
            (SocketRule::Ask, Decision::Deny { rule: SOCKETS_UNASKED }),
            (SocketRule::Declare, Decision::Allow { rule: "network_declared" }),
        ] {
            let plan = CallPlan { local_sockets: Some(rule), ..online.clone() };
            assert_eq!(
                decide_call(&PermissionMode::Auto, &plan, SandboxAvailability::Available),
                expected
            );
            let asked = Decision::Ask { rule: "ask" };
            assert_eq!(
                decide_call(&PermissionMode::Ask, &plan, SandboxAvailability::Available),
                asked
            );
        }
    }

    #[test]
    fn a_plain_look_is_not_asked_where_the_kernel_holds_it() {
        let ask = PermissionMode::Ask;
        let held = Decision::AllowReadOnly { rule: "plainly_read_only" };
        let asked = Decision::Ask { rule: "ask" };
        assert_eq!(decide_call(&ask, &command("ls -la"), SandboxAvailability::Available), held);
        assert_eq!(decide_call(&ask, &command("ls -la"), SandboxAvailability::Unavailable), asked);
        assert_eq!(decide_call(&ask, &command("rm x"), SandboxAvailability::Available), asked);
        let online = CallPlan { network: true, ..command("ls") };
        assert_eq!(decide_call(&ask, &online, SandboxAvailability::Available), asked);
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
