//! Mentions: names with a `$` in front, with which the user activates Skills.

use std::collections::HashSet;

/// The mentioned names, in order, each once. A `$` counts at the start or after white space, and not in
/// code, where it means something else; a full stop or colon after a name is not a part of it.
pub fn find_mentions(text: &str) -> Vec<&str> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let mut block: Option<CodeFence<'_>> = None;
    for line in text.lines() {
        match (block, CodeFence::parse(line)) {
            (None, Some(fence)) if fence.opens() => block = Some(fence),
            (None, _) => found.extend(mentions_in_line(line).filter(|name| known.insert(*name))),
            (Some(open), Some(fence)) if fence.closes(open) => block = None,
            (Some(_), _) => {}
        }
    }
    found
}

/// A fence of a Markdown code block: a line that begins with at least three backticks or tildes.
#[derive(Clone, Copy)]
struct CodeFence<'t> {
    mark: char,
    length: usize,
    behind: &'t str,
}

impl<'t> CodeFence<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let start = line.trim_start();
        let mark = start.chars().next().filter(|letter| matches!(letter, '`' | '~'))?;
        let behind = start.trim_start_matches(mark);
        let length = start.len() - behind.len();
        (length >= 3).then_some(Self { mark, length, behind })
    }

    /// Whether the fence opens a block; backticks with more of them later in the line are inline code.
    fn opens(self) -> bool {
        self.mark == '~' || !self.behind.contains('`')
    }

    fn closes(self, open: Self) -> bool {
        self.mark == open.mark && self.length >= open.length && self.behind.trim().is_empty()
    }
}

/// The names in one line, outside of inline code.
fn mentions_in_line(line: &str) -> impl Iterator<Item = &str> {
    let (mut before, mut in_code) = (' ', false);
    line.char_indices().filter_map(move |(place, letter)| {
        let is_behind_blank = std::mem::replace(&mut before, letter).is_whitespace();
        let rest = &line[place + letter.len_utf8()..];
        match letter {
            // An unclosed backtick is an ordinary character.
            '`' => in_code = !in_code && rest.contains('`'),
            '$' if is_behind_blank && !in_code => {
                return Some(&rest[..name_length(rest)]).filter(|name| !name.is_empty());
            }
            _ => {}
        }
        None
    })
}

/// The length of the name at the start of a text; 0 when there is none.
pub fn name_length(text: &str) -> usize {
    let is_first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !is_first {
        return 0;
    }
    let is_rest = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    let end = text.bytes().position(|byte| !is_rest(byte)).unwrap_or(text.len());
    // A name followed by another letter is a part of a longer word.
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
            ("see `echo $a` and $b, a lone ` and $c", &["b", "c"]),
            ("$a\n```sh\necho $b\n~~~\n```\n$c\n  ~~~\n $d", &["a", "c"]),
            ("```ls -l``` fails here, please use $a\nand $b", &["a", "b"]),
            ("```echo $x``` and ``echo ` $y`` but $a", &["a"]),
            ("````md\n```\n$x\n```\n$y\n````\nuse $a", &["a"]),
            ("```\n$x\n``` no end\n$y\n`````  \n$a", &["a"]),
            ("~~~ a`b`\n$x\n~~\n$y\n~~~~\n$a", &["a"]),
            ("``\n$a", &["a"]),
        ] {
            assert_eq!(find_mentions(text), wanted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_said_gives_names(text in "[$a-z.: é\\n-]{0,40}") {
            for name in find_mentions(&text) {
                prop_assert!(crate::model::skill::front_matter::validate_name(name, 1).is_ok(), "{name}");
            }
        }
    }
}
