//! The commands that a step must pass, run by Pixir itself.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Stage;
use crate::event::PermissionMode;
use crate::role::strictest;
use crate::sandbox::Profile;
use crate::skill::sha256;
use crate::tool::{Stop, Trial};
use crate::workflow::checkpoint::Verified;
use crate::workflow::spec::{Check, Posture, Step};
use crate::workspace::Workspace;

/// How much of what a command printed is kept, in bytes.
const KEPT: usize = 4 * 1024;

impl Stage {
    /// Runs one command where the step worked.
    pub async fn check(
        &self,
        step: &Step,
        place: usize,
        check: &Check,
        workspace: &Workspace,
        cancel: &CancellationToken,
    ) -> Verified {
        let mode = match step.posture {
            Posture::ReadOnly => strictest(&self.mode, &PermissionMode::ReadOnly),
            Posture::Write => self.mode.clone(),
        };
        let profile = Profile::of(self.family.config().sandbox.level, &mode);
        let spill =
            self.folder.join("output").join(format!("{}-{}-{place}.txt", self.run, step.id));
        let tried = self
            .family
            .commands()
            .put_to_the_test(Trial {
                command: &check.command,
                directory: workspace.root(),
                bounds: workspace.bounds(),
                profile,
                timeout: Duration::from_millis(check.timeout_ms),
                cancel,
                secrets: &self.secrets,
                limit: KEPT,
                spill,
            })
            .await;
        let command = check.command.clone();
        match tried {
            Ok(tried) => {
                let reason = match (tried.stopped, tried.exit_code) {
                    (Some(Stop::TimedOut), _) => Some("timed_out"),
                    (Some(Stop::Interrupted), _) => Some("cancelled"),
                    (None, None) => Some("signal"),
                    (None, Some(_)) => None,
                };
                Verified {
                    command,
                    ok: tried.is_ok(),
                    exit_code: tried.exit_code,
                    reason: reason.map(str::to_owned),
                    elapsed_ms: u64::try_from(tried.duration.as_millis()).unwrap_or(u64::MAX),
                    sha256: sha256(tried.text.as_bytes()),
                    output: tried.text,
                }
            }
            Err(error) => Verified {
                command,
                ok: false,
                exit_code: None,
                reason: Some(error.to_string()),
                elapsed_ms: 0,
                output: String::new(),
                sha256: sha256(b""),
            },
        }
    }
}
