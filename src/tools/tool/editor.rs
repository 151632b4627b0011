//! Editor buffers: reads unsaved text from a front-end's editor, and writes changes through it.
//!
//! The model sees the text of the buffer, and its changes go through the editor, so that the user can
//! review them there. This applies only to text that a buffer keeps byte for byte: UTF-8 without a byte
//! order mark, with LF line endings. Every other file is read from and written to disk.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use crate::base::text::BOM;

/// The largest text that is exchanged with the editor, in bytes.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// How long the editor may take; it answers without asking the user.
const EDITOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The text buffers of a front-end. Paths are absolute.
pub trait Editor: Send + Sync + Debug {
    /// The text of the buffer, or of the file as the editor would show it; `None` if unsupported.
    fn read_text(&self, path: &Path) -> Option<BoxFuture<'static, Result<String, String>>>;
    /// Changes the text and saves it; `None` if unsupported.
    fn write_text(
        &self,
        path: &Path,
        text: String,
    ) -> Option<BoxFuture<'static, Result<(), String>>>;
    /// Called when the editor did not answer in time; it should return `None` from now on.
    fn mark_unresponsive(&self);
}

/// Access to the editor for one call, if there is an editor.
#[derive(Debug, Clone, Default)]
pub struct EditorBridge {
    editor: Option<Arc<dyn Editor>>,
    cancel: CancellationToken,
}

/// The result of writing a text through the editor.
#[derive(Debug, PartialEq, Eq)]
pub enum EditorWrite {
    /// The editor accepted the text.
    Accepted,
    /// There is no editor, or a buffer would not keep this text byte for byte.
    NotAsked,
    /// The editor refused, with this error message.
    Refused(String),
}

impl EditorBridge {
    /// The bridge for a call that `cancel` ends.
    pub fn new(editor: Option<Arc<dyn Editor>>, cancel: CancellationToken) -> Self {
        Self { editor, cancel }
    }

    /// Whether a file of this size may be open in the editor.
    pub fn may_hold(&self, size: u64) -> bool {
        self.editor.is_some() && size <= MAX_TEXT_BYTES as u64
    }

    /// The text of the buffer, if it differs from the content on disk.
    pub fn unsaved_text(&self, path: &Path, disk: &[u8]) -> Option<String> {
        let editor = self.editor.as_ref()?;
        let on_disk = std::str::from_utf8(disk).ok().filter(|disk| disk.len() <= MAX_TEXT_BYTES)?;
        let held = match self.block_on_editor(editor, editor.read_text(path)?) {
            Ok(held) => held,
            Err(reason) => {
                tracing::debug!(path = %path.display(), %reason, "cannot read the editor's buffer");
                return None;
            }
        };
        (held.len() <= MAX_TEXT_BYTES && !shows_same_text(&held, on_disk)).then_some(held)
    }

    /// The editor's text of a file that Pixir does not open itself, or the reason why there is none.
    pub fn read_buffer(&self, path: &Path) -> Result<String, String> {
        let editor = self.editor.as_ref().ok_or("the editor offers no files")?;
        if self.cancel.is_cancelled() {
            return Err("the editor took too long".to_owned());
        }
        let asking = editor.read_text(path).ok_or("the editor offers no files")?;
        let text = self.block_on_editor(editor, asking);
        let text = text.map_err(|reason| format!("the editor does not show it ({reason})"))?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("it has more than {MAX_TEXT_BYTES} bytes"));
        }
        Ok(text)
    }

    /// Writes `new` in place of `old` through the editor.
    pub fn write_text(&self, path: &Path, old: &[u8], new: &[u8]) -> EditorWrite {
        let Some(editor) = &self.editor else { return EditorWrite::NotAsked };
        let (Some(_), Some(text)) = (buffer_safe_text(old), buffer_safe_text(new)) else {
            return EditorWrite::NotAsked;
        };
        match editor.write_text(path, text.to_owned()) {
            None => EditorWrite::NotAsked,
            Some(writing) => match self.block_on_editor(editor, writing) {
                Ok(()) => EditorWrite::Accepted,
                Err(reason) => EditorWrite::Refused(reason),
            },
        }
    }

    /// Blocks on a request to the editor: on a thread that may block, or on a worker that first hands its
    /// tasks to another thread.
    fn block_on_editor<T>(
        &self,
        editor: &Arc<dyn Editor>,
        asking: BoxFuture<'static, Result<T, String>>,
    ) -> Result<T, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            // Blocking the only thread would be a deadlock.
            return Err("this runtime has one thread".to_owned());
        }
        let cancelled = self.cancel.clone();
        let editor = Arc::clone(editor);
        let asking = async move {
            tokio::select! {
                answer = tokio::time::timeout(EDITOR_TIMEOUT, asking) => answer.unwrap_or_else(|_| {
                    editor.mark_unresponsive();
                    Err("it did not answer".to_owned())
                }),
                () = cancelled.cancelled() => Err("the call was cancelled".to_owned()),
            }
        };
        tokio::task::block_in_place(|| runtime.block_on(asking))
    }
}

/// The bytes as text, if an editor's buffer keeps them byte for byte.
fn buffer_safe_text(bytes: &[u8]) -> Option<&str> {
    let is_plain = bytes.len() <= MAX_TEXT_BYTES
        && !bytes.starts_with(BOM)
        && memchr::memchr2(b'\r', 0, bytes).is_none();
    std::str::from_utf8(bytes).ok().filter(|_| is_plain)
}

/// Whether a buffer shows the content on disk: a buffer may normalise newlines and drop the byte order mark.
fn shows_same_text(held: &str, disk: &str) -> bool {
    held == disk || lines_with_any_ending(held).eq(lines_with_any_ending(disk))
}

/// The lines of a text with any line endings; the final newline starts no line.
fn lines_with_any_ending(text: &str) -> impl Iterator<Item = &str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    let is_old_style = !text.contains('\n');
    text.split(move |letter| letter == '\n' || (is_old_style && letter == '\r'))
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_shows_the_file_is_told_from_one_that_was_changed() {
        for (held, disk, expected) in [
            ("a\nb\n", "a\nb\n", true),
            ("a\nb\n", "a\r\nb\r\n", true),
            ("a\nb\n", "\u{feff}a\r\nb\r\n", true),
            ("a\nb", "a\nb\n", true),
            ("a\nb", "a\rb\r", true),
            ("", "", true),
            ("a\nb\n\n", "a\nb\n", false),
            ("a\nc\n", "a\nb\n", false),
            ("a b\n", "a\nb\n", false),
            ("", "a\n", false),
        ] {
            assert_eq!(shows_same_text(held, disk), expected, "{held:?} {disk:?}");
        }
    }

    #[test]
    fn only_text_that_a_buffer_gives_back_goes_through_one() {
        for (bytes, expected) in [
            (&b"a\nb\n"[..], true),
            (b"", true),
            ("gr\u{fc}n".as_bytes(), true),
            (b"a\r\n", false),
            (b"a\rb", false),
            (b"\xef\xbb\xbfa\n", false),
            (b"gr\xfcn\n", false),
            (b"a\0b", false),
        ] {
            assert_eq!(buffer_safe_text(bytes).is_some(), expected, "{bytes:?}");
        }
    }
}
