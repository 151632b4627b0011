//! Heads: what is written before a body, and what is read before one.

use bytes::{BufMut, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use httparse::Status;

use super::NetworkError;
use super::body::Framing;
use super::line::broken;

/// The longest head of an answer, in bytes; and how many headers it may have.
pub const LONGEST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 200;
/// How many heads a server may say in advance of its answer.
pub const MOST_IN_ADVANCE: usize = 100;

/// What an answer says before its body.
#[derive(Debug)]
pub struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub framing: Framing,
    /// Whether the connection can be used again once the body was read.
    pub may_stay: bool,
}

/// Writes the head of a request.
pub fn write(method: &Method, target: &str, headers: &HeaderMap, length: usize) -> BytesMut {
    let mut text = BytesMut::with_capacity(1024);
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        text.put_slice(part.as_bytes());
    }
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            text.put_slice(part);
        }
    }
    if length > 0 || *method == Method::POST {
        text.put_slice(format!("content-length: {length}\r\n").as_bytes());
    }
    text.put_slice(b"\r\n");
    text
}

/// Reads the head of an answer and takes it off the buffer; `None` while it is not all there.
/// What a server says in advance, such as "100 Continue", is skipped and counted: one that says
/// nothing else would never be done.
pub fn read(
    method: &Method,
    buffer: &mut BytesMut,
    in_advance: &mut usize,
) -> Result<Option<Head>, NetworkError> {
    loop {
        let mut space = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut answer = httparse::Response::new(&mut space);
        let parsed = answer.parse(buffer);
        let length = match parsed.map_err(|error| broken(&format!("no HTTP answer: {error}")))? {
            Status::Complete(length) if length <= LONGEST_HEAD => length,
            Status::Partial if buffer.len() < LONGEST_HEAD => return Ok(None),
            Status::Complete(_) | Status::Partial => {
                return Err(broken("the head of the answer has no end"));
            }
        };
        let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or_else(|| broken("the answer has no status"))?;
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            drop(buffer.split_to(length));
            *in_advance += 1;
            if *in_advance > MOST_IN_ADVANCE {
                return Err(broken(
                    "the server announces an answer again and again, and gives none",
                ));
            }
            continue;
        }
        let is_1_1 = answer.version == Some(1);
        let headers = kept(answer.headers)?;
        let head = judge(method, status, headers, is_1_1)?;
        drop(buffer.split_to(length));
        return Ok(Some(head));
    }
}

fn kept(headers: &[httparse::Header<'_>]) -> Result<HeaderMap, NetworkError> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for header in headers {
        let odd = || broken("a header of the answer cannot be read");
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| odd())?;
        map.append(name, HeaderValue::from_bytes(header.value).map_err(|_| odd())?);
    }
    Ok(map)
}

/// How long the body is, by the rules of RFC 9112, section 6.3.
fn judge(
    method: &Method,
    status: StatusCode,
    headers: HeaderMap,
    is_1_1: bool,
) -> Result<Head, NetworkError> {
    let says = |word: &str| {
        let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|own| own.trim().eq_ignore_ascii_case(word))
    };
    let mut may_stay = if is_1_1 { !says("close") } else { says("keep-alive") };
    let becomes_bare = status == StatusCode::SWITCHING_PROTOCOLS
        || *method == Method::CONNECT && status.is_success();
    let is_empty =
        becomes_bare || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let framing = if is_empty {
        may_stay &= !becomes_bare;
        Framing::Length(0)
    } else if headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let is_chunked = codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
            && headers.get_all(TRANSFER_ENCODING).iter().count() == 1;
        if !is_chunked || !is_1_1 {
            return Err(broken("the answer is encoded in a way that nobody asked for"));
        }
        // Two lengths are one too many: somebody between may have counted otherwise.
        may_stay &= !headers.contains_key(CONTENT_LENGTH);
        Framing::chunked()
    } else if headers.contains_key(CONTENT_LENGTH) {
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
        let first = lengths.next().unwrap_or_default();
        let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok());
        match number.filter(|_| is_number && lengths.all(|other| other == first)) {
            Some(length) => Framing::Length(length),
            None => return Err(broken("the length of the answer cannot be read")),
        }
    } else {
        may_stay = false;
        Framing::ToEnd
    };
    Ok(Head { status, headers, framing, may_stay })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Result<Option<(u16, Framing, bool)>, NetworkError> {
        let head = read(&Method::POST, &mut BytesMut::from(text), &mut 0)?;
        Ok(head.map(|head| (head.status.as_u16(), head.framing, head.may_stay)))
    }

    #[test]
    fn a_head_says_how_its_body_ends() {
        for (version, lines, framing, may_stay) in [
            ("1.1 200", "content-length: 5", Framing::Length(5), true),
            ("1.1 200", "content-length: 5\r\ncontent-length: 5", Framing::Length(5), true),
            (
                "1.1 200",
                "Connection: keep-alive, Close\r\ncontent-length: 5",
                Framing::Length(5),
                false,
            ),
            ("1.0 200", "content-length: 5", Framing::Length(5), false),
            ("1.0 200", "connection: Keep-Alive\r\ncontent-length: 5", Framing::Length(5), true),
            ("1.1 200", "transfer-encoding: Chunked", Framing::chunked(), true),
            (
                "1.1 200",
                "transfer-encoding: chunked\r\ncontent-length: 5",
                Framing::chunked(),
                false,
            ),
            ("1.1 200", "x: y", Framing::ToEnd, false),
            ("1.1 204", "x: y", Framing::Length(0), true),
            ("1.1 304", "content-length: 5", Framing::Length(0), true),
            ("1.1 101", "upgrade: websocket", Framing::Length(0), false),
        ] {
            let text = format!("HTTP/{version} Fine\r\n{lines}\r\n\r\n");
            let (_, found, stays) = read_all(&text).unwrap().unwrap();
            assert_eq!((found, stays), (framing, may_stay), "{text}");
        }
    }

    #[test]
    fn an_odd_head_is_refused_and_half_a_one_is_waited_for() {
        for lines in [
            "content-length: +5",
            "content-length: 5, 5",
            "content-length: 5\r\ncontent-length: 6",
            "content-length: 99999999999999999999",
            "content-length:",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "no colon",
        ] {
            assert!(read_all(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n")).is_err(), "{lines}");
        }
        assert!(read_all("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(read_all("HTTP/2 200\r\n\r\n").is_err());
        let whole = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        for cut in 0..whole.len() {
            assert!(read_all(&whole[..cut]).unwrap().is_none(), "{cut}");
        }
        assert_eq!(read_all(whole).unwrap().unwrap().0, 200);
    }

    #[test]
    fn a_request_is_written_with_its_length() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("h"));
        let text = |method: &Method, length| write(method, "/p?q", &headers, length);
        assert_eq!(text(&Method::GET, 0), "GET /p?q HTTP/1.1\r\nhost: h\r\n\r\n");
        let post = "POST /p?q HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(text(&Method::POST, 0), post);
    }
}
