//! Output of a command: live to listeners, bounded for the model, and complete in a file.
//!
//! Each destination gets text whose escape sequences are stripped before Secrets are removed, so that an
//! escape sequence or control byte inside a Secret does not hide it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::blocking;
use crate::base::files::StatePath;
use crate::base::id::CallId;
use crate::base::secret::{Secrets, StreamRedactor};
use crate::base::text::bounded::{BoundedText, HeadTailBuffer};
use crate::base::text::strip_ansi::{AnsiStripper, CarriageReturn};
use crate::host::process::output_buffer::OutputBuffer;
use crate::record::event::ToolEvents;
use crate::record::state_dir::SessionFolder;

/// The maximum number of bytes of one command that are shown live; the rest is only in the file.
const LIVE_LIMIT: usize = 1 << 20;
/// The largest live chunk, in bytes.
const LIVE_CHUNK: usize = 8 * 1024;
/// The minimum time between live chunks.
const LIVE_INTERVAL: Duration = Duration::from_millis(25);
/// The name of the folder for spilled output in a Session folder.
pub const OUTPUT_FOLDER: &str = "output";
/// The maximum size of a spill file, in bytes.
const SPILL_LIMIT: u64 = 512 << 20;

/// The destinations of a call's output: the listeners of its Session, and a file if it is long.
pub struct OutputTarget {
    pub signals: ToolEvents,
    pub call_id: CallId,
    pub spill: SpillFile,
}

/// Collects a command's output as it arrives.
pub struct OutputCollector<'a> {
    plain: AnsiStripper,
    cleaner: StreamRedactor<'a>,
    collected: HeadTailBuffer,
    live: LiveChunks<'a>,
    spill: SpillWriter,
    /// The buffer of a background command.
    buffer: Option<&'a OutputBuffer>,
}

/// The output of a command that has ended.
#[derive(Debug)]
pub struct CapturedOutput {
    pub bounded: BoundedText,
    pub total_bytes: u64,
    pub spill: Option<PathBuf>,
    /// The note on a file that is incomplete or could not be written.
    pub spill_note: Option<String>,
}

impl CapturedOutput {
    /// The lines for the model with the path of the full output, and the note about that file.
    pub fn file_notes(&self) -> Vec<String> {
        let bytes = self.total_bytes;
        let path = self.spill.as_ref().map(|path| path.display());
        let file = path.map(|path| format!("[full output, {bytes} bytes: {path}]"));
        let note = self.spill_note.as_ref().map(|note| format!("[{note}]"));
        file.into_iter().chain(note).collect()
    }
}

impl<'a> OutputCollector<'a> {
    /// A collector for a call; `limit` bytes of output reach the model.
    pub fn new(target: OutputTarget, secrets: &'a Secrets, limit: usize) -> Self {
        let live = LiveChunks::new(target.signals, target.call_id, secrets);
        Self { live, ..Self::without_live(target.spill, secrets, limit) }
    }

    /// A collector without live output.
    pub fn without_live(spill: SpillFile, secrets: &'a Secrets, limit: usize) -> Self {
        let no_call = CallId::new("");
        Self {
            plain: AnsiStripper::new(CarriageReturn::RestartLine),
            cleaner: StreamRedactor::new(secrets),
            collected: HeadTailBuffer::new(limit),
            live: LiveChunks::new(ToolEvents::discard(), no_call, secrets),
            spill: SpillWriter::new(spill, limit),
            buffer: None,
        }
    }

    /// A collector for a background command, which also fills an [`OutputBuffer`]. An unfinished line is not
    /// held back, because it may be a prompt that waits for input.
    pub fn with_buffer(
        target: OutputTarget,
        secrets: &'a Secrets,
        limit: usize,
        buffer: &'a OutputBuffer,
    ) -> Self {
        let plain = AnsiStripper::new(CarriageReturn::EndLine);
        Self { plain, buffer: Some(buffer), ..Self::new(target, secrets, limit) }
    }

    /// Appends a chunk.
    pub async fn push(&mut self, chunk: &[u8]) {
        self.live.push(chunk);
        let mut text = String::new();
        self.plain.push(chunk, &mut text);
        let cleaned = self.cleaner.push(text.as_bytes());
        self.collected.push(&cleaned);
        self.spill.push(&cleaned).await;
        self.push_to_buffer(&cleaned);
    }

