//! Mentions: the names that a person says with a `$` in front, to activate a Skill.

/// The names that are mentioned, in order, each once. A `$` counts at the start or behind a blank;
/// a full stop or colon behind a name belongs to the sentence.
pub fn mentions(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    let mut before = ' ';
    for (place, letter) in text.char_indices() {
        if letter == '$' && before.is_whitespace() {
            let rest = &text[place + 1..];
            let name = &rest[..name_length(rest)];
            if !name.is_empty() && !found.contains(&name) {
                found.push(name);
            }
        }
        before = letter;
    }
    found
}

/// How long the name is that a text begins with; 0 when it begins with none.
pub fn name_length(text: &str) -> usize {
    let is_first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !is_first {
        return 0;
    }
    let is_rest = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    let end = text.bytes().position(|byte| !is_rest(byte)).unwrap_or(text.len());
    // A letter that no name has belongs to a longer word.
    if text[end..].chars().next().is_some_and(char::is_alphanumeric) {
        return 0;
    }
    text[..end].trim_end_matches(['.', ':', '-']).len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_said_with_a_dollar_in_front() {
        for (text, wanted) in [
            ("$review the diff", &["review"][..]),
            ("use $pdf-forms, then $review. And $review: again", &["pdf-forms", "review"]),
            ("line\n$a.b\t$c:d", &["a.b", "c:d"]),
            ("costs US$5, a$b, \\$x and ${y} $", &[]),
            ("$ review $-x $größe", &[]),
        ] {
            assert_eq!(mentions(text), wanted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_said_gives_names(text in "[$a-z.: é\\n-]{0,40}") {
            for name in mentions(&text) {
                prop_assert!(crate::skill::front::checked_name(name, 1).is_ok(), "{name}");
            }
        }
    }
}
