//! Protocol from Pixir to a supervisor: the request to run a command, as a length-prefixed frame.
//!
//! Not JSON, because folders, commands and variables need not be UTF-8.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The maximum size of a frame; larger ones are refused.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// The size of the length prefix of a frame, in bytes; descriptors are sent with the prefix.
pub const LENGTH_PREFIX: usize = 4;

/// A request to run a command, sent as one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisorRequest {
    pub directory: OsString,
    pub shell: OsString,
    pub command: OsString,
    pub drain: Duration,
    pub environment: Vec<(OsString, OsString)>,
}

impl SupervisorRequest {
    /// Encodes the request as one frame. A field with a NUL is refused, because no process can receive it.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let variable = |(name, value): &(OsString, OsString)| {
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            pair
        };
        let drain = self.drain.as_millis().to_string().into();
        let fields = [self.directory.clone(), self.shell.clone(), self.command.clone(), drain];
        encode_frame(fields.into_iter().chain(self.environment.iter().map(variable)))
    }

    /// Sets or replaces a variable of the command's environment.
    pub fn set_variable(&mut self, name: impl AsRef<OsStr>, value: OsString) {
        let name = name.as_ref();
        self.environment.retain(|(own, _)| own != name);
        self.environment.push((name.to_owned(), value));
    }

    /// Parses the body of a frame.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = decode_fields(body)?.into_iter();
        let directory = fields.next()?;
        let shell = fields.next()?;
        let command = fields.next()?;
        let drain = Duration::from_millis(fields.next()?.to_str()?.parse().ok()?);
        let environment = fields
            .map(|pair| {
                let pair = pair.as_bytes();
                let equals = memchr::memchr(b'=', pair)?;
                let (name, value) = (&pair[..equals], &pair[equals + 1..]);
                Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value).to_owned()))
            })
            .collect::<Option<_>>()?;
        Some(Self { directory, shell, command, drain, environment })
    }
}

/// Encodes a frame: four length bytes and the fields, each ended by NUL. A field with a NUL is refused.
pub fn encode_frame(fields: impl IntoIterator<Item = OsString>) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; LENGTH_PREFIX];
    for field in fields {
        let bytes = field.as_bytes();
        if bytes.contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        frame.extend_from_slice(bytes);
        frame.push(0);
    }
    let body = frame.len() - LENGTH_PREFIX;
    let length = u32::try_from(body).ok().filter(|_| body <= MAX_FRAME_BYTES);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    frame[..LENGTH_PREFIX].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// The length of a frame's body, from its length prefix.
pub fn frame_length(bytes: [u8; LENGTH_PREFIX]) -> io::Result<usize> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > MAX_FRAME_BYTES { Err(io::ErrorKind::InvalidData.into()) } else { Ok(length) }
}

/// The fields of a frame's body.
pub fn decode_fields(body: &[u8]) -> Option<Vec<OsString>> {
    if body.is_empty() {
        return Some(Vec::new());
    }
    let fields = body.strip_suffix(&[0])?.split(|byte| *byte == 0);
    Some(fields.map(|bytes| OsStr::from_bytes(bytes).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_round_trips_with_non_utf8_bytes() {
        let odd = OsStr::from_bytes(b"caf\xe9 = \n").to_owned();
        let request = SupervisorRequest {
            directory: odd.clone(),
            shell: "/bin/bash".into(),
            command: "echo \"$X\"\n".into(),
            drain: Duration::from_millis(100),
            environment: vec![("X".into(), odd), ("EMPTY".into(), "".into())],
        };
        let frame = request.encode().unwrap();
        let length = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
        assert_eq!(length, frame.len() - 4);
        assert_eq!(SupervisorRequest::decode(&frame[4..]), Some(request.clone()));
        let nul = SupervisorRequest { command: OsStr::from_bytes(b"a\0b").to_owned(), ..request };
        assert!(nul.encode().is_err());
    }
}
