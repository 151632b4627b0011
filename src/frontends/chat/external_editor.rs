//! The user's own editor for long prompts: `$VISUAL` on a file that only the user can read.
#![expect(
    clippy::disallowed_methods,
    reason = "the user's editor, and a file of it that is no state"
)]

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// A file that is removed when it is dropped.
struct PromptFile(PathBuf);

impl Drop for PromptFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Lets the user edit a text, and gives what was saved. The terminal must be free.
pub async fn edit_text(command: &str, text: &str) -> io::Result<String> {
    let file = create_draft(text)?;
    let script = format!("{command} \"$1\"");
    let path = file.0.clone();
    let mut editor = tokio::process::Command::new("sh");
    let status = editor.args(["-c", &script, "sh"]).arg(&path).status().await?;
    if !status.success() {
        return Err(io::Error::other(format!("the editor ended with {status}")));
    }
    let edited = std::fs::read_to_string(&path)?;
    Ok(edited.strip_suffix('\n').unwrap_or(&edited).to_owned())
}

fn create_draft(text: &str) -> io::Result<PromptFile> {
    let path = std::env::temp_dir().join(format!("pixir-prompt-{:016x}.md", fastrand::u64(..)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let draft = PromptFile(path);
    file.write_all(text.as_bytes())?;
    Ok(draft)
}
