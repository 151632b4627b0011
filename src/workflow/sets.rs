//! Who may run beside whom: what one step writes and another one reads or writes.

use super::spec::{Posture, Step};

/// Whether two steps must not run at the same time. So far, whoever writes the shared Workspace is
/// alone in it.
pub fn conflict(one: &Step, other: &Step) -> bool {
    let is_writer = |step: &Step| step.apply.is_some() || step.posture == Posture::Write;
    let writers = is_writer(one) && is_writer(other);
    writers && (one.writes_shared() || other.writes_shared())
        || one.writes_shared() != other.writes_shared()
}
