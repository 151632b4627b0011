//! Limit notes: one line for the model about each resource limit that a command reached, with the
//! setting that raises it.
//!
//! The kernel's counters are used where they exist; else messages of programs and the exit status.

use super::command::{CommandExit, ProcessOutcome};
use crate::host::sandbox::{CommandLimits, EnforcementLevel};
use crate::settings::config::ADDRESS_SPACE;

/// The offset that a shell adds to the number of the signal that ended a program, for its exit code.
const SIGNAL_CODE: i32 = 128;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGXFSZ: i32 = 25;

/// Messages of programs that cannot start a process or thread; they count only with one of [`PROCESS_WORDS`].
const NO_PROCESS: &[&str] =
    &["resource temporarily unavailable", "[errno 11]", "eagain", "os error 11"];
const PROCESS_WORDS: &[&str] = &["fork", "clone", "thread", "spawn", "blockingioerror"];

/// Messages of programs that cannot start a thread; they count without a further word.
const NO_THREAD: &[&str] = &[
    "unable to create native thread",
    "can't start new thread",
    "failed to create new os thread",
    "pthread_create failed",
];

/// Messages of programs whose file is too large.
const FILE_TOO_LARGE: &[&str] = &["file size limit exceeded", "file too large", "efbig"];

/// Messages of programs that find a full file system.
const NO_SPACE: &[&str] = &["no space left on device", "enospc", "bus error"];

/// Messages of programs with too many open files.
const TOO_MANY_FILES: &[&str] = &["too many open files", "emfile"];

/// Messages of programs that get no memory, among them sanitizers, which reserve theirs at the start.
const NO_MEMORY: &[&str] = &[
    "cannot allocate",
    "memoryerror",
    "bad_alloc",
    "out of memory",
    "outofmemory",
    "enomem",
    "memory exhausted",
    "memory allocation of",
    "shadow memory",
    "ulimit -v",
];

/// The notes on a command; `limits` are those of its sandbox, if it had one.
pub fn explain_limits(
    output: &str,
    outcome: &ProcessOutcome,
    limits: Option<&CommandLimits>,
) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(memory_note(outcome));
    let is_ok = outcome.exit == CommandExit::Code(0) && outcome.stopped.is_none();
    let Some(limits) = limits.filter(|_| !is_ok || outcome.limit_events.refused_processes > 0)
    else {
        return lines;
    };
    let output = output.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| output.contains(word));
    let has_no_process = says(NO_THREAD) || says(NO_PROCESS) && says(PROCESS_WORDS);
    if has_no_process || outcome.limit_events.refused_processes > 0 {
        let most = limits.processes;
        lines.push(format!("limit: a command may have {most} processes and threads; the user can raise that (sandbox.max_processes)"));
    }
    if ended_by(outcome, SIGXFSZ) || says(FILE_TOO_LARGE) {
        let most = format_size(limits.file_bytes);
        lines.push(format!(
            "limit: a file may have {most}; the user can raise that (sandbox.max_file_bytes)"
        ));
    }
    let is_full = ended_by(outcome, SIGBUS) || says(NO_SPACE);
    if is_full && outcome.level == EnforcementLevel::Full {
        let most = format_size(limits.shared_bytes);
        lines.push(format!("limit: /dev/shm, and for root System V shared memory, may hold {most}, at most a quarter of all memory; the user can raise that (sandbox.max_shared_memory_bytes); elsewhere, the disk is full"));
    }
    if says(TOO_MANY_FILES) {
        let most = limits.open_files;
        lines.push(format!("limit: a process may have at most {most} files open after `ulimit -n {most}`; the user can raise that (sandbox.max_open_files)"));
    }
    if limits.process_bytes < ADDRESS_SPACE && says(NO_MEMORY) {
        let most = format_size(limits.process_bytes);
        lines.push(format!("limit: a process may have {most} of private memory; the user can raise that (sandbox.max_process_bytes)"));
    }
    lines
}

/// The note on processes that were killed because memory was used up.
fn memory_note(outcome: &ProcessOutcome) -> Option<String> {
    const ADVICE: &str = "run less at once; where a control group limits commands, the user can \
                          raise that (sandbox.max_memory_bytes)";
    let kills = outcome.limit_events.oom_kills;
    if kills > 0 {
        let them = if kills == 1 { "a process" } else { &*format!("{kills} processes") };
        return Some(format!(
            "limit: memory was used up, and the kernel killed {them} while this command ran; {ADVICE}"
        ));
    }
    let is_killed = ended_by(outcome, SIGKILL) || outcome.exit == CommandExit::Unknown;
    (is_killed && outcome.stopped.is_none()).then(|| {
        format!("limit: killed by SIGKILL, which Pixir did not send; probably memory was used up: {ADVICE}")
    })
}

