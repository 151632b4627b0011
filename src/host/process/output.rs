//! Output of a command: live to listeners, bounded for the model, and complete in a file.
//!
//! Each way strips escape sequences first and removes Secrets then, so that an escape sequence or
//! control byte inside a Secret does not hide it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::blocking;
use crate::base::files::StateFolder;
use crate::base::id::CallId;
use crate::base::secret::{Cleaner, Secrets};
use crate::base::text::bounded::{Bounded, HeadTail};
use crate::base::text::strip_ansi::{Plain, Returns};
use crate::host::process::output_buffer::Ring;
use crate::record::event::Signals;
use crate::record::state_dir::SessionFolder;

/// How many bytes of one command are shown live; the rest is only in the file.
const LIVE_LIMIT: usize = 1 << 20;
/// The largest live chunk, in bytes.
const LIVE_CHUNK: usize = 8 * 1024;
/// The minimum time between live chunks.
const LIVE_INTERVAL: Duration = Duration::from_millis(25);
/// The name of the folder with spilled output beside a Log.
pub const FOLDER: &str = "output";
/// The maximum size of a spill file, in bytes.
const SPILL_LIMIT: u64 = 512 << 20;

/// The destinations of a call's output: the listeners of its Session, and a file if it is long.
pub struct OutputTarget {
    pub signals: Signals,
    pub call_id: CallId,
    pub spill: SpillFile,
}

/// Collects a command's output as it arrives.
pub struct Output<'a> {
    plain: Plain,
    cleaner: Cleaner<'a>,
    collected: HeadTail,
    live: Live<'a>,
    spill: Spill,
    /// The buffer of a background command.
    ring: Option<&'a Ring>,
}

/// The output of a command that has ended.
#[derive(Debug)]
pub struct Collected {
    pub bounded: Bounded,
    pub total_bytes: u64,
    pub spill: Option<PathBuf>,
    /// A note if the file is incomplete or could not be written.
    pub spill_note: Option<String>,
}

impl Collected {
    /// The lines for the model with the path of the full output, and the note about that file.
    pub fn file_notes(&self) -> Vec<String> {
        let bytes = self.total_bytes;
        let path = self.spill.as_ref().map(|path| path.display());
        let file = path.map(|path| format!("[full output, {bytes} bytes: {path}]"));
        let note = self.spill_note.as_ref().map(|note| format!("[{note}]"));
        file.into_iter().chain(note).collect()
    }
}

impl<'a> Output<'a> {
    /// A collector for a call; `limit` bytes of output reach the model.
    pub fn new(target: OutputTarget, secrets: &'a Secrets, limit: usize) -> Self {
        let live = Live::new(target.signals, target.call_id, secrets);
        Self { live, ..Self::silent(target.spill, secrets, limit) }
    }

    /// A collector without live output.
    pub fn silent(spill: SpillFile, secrets: &'a Secrets, limit: usize) -> Self {
        let nobody = CallId::new("");
        Self {
            plain: Plain::new(Returns::KeepLast),
            cleaner: Cleaner::new(secrets),
            collected: HeadTail::new(limit),
            live: Live::new(Signals::nowhere(), nobody, secrets),
            spill: Spill::new(spill, limit),
            ring: None,
        }
    }

    /// A collector for a background command, which also fills an [`OutputBuffer`]. An unfinished line may
    /// be a prompt that waits for input, so it is not held back.
    pub fn tapped(
        target: OutputTarget,
        secrets: &'a Secrets,
        limit: usize,
        ring: &'a Ring,
    ) -> Self {
        let plain = Plain::new(Returns::Break);
        Self { plain, ring: Some(ring), ..Self::new(target, secrets, limit) }
    }

    /// Appends a chunk.
    pub async fn push(&mut self, chunk: &[u8]) {
        self.live.push(chunk);
        let mut text = String::new();
        self.plain.push(chunk, &mut text);
        let cleaned = self.cleaner.push(text.as_bytes());
        self.collected.push(&cleaned);
        self.spill.push(&cleaned).await;
        self.tap(&cleaned);
    }

    /// Appends to the buffer of a background command; the path of the file first, so that it can be named.
    fn tap(&self, cleaned: &[u8]) {
        let Some(ring) = self.ring else { return };
        if let SpillState::Open(_) | SpillState::Full = self.spill.state {
            ring.spilled(self.spill.file.path());
        }
        ring.push(cleaned);
    }

    /// When the pending live output should be emitted, if there is any.
    pub fn due(&self) -> Option<Instant> {
        self.live.due()
    }

    /// Emits the pending live output.
    pub fn tell(&mut self) {
        self.live.tell();
    }

    /// Ends the stream and returns the collected output.
    pub async fn finish(mut self) -> Collected {
        self.live.finish();
        let mut text = String::new();
        self.plain.finish(&mut text);
        let mut held = self.cleaner.push(text.as_bytes()).into_owned();
        held.extend(self.cleaner.finish());
        self.collected.push(&held);
        self.spill.push(&held).await;
        self.tap(&held);
        let total_bytes = self.collected.total_bytes();
        let (spill, spill_note) = self.spill.finish();
        Collected { bounded: self.collected.finish(), total_bytes, spill, spill_note }
    }
}

/// Live output: plain text in small chunks, rate-limited, up to [`LIVE_LIMIT`].
struct Live<'a> {
    signals: Signals,
    call_id: CallId,
    plain: Plain,
    cleaner: Cleaner<'a>,
    pending: String,
    told: usize,
    last: Option<Instant>,
}

