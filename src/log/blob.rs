//! Blobs: payloads too large for a line, stored beside the Log under the hash of their bytes.
//!
//! The line keeps the payload's small fields and a reference, so that calls and results still pair
//! when a blob is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::read::digest;

/// A payload of more bytes than this goes to a blob.
pub const LARGEST_INLINE: usize = 256 << 10;

/// The key that says "the rest is elsewhere".
const REFERENCE: &str = "$blob";

/// Text fields up to this many bytes stay in the line.
const SMALL_TEXT: usize = 256;

#[derive(Deserialize)]
struct Reference {
    sha256: String,
    bytes: u64,
}

/// Stores a payload durably and gives what the line says instead.
pub fn store(folder: &Path, data: &[u8]) -> io::Result<Vec<u8>> {
    let sha256 = digest(data);
    let blobs = folder.join("blobs");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&blobs)?;
    let path = blobs.join(&sha256);
    // A blob of that name may be there already, or be what is left of one.
    if !fs::read(&path).is_ok_and(|found| found == data) {
        let temporary = blobs.join(format!("{sha256}.{:08x}", fastrand::u32(..)));
        let written = write_durably(&temporary, data).and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            fs::remove_file(&temporary).ok();
            return Err(error);
        }
        File::open(&blobs)?.sync_all()?;
    }
    let mut inline = small_fields(data);
    inline.insert(REFERENCE.to_owned(), json!({ "sha256": sha256, "bytes": data.len() }));
    Ok(serde_json::to_vec(&inline)?)
}

fn write_durably(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(data)?;
    file.sync_all()
}

fn small_fields(data: &[u8]) -> Map<String, Value> {
    let Ok(mut fields) = serde_json::from_slice::<Map<String, Value>>(data) else {
        return Map::new();
    };
    fields.retain(|_, value| match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => text.len() <= SMALL_TEXT,
        Value::Array(_) | Value::Object(_) => false,
    });
    fields
}

/// Fetches the payload that a line refers to; `None` when the line has it all.
pub fn fetch(data: &RawValue, folder: &Path) -> Result<Option<Box<RawValue>>, String> {
    let Some(reference) = reference(data) else { return Ok(None) };
    let Some(path) = path(folder, &reference.sha256) else {
        return Err("its blob has no proper name".to_owned());
    };
    let bytes = fs::read(&path).map_err(|error| format!("its blob cannot be read: {error}"))?;
    if bytes.len() as u64 != reference.bytes || digest(&bytes) != reference.sha256 {
        return Err("its blob is not what was written".to_owned());
    }
    let text = String::from_utf8(bytes).map_err(|_| "its blob is not text".to_owned())?;
    RawValue::from_string(text).map(Some).map_err(|_| "its blob is not JSON".to_owned())
}

#[derive(Deserialize)]
struct Carrier {
    #[serde(rename = "$blob")]
    reference: Reference,
}

/// A payload without its reference: what is left of it when the blob is lost.
pub fn forget(mut data: Value) -> Option<Box<RawValue>> {
    data.as_object_mut()?.remove(REFERENCE);
    RawValue::from_string(data.to_string()).ok()
}

fn reference(data: &RawValue) -> Option<Reference> {
    // Almost no payload has one, so look for the key before parsing anything.
    memchr::memmem::find(data.get().as_bytes(), REFERENCE.as_bytes())?;
    serde_json::from_str::<Carrier>(data.get()).ok().map(|carrier| carrier.reference)
}

fn path(folder: &Path, sha256: &str) -> Option<PathBuf> {
    let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| folder.join("blobs").join(sha256))
}