/// Whether a signal ended the command, or the last program of its shell.
fn ended_by(outcome: &ProcessOutcome, signal: i32) -> bool {
    outcome.exit == CommandExit::Signal(signal)
        || outcome.exit == CommandExit::Code(SIGNAL_CODE + signal)
}

/// Formats a number of bytes.
fn format_size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{bytes} bytes") } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::process::command::StopCause;
    use crate::host::sandbox::{CacheAccess, LimitEvents, LocalSockets};

    const LIMITS: CommandLimits = CommandLimits {
        processes: 600,
        file_bytes: 100,
        open_files: 64,
        process_bytes: ADDRESS_SPACE,
        shared_bytes: 175 << 20,
        memory_bytes: 1 << 30,
    };

    fn outcome(end: CommandExit) -> ProcessOutcome {
        ProcessOutcome {
            exit: end,
            stopped: None,
            leftovers: Vec::new(),
            survivors: Vec::new(),
            uncovered: Vec::new(),
            duration: Duration::ZERO,
            containment: "namespace".into(),
            limit_events: LimitEvents::default(),
            level: EnforcementLevel::Full,
            sockets: LocalSockets::Harmless,
            caches: CacheAccess::Layered,
        }
    }

    #[track_caller]
    fn check(
        output: &str,
        outcome: &ProcessOutcome,
        limits: Option<&CommandLimits>,
        expected: &[&str],
    ) {
        let lines = explain_limits(output, outcome, limits);
        assert_eq!(lines.len(), expected.len(), "{output}: {lines:?}");
        for (line, words) in lines.iter().zip(expected) {
            assert!(line.contains(words), "{output}: {line}");
        }
    }

    #[test]
    fn each_limit_is_named_with_its_setting() {
        let failed = &outcome(CommandExit::Code(1));
        let some = Some(&LIMITS);
        check("error[E0308]: mismatched types", failed, some, &[]);
        check(
            "sh: fork: retry: Resource temporarily unavailable",
            failed,
            some,
            &["600 processes"],
        );
        check("read: Resource temporarily unavailable", failed, some, &[]);
        check("RuntimeError: can't start new thread", failed, some, &["sandbox.max_processes"]);
        check("", &outcome(CommandExit::Signal(25)), some, &["sandbox.max_file_bytes"]);
        check("", &outcome(CommandExit::Code(153)), some, &["100 bytes"]);
        check("OSError: [Errno 27] File too large", failed, some, &["sandbox.max_file_bytes"]);
        let full = "dd: error writing '/dev/shm/x': No space left on device";
        check(full, failed, some, &["175 MiB"]);
        check("", &outcome(CommandExit::Code(135)), some, &["sandbox.max_shared_memory_bytes"]);
        check(
            full,
            &ProcessOutcome { level: EnforcementLevel::Partial, ..outcome(CommandExit::Code(1)) },
            some,
            &[],
        );
        check("Too many open files", failed, some, &["sandbox.max_open_files"]);
        check("MemoryError", failed, some, &[]);
        let small = CommandLimits { process_bytes: 64 << 20, ..LIMITS };
        check("MemoryError", failed, Some(&small), &["sandbox.max_process_bytes"]);
        check(full, failed, None, &[]);
    }

    #[test]
    fn an_out_of_memory_kill_is_reported_with_and_without_a_sandbox() {
        let killed = outcome(CommandExit::Code(137));
        check("", &killed, None, &["probably memory"]);
        check("", &outcome(CommandExit::Signal(9)), Some(&LIMITS), &["probably memory"]);
        let stopped = ProcessOutcome {
            stopped: Some(StopCause::TimedOut),
            ..outcome(CommandExit::Signal(9))
        };
        check("", &stopped, Some(&LIMITS), &[]);
        let events = LimitEvents { oom_kills: 3, refused_processes: 0 };
        check(
            "",
            &ProcessOutcome { limit_events: events, ..killed },
            None,
            &["killed 3 processes"],
        );
        check(
            "",
            &ProcessOutcome { limit_events: events, ..outcome(CommandExit::Code(0)) },
            None,
            &["killed 3 processes"],
        );
        let events = LimitEvents { oom_kills: 0, refused_processes: 1 };
        let refused = ProcessOutcome { limit_events: events, ..outcome(CommandExit::Code(0)) };
        check("", &refused, Some(&LIMITS), &["sandbox.max_processes"]);
    }
}
