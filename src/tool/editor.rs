//! The editor: a front-end that may hold a file open, with words in it that the disk does not have.
//!
//! What it holds is the truth for the model, and what the model changes goes through it, so that
//! the person sees and can review it there. Only text that survives the way through a text buffer
//! takes it: UTF-8 without a byte order mark, with plain newlines. Everything else is exact on the
//! disk, and nowhere else.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use super::write::BOM;

/// The largest text that goes to the editor or comes from it.
const LARGEST: usize = 4 << 20;

/// How long the editor may take; a person has no part in it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Files as a front-end has them. Paths are absolute.
pub trait Editor: Send + Sync + Debug {
    /// The text it holds, or would show; `None` when it cannot be asked.
    fn read_text(&self, path: &Path) -> Option<BoxFuture<'static, Result<String, String>>>;
    /// Changes the text and saves it; `None` when it cannot be asked.
    fn write_text(
        &self,
        path: &Path,
        text: String,
    ) -> Option<BoxFuture<'static, Result<(), String>>>;
    /// It was asked and did not answer; from now on it should not be asked.
    fn fell_silent(&self);
}

/// The editor of one call.
#[derive(Debug, Clone, Default)]
pub struct Desk {
    editor: Option<Arc<dyn Editor>>,
    cancel: CancellationToken,
}

/// What became of a text that was handed to the editor.
#[derive(Debug, PartialEq, Eq)]
pub enum Handed {
    /// It has it.
    Over,
    /// There is nobody to take it, or this text cannot go this way.
    NotAsked,
    /// It would not; these were its words.
    Refused(String),
}

impl Desk {
    /// The desk of a call that may be cancelled; nobody sits at it without an editor.
    pub fn new(editor: Option<Arc<dyn Editor>>, cancel: CancellationToken) -> Self {
        Self { editor, cancel }
    }

    /// Whether a file of this size may be held by an editor at all.
    pub fn may_hold(&self, size: u64) -> bool {
        self.editor.is_some() && size <= LARGEST as u64
    }

    /// What the editor holds, where that is something else than what the disk has.
    pub fn unsaved(&self, path: &Path, disk: &[u8]) -> Option<String> {
        let editor = self.editor.as_ref()?;
        let on_disk = std::str::from_utf8(disk).ok().filter(|disk| disk.len() <= LARGEST)?;
        let held = match self.wait(editor, editor.read_text(path)?) {
            Ok(held) => held,
            Err(reason) => {
                tracing::debug!(path = %path.display(), %reason, "the editor does not tell");
                return None;
            }
        };
        (held.len() <= LARGEST && !is_alike(&held, on_disk)).then_some(held)
    }

    /// The text that the editor has of a file which is not opened here; or why it has none.
    pub fn text_of(&self, path: &Path) -> Result<String, String> {
        let editor = self.editor.as_ref().ok_or("the editor offers no files")?;
        if self.cancel.is_cancelled() {
            return Err("the editor took too long".to_owned());
        }
        let asking = editor.read_text(path).ok_or("the editor offers no files")?;
        let text = self.wait(editor, asking);
        let text = text.map_err(|reason| format!("the editor does not show it ({reason})"))?;
        if text.len() > LARGEST {
            return Err(format!("it has more than {LARGEST} bytes"));
        }
        Ok(text)
    }

    /// Hands a new text to the editor, in place of `old`.
    pub fn hand_over(&self, path: &Path, old: &[u8], new: &[u8]) -> Handed {
        let Some(editor) = &self.editor else { return Handed::NotAsked };
        let (Some(_), Some(text)) = (plain(old), plain(new)) else { return Handed::NotAsked };
        match editor.write_text(path, text.to_owned()) {
            None => Handed::NotAsked,
            Some(writing) => match self.wait(editor, writing) {
                Ok(()) => Handed::Over,
                Err(reason) => Handed::Refused(reason),
            },
        }
    }

    /// Waits where a plan or a run is: on a thread that may wait, or on one that lets another
    /// take over its tasks first.
    fn wait<T>(
        &self,
        editor: &Arc<dyn Editor>,
        asking: BoxFuture<'static, Result<T, String>>,
    ) -> Result<T, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            // It would wait for itself.
            return Err("this runtime has one thread".to_owned());
        }
        let cancelled = self.cancel.clone();
        let editor = Arc::clone(editor);
        let asking = async move {
            tokio::select! {
                answer = tokio::time::timeout(PATIENCE, asking) => answer.unwrap_or_else(|_| {
                    editor.fell_silent();
                    Err("it did not answer".to_owned())
                }),
                () = cancelled.cancelled() => Err("the call was cancelled".to_owned()),
            }
        };
        tokio::task::block_in_place(|| runtime.block_on(asking))
    }
}

/// Text that a buffer gives back as it got it.
fn plain(bytes: &[u8]) -> Option<&str> {
    let is_plain = bytes.len() <= LARGEST
        && !bytes.starts_with(BOM)
        && memchr::memchr2(b'\r', 0, bytes).is_none();
    std::str::from_utf8(bytes).ok().filter(|_| is_plain)
}

/// Whether a buffer shows this file: buffers have newlines of their own, and no byte order mark.
fn is_alike(held: &str, disk: &str) -> bool {
    held == disk || lines(held).eq(lines(disk))
}

/// The lines of a text, however they end; the last newline makes no line.
fn lines(text: &str) -> impl Iterator<Item = &str> {
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
            assert_eq!(is_alike(held, disk), expected, "{held:?} {disk:?}");
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
            assert_eq!(plain(bytes).is_some(), expected, "{bytes:?}");
        }
    }
}
