//! Drivers: tests that do nothing unless another test starts them in a process of their own.

use std::process::{Command, Output, Stdio};

/// Runs a driver to its end and checks that it passed. Its stderr is shown.
#[track_caller]
pub fn run_driver(command: &mut Command, what: &str) {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output().unwrap();
    assert_driver_passed(&output, what);
}

/// Checks that a driver was found by its name, ran and passed.
#[track_caller]
pub fn assert_driver_passed(output: &Output, what: &str) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {stderr}{stdout}");
    assert!(stdout.contains("1 passed"), "{what}: no test has the driver's name: {stdout}");
}
