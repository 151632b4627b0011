//! Runs a search on a blocking thread, with a deadline and cancellation.

use std::sync::Arc;
use std::time::Duration;

use crate::base::tool_error::ToolError;
use crate::host::walk::WalkStop;
use crate::tools::files::run_file_work;
use crate::tools::tool::ToolContext;

/// The deadline of a search.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Runs a search on a blocking thread until it ends, is interrupted, or the future is dropped.
pub async fn run_search<T: Send + 'static>(
    context: ToolContext,
    work: impl FnOnce(&ToolContext, &WalkStop) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    /// Stops the search when the future is dropped.
    struct StopOnDrop(Arc<WalkStop>);
    impl Drop for StopOnDrop {
        fn drop(&mut self) {
            self.0.request();
        }
    }
    let stop_guard = StopOnDrop(Arc::new(WalkStop::with_timeout(TIME_LIMIT)));
    let stop = Arc::clone(&stop_guard.0);
    let cancel = context.cancel.clone();
    let mut running = std::pin::pin!(run_file_work(move || work(&context, &stop)));
    tokio::select! {
        biased;
        done = &mut running => return done,
        () = cancel.cancelled() => stop_guard.0.request(),
    }
    running.await
}
