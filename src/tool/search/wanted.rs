//! A search as long as somebody wants it.

use std::sync::Arc;
use std::time::Duration;

use crate::tool::rewrite::on_disk;
use crate::tool::{ToolContext, ToolError};
use crate::walk::Stop;

/// How long one search may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Runs a search where it may block, until it ends, is interrupted, or nobody waits for it.
pub async fn while_wanted<T: Send + 'static>(
    context: ToolContext,
    work: impl FnOnce(&ToolContext, &Stop) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    /// Dropping the future is a way to stop as well.
    struct Asking(Arc<Stop>);
    impl Drop for Asking {
        fn drop(&mut self) {
            self.0.ask();
        }
    }
    let asking = Asking(Arc::new(Stop::after(TIME_LIMIT)));
    let stop = Arc::clone(&asking.0);
    let cancel = context.cancel.clone();
    let mut running = std::pin::pin!(on_disk(move || work(&context, &stop)));
    tokio::select! {
        biased;
        done = &mut running => return done,
        () = cancel.cancelled() => asking.0.ask(),
    }
    running.await
}
