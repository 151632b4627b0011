//! The estimate compared with the tokenizer of the models.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;

/// The allowed error: at most a tenth too few, at most a third too many.
const FEWEST: f64 = 0.90;
const MOST: f64 = 1.33;

fn real(text: &str) -> u64 {
    tiktoken_rs::o200k_base_singleton().encode_ordinary(text).len() as u64
}

#[expect(clippy::cast_precision_loss, reason = "counts of a test")]
fn ratio(text: &str) -> f64 {
    estimate_tokens(text) as f64 / real(text) as f64
}

fn noise(count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(4711);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

fn corpus() -> Vec<(&'static str, String)> {
    let noise = noise(24_000);
    let mut hex_dump = String::new();
    for row in noise.chunks(16) {
        for byte in row {
            write!(hex_dump, "{byte:02x} ").unwrap();
        }
        hex_dump.push('\n');
    }
    let numbers: Vec<String> =
        noise.iter().map(|byte| (u32::from(*byte) * 37).to_string()).collect();
    let own = |text: &str| text.to_owned();
    vec![
        ("prose", own(include_str!("../../../docs/architecture.md"))),
        ("prose with commands", own(include_str!("../../../README.md"))),
        ("manual pages", own(include_str!("../../../docs/cli.md"))),
        ("Rust", own(include_str!("../../model/provider/input.rs"))),
        ("more Rust", own(include_str!("../../agent/session/actor.rs"))),
        ("Python", own(include_str!("../../../tests/fixtures/tokens/sample.py"))),
        ("JavaScript", own(include_str!("../../../tests/fixtures/tokens/sample.js"))),
        ("C", own(include_str!("../../../tests/fixtures/tokens/sample.c"))),
        ("TOML with hashes", own(include_str!("../../../Cargo.lock"))),
        ("Events and JSON", own(include_str!("../../../docs/events.md"))),
        ("Chinese, Japanese, Korean", own(include_str!("../../../tests/fixtures/tokens/cjk.txt"))),
        (
            "Russian, Arabic, German",
            own(include_str!("../../../tests/fixtures/tokens/languages.txt")),
        ),
        ("base64", STANDARD.encode(&noise)),
        ("a hex dump", hex_dump),
        ("numbers", numbers.join(" ")),
        ("JSON of numbers", serde_json::to_string(&numbers).unwrap()),
        ("random bytes as text", String::from_utf8_lossy(&noise).into_owned()),
    ]
}

#[test]
fn the_estimate_keeps_its_promise_over_the_corpus() {
    let mut misses = Vec::new();
    for (name, text) in corpus() {
        let ratio = ratio(&text);
        if !(FEWEST..=MOST).contains(&ratio) {
            misses.push(format!("{name}: {ratio:.3}"));
        }
    }
    assert_eq!(misses, Vec::<String>::new());
}

#[test]
fn it_holds_for_pieces_as_they_are_sent_too() {
    // An output is cut anywhere, so any window of a text must be near enough; small ones less so.
    let mut random = fastrand::Rng::with_seed(7);
    for (name, text) in corpus() {
        for _ in 0..20 {
            let start = random.usize(..text.len().saturating_sub(4_000).max(1));
            let piece = &text[text.floor_char_boundary(start)..];
            let piece = &piece[..piece.floor_char_boundary(4_000.min(piece.len()))];
            let ratio = ratio(piece);
            assert!((0.75..=1.6).contains(&ratio), "{name} at {start}: {ratio:.3}");
        }
    }
}

#[test]
fn nothing_is_nothing_and_anything_is_something() {
    assert_eq!(estimate_tokens(""), 0);
    for text in ["a", "\n", "1", "\u{1f600}", "é", "中", "-"] {
        assert!(estimate_tokens(text) >= 1, "{text:?}");
    }
    assert!(estimate_tokens(&"=".repeat(20_000)) < 1_000, "a ruler is cheap");
}

#[test]
fn images_are_counted_by_their_size() {
    for (size, expected) in
        [(Some((1, 1)), 86), (Some((640, 480)), 415), (Some((8_000, 8_000)), 1_774), (None, 1_700)]
    {
        assert_eq!(estimate_image_tokens(size), expected, "{size:?}");
    }
}

proptest! {
    /// Appending text never lowers the estimate, and the parts add up to about the whole.
    #[test]
    fn a_longer_text_is_never_cheaper_by_more_than_a_seam(head in ".{0,80}", tail in ".{0,80}") {
        let (whole, parts) = (estimate_tokens(&format!("{head}{tail}")), estimate_tokens(&head) + estimate_tokens(&tail));
        prop_assert!(whole <= parts + 3 && parts <= whole + 6, "{whole} {parts}");
    }
}
