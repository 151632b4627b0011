//! The sandbox: everyday work goes on inside it, and nothing gets out of it.

/// A Workspace, and what is around it.
mod arena;
/// What is tried.
mod attempts;
/// What is tried with package caches.
mod cache_attempts;
/// Package caches and their private layers.
mod caches;
/// What is replaced or moved aside outside.
mod covers;
/// Programs outside that listen on sockets and pipes.
mod endpoints;
/// More than 150 ways to get out, and what became of them.
mod escape;
/// Ordinary commands.
mod everyday;
/// What is told when a file was hidden.
mod hints;
/// What commands see of the home folder.
mod home;
/// What is tried to read credentials.
mod home_attempts;
/// Commands that use up memory, processes and files.
mod limits;
/// Mounts in the home folder, and sockets among the devices.
mod mounted;
/// What is tried with repositories below the Workspace.
mod nested_attempts;
/// Escapes through repositories below the Workspace.
mod nested_git;
/// Files that other programs run.
mod programs;
/// Sockets and pipes of other programs, in every spelling.
mod reach;
/// What git would run for the user.
mod repositories;
/// What is tried to use up memory, processes and files.
mod resource_attempts;
/// What a denial, a setting or a mode does, as the Log tells it.
mod stories;
/// What is tried with settings of git outside of repositories.
mod user_attempts;
/// What links and files of commands must not widen.
mod widened;
