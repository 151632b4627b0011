//! What the user has seen: nothing twice, nothing lost.

use super::complete::Shown;

#[track_caller]
fn check(attempts: &[&[&str]], expected: &str) {
    let mut shown = Shown::default();
    let mut screen = String::new();
    for (number, attempt) in attempts.iter().enumerate() {
        if number > 0 {
            shown.start_over();
        }
        for delta in *attempt {
            screen.extend(shown.text((*delta).to_owned()));
        }
    }
    assert_eq!(screen, expected);
}

#[test]
fn a_first_attempt_streams_as_it_comes() {
    check(&[&["One ", "two"]], "One two");
}

#[test]
fn a_second_attempt_shows_only_what_is_new() {
    check(&[&["One ", "two"], &["One two", " three"]], "One two three");
    check(&[&["One two"], &["One", " two", "", " three", " four"]], "One two three four");
    check(&[&["One two"], &["One"], &["One two", "!"]], "One two!");
}

#[test]
fn an_attempt_that_says_something_else_is_not_streamed() {
    check(&[&["One two"], &["Eins", " zwei"]], "One two");
    check(&[&["One two"], &["One three"], &["One two", " three"]], "One two three");
}
