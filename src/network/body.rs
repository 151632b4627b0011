//! Bodies: where one ends, and what of the bytes on a wire belongs to it.
//!
//! A model that streams sends a chunk per word. All chunks that have come are taken out of their
//! wrapping in one go, so that whoever reads sees one piece and not hundreds.

use bytes::{Buf, Bytes, BytesMut};

/// How much may stand beside the data of a chunked body: extensions and trailers, in bytes.
const CLUTTER: usize = 16 * 1024;

/// How a body ends, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Framing {
    /// After so many more bytes.
    Length(u64),
    /// With its last chunk.
    Chunked { at: Chunk, clutter: usize },
    /// With the connection.
    ToEnd,
}

/// A place in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// In the number, with its value so far.
    Size(Option<u64>),
    /// Behind the number, where nothing is of interest.
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a line behind the last chunk.
    Trailers,
    Trailer,
    LastLf,
    Over,
}

impl Framing {
    pub fn chunked() -> Self {
        Self::Chunked { at: Chunk::Size(None), clutter: 0 }
    }

    /// Whether the whole body was taken.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked { at: Chunk::Over, .. })
    }

    /// Takes what belongs to the body off the buffer; may be nothing.
    pub fn take(&mut self, buffer: &mut BytesMut) -> Result<Bytes, &'static str> {
        match self {
            Self::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                *left -= count as u64;
                Ok(copied(buffer, count))
            }
            Self::ToEnd => Ok(copied(buffer, buffer.len())),
            Self::Chunked { at, clutter } => {
                let mut data = Vec::with_capacity(buffer.len());
                let mut rest = &buffer[..];
                while *at != Chunk::Over && !rest.is_empty() {
                    *at = at.step(&mut rest, &mut data, clutter)?;
                }
                let left = rest.len();
                buffer.advance(buffer.len() - left);
                Ok(data.into())
            }
        }
    }
}

/// The buffer itself is never shared, so that it can be filled again.
fn copied(buffer: &mut BytesMut, count: usize) -> Bytes {
    let data = Bytes::copy_from_slice(&buffer[..count]);
    buffer.advance(count);
    data
}

impl Chunk {
    /// One step: the data of a chunk, or one byte around it.
    fn step(
        self,
        rest: &mut &[u8],
        data: &mut Vec<u8>,
        clutter: &mut usize,
    ) -> Result<Self, &'static str> {
        if let Self::Data(left) = self {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            data.extend_from_slice(&rest[..count]);
            *rest = &rest[count..];
            let left = left - count as u64;
            return Ok(if left == 0 { Self::DataCr } else { Self::Data(left) });
        }
        let Some((byte, others)) = rest.split_first() else { return Ok(self) };
        *rest = others;
        let mut skip = |next: Self| {
            *clutter += 1;
            if *clutter > CLUTTER { Err("a chunk is wrapped in too much") } else { Ok(next) }
        };
        match (self, *byte) {
            (Self::Size(value), byte) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                let value = value.unwrap_or(0);
                if value >> 60 != 0 {
                    return Err("a chunk is larger than anything");
                }
                Ok(Self::Size(Some(value << 4 | digit)))
            }
            (Self::Size(Some(size)) | Self::Extension(size), b'\r') => Ok(Self::SizeLf(size)),
            (Self::Size(Some(size)), b' ' | b'\t' | b';') => skip(Self::Extension(size)),
            (Self::Extension(size), byte) if byte != b'\n' => skip(Self::Extension(size)),
            (Self::SizeLf(0), b'\n') => Ok(Self::Trailers),
            (Self::SizeLf(size), b'\n') => Ok(Self::Data(size)),
            (Self::DataCr, b'\r') => Ok(Self::DataLf),
            (Self::DataLf, b'\n') => Ok(Self::Size(None)),
            (Self::Trailers, b'\r') => Ok(Self::LastLf),
            (Self::Trailer, b'\n') => skip(Self::Trailers),
            (Self::Trailers | Self::Trailer, byte) if byte != b'\n' => skip(Self::Trailer),
            (Self::LastLf, b'\n') => Ok(Self::Over),
            _ => Err("a chunk is not wrapped as it should be"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The body, whether it is over, and what is left behind it.
    fn take(
        framing: &mut Framing,
        pieces: &[&[u8]],
    ) -> Result<(String, bool, String), &'static str> {
        let (mut body, mut buffer) = (Vec::new(), BytesMut::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            body.extend_from_slice(&framing.take(&mut buffer)?);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&body), framing.is_over(), text(&buffer)))
    }

    fn dechunked(stream: &str) -> Result<(String, bool, String), &'static str> {
        take(&mut Framing::chunked(), &[stream.as_bytes()])
    }

    #[test]
    fn a_body_is_taken_and_what_follows_is_left() {
        let done = |body: &str, rest: &str| Ok((body.to_owned(), true, rest.to_owned()));
        assert_eq!(take(&mut Framing::Length(3), &[b"ab", b"cd"]), done("abc", "d"));
        assert_eq!(take(&mut Framing::Length(0), &[b"x"]), done("", "x"));
        assert_eq!(
            take(&mut Framing::ToEnd, &[b"ab", b"cd"]),
            Ok(("abcd".to_owned(), false, String::new()))
        );
        assert_eq!(
            dechunked("3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nHTTP"),
            done("abc0123456789", "HTTP")
        );
        assert_eq!(dechunked("3;a=\"b\"\r\nabc\r\n0 \r\nx: y\r\nz: \r\n\r\n"), done("abc", ""));
        assert_eq!(dechunked("5\r\nab"), Ok(("ab".to_owned(), false, String::new())));
    }

    #[test]
    fn what_is_wrapped_badly_is_refused() {
        for stream in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "3\nabc",
            "3\r\nabcd\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3;a\n",
            "0\r\n\n",
            "0\r\nx\r\n\rx",
            "11111111111111111\r\n",
        ] {
            assert!(dechunked(stream).is_err(), "{stream:?}");
        }
        assert!(dechunked(&format!("1;{}\r\n", "x".repeat(CLUTTER))).is_err());
        assert!(dechunked(&format!("0\r\n{}", "x: y\r\n".repeat(CLUTTER))).is_err());
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            chunks in proptest::collection::vec("[a-z\r\n]{1,40}", 0..20),
            cuts in proptest::collection::vec(1usize..9, 0..200),
        ) {
            let wrap = |text: &String| format!("{:X};e\r\n{text}\r\n", text.len());
            let stream: String = chunks.iter().map(wrap).collect::<String>() + "0\r\nt: u\r\n\r\nrest";
            let mut pieces = Vec::new();
            let mut left = stream.as_bytes();
            for cut in cuts {
                let (piece, tail) = left.split_at(cut.min(left.len()));
                pieces.push(piece);
                left = tail;
            }
            pieces.push(left);
            let found = take(&mut Framing::chunked(), &pieces);
            prop_assert_eq!(found, Ok((chunks.concat(), true, "rest".to_owned())));
        }

        #[test]
        fn nothing_that_comes_makes_it_panic(stream in proptest::collection::vec(any::<u8>(), 0..200)) {
            take(&mut Framing::chunked(), &[&stream]).ok();
        }
    }
}
