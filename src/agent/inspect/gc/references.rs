//! Search for references: which of some names occur anywhere in the bytes of a file.
//!
//! The file is not parsed: a line that cannot be read still references the names in it.

use std::collections::HashSet;
use std::io::{self, Read};

/// The longest name that is searched for.
const MAX_NAME_BYTES: usize = 200;

/// Adds those of `wanted` that occur in a file to `found`.
pub fn collect_references(
    mut file: impl Read,
    wanted: &HashSet<String>,
    found: &mut HashSet<String>,
) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut word: Vec<u8> = Vec::new();
    let mut take = |word: &mut Vec<u8>| {
        if let Some(name) = std::str::from_utf8(word).ok().and_then(|word| wanted.get(word)) {
            found.insert(name.clone());
        }
        word.clear();
    };
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for byte in buffer.get(..count).unwrap_or_default() {
            if is_name_byte(*byte) {
                // A longer word cannot be a name; its rest is dropped.
                if word.len() <= MAX_NAME_BYTES {
                    word.push(*byte);
                }
            } else if !word.is_empty() {
                take(&mut word);
            }
        }
    }
    take(&mut word);
    Ok(())
}

/// Whether a name can be searched for.
pub fn is_searchable(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn references_in(text: &[u8], names: &[&str]) -> Vec<String> {
        let wanted = names.iter().map(|name| (*name).to_owned()).collect();
        let mut found = HashSet::new();
        collect_references(text, &wanted, &mut found).unwrap();
        let mut found: Vec<String> = found.into_iter().collect();
        found.sort();
        found
    }

    #[test]
    fn a_name_is_found_whole_wherever_it_stands() {
        let text = b"{\"path\":\"/w/output/call_1.txt\",\"x\":\"abc\"}\n\xff\xfe{\"torn abcd\nend";
        assert_eq!(
            references_in(text, &["call_1.txt", "abc", "abcd", "ab", "end"]),
            ["abc", "abcd", "call_1.txt", "end"]
        );
        assert_eq!(references_in(b"", &["a"]), [""; 0]);
        assert_eq!(references_in("a".repeat(10_000).as_bytes(), &["a", &"a".repeat(200)]), [""; 0]);
    }

    proptest! {
        #[test]
        fn no_mention_is_missed(before in ".{0,40}", name in "[a-z0-9._-]{1,80}", after in ".{0,40}") {
            let text = format!("{before}\"{name}\"{after}");
            prop_assert_eq!(references_in(text.as_bytes(), &[&name]), [name.clone()]);
        }
    }
}