impl<'a> Live<'a> {
    fn new(signals: Signals, call_id: CallId, secrets: &'a Secrets) -> Self {
        let (plain, cleaner) = (Plain::new(Returns::Break), Cleaner::new(secrets));
        Self { signals, call_id, plain, cleaner, pending: String::new(), told: 0, last: None }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.told >= LIVE_LIMIT {
            return;
        }
        let mut text = String::new();
        self.plain.push(bytes, &mut text);
        self.pending.push_str(&String::from_utf8_lossy(&self.cleaner.push(text.as_bytes())));
        let quiet = self.last.is_none_or(|last| last.elapsed() >= LIVE_INTERVAL);
        if quiet || self.pending.len() >= LIVE_CHUNK {
            self.tell();
        }
    }

    fn due(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then(|| self.last.map(|last| last + LIVE_INTERVAL)).flatten()
    }

    fn tell(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_str();
        while !rest.is_empty() && self.told < LIVE_LIMIT {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(LIVE_CHUNK));
            self.told += piece.len();
            self.signals.output(&self.call_id, piece.to_owned());
            rest = after;
            if self.told >= LIVE_LIMIT {
                let notice = "\n[… no more live output of this command …]\n";
                self.signals.output(&self.call_id, notice.to_owned());
            }
        }
        self.last = Some(Instant::now());
    }

    fn finish(&mut self) {
        if self.told < LIVE_LIMIT {
            let mut text = String::new();
            self.plain.finish(&mut text);
            let rest = [&*self.cleaner.push(text.as_bytes()), &self.cleaner.finish()].concat();
            self.pending.push_str(&String::from_utf8_lossy(&rest));
            self.tell();
        }
    }
}

/// The file for output that does not fit, not created yet.
#[derive(Debug, Clone)]
pub struct SpillFile {
    folder: StateFolder,
    name: String,
}

impl SpillFile {
    /// The file with this name in a folder that is created when needed.
    pub fn new(folder: StateFolder, name: String) -> Self {
        Self { folder, name }
    }

    /// The file for the output of a call, in the folder of its Session.
    pub fn for_call(session_folder: &SessionFolder, call_id: &CallId) -> Self {
        let name = format!("{}.txt", file_stem(call_id.as_str()));
        Self::new(session_folder.join(FOLDER), name)
    }

    /// The file beside a folder with the folder's name and another extension.
    pub fn beside(folder: &Path, ending: &str) -> Self {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let around = folder.parent().unwrap_or(folder);
        Self { folder: StateFolder::root(around), name: format!("{name}.{ending}") }
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

/// Writes output to its spill file once it does not fit.
struct Spill {
    file: SpillFile,
    limit: usize,
    state: SpillState,
    written: u64,
}

enum SpillState {
    /// All bytes so far, which still fit.
    Small(Vec<u8>),
    Open(File),
    Full,
    Failed(io::Error),
}

impl Spill {
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
                self.state = on_disk(place, move |place| {
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
                self.state = on_disk(place, move |_| file.write_all(&fits).map(|()| file)).await;
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
                (Some(self.file.path()), Some(format!("only its first {SPILL_LIMIT} bytes")))
            }
            SpillState::Failed(error) => {
                (None, Some(format!("the full output could not be kept: {error}")))
            }
        }
    }
}

/// Writes on a blocking thread. A file that could not be written completely is removed.
async fn on_disk(
    place: SpillFile,
    work: impl FnOnce(&SpillFile) -> io::Result<File> + Send + 'static,
) -> SpillState {
    let work = move || work(&place).inspect_err(|_| place.remove());
    match blocking::work(work).await {
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
    use crate::record::event::{Bus, Ephemeral, EventKind, From, Heard};
    use crate::record::state_dir::StateRoot;

    /// Pushes chunks; returns the live chunks that a listener received, and the result.
    fn heard(secrets: &Secrets, chunks: &[&[u8]]) -> (Vec<String>, Collected) {
        let folder = tempfile::tempdir().unwrap();
        heard_in(folder.path(), secrets, chunks)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn heard_in(folder: &Path, secrets: &Secrets, chunks: &[&[u8]]) -> (Vec<String>, Collected) {
        let bus = Bus::new(SessionId::mint(), 0);
        let mut listener = bus.listen(From::Now, Arc::new(|_| Box::pin(async { None })));
        let call_id = CallId::new("call");
        let session_folder = StateRoot::in_workspace(folder).session_folder(&SessionId::mint());
        let spill = SpillFile::for_call(&session_folder, &call_id);
        let target = OutputTarget { signals: Signals::to(bus), call_id, spill };
        runtime().block_on(async {
            let mut output = Output::new(target, secrets, 16 * 1024);
            for chunk in chunks {
                output.push(chunk).await;
            }
            let collected = output.finish().await;
            let mut pieces = Vec::new();
            while let Some(Heard::Event(event)) = listener.next().await {
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
        let (pieces, collected) = heard(&secrets, &chunks);
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
        let (pieces, collected) = heard_in(folder.path(), &secrets, &chunks);
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
        let place = SpillFile::new(StateFolder::root(folder.path()), "output.txt".to_owned());
        let mut spill = Spill::new(place, 10);
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
        let (pieces, collected) = heard(&Secrets::default(), &chunks);
        assert!(pieces.iter().all(|piece| piece.len() <= LIVE_CHUNK));
        let told: usize = pieces.iter().map(String::len).sum();
        assert!(told < LIVE_LIMIT + LIVE_CHUNK, "{told}");
        assert!(pieces.last().unwrap().contains("no more live output"));
        assert_eq!(collected.total_bytes, 3 << 20);
    }

    #[test]
    fn many_small_writes_are_few_pieces() {
        let chunks = vec![&b"x"[..]; 5000];
        let (pieces, _) = heard(&Secrets::default(), &chunks);
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
