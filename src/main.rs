//! The `pixir` binary: the command line, or the supervisor of a command.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // Checked before anything else, because every command waits for its supervisor to start.
    if arguments.next().is_some_and(|first| first == pixir::SUPERVISE) {
        return pixir::supervise(arguments);
    }
    pixir::run(std::env::args_os())
}
