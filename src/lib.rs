//! Pixir: a local-first coding agent. Any UI, one supervised runtime, and the Log is the truth.
//!
//! The house, from the ground up; a room looks only down, and a test enforces it:
//!
//! - Words and settings: [`error`], [`id`], [`secret`], [`paths`], [`event`], [`config`], [`workspace`].
//! - Evidence: [`history`], [`log`], [`projection`].
//! - The world: [`credential`], [`tool`], [`provider`], [`permission`].
//! - Agency: [`prompt`], [`session`], [`turn`], [`conversation`], [`harness`].
//! - Presenters: [`render`], [`scripted`], [`cli`].

// Ground floor: words and settings.
mod error;
mod id;
mod paths;
mod secret;

mod config;
mod event;
mod workspace;

// First floor: evidence.
mod history;
mod log;
mod projection;

// Second floor: the world.
mod credential;
mod provider;
mod tool;

// Third floor: agency.
mod prompt;
mod session;

// Top floor: presenters.
mod render;
mod scripted;
