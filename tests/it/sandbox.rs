//! The sandbox: ordinary commands work inside it, and have no effect outside.

/// The table of escape attempts.
mod attempts;
/// Attempts through package caches.
mod cache_attempts;
/// Package caches and their private layers.
mod caches;
/// Programs outside that listen on sockets and pipes.
mod endpoints;
/// Runs of the escape attempts.
mod escape;
/// The environment of escape attempts.
mod escape_env;
/// Ordinary commands.
mod everyday;
/// Hints about hidden files.
mod hints;
/// The home folder as commands see it.
mod home;
/// Attempts to read credentials.
mod home_attempts;
/// Commands that use up memory, processes and files.
mod limits;
/// Mounts in the home folder, and sockets among the devices.
mod mounted;
/// Attempts through repositories below the Workspace.
mod nested_attempts;
/// Escapes through repositories below the Workspace.
mod nested_git;
/// Links and files of commands that must not widen the sandbox.
mod planted_links;
/// Files that other programs run.
mod programs;
/// Sockets and pipes of other programs, in every spelling.
mod reach;
/// Files that are replaced or moved outside while they are covered.
mod replaced_files;
/// Denials, settings and modes, as recorded in the Log.
mod reports;
/// Repositories whose settings and hooks commands must not change.
mod repositories;
/// Attempts to use up memory, processes and files.
mod resource_attempts;
/// Attempts through git settings outside of repositories.
mod user_attempts;
