//! Processes on this machine: commands, their supervisors and output, and services of a Session.

mod command;
mod confined;
mod covers;
mod denial;
mod descendants;
mod environment;
mod exit_report;
mod lifeline;
mod limit_notes;
mod namespace;
mod oom_score;
mod output;
mod output_buffer;
mod post_run;
mod protocol;
mod refresh;
mod running;
mod service;
mod slot;
mod supervisor;
mod trial;
mod watch;

pub use command::{CommandError, Commands, Containment, End, Host, Job, Stop};
pub use confined::{Confined, Needs};
pub use exit_report::{Ending, Telling};
pub use lifeline::Stdin;
pub use output::{Collected, FOLDER, Output, OutputTarget, SpillFile};
pub use output_buffer::{Glance, Part, Ring};
pub use service::{Program, Said, Served, Service, quoted};
pub use slot::{ProcessSlots, Slot};
pub use supervisor::{SUPERVISE, supervise};
pub use trial::Trial;
