//! Fixtures: test environments, clients, leak checks, and a reader for Logs.

pub mod acp_client;
pub mod binary_env;
pub mod contact_watcher;
pub mod drivers;
pub mod leaks;
pub mod marked_processes;
pub mod memory_cgroup;
pub mod rendered_log;
pub mod sign_in_env;
pub mod syscall_tracer;
pub mod terminal;
pub mod test_env;
pub mod torture;

pub use binary_env::BinaryEnv;
pub use test_env::TestEnv;
