//! Secrets: known secret values, replaced once, where text enters Pixir.

/// The known secret values of this run.
#[derive(Default)]
pub struct Secrets;
