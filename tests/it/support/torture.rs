//! What the torture suites share: how much to do, by which seed, and a word about it at the end.

use std::io::Write;

/// How much a suite does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A seeded sample, for every `cargo test`.
    Sample,
    /// Everything, with `PIXIR_TORTURE=full`.
    Full,
}

impl Size {
    /// What was asked for.
    pub fn asked() -> Self {
        match std::env::var("PIXIR_TORTURE").as_deref() {
            Ok("full") => Self::Full,
            _ => Self::Sample,
        }
    }

    /// The one count or the other.
    pub fn of(self, sample: usize, full: usize) -> usize {
        match self {
            Self::Sample => sample,
            Self::Full => full,
        }
    }
}

/// The seed of this run: `PIXIR_SEED`, else the same one every time.
pub fn seed() -> u64 {
    let asked = std::env::var("PIXIR_SEED").ok();
    asked.map_or(4711, |text| text.parse().expect("PIXIR_SEED is a number"))
}

/// Says what was done, past the capture of test output, so that it can be seen.
pub fn say(summary: &str) {
    std::io::stderr().write_all(format!("\ntorture: {summary}\n").as_bytes()).unwrap();
}
