//! Blobs: payloads too large for a line, stored in the Session's folder under the hash of their bytes.
//!
//! The line keeps the payload's small fields and a reference, so that calls and results still pair
//! when a blob is lost.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::base::files::WriteDurability;
use crate::base::id::{is_hex, sha256};
use crate::record::state_dir::SessionFolder;

/// A payload of more bytes than this goes to a blob.
pub const LARGEST_INLINE: usize = 256 << 10;

/// The name of the folder of blobs in the Session's folder.
const FOLDER: &str = "blobs";

/// The key of a reference to a blob.
const REFERENCE: &str = "$blob";

/// Text fields up to this many bytes stay in the line.
const SMALL_TEXT: usize = 256;

#[derive(Deserialize)]
struct BlobReference {
    sha256: String,
    bytes: u64,
}

/// The largest payload that is read; written ones are far smaller.
const LARGEST: u64 = 1 << 30;

/// The path of the folder of a Session's blobs.
pub fn blobs_folder(folder: &SessionFolder) -> PathBuf {
    folder.join(FOLDER).path()
}

/// Stores a payload durably, and returns the reference that replaces it in the line.
pub fn store_blob(folder: &SessionFolder, data: &[u8]) -> io::Result<Box<RawValue>> {
    let sha256 = sha256(data);
    let blobs = folder.join(FOLDER).create()?;
    // A blob of that name may be there already, whole or in part.
    let is_stored = |found: Vec<u8>| found == data;
    if !blobs.read(&sha256, data.len() as u64).ok().flatten().is_some_and(is_stored) {
        blobs.replace(&sha256, data, WriteDurability::Synced)?;
    }
    let mut inline = small_fields(data);
    inline.insert(REFERENCE.to_owned(), json!({ "sha256": sha256, "bytes": data.len() }));
    Ok(to_raw_value(&inline)?)
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

/// Fetches the payload that a line refers to; `None` when the line has the whole payload.
pub fn fetch_blob(
    data: &RawValue,
    folder: &SessionFolder,
) -> Result<Option<Box<RawValue>>, String> {
    let Some(reference) = parse_reference(data) else { return Ok(None) };
    if !is_hex(&reference.sha256, 64) {
        return Err("its blob has an invalid name".to_owned());
    }
    let bytes = read_blob(folder, &reference.sha256)
        .map_err(|error| format!("its blob cannot be read: {error}"))?;
    if bytes.len() as u64 != reference.bytes || sha256(&bytes) != reference.sha256 {
        return Err("its blob is not what was written".to_owned());
    }
    let text = String::from_utf8(bytes).map_err(|_| "its blob is not text".to_owned())?;
    RawValue::from_string(text).map(Some).map_err(|_| "its blob is not JSON".to_owned())
}

#[derive(Deserialize)]
struct ReferencePayload {
    #[serde(rename = "$blob")]
    reference: BlobReference,
}

/// A payload without its reference: the fields that remain when the blob is lost.
pub fn without_reference(mut data: Value) -> Option<Box<RawValue>> {
    data.as_object_mut()?.remove(REFERENCE);
    RawValue::from_string(data.to_string()).ok()
}

fn parse_reference(data: &RawValue) -> Option<BlobReference> {
    // Almost no payload has one, so look for the key before parsing anything.
    memchr::memmem::find(data.get().as_bytes(), REFERENCE.as_bytes())?;
    serde_json::from_str::<ReferencePayload>(data.get()).ok().map(|carrier| carrier.reference)
}

fn read_blob(folder: &SessionFolder, name: &str) -> io::Result<Vec<u8>> {
    let blobs = folder.join(FOLDER).open()?;
    let bytes = blobs.map(|blobs| blobs.read(name, LARGEST)).transpose()?.flatten();
    bytes.ok_or_else(|| io::Error::from(rustix::io::Errno::NOENT))
}
