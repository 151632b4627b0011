//! What every story needs: a house to live in, and a way to read its Log.

pub mod house;
pub mod torture;
pub mod transcript;

pub use house::House;
