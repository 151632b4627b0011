//! Integration tests: they drive the real binary, or a Conversation, against the scripted model.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "tests fail by panicking, and start programs themselves"
)]

/// `pixir acp`, over stdin and stdout.
mod acp;
/// Logs that other programs change while a Turn runs.
mod altered_log;
/// Answers that match a schema, and answers with web search.
mod answers;
/// Arguments in the spelling of other agents.
mod argument_spellings;
/// Questions on a terminal.
mod asking;
/// Commands that outlive their calls.
mod background;
/// Budgets of a run.
mod budgets;
/// Child Workspaces, and merges from them.
mod chat;
mod child_workspaces;
/// The command line of the binary.
mod cli;
/// Commands with every shape of processes, ended in every way.
mod command_shapes;
/// Compaction: context windows that fill up.
mod compaction;
/// Settings shown and changed.
mod config;
/// Paths that lead out of the Workspace, and links that change while they are followed.
mod confinement;
/// Kills during a token renewal.
mod cut_off;
/// Logs with every cut and every flipped bit.
mod damage;
/// `pixir delegate`.
mod delegate;
/// Documentation pages, checked against the program.
mod docs;
/// `pixir doctor`.
mod doctor;
/// Faults that `pixir doctor` finds.
mod doctor_faults;
/// Every Turn has exactly one end.
mod ends;
/// Errors of a Provider that does not answer.
mod errors;
/// Commands that inspect a Session, whatever state its Log is in.
mod evidence;
/// File properties besides the text, kept by every tool.
mod fidelity;
/// `pixir fork`.
mod fork;
/// The scope of permanent permissions.
mod grants;
/// Help, its topics, and flags at commands on which they have no effect.
mod help;
/// Hostile repositories: no program in them is started.
mod hostile;
/// Hostile files planted at every path that a command touches.
mod hostile_checkout;
/// A Session killed at every append and at random.
mod kill;
/// Limits on the usage of a Session with its children, on loops of calls, and on the cost of an answer.
mod limits;
/// Prompts line by line on a terminal.
mod line_mode;
/// Signing in, and signing out.
mod login;
/// MCP servers.
mod mcp;
/// Merges in rare situations: no file is lost, and no merge is incomplete.
mod merging;
/// Proxies and certificates.
mod network;
/// Patches of several files.
mod patch;
/// Permissions: questions, remembered answers and refusals.
mod permissions;
/// The model's plan.
mod plan;
/// Texts for the model that a checkout brings as links, pipes and devices.
mod planted_checkout;
/// Snapshot Records that claim changes of other Sessions.
mod planted_claims;
/// Files of the Home that are links, pipes, or belong to another user.
mod planted_home;
/// A checkout that brings Pixir's state.
mod planted_state;
/// Processes started by commands: none survives.
mod process;
/// Instructions, schemas and late context that the model receives.
mod prompt;
/// The quickstart page, run by a test.
mod quickstart;
/// The recording of files for undo before a command.
mod recording;
/// Redaction markers that are written back.
mod redaction;
/// The release packages.
mod release;
/// Renewal of tokens.
mod renewal;
/// Output of commands that list and show.
mod reports;
/// Attached files, and images that the model views.
mod resource;
/// Sessions resumed after a move, over damage and across versions.
mod resume;
/// Roles, built in and from files.
mod roles;
/// The sandbox: ordinary commands, escape attempts and reports.
mod sandbox;
/// The published schemas, and the output of the binary.
mod schemas;
/// `grep` and `glob`.
mod search;
/// Other providers with a compatible API.
mod servers;
/// Sessions by a part of their ids, confirmations, and hints for wrong arguments.
mod session_ids;
/// Streams whose status flags another process changed.
mod shared_streams;
/// Skills.
mod skills;
/// Limit on concurrent commands.
mod slots;
/// `pixir usage`.
mod spending;
/// Signals, a second process and a full disk.
mod stop;
/// Broken streams of every kind, on both transports.
mod stream_faults;
/// Subagents.
mod subagents;
/// Fixtures: test environments, clients, and leak checks.
mod support;
/// Network contacts: only the Provider is called.
mod telemetry;
/// Output on a terminal.
mod terminal;
/// Runs under tight limits on processes and threads.
mod thread_limits;
/// Checks of the source tree.
mod tidy;
/// Transports: uploads, continuation and usage records.
mod transport;
/// Trust in files of a Workspace.
mod trust;
/// Turns of a Conversation, checked by the Log.
mod turn;
/// `pixir undo` and `pixir redo`.
mod undo;
/// Undo in git repositories, and of contents that are lost.
mod undo_git;
mod undo_limits;
mod undo_lost;
mod undo_others;
/// Skills and roles that are malformed, hostile, or in folders where other users can write.
mod untrusted_packages;
mod unusable_state;
/// Graphs of steps.
mod workflows;
