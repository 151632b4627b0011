//! Redaction of secrets that a server repeats in an error, also in another encoding.
//!
//! Two texts are compared by their letters and digits alone, without case. So one search finds a value that is
//! plain, in other case, broken by blanks or escapes, percent-encoded, and with both alphabets of base64. Servers
//! also shorten a key in the middle, or spread it over fields, so pieces of it are searched for as well. Errors
//! are short and rare; other text is searched for the plain values only.

use std::collections::HashMap;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::Value;

use super::{Secrets, map_strings};

/// The fewest letters and digits of a form; shorter ones may be ordinary words.
const SHORTEST_FORM: usize = 8;

/// The fewest letters and digits of a value that is no ordinary word.
const LONG_KEY: usize = 14;

/// The shortest piece of a value that is redacted; its digits distinguish it from ordinary words.
const SHORTEST_PIECE: usize = 12;

/// The most letters that a cut leaves of an escape, as in `\u004` and `&#x4`.
const LONGEST_HALF_ESCAPE: usize = 4;

/// Replaces values and their encodings; `known` has each value and its replacement.
pub fn redact_echo<'a>(text: &str, known: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let letters = ComparableText::from_text(text);
    let mut pieces = PieceIndex::new(&letters);
    let mut found: Vec<(Range<usize>, &str)> = Vec::new();
    for (value, replacement) in known {
        for SecretForm { letters: form, piece } in secret_forms(value) {
            let whole = letters.find(&form);
            let parts = piece.map(|length| pieces.find(&form, length)).unwrap_or_default();
            found.extend(whole.into_iter().chain(parts).map(|range| (range, replacement)));
        }
    }
    found.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    let mut redacted = String::with_capacity(text.len());
    let mut done = 0;
    for (range, replacement) in found {
        if range.start >= done {
            redacted.push_str(text.get(done..range.start).unwrap_or_default());
            redacted.push_str(replacement);
        }
        done = done.max(range.end);
    }
    redacted.push_str(text.get(done..).unwrap_or_default());
    redacted
}

impl Secrets {
    /// Replaces every known value in the text of a server's error, also encoded or cut at its end.
    pub fn redact_server_error(&self, text: &str) -> String {
        let table = self.table();
        let known = table.known.iter();
        let known = known.map(|known| (known.value.as_str(), known.replacement.as_str()));
        // A value too short for a form is still searched for as it is.
        table.redact(&redact_echo(text, known)).into_owned()
    }

    /// Applies `redact_server_error` to every string of a JSON value, keys included.
    pub fn redact_server_error_value(&self, value: &mut Value) {
        map_strings(value, &|text| self.redact_server_error(text).into());
    }
}

/// One form of a value, as letters and digits.
struct SecretForm {
    letters: Vec<u8>,
    /// How many letters in a row count as a piece; `None` where they may be ordinary words.
    piece: Option<usize>,
}

/// The forms of a value: plain, backwards, hexadecimal, and base64 at each of the three places where it can begin.
fn secret_forms(value: &str) -> Vec<SecretForm> {
    let plain = comparable(value.as_bytes());
    let backwards: Vec<u8> = plain.iter().rev().copied().collect();
    let digits = |byte: &u8| format!("{byte:02x}").into_bytes();
    let hexadecimal = value.as_bytes().iter().flat_map(digits).collect();
    let encoded = (0..3).map(|shift| comparable(&in_base64(value.as_bytes(), shift)));
    let is_mixed =
        plain.iter().any(u8::is_ascii_digit) && plain.iter().any(u8::is_ascii_alphabetic);
    // A placeholder such as `not-needed` is ordinary words once its punctuation is gone.
    let is_key = plain.len() >= LONG_KEY || is_mixed;
    let readable = [plain, backwards].into_iter().filter(|_| is_key);
    let readable = readable.map(|letters| (letters, is_mixed.then_some(SHORTEST_PIECE)));
    let hexadecimal = (hexadecimal, Some(SHORTEST_PIECE * 2));
    let encoded = encoded.map(|letters| (letters, Some(SHORTEST_PIECE.div_ceil(3) * 4)));
    let forms = readable.chain([hexadecimal]).chain(encoded);
    let forms = forms.map(|(letters, piece)| SecretForm { letters, piece });
    forms.filter(|form| form.letters.len() >= SHORTEST_FORM).collect()
}

/// An index of all runs of letters of a text by content, built once per length.
struct PieceIndex<'l> {
    letters: &'l ComparableText,
    runs: HashMap<usize, HashMap<&'l [u8], Vec<usize>>>,
}

impl<'l> PieceIndex<'l> {
    fn new(letters: &'l ComparableText) -> Self {
        Self { letters, runs: HashMap::new() }
    }

