//! A hint for text that was not found: the most similar line of the file.

use crate::base::text::{on_one_line, truncate_chars};

/// Lines longer than this are not compared.
const MAX_COMPARED_LENGTH: usize = 200;
/// How many pairs of characters are compared at most, so that a hint takes no noticeable time.
const MAX_COMPARED_PAIRS: usize = 4_000_000;
/// How many lines of the wanted text are considered.
const MAX_WANTED_LINES: usize = 100;
/// The minimum similarity of a line for a hint.
const MIN_SIMILARITY: f64 = 0.6;

/// The line that is most similar to text that was not found: number, text, and how it differs.
pub fn find_similar_line<'t>(text: &'t str, old: &str) -> Option<(usize, String, &'t str)> {
    // Of several lines, the first that does not occur in the file is the wrong one.
    let is_missing = |line: &&str| !line.trim().is_empty() && !text.contains(*line);
    let wanted = old.lines().take(MAX_WANTED_LINES).find(is_missing)?;
    let wanted_squeezed = on_one_line(wanted);
    let lines = || text.lines().enumerate().map(|(index, line)| (index + 1, line));
    if let Some((number, line)) = lines().find(|(_, line)| on_one_line(line) == wanted_squeezed) {
        return Some((number, line.to_owned(), "differs in white space only"));
    }
    let mut pairs = 0;
    let nearest = lines()
        .filter(|(_, line)| has_similar_length(line.len(), wanted.len()))
        .take_while(|(_, line)| {
            pairs += line.len() * wanted.len();
            pairs <= MAX_COMPARED_PAIRS
        })
        .map(|(number, line)| (strsim::normalized_levenshtein(line, wanted), number, line))
        .filter(|(alike, ..)| *alike >= MIN_SIMILARITY)
        .max_by(|(one, ..), (other, ..)| one.total_cmp(other))?;
    Some((nearest.1, truncate_chars(nearest.2, MAX_COMPARED_LENGTH), "is the closest"))
}

/// Whether two lengths are close enough for the lines to be similar.
fn has_similar_length(one: usize, other: usize) -> bool {
    one.max(other) <= MAX_COMPARED_LENGTH && one.min(other) * 2 >= one.max(other)
}
