//! Processes on this machine: commands, their supervisors and output, and services of a Session.

mod capture;
mod command;
mod covered_paths;
mod denial;
mod descendants;
mod environment;
mod exit_report;
mod lifeline;
mod limit_notes;
mod mount_refresh;
mod namespace;
mod oom_score;
mod output;
mod output_buffer;
mod post_run;
mod process_watch;
mod protocol;
mod running;
mod sandboxed;
mod service;
mod slot;
mod supervisor;

pub use capture::CaptureRequest;
pub use command::{
    CommandError, CommandExit, CommandRequest, CommandRunner, Containment, HostEnvironment,
    StopCause,
};
pub use exit_report::{ExitReport, ExitReportContext};
pub use lifeline::CommandPipes;
pub use output::{CapturedOutput, OUTPUT_FOLDER, OutputCollector, OutputTarget, SpillFile};
pub use output_buffer::{OutputBuffer, OutputPart, OutputSnapshot};
pub use sandboxed::{SandboxNeeds, SandboxedCommands};
pub use service::{Service, ServiceEvent, ServiceProgram, StartedService, shell_quote};
pub use slot::{CommandSlot, ProcessSlots};
pub use supervisor::{SUPERVISE, supervise};
