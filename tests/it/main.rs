//! Promises of the whole program, tested through its doors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "tests fail by panicking, and start programs themselves"
)]

/// The editor's agent, over its own two streams.
mod acp;
/// Logs that other programs change under a running Turn.
mod altered_log;
/// Children in Workspaces of their own, and what comes back of them.
mod annex;
/// Answers with a shape, and answers from the web.
mod answers;
/// Questions on a terminal.
mod asking;
/// Commands that outlive their calls.
mod background;
/// What a run may use up.
mod budgets;
/// The command line through its own door.
mod cli;
/// Windows that fill up, and room that is made in them.
mod compaction;
/// Settings shown and changed.
mod config;
/// Paths that try to leave, and links that change while they are followed.
mod confinement;
/// Killed while the sign-in is renewed.
mod cut_off;
/// A Log cut and flipped in every way.
mod damage;
/// Many tasks of another program, and one answer.
mod delegate;
/// Pages that cannot lie.
mod docs;
/// Is everything in place?
mod doctor;
/// Every Turn ends once.
mod ends;
/// What is said when a Provider does not answer.
mod errors;
/// What can be seen of a Session, whatever state it is in.
mod evidence;
/// Faults that the doctor finds.
mod faults;
/// Files that are more than their letters, changed by every tool.
mod fidelity;
/// Sessions that branch off.
mod fork;
/// What a lasting grant covers.
mod grants;
/// Whatever a stranger plants, nothing starts.
mod hostile;
/// Something planted at every path that is touched.
mod hostile_checkout;
/// A Session killed at every append and at random.
mod kill;
/// What a family may spend, a model repeat and an answer cost.
mod limits;
/// Prompts line by line on a terminal.
mod line_mode;
/// Signing in, and signing out.
mod login;
/// Servers that bring tools.
mod mcp;
/// Merges where it gets odd: nothing is lost, nothing is half done.
mod merging;
/// Proxies and certificates.
mod network;
/// Patches of several files.
mod patch;
/// What is asked, what is remembered, and what is refused.
mod permissions;
/// The model's plan.
mod plan;
/// Texts for the model that a checkout brings as links, pipes and devices.
mod planted_checkout;
/// Records that claim the work of others.
mod planted_claims;
/// Files of the Home that are links, pipes, or belong to another user.
mod planted_home;
/// A checkout that brings Pixir's state.
mod planted_state;
/// Processes that commands start, and that nothing survives.
mod process;
/// What crosses to the model.
mod prompt;
/// The first steps, taken by a test.
mod quickstart;
/// The recording of files for undo before a command.
mod recording;
/// Redaction markers that are written back.
mod redaction;
/// What is released, and how.
mod release;
/// Staying signed in.
mod renewal;
/// What commands that look at things say.
mod reports;
/// Files that are attached, and images that are looked at.
mod resource;
/// Sessions resumed after a move, over damage and across versions.
mod resume;
/// What a Session is for, from files.
mod roles;
/// Everyday work, escapes and stories of the sandbox.
mod sandbox;
/// The published schemas, and what the binary prints.
mod schemas;
/// Searching the Workspace.
mod search;
/// Other servers that speak the dialect.
mod servers;
/// Sessions by a part of their ids, confirmations, and hints for wrong arguments.
mod session_ids;
/// Streams whose flags another process changed.
mod shared_streams;
/// Packages of instructions, used when they are asked for.
mod skills;
/// Commands that wait for each other.
mod slots;
/// Arguments in the spelling of other agents.
mod spellings;
/// What was spent, and on what.
mod spending;
/// Signals, a second process and a full disk.
mod stop;
/// Skills and roles that are odd, hostile, or lie where others can write.
mod strangers;
/// Every way a stream can break, on both transports.
mod stream_faults;
/// Children that work for a Session.
mod subagents;
/// A house to live in, and a way to read its Log.
mod support;
/// Nobody but the Provider is called.
mod telemetry;
/// What a person sees on a terminal.
mod terminal;
/// Runs in which hardly a thread can be started.
mod thread_limits;
/// The house rules.
mod tidy;
/// Stories of the transport.
mod transport;
/// Whose word counts.
mod trust;
/// Stories of a Turn, each ending in the Log.
mod turn;
/// Turns taken back and brought back.
mod undo;
mod undo_git;
mod undo_others;
mod unusable_state;
/// Graphs of steps.
mod workflows;
/// Commands of every shape, ended in every way.
mod zoo;
