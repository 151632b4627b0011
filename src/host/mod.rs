//! This machine: files of the Workspace, processes, the sandbox and the network.

pub mod git_objects;
pub mod http;
pub mod process;
pub mod rpc;
pub mod sandbox;
pub mod snapshot;
pub mod walk;
pub mod workspace;