    /// The ranges of at least `length` letters of a form in a row.
    fn find(&mut self, form: &[u8], length: usize) -> Vec<Range<usize>> {
        let letters = self.letters;
        let runs = self.runs.entry(length).or_insert_with(|| {
            let mut runs: HashMap<&[u8], Vec<usize>> = HashMap::new();
            for (place, run) in letters.bytes.windows(length).enumerate() {
                runs.entry(run).or_default().push(place);
            }
            runs
        });
        let mut places: Vec<usize> =
            form.windows(length).filter_map(|run| runs.get(run)).flatten().copied().collect();
        places.sort_unstable();
        let mut found: Vec<Range<usize>> = Vec::new();
        for place in places {
            let Some(range) = letters.range(place, length) else { continue };
            match found.last_mut() {
                // The runs of one piece overlap.
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => found.push(range),
            }
        }
        found
    }
}

/// The base64 characters that depend on these bytes alone, when `shift` other bytes come before them.
fn in_base64(bytes: &[u8], shift: usize) -> Vec<u8> {
    let mut shifted = vec![0; shift];
    shifted.extend_from_slice(bytes);
    let mut encoded = STANDARD_NO_PAD.encode(&shifted).into_bytes();
    if !shifted.len().is_multiple_of(3) {
        encoded.pop();
    }
    let shared = if shift == 0 { 0 } else { shift + 1 };
    encoded.drain(..shared.min(encoded.len()));
    encoded
}

fn comparable(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase).collect()
}

/// The letters and digits of a text, escapes decoded, and the range of each.
#[derive(Default)]
struct ComparableText {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
    /// One more than the letters at the end that may belong to an escape that was cut.
    half_escape: usize,
}

impl ComparableText {
    fn from_text(text: &str) -> Self {
        let half_escape = if text.ends_with('…') { LONGEST_HALF_ESCAPE + 1 } else { 1 };
        let mut letters = Self { half_escape, ..Self::default() };
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (byte, length) = decode_escape(rest);
            if byte.is_ascii_alphanumeric() {
                letters.bytes.push(byte.to_ascii_lowercase());
                letters.places.push(at..at + length);
            }
            at += length;
        }
        letters
    }

    /// The ranges of a form, also of its beginning at the end of a text that was cut.
    fn find(&self, form: &[u8]) -> Vec<Range<usize>> {
        let whole = memchr::memmem::find_iter(&self.bytes, form);
        let mut found: Vec<_> = whole.filter_map(|start| self.range(start, form.len())).collect();
        let cut = (0..self.half_escape).find_map(|skipped| {
            let bytes = self.bytes.get(..self.bytes.len().checked_sub(skipped)?)?;
            let longest = form.len().saturating_sub(1).min(bytes.len());
            let begins = |length: &usize| bytes.ends_with(form.get(..*length).unwrap_or(form));
            let length = (SHORTEST_FORM..=longest).rev().find(begins)?;
            self.range(bytes.len() - length, length + skipped)
        });
        found.extend(cut);
        found
    }

    /// The range of `length` letters in the text.
    fn range(&self, start: usize, length: usize) -> Option<Range<usize>> {
        let first = self.places.get(start)?;
        let last = self.places.get((start + length).checked_sub(1)?)?;
        Some(first.start..last.end)
    }
}

/// The first byte of a text with escapes decoded, and how many bytes it takes there. Escapes of line ends and of
/// characters outside ASCII are no letters.
fn decode_escape(text: &[u8]) -> (u8, usize) {
    let number = |digits: Option<&[u8]>, radix: u32| {
        let digits = std::str::from_utf8(digits?).ok()?;
        let number = u32::from_str_radix(digits, radix).ok()?;
        Some(u8::try_from(number).ok().filter(u8::is_ascii).unwrap_or_default())
    };
    let escaped = match text {
        [b'%', ..] => number(text.get(1..3), 16).map(|byte| (byte, 3)),
        [b'\\', b'u', ..] => number(text.get(2..6), 16).map(|byte| (byte, 6)),
        [b'\\', b'x', ..] => number(text.get(2..4), 16).map(|byte| (byte, 4)),
        [b'\\', b'n' | b'r' | b't', ..] => Some((0, 2)),
        [b'&', b'#', b'x' | b'X', rest @ ..] => html_entity_digits(rest)
            .and_then(|digits| Some((number(Some(digits), 16)?, digits.len() + 4))),
        [b'&', b'#', rest @ ..] => html_entity_digits(rest)
            .and_then(|digits| Some((number(Some(digits), 10)?, digits.len() + 3))),
        _ => None,
    };
    escaped.unwrap_or_else(|| (text.first().copied().unwrap_or_default(), 1))
}

