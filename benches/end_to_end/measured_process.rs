//! Measured processes: wall time, CPU time and memory.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::time::{ClockId, clock_gettime};

/// The role of a process that ends at once.
pub const NOTHING: &str = "__nothing";
/// The role of a process that prints the peak memory of another one.
pub const PEAK: &str = "__peak";

/// The times of one process.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Start time, on the clock that all processes share.
    pub started: Duration,
    pub wall: Duration,
    /// User and system time of the process and of the children it waited for.
    pub cpu: Duration,
    /// Time from the start to the first byte that reached the model.
    pub first_byte: Option<Duration>,
}

/// This program under another role.
pub fn role(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(role);
    command
}

pub fn nothing() -> Command {
    role(NOTHING)
}

pub fn pixir() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pixir"))
}

/// The system-wide monotonic clock.
pub fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into()
}

/// Runs a command to its end, which must be a success.
pub fn run(command: &mut Command) -> Run {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let cpu = cpu_of_children();
    let started = now();
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let wall = now().saturating_sub(started);
    let cpu = cpu_of_children().saturating_sub(cpu);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {errors}");
    Run { started, wall, cpu, first_byte: None }
}

fn cpu_of_children() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let micros = |time: TimeVal| Duration::from_micros(time.num_microseconds().try_into().unwrap());
    micros(usage.user_time()) + micros(usage.system_time())
}

/// Peak resident memory of a command. The kernel keeps one maximum for all children of a process, so
/// each command is measured by a separate process.
pub fn peak(command: &Command) -> u64 {
    let mut teller = role(PEAK);
    teller.arg(command.get_program()).args(command.get_args());
    teller.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        teller.env(name, value.unwrap());
    }
    let output = teller.stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Runs a command and prints its peak memory in bytes.
pub fn print_peak(mut arguments: impl Iterator<Item = String>) {
    let mut command = Command::new(arguments.next().unwrap());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success(), "{command:?} failed");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    println!("{}", usage.max_rss() * 1024);
}
