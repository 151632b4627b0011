//! Checks of `sed` and `awk` programs, which must only change text: run no command and name no file.

/// The effect of a `sed` command line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub struct PlainSed {
    /// Whether it changes its files.
    pub writes: bool,
}

/// Checks the words after `sed`; `None` when one is not understood.
pub fn check_sed(words: &[String]) -> Option<PlainSed> {
    let mut plain = PlainSed { writes: false };
    let mut has_program = false;
    let mut operands = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            operands.push(word);
            continue;
        };
        // Text directly after `i` is the suffix of a backup.
        let (letters, is_program) = match letters.strip_suffix('e') {
            Some(before) => (before, true),
            None => (letters, false),
        };
        let others = letters.strip_suffix('i').unwrap_or(letters);
        plain.writes |= others.len() < letters.len();
        if others.chars().any(|letter| !"nErsuz".contains(letter)) {
            return None;
        }
        if is_program {
            has_program = true;
            is_plain_sed(words.next()?).then_some(())?;
        }
    }
    if !has_program {
        is_plain_sed(operands.first()?).then_some(())?;
    }
    Some(plain)
}

/// Whether a program of `sed` is a list of addresses and commands that only change text.
fn is_plain_sed(program: &str) -> bool {
    let mut rest = program;
    loop {
        rest = rest.trim_start_matches([' ', ';', '\n']);
        if rest.is_empty() {
            return true;
        }
        let Some(after) = sed_command(rest) else { return false };
        let after = after.trim_start_matches(' ');
        if !(after.is_empty() || after.starts_with([';', '\n'])) {
            return false;
        }
        rest = after;
    }
}

/// The text after one command with its addresses.
fn sed_command(text: &str) -> Option<&str> {
    let mut rest = sed_address(text)?;
    if let Some(second) = rest.strip_prefix(',') {
        rest = sed_address(second).filter(|after| after.len() < second.len())?;
    }
    let rest = rest.strip_prefix('!').unwrap_or(rest);
    let command = rest.chars().next()?;
    let rest = &rest[command.len_utf8()..];
    match command {
        '=' | 'd' | 'D' | 'g' | 'G' | 'h' | 'H' | 'n' | 'N' | 'p' | 'P' | 'x' | 'q' => Some(rest),
        's' => {
            let mark = rest.chars().next().filter(char::is_ascii_punctuation)?;
            if mark == '\\' {
                return None;
            }
            let replaced = text_after_mark(text_after_mark(&rest[1..], mark)?, mark)?;
            Some(replaced.trim_start_matches(|c: char| "gpIi".contains(c) || c.is_ascii_digit()))
        }
        _ => None,
    }
}

/// The text after an address, if there is one.
fn sed_address(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('$') {
        return Some(rest);
    }
    if let Some(rest) = text.strip_prefix('/') {
        return text_after_mark(rest, '/');
    }
    Some(text.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// The text after the next unescaped mark; `None` for a mark in brackets, which is an ordinary
/// character to some programs.
fn text_after_mark(text: &str, mark: char) -> Option<&str> {
    let mut is_escaped = false;
    let mut is_in_brackets = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == mark => return (!is_in_brackets).then(|| &text[at + c.len_utf8()..]),
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            _ => {}
        }
    }
    None
}

/// Whether the words after `awk` are a program that starts nothing, reads and writes no file by
/// itself, and loads nothing.
pub fn is_plain_awk(words: &[String]) -> bool {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-F" | "-v" => {
                words.next();
            }
            // The value follows directly.
            option if option.starts_with("-F") || option.starts_with("-v") => {}
            option if option.starts_with('-') => return false,
            program => {
                let does_more = ["system", "getline", "|", ">", "<", "@"];
                let is_plain = !does_more.iter().any(|one| program.contains(one));
                // Options may also follow the program.
                return is_plain && words.all(|word| !word.starts_with('-'));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_sed_that_only_change_text_are_plain() {
        for program in [
            "s/a/b/",
            "s/a/b/g;p",
            "1,5p",
            "$d",
            "/x/!d",
            "s|a/b|c\\|d|2",
            "1q",
            "/a/,/b/p",
            "s/a/b/ ; p",
            "",
        ] {
            assert!(is_plain_sed(program), "{program}");
        }
        for program in [
            "e",
            "1e sh x",
            "s/a/b/e",
            "s/a/b/ge",
            "s/a/b/w x",
            "w x",
            "r x",
            "R x",
            "W x",
            "/a/w x",
            "s/[/]/e/e",
            "p e",
            "p}",
            "{e}",
            "a x",
            "s\\a\\b\\e",
            "s/a/b",
            "\\,a,e",
            "1~2e",
            "1,+3e",
            "y/a/b/",
            "F",
            "v",
        ] {
            assert!(!is_plain_sed(program), "{program}");
        }
    }
}
