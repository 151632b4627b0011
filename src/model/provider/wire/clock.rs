//! Timeouts of a call: how long a server may be silent, and how long the whole call may take.

use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::base::error::Kind;
use crate::model::provider::ProviderError;
use crate::settings::config::StreamTimeouts;

/// The longest timeout, so that adding it to an `Instant` cannot overflow.
const A_YEAR: Duration = Duration::from_hours(365 * 24);

/// An idle and a total deadline on one timer. The timer is not reset per chunk; when it fires, the
/// deadlines are checked and it may be set again. Time in which no read was pending does not count
/// as silence of the server.
#[derive(Debug)]
pub struct CallClock {
    /// Host and port of the server, for messages.
    peer: String,
    idle: Duration,
    total: Duration,
    deadline: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl CallClock {
    /// Starts both timeouts for a call to this server, named by host and port.
    pub fn start(limits: StreamTimeouts, peer: &str) -> Self {
        let (idle, total) = (limits.idle.min(A_YEAR), limits.total.min(A_YEAR));
        let alarm = Box::pin(tokio::time::sleep(idle.min(total)));
        let peer = peer.to_owned();
        Self { peer, idle, total, deadline: Instant::now() + total, alarm }
    }

    /// Awaits one read or write within the timeouts.
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
                return Err(ProviderError::transient(Kind::StreamIdle, message));
            }
            self.alarm.as_mut().reset(silent_until.min(self.deadline));
        }
    }
}
