//! Promises of the whole program, tested through its doors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "tests fail by panicking"
)]

mod process;