    /// Appends to the buffer of a background command; the path of the file is set first, so that it can be named.
    fn push_to_buffer(&self, cleaned: &[u8]) {
        let Some(buffer) = self.buffer else { return };
        if let SpillState::Open(_) | SpillState::Full = self.spill.state {
            buffer.set_spill_path(self.spill.file.path());
        }
        buffer.push(cleaned);
    }

    /// The time at which the pending live output should be emitted, if there is any.
    pub fn next_emit(&self) -> Option<Instant> {
        self.live.next_emit()
    }

    /// Emits the pending live output.
    pub fn emit_pending(&mut self) {
        self.live.emit_pending();
    }

    /// Ends the stream and returns the collected output.
    pub async fn finish(mut self) -> CapturedOutput {
        self.live.finish();
        let mut text = String::new();
        self.plain.finish(&mut text);
        let mut held = self.cleaner.push(text.as_bytes()).into_owned();
        held.extend(self.cleaner.finish());
        self.collected.push(&held);
        self.spill.push(&held).await;
        self.push_to_buffer(&held);
        let total_bytes = self.collected.total_bytes();
        let (spill, spill_note) = self.spill.finish();
        CapturedOutput { bounded: self.collected.finish(), total_bytes, spill, spill_note }
    }
}

/// Live output: plain text in small chunks, rate-limited, up to [`LIVE_LIMIT`].
struct LiveChunks<'a> {
    signals: ToolEvents,
    call_id: CallId,
    plain: AnsiStripper,
    cleaner: StreamRedactor<'a>,
    pending: String,
    emitted: usize,
    last_emit: Option<Instant>,
}

impl<'a> LiveChunks<'a> {
    fn new(signals: ToolEvents, call_id: CallId, secrets: &'a Secrets) -> Self {
        let (plain, cleaner) =
            (AnsiStripper::new(CarriageReturn::EndLine), StreamRedactor::new(secrets));
        Self {
            signals,
            call_id,
            plain,
            cleaner,
            pending: String::new(),
            emitted: 0,
            last_emit: None,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.emitted >= LIVE_LIMIT {
            return;
        }
        let mut text = String::new();
        self.plain.push(bytes, &mut text);
        self.pending.push_str(&String::from_utf8_lossy(&self.cleaner.push(text.as_bytes())));
        let quiet = self.last_emit.is_none_or(|last| last.elapsed() >= LIVE_INTERVAL);
        if quiet || self.pending.len() >= LIVE_CHUNK {
            self.emit_pending();
        }
    }

    fn next_emit(&self) -> Option<Instant> {
        (!self.pending.is_empty())
            .then(|| self.last_emit.map(|last| last + LIVE_INTERVAL))
            .flatten()
    }

    fn emit_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_str();
        while !rest.is_empty() && self.emitted < LIVE_LIMIT {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(LIVE_CHUNK));
            self.emitted += piece.len();
            self.signals.emit_output(&self.call_id, piece.to_owned());
            rest = after;
            if self.emitted >= LIVE_LIMIT {
                let notice = "\n[… no more live output of this command …]\n";
                self.signals.emit_output(&self.call_id, notice.to_owned());
            }
        }
        self.last_emit = Some(Instant::now());
    }

    fn finish(&mut self) {
        if self.emitted < LIVE_LIMIT {
            let mut text = String::new();
            self.plain.finish(&mut text);
            let rest = [&*self.cleaner.push(text.as_bytes()), &self.cleaner.finish()].concat();
            self.pending.push_str(&String::from_utf8_lossy(&rest));
            self.emit_pending();
        }
    }
}

/// The location of a file for output that exceeds the limit; the file is not created yet.
#[derive(Debug, Clone)]
pub struct SpillFile {
    folder: StatePath,
    name: String,
}

impl SpillFile {
    /// The file with this name; the folder is created when needed.
    pub fn new(folder: StatePath, name: String) -> Self {
        Self { folder, name }
    }

    /// The file for the output of a call, in the folder of its Session.
    pub fn for_call(session_folder: &SessionFolder, call_id: &CallId) -> Self {
        let name = format!("{}.txt", file_stem(call_id.as_str()));
        Self::new(session_folder.join(OUTPUT_FOLDER), name)
    }