/// The digits of an HTML entity up to its semicolon.
fn html_entity_digits(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().take(8).position(|byte| *byte == b';')?;
    text.get(..end)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "sk-proj-Ab9/+_xyzQ~7Kw==Lm";

    fn cleaned(text: &str) -> String {
        Secrets::new([("provider key".to_owned(), KEY.to_owned())]).redact_server_error(text)
    }

    fn encodings() -> Vec<String> {
        let bytes = KEY.as_bytes();
        let each = |form: fn(&u8) -> String| bytes.iter().map(form).collect::<String>();
        let mut all = vec![
            KEY.to_owned(),
            KEY.to_uppercase(),
            KEY.to_lowercase(),
            KEY.chars().rev().collect(),
            each(|byte| format!("{byte:02x}")),
            each(|byte| format!("{byte:02X}:")),
            each(|byte| format!("%{byte:02X}")),
            each(|byte| format!("\\u{byte:04x}")),
            each(|byte| format!("\\x{byte:02x}")),
            each(|byte| format!("&#{byte};")),
            each(|byte| format!("&#x{byte:x};")),
            KEY.replace('/', "%2F").replace('+', "%2b").replace('=', "%3D"),
            KEY.replace('/', "\\/"),
            each(|byte| format!("{} ", char::from(*byte))),
            each(|byte| format!("{}\\n", char::from(*byte))),
            each(|byte| format!("{}\u{200b}", char::from(*byte))),
        ];
        for before in ["", "a", "ab", "user:"] {
            let whole = format!("{before}{KEY}:after");
            all.extend([STANDARD.encode(&whole), URL_SAFE.encode(&whole)]);
        }
        all
    }

    #[test]
    fn a_key_is_found_in_every_encoding() {
        for echoed in encodings() {
            let shown = cleaned(&format!("bad key {echoed} given"));
            assert!(shown.contains("[redacted:provider key]"), "{echoed}: {shown}");
            assert!(shown.starts_with("bad key ") && shown.ends_with(" given"), "{shown}");
            let left = shown.replace("[redacted:provider key]", "");
            assert!(left.len() < "bad key  given".len() + 24, "{echoed}: {shown}");
        }
    }

    #[test]
    fn a_key_that_was_cut_is_found_at_the_end() {
        let cut: String = KEY.chars().take(11).collect();
        assert_eq!(cleaned(&format!("bad key {cut}…")), "bad key [redacted:provider key]…");
        let escape = |byte| format!("\\u{byte:04x}");
        let escaped: String = cut.bytes().map(escape).collect();
        assert_eq!(cleaned(&format!("bad {escaped}\\u00…")), "bad [redacted:provider key]…");
    }

    #[test]
    fn pieces_of_a_key_are_found_anywhere() {
        let long = "sk-proj-Ab9xyzQ7KwLm0123456789QwErTyUiOp";
        let secrets = Secrets::new([("provider key".to_owned(), long.to_owned())]);
        let mark = "[redacted:provider key]";
        for (text, expected) in [
            // A key cut in the middle, at its beginning, and at its end.
            (
                format!("bad key {}...{} given", &long[..16], &long[26..]),
                format!("bad key {mark}...{mark} given"),
            ),
            (format!("bad key {}... given", &long[..14]), format!("bad key {mark}... given")),
            (format!("bad key ...{} given", &long[24..]), format!("bad key ...{mark} given")),
            (
                format!("key {}\u{2026} of {}", &long[4..20], &long[20..]),
                format!("key {mark}\u{2026} of {mark}"),
            ),
        ] {
            assert_eq!(secrets.redact_server_error(&text), expected, "{text}");
        }
        // A key split over two fields.
        let (one, other) = long.split_at(20);
        let mut value = serde_json::json!({"message": format!("bad {one}"), "param": other});
        secrets.redact_server_error_value(&mut value);
        assert_eq!(value, serde_json::json!({"message": format!("bad {mark}"), "param": mark}));
        // The prefix that all keys of a kind share is no piece of this one.
        let text = "keys begin with sk-proj-, such as sk-proj-Ab or sk-proj-********7890";
        assert_eq!(secrets.redact_server_error(text), text);
        let encoded = STANDARD.encode(long);
        let text = format!("got {}... given", &encoded[..24]);
        assert_eq!(secrets.redact_server_error(&text), format!("got {mark}... given"));
    }

    #[test]
    fn ordinary_words_and_short_values_stay_as_they_are() {
        let secrets = Secrets::new([("PIN".to_owned(), "a-1b".to_owned())]);
        let text = "incorrect API key provided: sk-proj-****; see 61 2d 31, 100% of a 1 b";
        assert_eq!(secrets.redact_server_error(text), text);
        assert_eq!(cleaned(text), text);
        assert_eq!(secrets.redact_server_error("it is a-1b"), "it is [redacted:PIN]");
    }

    proptest! {
        #[test]
        fn text_without_a_key_comes_back_as_it_is(text in "\\PC{0,80}") {
            prop_assert_eq!(cleaned(&text), text);
        }
    }
}
