//! Street door.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // The watcher of a command starts before anything else, because every command waits for it.
    if arguments.next().is_some_and(|first| first == pixir::SUPERVISE) {
        return pixir::supervise(arguments);
    }
    pixir::run(std::env::args_os())
}
