//! Hang-up detection: detects that the other side of a stream has closed its end, also while the stream is idle.

use std::future::pending;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Cancels `gone` when the other side closes its end: `side` is `READABLE` for a stream from the other
/// side and `WRITABLE` for a stream to it. The watch ends when the handle is dropped.
pub fn watch_hang_up(
    stream: OwnedFd,
    side: Interest,
    gone: CancellationToken,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        wait_until_closed(stream, side).await;
        gone.cancel();
    }))
}

#[expect(deprecated, reason = "the replacement is unsafe, and an OwnedFd meets its contract")]
async fn wait_until_closed(stream: OwnedFd, side: Interest) {
    // A file is never closed by another side, and cannot be watched.
    let Ok(watched) = AsyncFd::with_interest(stream, side) else { return pending().await };
    while let Ok(mut guard) = watched.ready(side).await {
        if guard.ready().is_read_closed() || guard.ready().is_write_closed() {
            return;
        }
        guard.clear_ready();
    }
    pending::<()>().await;
}
