//! Hidden characters: code points that a reader does not see, or that reorder the text around them.
//!
//! One list for questions, titles, the terminal sanitiser and JSON on stdout. Where a person decides
//! by what is shown, each stands there as `<U+200B>`.

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

/// Whether a character of a command, a path or a name is hidden from whoever reads it. Blanks other than
/// the space look like it and are not.
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

/// The first few different hidden characters of some texts, spelled as code points.
pub fn hidden_in<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for c in texts.into_iter().flat_map(str::chars).filter(|c| is_hidden(*c)) {
        let code = format!("<U+{:04X}>", u32::from(c));
        if !found.contains(&code) {
            found.push(code);
        }
        if found.len() == MOST_NAMED {
            break;
        }
    }
    found
}

/// How many hidden characters a question names.
const MOST_NAMED: usize = 5;

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
    fn the_first_five_are_named_once() {
        let texts = ["a\u{200b}\u{200b}b\u{200c}", "\u{200d}\u{2060}\u{feff}\u{ad}"];
        let named = hidden_in(texts);
        assert_eq!(named, ["<U+200B>", "<U+200C>", "<U+200D>", "<U+2060>", "<U+FEFF>"]);
    }
}