    /// The file next to a folder, with the folder's name and another extension.
    pub fn beside_folder(folder: &Path, ending: &str) -> Self {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let around = folder.parent().unwrap_or(folder);
        Self { folder: StatePath::root(around), name: format!("{name}.{ending}") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Creates the file; one of an earlier call with the same name is removed first.
    fn create(&self) -> io::Result<File> {
        let folder = self.folder.create()?;
        folder.remove_file(&self.name)?;
        Ok(folder.create_new(&self.name)?)
    }

    fn remove(&self) {
        if let Ok(Some(folder)) = self.folder.open() {
            folder.remove_file(&self.name).ok();
        }
    }
}

/// Writes output to its spill file once it exceeds the limit.
struct SpillWriter {
    file: SpillFile,
    limit: usize,
    state: SpillState,
    written: u64,
}

enum SpillState {
    /// All bytes so far, which do not exceed the limit.
    Small(Vec<u8>),
    Open(File),
    Full,
    Failed(io::Error),
}

impl SpillWriter {
    fn new(file: SpillFile, limit: usize) -> Self {
        Self { file, limit, state: SpillState::Small(Vec::new()), written: 0 }
    }

    async fn push(&mut self, bytes: &[u8]) {
        let place = self.file.clone();
        match std::mem::replace(&mut self.state, SpillState::Full) {
            SpillState::Small(mut held) => {
                held.extend_from_slice(bytes);
                if held.len() <= self.limit {
                    self.state = SpillState::Small(held);
                    return;
                }
                self.written = held.len() as u64;
                self.state = write_blocking(place, move |place| {
                    let mut file = place.create()?;
                    file.write_all(&held)?;
                    Ok(file)
                })
                .await;
            }
            SpillState::Open(mut file) => {
                let room = usize::try_from(SPILL_LIMIT - self.written).unwrap_or(usize::MAX);
                let fits = bytes[..bytes.len().min(room)].to_vec();
                self.written += fits.len() as u64;
                let is_full = fits.len() < bytes.len();
                self.state =
                    write_blocking(place, move |_| file.write_all(&fits).map(|()| file)).await;
                if is_full && matches!(self.state, SpillState::Open(_)) {
                    self.state = SpillState::Full;
                }
            }
            ended @ (SpillState::Full | SpillState::Failed(_)) => self.state = ended,
        }
    }

    fn finish(self) -> (Option<PathBuf>, Option<String>) {
        match self.state {
            SpillState::Small(_) => (None, None),
            SpillState::Open(_) => (Some(self.file.path()), None),
            SpillState::Full => {
                (Some(self.file.path()), Some(format!("only the first {SPILL_LIMIT} bytes")))
            }
            SpillState::Failed(error) => {
                (None, Some(format!("the full output could not be kept: {error}")))
            }
        }
    }
}

/// Writes on a blocking thread. A file that could not be written completely is removed.
async fn write_blocking(
    place: SpillFile,
    work: impl FnOnce(&SpillFile) -> io::Result<File> + Send + 'static,
) -> SpillState {
    let work = move || work(&place).inspect_err(|_| place.remove());
    match blocking::run_blocking(work).await {
        Ok(Ok(file)) => SpillState::Open(file),
        Ok(Err(error)) => SpillState::Failed(error),
        Err(error) => SpillState::Failed(io::Error::other(error)),
    }
}

/// The file name for a call id, which comes from the Provider: only safe characters are kept.
fn file_stem(call_id: &str) -> String {
    let harmless = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let stem: String = call_id.chars().take(100).map(harmless).collect();
    if stem.is_empty() { "call".to_owned() } else { stem }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::id::SessionId;
    use crate::record::event::{Bus, Ephemeral, EventKind, ListenFrom, ListenerItem};
    use crate::record::state_dir::StateRoot;

    /// Pushes chunks; returns the live chunks that a listener received, and the result.
    fn collect_output(secrets: &Secrets, chunks: &[&[u8]]) -> (Vec<String>, CapturedOutput) {
        let folder = tempfile::tempdir().unwrap();
        collect_output_in(folder.path(), secrets, chunks)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn collect_output_in(
        folder: &Path,
        secrets: &Secrets,
        chunks: &[&[u8]],
    ) -> (Vec<String>, CapturedOutput) {
        let bus = Bus::new(SessionId::mint(), 0);
        let mut listener = bus.listen(ListenFrom::Now, Arc::new(|_| Box::pin(async { None })));
        let call_id = CallId::new("call");
        let session_folder = StateRoot::in_workspace(folder).session_folder(&SessionId::mint());
        let spill = SpillFile::for_call(&session_folder, &call_id);
        let target = OutputTarget { signals: ToolEvents::to_bus(bus), call_id, spill };
        runtime().block_on(async {
            let mut output = OutputCollector::new(target, secrets, 16 * 1024);
            for chunk in chunks {
                output.push(chunk).await;
            }
            let collected = output.finish().await;
            let mut pieces = Vec::new();
            while let Some(ListenerItem::Event(event)) = listener.next().await {
                if let EventKind::Ephemeral(Ephemeral::ToolOutputDelta { chunk, .. }) = event.kind()
                {
                    pieces.push(chunk.clone());
                }
            }
            (pieces, collected)
        })
    }

    #[test]
    fn live_pieces_are_plain_whole_characters_without_secrets() {
        let secrets = Secrets::new([("KEY".to_owned(), "hidden-value".to_owned())]);
        let chunks: [&[u8]; 4] = [b"\x1b[1mcaf\xc3", b"\xa9 hidden", b"-value", b" end"];
        let (pieces, collected) = collect_output(&secrets, &chunks);
        assert_eq!(pieces.concat(), "café [redacted:KEY] end");
        assert_eq!(collected.bounded.text, "café [redacted:KEY] end");
    }

    #[test]
    fn nothing_inside_a_secret_hides_it() {
        let secrets = Secrets::new([("KEY".to_owned(), "hidden-value".to_owned())]);
        let long = vec![b'x'; 20_000];
        let chunks: [&[u8]; 6] = [
            b"hid\x1b[1mden-",
            b"val\x07ue\n",
            b"hidden\x00-value\n",
            b"hidden-\x1b]0;t",
            b"\x07value\n",
            &long,
        ];
        let folder = tempfile::tempdir().unwrap();
        let (pieces, collected) = collect_output_in(folder.path(), &secrets, &chunks);
        let expected = "[redacted:KEY]\n".repeat(3);
        assert!(pieces.concat().starts_with(&expected), "{:.100}", pieces.concat());
        assert!(collected.bounded.text.starts_with(&expected));
        let spilled = std::fs::read_to_string(collected.spill.unwrap()).unwrap();
        assert!(spilled.starts_with(&expected) && spilled.len() as u64 == collected.total_bytes);
    }

    #[test]
    fn a_full_disk_leaves_no_file_that_claims_to_be_the_output() {
        if std::fs::OpenOptions::new().write(true).open("/dev/full").is_err() {
            io::stderr().write_all(b"skipped: there is no /dev/full\n").unwrap();
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output.txt");
        let place = SpillFile::new(StatePath::root(folder.path()), "output.txt".to_owned());
        let mut spill = SpillWriter::new(place, 10);
        runtime.block_on(spill.push(&[b'x'; 11]));
        assert!(path.exists());
        spill.state = SpillState::Open(File::options().write(true).open("/dev/full").unwrap());
        runtime.block_on(spill.push(b"more"));
        let (kept, note) = spill.finish();
        assert_eq!(kept, None);
        assert!(note.unwrap().contains("could not be kept") && !path.exists());
    }

    #[test]
    fn a_flood_is_cut_into_small_pieces_and_stops_with_a_word() {
        let flood = vec![b'x'; 1 << 20];
        let chunks = [&flood[..], &flood, &flood];
        let (pieces, collected) = collect_output(&Secrets::default(), &chunks);
        assert!(pieces.iter().all(|piece| piece.len() <= LIVE_CHUNK));
        let shown_bytes: usize = pieces.iter().map(String::len).sum();
        assert!(shown_bytes < LIVE_LIMIT + LIVE_CHUNK, "{shown_bytes}");
        assert!(pieces.last().unwrap().contains("no more live output"));
        assert_eq!(collected.total_bytes, 3 << 20);
    }

    #[test]
    fn many_small_writes_are_few_pieces() {
        let chunks = vec![&b"x"[..]; 5000];
        let (pieces, _) = collect_output(&Secrets::default(), &chunks);
        assert_eq!(pieces.concat().len(), 5000);
        assert!(pieces.len() < 500, "{} pieces", pieces.len());
    }

    #[test]
    fn a_hostile_call_id_stays_in_its_folder() {
        assert_eq!(file_stem("../../etc/passwd"), "______etc_passwd");
        assert_eq!(file_stem(""), "call");
        assert_eq!(file_stem("call_A-1"), "call_A-1");
    }
}
