//! ASCII in place of Pixir's own symbols, for terminals and locales that cannot show others.
//!
//! Answers of a model and JSON are never changed, because programs read them.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether symbols are ASCII. Global, because it is a property of the process's standard streams.
static IS_ASCII: AtomicBool = AtomicBool::new(false);

/// Every symbol that Pixir writes, and its ASCII replacement.
const SYMBOLS: &[(char, &str)] = &[
    ('…', "..."),
    ('›', ">"),
    ('▸', ">"),
    ('→', "->"),
    ('·', "-"),
    ('•', "*"),
    ('✓', "ok"),
    ('✗', "x"),
    ('‖', "="),
    ('└', "`"),
    ('├', "|"),
    ('│', "|"),
    ('─', "-"),
    ('⏎', "\\n"),
];

/// Makes this process use ASCII symbols in all output but answers and JSON.
pub fn use_ascii() {
    IS_ASCII.store(true, Ordering::Relaxed);
}

/// The text with ASCII symbols, if they are in use.
pub fn with_symbols(text: &str) -> Cow<'_, str> {
    if IS_ASCII.load(Ordering::Relaxed) { in_ascii(text) } else { Cow::Borrowed(text) }
}

fn in_ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match SYMBOLS.iter().find(|(symbol, _)| *symbol == c) {
            Some((_, ascii)) => plain.push_str(ascii),
            None => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

/// Whether symbols must be ASCII: the locale names another encoding than UTF-8, or a terminal has no
/// `TERM`. `variable` returns a variable that is set and not empty.
pub fn is_needed(variable: impl Fn(&str) -> Option<String>, is_terminal: bool) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(&variable);
    let is_utf8 = |locale: &String| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    };
    let is_other = locale.as_ref().is_some_and(|locale| !is_utf8(locale));
    is_other || is_terminal && variable("TERM").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_has_ascii_and_other_text_stays() {
        let symbols: String = SYMBOLS.iter().map(|(symbol, _)| *symbol).collect();
        assert!(in_ascii(&symbols).is_ascii());
        assert_eq!(in_ascii("• café … ✓"), "* café ... ok");
        assert!(matches!(in_ascii("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn locale_and_terminal_decide() {
        for (variables, is_terminal, expected) in [
            (&[("TERM", "xterm")][..], true, false),
            (&[], true, true),
            (&[], false, false),
            (&[("LANG", "C.UTF-8")], true, true),
            (&[("TERM", "xterm"), ("LC_ALL", "C")], true, true),
            (&[("LC_ALL", "C")], false, true),
            (&[("LC_ALL", "POSIX"), ("LANG", "de_DE.UTF-8")], false, true),
            (&[("LC_ALL", "en_US.utf8"), ("LANG", "C")], false, false),
            (&[("LC_CTYPE", "en_US.ISO-8859-1")], false, true),
        ] {
            let find = |name: &str| {
                let found = variables.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(is_needed(find, is_terminal), expected, "{variables:?} {is_terminal}");
        }
    }
}
