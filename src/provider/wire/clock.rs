//! The clocks of a call: how long a server may be silent, and how long all of it may take.

use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::config::Stream;
use crate::error::Kind;
use crate::provider::ProviderError;

/// The longest wait that the clock can add to any moment without overflow.
const A_YEAR: Duration = Duration::from_hours(365 * 24);

/// Two deadlines on one timer. The timer is not touched per chunk; when it rings, it looks at how
/// long we have been listening in vain and may go back to sleep. Time in which nobody listened is
/// the reader's, not the server's.
#[derive(Debug)]
pub struct Clock {
    /// Host and port of the server, for messages.
    peer: String,
    idle: Duration,
    total: Duration,
    deadline: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Clock {
    /// Starts both for a call of this server, named by host and port.
    pub fn start(limits: Stream, peer: &str) -> Self {
        let (idle, total) = (limits.idle.min(A_YEAR), limits.total.min(A_YEAR));
        let alarm = Box::pin(tokio::time::sleep(idle.min(total)));
        let peer = peer.to_owned();
        Self { peer, idle, total, deadline: Instant::now() + total, alarm }
    }

    /// Waits for one sign of life.
    pub async fn watch<T>(&mut self, work: impl Future<Output = T>) -> Result<T, ProviderError> {
        let mut work = pin!(work);
        let silent_until = Instant::now() + self.idle;
        loop {
            let done = tokio::select! {
                biased;
                done = &mut work => Some(done),
                () = &mut self.alarm => None,
            };
            let now = Instant::now();
            if now >= self.deadline {
                let (peer, seconds) = (&self.peer, self.total.as_secs_f64());
                let message = format!("the call to {peer} took longer than {seconds} s in all");
                return Err(ProviderError::terminal(Kind::Timeout, message));
            }
            if let Some(done) = done {
                return Ok(done);
            }
            if now >= silent_until {
                let (peer, seconds) = (&self.peer, self.idle.as_secs_f64());
                let message = format!("the Provider at {peer} was silent for {seconds} s");
                return Err(ProviderError::passing(Kind::StreamIdle, message));
            }
            self.alarm.as_mut().reset(silent_until.min(self.deadline));
        }
    }
}
