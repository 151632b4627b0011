//! Runs a search on a blocking thread, with a deadline and cancellation.

use std::sync::Arc;
use std::time::Duration;

use crate::base::tool_error::ToolError;
use crate::host::walk::Stop;
use crate::tools::files::on_disk;
use crate::tools::tool::ToolContext;

/// The deadline of a search.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Runs a search on a blocking thread until it ends, is interrupted, or the future is dropped.
pub async fn while_wanted<T: Send + 'static>(
    context: ToolContext,
    work: impl FnOnce(&ToolContext, &Stop) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    /// Stops the search when the future is dropped.
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
