//! What the user may write into a config file.
/// Stub
#[derive(Debug)]
pub struct ConfigError;
/// Stub
pub struct Layer;
/// Stub
pub fn load() {}
