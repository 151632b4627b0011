//! Output of a command on stdout: text for a person, or one envelope with `--json`.

use serde::Serialize;

use super::exit::Exit;
use super::{Context, say};
use crate::base::error::{Kind, Report};
use crate::frontends::render::{Envelope, clean};

impl Context {
    /// The envelope of a command that succeeded.
    pub fn envelope(&self, kind: &'static str, output: impl Serialize) -> Result<Envelope, Report> {
        let output = serde_json::to_value(output)
            .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
        Ok(Envelope::success(kind, output, self.started.elapsed()))
    }

    /// Prints the envelope with `--json`, else the text. An envelope with an error gives the exit code of an error.
    pub fn answer(&self, envelope: &Envelope, words: &str) -> Exit {
        if self.flags.json {
            say(&envelope.line());
        } else {
            say(&clean(words));
        }
        if envelope.error.is_some() { Exit::Error } else { Exit::Answered }
    }

    /// Prints the result of a command as text, or as an envelope with `--json`.
    pub fn told(
        &self,
        kind: &'static str,
        words: &str,
        output: impl Serialize,
    ) -> Result<Exit, Report> {
        Ok(self.answer(&self.envelope(kind, output)?, words))
    }
}
