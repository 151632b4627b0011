//! Output of a command on stdout: text for a person, or one envelope with `--json`.

use serde::Serialize;

use super::exit::Exit;
use super::{CliContext, print_stdout};
use crate::base::error::{Kind, Report};
use crate::frontends::render::{JsonEnvelope, clean};

impl CliContext {
    /// The envelope of a command that succeeded.
    pub fn success_envelope(
        &self,
        kind: &'static str,
        output: impl Serialize,
    ) -> Result<JsonEnvelope, Report> {
        let output = serde_json::to_value(output)
            .map_err(|error| Report::new(Kind::Internal, error.to_string()))?;
        Ok(JsonEnvelope::success(kind, output, self.started.elapsed()))
    }

    /// Prints the envelope with `--json`, else the text. An envelope with an error gives the exit code of an error.
    pub fn print_envelope(&self, envelope: &JsonEnvelope, words: &str) -> Exit {
        if self.flags.json {
            print_stdout(&envelope.to_line());
        } else {
            print_stdout(&clean(words));
        }
        if envelope.error.is_some() { Exit::Error } else { Exit::Answered }
    }

    /// Prints the result of a command as text, or as an envelope with `--json`.
    pub fn print_result(
        &self,
        kind: &'static str,
        words: &str,
        output: impl Serialize,
    ) -> Result<Exit, Report> {
        Ok(self.print_envelope(&self.success_envelope(kind, output)?, words))
    }
}
