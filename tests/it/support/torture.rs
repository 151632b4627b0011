//! Torture suites: their size, their seed, and their summaries.

use std::io::Write;

/// The size of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuiteSize {
    /// A seeded sample, for every `cargo test`.
    Sample,
    /// Everything, with `PIXIR_TORTURE=full`.
    Full,
}

impl SuiteSize {
    /// The size that `PIXIR_TORTURE` asks for.
    pub fn from_environment() -> Self {
        match std::env::var("PIXIR_TORTURE").as_deref() {
            Ok("full") => Self::Full,
            _ => Self::Sample,
        }
    }

    /// The count for this size.
    pub fn choose(self, sample: usize, full: usize) -> usize {
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

/// Prints a summary past the capture of test output.
pub fn print_summary(summary: &str) {
    std::io::stderr().write_all(format!("\ntorture: {summary}\n").as_bytes()).unwrap();
}
