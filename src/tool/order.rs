//! The order: what a supervisor is to run, as bytes in a pipe.
//!
//! Not JSON, because folders, commands and variables need not be UTF-8.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// An order larger than this is not one of ours.
pub const LARGEST_ORDER: usize = 64 << 20;

/// What to run, sent once as a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub directory: OsString,
    pub shell: OsString,
    pub command: OsString,
    pub drain: Duration,
    pub environment: Vec<(OsString, OsString)>,
}

impl Order {
    /// Four length bytes and the fields, each ended by NUL. No field can hold a NUL: none of them
    /// could be given to a process then.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let drain = self.drain.as_millis().to_string();
        let mut body = Vec::new();
        let mut field = |bytes: &[u8]| {
            body.extend_from_slice(bytes);
            body.push(0);
            !bytes.contains(&0)
        };
        let mut sound = field(self.directory.as_bytes());
        sound &= field(self.shell.as_bytes());
        sound &= field(self.command.as_bytes());
        sound &= field(drain.as_bytes());
        for (name, value) in &self.environment {
            sound &= field(&[name.as_bytes(), b"=", value.as_bytes()].concat());
        }
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LARGEST_ORDER);
        let Some(length) = length.filter(|_| sound) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok([&length.to_le_bytes()[..], &body].concat())
    }

    /// Sets a variable of the command, whatever it was.
    pub fn set(&mut self, name: impl AsRef<OsStr>, value: OsString) {
        let name = name.as_ref();
        self.environment.retain(|(own, _)| own != name);
        self.environment.push((name.to_owned(), value));
    }

    /// Reads the fields back.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = body.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let mut field = || fields.next().map(|bytes| OsStr::from_bytes(bytes).to_owned());
        let (directory, shell, command) = (field()?, field()?, field()?);
        let drain = Duration::from_millis(field()?.to_str()?.parse().ok()?);
        let environment = fields
            .map(|pair| {
                let equals = memchr::memchr(b'=', pair)?;
                let (name, value) = (&pair[..equals], &pair[equals + 1..]);
                Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value).to_owned()))
            })
            .collect::<Option<_>>()?;
        Some(Self { directory, shell, command, drain, environment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_pipe_with_odd_bytes() {
        let odd = OsStr::from_bytes(b"caf\xe9 = \n").to_owned();
        let order = Order {
            directory: odd.clone(),
            shell: "/bin/bash".into(),
            command: "echo \"$X\"\n".into(),
            drain: Duration::from_millis(100),
            environment: vec![("X".into(), odd), ("EMPTY".into(), "".into())],
        };
        let frame = order.encode().unwrap();
        let length = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
        assert_eq!(length, frame.len() - 4);
        assert_eq!(Order::decode(&frame[4..]), Some(order.clone()));
        let nul = Order { command: OsStr::from_bytes(b"a\0b").to_owned(), ..order };
        assert!(nul.encode().is_err());
    }
}
