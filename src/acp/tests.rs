//! Table tests of what comes in; the updates have theirs beside them.
