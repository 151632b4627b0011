//! How a command answers on stdout: words for a person, or with `--json` one envelope.

use serde::Serialize;

use super::exit::Exit;
use super::{Context, say};
use crate::error::{Kind, Report};
use crate::render::{Envelope, clean};

impl Context {
    /// The envelope of a command that did what it was asked.
    pub fn envelope(&self, kind: &'static str, output: impl Serialize) -> Result<Envelope, Report> {
        let output = serde_json::to_value(output)
            .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
        Ok(Envelope::success(kind, output, self.started.elapsed()))
    }

    /// Prints an envelope or words. An envelope with an error is an error.
    pub fn answer(&self, envelope: &Envelope, words: &str) -> Exit {
        if self.flags.json {
            say(&envelope.line());
        } else {
            say(&clean(words));
        }
        if envelope.error.is_some() { Exit::Error } else { Exit::Answered }
    }

    /// Prints what a command did, as words or as an envelope.
    pub fn told(
        &self,
        kind: &'static str,
        words: &str,
        output: impl Serialize,
    ) -> Result<Exit, Report> {
        Ok(self.answer(&self.envelope(kind, output)?, words))
    }
}
