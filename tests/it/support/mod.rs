//! Fixtures of the stories: test environments, clients, leak checks, and a reader for Logs.

pub mod cage;
pub mod desk;
pub mod editor;
pub mod house;
pub mod leaks;
pub mod marked;
pub mod stage;
pub mod terminal;
pub mod torture;
pub mod tracer;
pub mod transcript;
pub mod watcher;

pub use house::House;
pub use stage::Stage;
