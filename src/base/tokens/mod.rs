//! Tokens: estimates of how many a text or an image will be for a model, before anything is sent.
//!
//! The estimate is pure and takes one pass over the text. A tokenizer's table is millions of bytes that
//! would be loaded for one number, and each model has its own; so the estimate uses the shape of the text:
//! words, capitals, digits, marks, blanks, and scripts. `tests.rs` compares it with a real tokenizer.

#[cfg(test)]
mod tests;

/// The tokens that the wire format adds around every item.
pub const TOKENS_PER_ITEM: u64 = 6;

/// The tokens of an image of unknown size.
const UNKNOWN_IMAGE_TOKENS: u64 = 1_700;
/// The side of the squares into which an image is cut, in pixels.
const PATCH_PIXELS: u32 = 32;
/// The most squares of an image; a larger one is scaled down.
const MAX_PATCHES: u64 = 1_536;

/// The estimated tokens of a text; at least one unless it is empty.
pub fn estimate_tokens(text: &str) -> u64 {
    let mut sum = 0;
    let mut run =
        CharRun { class: CharClass::Blank, length: 0, changes: 0, last: '\0', is_glued: false };
    for letter in text.chars() {
        let class = CharClass::from_char(letter);
        // A capital and the small letters after it are one word.
        let goes_on =
            run.class == CharClass::Capital && run.length == 1 && class == CharClass::Small;
        if class == run.class || goes_on {
            run.class = class;
            run.length += 1;
            run.changes += u64::from(letter != run.last);
            run.last = letter;
            continue;
        }
        sum += run.cost();
        // A blank is part of the token of the word behind it, but never of a number's.
        if class == CharClass::Digit && run.class == CharClass::Blank && run.length == 1 {
            sum += COST_PER_TOKEN;
        }
        let is_glued = class.is_word_char() && run.class.is_word_char();
        run = CharRun { class, length: 1, changes: 1, last: letter, is_glued };
    }
    (sum + run.cost()).div_ceil(COST_PER_TOKEN)
}

/// The estimated tokens of an image.
pub fn estimate_image_tokens(size: Option<(u32, u32)>) -> u64 {
    let Some((width, height)) = size else { return UNKNOWN_IMAGE_TOKENS };
    let patches =
        u64::from(width.div_ceil(PATCH_PIXELS)) * u64::from(height.div_ceil(PATCH_PIXELS));
    // The most expensive of the known formulas.
    patches.clamp(1, MAX_PATCHES) * 11 / 10 + 85
}

/// Costs are counted in hundredths of a token.
const COST_PER_TOKEN: u64 = 100;

/// The class of a character for a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Small,
    Capital,
    Digit,
    Blank,
    Line,
    /// Punctuation and control bytes.
    Mark,
    /// Chinese, Japanese, Korean, and symbols: nearly a token each.
    Wide,
    Emoji,
    /// Letters of other alphabets.
    Foreign,
}

impl CharClass {
    fn from_char(letter: char) -> Self {
        match letter {
            'a'..='z' => Self::Small,
            'A'..='Z' => Self::Capital,
            '0'..='9' => Self::Digit,
            '\n' | '\r' => Self::Line,
            ' ' | '\t' => Self::Blank,
            '\0'..='\x7f' => Self::Mark,
            '\u{80}'..='\u{bf}'
            | '\u{1100}'..='\u{11ff}'
            | '\u{2000}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7ff}'
            | '\u{e000}'..='\u{faff}'
            | '\u{ff00}'..='\u{ffff}' => Self::Wide,
            '\u{10000}'..='\u{10ffff}' => Self::Emoji,
            _ => Self::Foreign,
        }
    }

    fn is_word_char(self) -> bool {
        matches!(self, Self::Small | Self::Capital | Self::Digit)
    }
}

/// A run of characters of one class.
struct CharRun {
    class: CharClass,
    length: u64,
    /// How often a character differed from the one before it.
    changes: u64,
    last: char,
    /// Whether a run of letters or digits of another class comes right before it.
    is_glued: bool,
}

impl CharRun {
    /// The cost of the run. The numbers were fitted to `o200k_base` over prose, code, data and noise.
    fn cost(&self) -> u64 {
        let length = self.length;
        match self.class {
            _ if length == 0 => 0,
            CharClass::Small => {
                let word = match length {
                    0..=3 => COST_PER_TOKEN,
                    4..=6 => 103,
                    7..=9 => 116,
                    10..=12 => 150,
                    _ => 150 + (length - 12) * 28,
                };
                // Base64 consists of short pieces between capitals and digits.
                if self.is_glued && (2..=4).contains(&length) { word + 55 } else { word }
            }
            CharClass::Capital => {
                COST_PER_TOKEN + length.saturating_sub(2) * 25 + u64::from(self.is_glued) * 20
            }
            CharClass::Digit => length.div_ceil(3) * COST_PER_TOKEN,
            CharClass::Blank if length == 1 => 0,
            CharClass::Blank => 95 + length / 64 * 50,
            CharClass::Line => 50 + length / 16 * COST_PER_TOKEN,
            CharClass::Mark => {
                let various = match self.changes {
                    1 => 85,
                    2 => COST_PER_TOKEN,
                    changes => changes * 42,
                };
                various + (length - self.changes) * 3
            }
            CharClass::Wide => length * 80,
            CharClass::Emoji => length * 140,
            CharClass::Foreign => 40 + length * 28,
        }
    }
}
