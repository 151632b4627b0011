//! Hidden characters: code points that a reader does not see, or that reorder the text around them.
//!
//! One list for questions, titles, the terminal sanitiser and JSON on stdout. Where a person decides
//! by what is shown, each is spelled as `<U+200B>`.

use std::fmt::Write;

/// Whether a character reorders the text around it: the controls of the bidirectional algorithm.
pub fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character has no shape and does not act: fillers, joiners, soft hyphens, variation selectors,
/// tags. Unicode's `Default_Ignorable_Code_Point`, annotation marks and the blank Braille pattern.
pub fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{206f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether a character of a command, a path or a name is hidden from its reader. Blanks other than the space count,
/// because they look like one.
pub fn is_hidden(c: char) -> bool {
    let is_plain_blank = matches!(c, ' ' | '\n' | '\t');
    let is_odd_blank = (c.is_control() || c.is_whitespace()) && !is_plain_blank;
    is_odd_blank || is_bidi_control(c) || is_invisible(c)
}

/// The text with every hidden character spelled as its code point; line ends and tabs stay.
pub fn spell_hidden(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            // Writing to a String cannot fail.
            write!(shown, "<U+{:04X}>", u32::from(c)).unwrap_or_default();
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The first few different hidden characters of some texts that can deceive a reader, spelled as code points.
/// Code points of emoji, and joiners between letters of scripts that need them, are ordinary text.
pub fn find_hidden<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for text in texts {
        for (place, c) in text.char_indices().filter(|(_, c)| is_hidden(*c)) {
            if found.len() == MAX_NAMED {
                return found;
            }
            let code = format!("<U+{:04X}>", u32::from(c));
            if !found.contains(&code) && !is_ordinary(text, place, c) {
                found.push(code);
            }
        }
    }
    found
}

/// Whether a hidden character belongs to the visible ones around it.
fn is_ordinary(text: &str, place: usize, c: char) -> bool {
    let (before, rest) = text.split_at(place);
    let after = &rest[c.len_utf8()..];
    let last = before.chars().next_back().unwrap_or(' ');
    let next = after.chars().next().unwrap_or(' ');
    match c {
        '\u{200c}' | '\u{200d}' if is_joined_script(last) && is_joined_script(next) => true,
        '\u{200c}' | '\u{200d}' if is_virama(last) => true,
        '\u{200d}' => (is_emoji(last) || last == '\u{fe0f}') && is_emoji(next),
        '\u{fe0f}' if next == '\u{20e3}' => matches!(last, '0'..='9' | '#' | '*'),
        '\u{fe0e}' | '\u{fe0f}' => is_emoji(last),
        '\u{e0020}'..='\u{e007f}' => is_in_flag(before, rest),
        _ => false,
    }
}

/// Whether tags are those of a flag emoji: England, Scotland, Wales.
fn is_in_flag(before: &str, rest: &str) -> bool {
    let is_tag = |c: char| ('\u{e0020}'..='\u{e007f}').contains(&c);
    let base = before.trim_end_matches(is_tag);
    let letter = |c: char| char::from_u32(u32::from(c) - 0xe_0000);
    let tags = before[base.len()..].chars().chain(rest.chars().take_while(|c| is_tag(*c)));
    let word: String = tags.take(MAX_TAGS).filter_map(letter).collect();
    base.ends_with('\u{1f3f4}')
        && ["gbeng\u{7f}", "gbsct\u{7f}", "gbwls\u{7f}"].contains(&word.as_str())
}

/// The most tags that are read; a flag has fewer.
const MAX_TAGS: usize = 8;

/// Whether a character is drawn as a picture, or changes the skin of one.
fn is_emoji(c: char) -> bool {
    matches!(c, '\u{a9}' | '\u{ae}' | '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}')
        || matches!(c, '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{24c2}' | '\u{25a0}'..='\u{27bf}')
        || matches!(c, '\u{2900}'..='\u{297f}' | '\u{2b00}'..='\u{2bff}' | '\u{3030}' | '\u{303d}')
        || matches!(c, '\u{3297}' | '\u{3299}' | '\u{1f000}'..='\u{1faff}')
}

/// Whether a letter or mark is of a script that writes with joiners: Arabic and its relatives, Indic scripts,
/// Myanmar, Khmer and Mongolian.
fn is_joined_script(c: char) -> bool {
    c.is_alphanumeric()
        && matches!(c, '\u{600}'..='\u{8ff}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}')
        || matches!(c, '\u{900}'..='\u{dff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17b3}')
        || matches!(c, '\u{17b6}'..='\u{17ff}' | '\u{1810}'..='\u{18af}')
}

/// Whether a mark joins consonants, and may have a joiner behind it at the end of a word.
fn is_virama(c: char) -> bool {
    matches!(
        u32::from(c),
        0x94d | 0x9cd | 0xa4d | 0xacd | 0xb4d | 0xbcd | 0xc4d | 0xccd | 0xd4d | 0xdca
    )
}

/// How many hidden characters a question names.
const MAX_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_without_a_shape_is_spelled() {
        let hidden = "\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\
                      \u{2028}\u{202e}\u{2060}\u{2066}\u{2800}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{e0041}\
                      \u{e0100}\u{1b}\u{7f}\u{9b}\u{a0}\u{3000}\r";
        for c in hidden.chars() {
            let text = format!("a{c}b");
            let expected = format!("a<U+{:04X}>b", u32::from(c));
            assert_eq!(spell_hidden(&text), expected);
        }
        let plain = "rm -rf x\n\tnaïve 漢字 “q” é";
        assert_eq!(spell_hidden(plain), plain);
    }

    #[test]
    fn ordinary_emoji_and_joined_scripts_are_not_named() {
        for text in [
            "👩\u{200d}💻 👨\u{200d}👩\u{200d}👧 🏳\u{fe0f}\u{200d}🌈 👩🏽\u{200d}🚀 🧑\u{200d}❤\u{fe0f}\u{200d}🧑",
            "❤\u{fe0f} ✔\u{fe0f} ⚠\u{fe0f} ©\u{fe0f} 1\u{fe0f}\u{20e3} #\u{fe0f}\u{20e3} ☎\u{fe0e}",
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}",
            "می\u{200c}خواهم نمی\u{200c}دانم",
            "क्\u{200d}ष क्\u{200c}ष ശ്രീ നന്\u{200d}",
        ] {
            assert_eq!(find_hidden([text]), Vec::<String>::new(), "{text}");
        }
        for (text, code) in [
            ("rm\u{200d} x", "<U+200D>"),
            ("r\u{200c}m", "<U+200C>"),
            ("می\u{200c}\u{200c}خ", "<U+200C>"),
            ("می\u{200c} x", "<U+200C>"),
            ("\u{200d}👩", "<U+200D>"),
            ("👩\u{200d}x", "<U+200D>"),
            ("a\u{fe0f}b", "<U+FE0F>"),
            ("1\u{fe0f}2", "<U+FE0F>"),
            ("🏴\u{e0067}\u{e0041}\u{e007f}", "<U+E0067>"),
            ("\u{e0041}", "<U+E0041>"),
            ("می\u{202e}خ", "<U+202E>"),
            ("👩\u{200b}💻", "<U+200B>"),
        ] {
            assert_eq!(find_hidden([text]).first().map(String::as_str), Some(code), "{text:?}");
        }
    }

    #[test]
    fn the_first_five_are_named_once() {
        let texts = ["a\u{200b}\u{200b}b\u{200c}", "\u{200d}\u{2060}\u{feff}\u{ad}"];
        let named = find_hidden(texts);
        assert_eq!(named, ["<U+200B>", "<U+200C>", "<U+200D>", "<U+2060>", "<U+FEFF>"]);
    }
}
