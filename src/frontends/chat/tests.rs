//! Tests of the pure parts: tables for the editor, and replays of what is written in emulated terminals.

mod reflow;
mod replay;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use unicode_segmentation::UnicodeSegmentation;

use super::cells::{fit_line, line_width, safe_line, wrap_line};
use super::editor::PromptEditor;
use super::editor_keys::{EditorKeyOutcome, apply_key};
use super::input_history::{HistorySearch, InputHistory};
use super::screen::{LiveFrame, Screen, ScreenSize};
use reflow::ReflowTerminal;

/// Types keys given as words: `C-a`, `M-b`, `Left`, `Enter`; everything else is text.
fn press(editor: &mut PromptEditor, keys: &str) {
    for word in keys.split(' ') {
        let (code, modifiers) = match word {
            "Left" => (KeyCode::Left, KeyModifiers::NONE),
            "Right" => (KeyCode::Right, KeyModifiers::NONE),
            "Up" => (KeyCode::Up, KeyModifiers::NONE),
            "Down" => (KeyCode::Down, KeyModifiers::NONE),
            "Back" => (KeyCode::Backspace, KeyModifiers::NONE),
            "Del" => (KeyCode::Delete, KeyModifiers::NONE),
            "Space" => (KeyCode::Char(' '), KeyModifiers::NONE),
            _ => match word.split_once('-') {
                Some(("C", letter)) => {
                    (KeyCode::Char(letter.chars().next().unwrap()), KeyModifiers::CONTROL)
                }
                Some(("M", "Back")) => (KeyCode::Backspace, KeyModifiers::ALT),
                Some(("M", letter)) => {
                    (KeyCode::Char(letter.chars().next().unwrap()), KeyModifiers::ALT)
                }
                _ => {
                    for letter in word.chars() {
                        apply_key(
                            editor,
                            KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE),
                            80,
                        );
                    }
                    continue;
                }
            },
        };
        apply_key(editor, KeyEvent::new(code, modifiers), 80);
    }
}

#[test]
fn keys_edit_as_in_emacs() {
    for (keys, before, after) in [
        ("abc", "abc", ""),
        ("abc Left X", "abX", "c"),
        ("abc C-a X", "X", "abc"),
        ("abc C-a Right Del", "a", "c"),
        ("abc Back", "ab", ""),
        ("abc C-j def", "abc\ndef", ""),
        ("abc C-j def Up", "abc", "\ndef"),
        ("abc C-j d Up C-a Down", "abc\n", "d"),
        ("one Space two M-b", "one ", "two"),
        ("one Space two M-b M-b M-f", "one", " two"),
        ("one Space two-x C-w", "one ", ""),
        ("one Space two M-Back", "one ", ""),
        ("one Space two C-a M-d", "", " two"),
        ("one Space two C-w C-y C-y", "one twotwo", ""),
        ("one Space two C-w C-w C-y", "one two", ""),
        ("abc C-a C-k x C-y", "xabc", ""),
        ("abc C-u", "", ""),
        ("abc C-u def C-u C-y M-y", "abc", ""),
        ("abc C-j def C-u C-u", "abc", ""),
        ("abc Space def C-_", "abc", ""),
        ("abc C-u C-_", "abc", ""),
        ("abc C-_ C-_ C-_", "", ""),
        ("e\u{301}x Left Back", "", "x"),
        ("👩\u{200d}💻x Left Left y", "y", "👩\u{200d}💻x"),
        ("漢字 Left", "漢", "字"),
        ("🇩🇪🇫🇷 Back", "🇩🇪", ""),
    ] {
        let mut editor = PromptEditor::default();
        press(&mut editor, keys);
        let text = editor.text();
        assert_eq!(
            (editor.before_cursor(), &text[editor.before_cursor().len()..]),
            (before, after),
            "{keys}"
        );
    }
}

#[test]
fn a_large_paste_is_one_character_and_loses_nothing() {
    let pasted = (0..120)
        .map(|line| format!("line {line} \u{10ffff}\u{100000}ß\r\n"))
        .collect::<Vec<_>>()
        .concat();
    let kept =
        (0..120).map(|line| format!("line {line} \u{10ffff}ß\n")).collect::<Vec<_>>().concat();
    let mut editor = PromptEditor::default();
    press(&mut editor, "see: ");
    editor.paste(&pasted);
    assert_eq!(editor.layout(80).rows[0].text, "see:[Pasted text #1 +120 lines]");
    press(&mut editor, "end");
    assert_eq!(editor.text(), format!("see:{kept}end"));
    press(&mut editor, "Left Left Left Back");
    assert_eq!(editor.text(), "see:end");
    press(&mut editor, "C-_");
    assert_eq!(editor.text(), format!("see:{kept}end"));
    let long = "x".repeat(10_000);
    editor.paste(&long);
    assert_eq!(editor.text(), format!("see:{kept}{long}end"));
    assert!(editor.layout(20).rows.iter().all(|row| line_width(&row.text) <= 20));
}

#[test]
fn rows_are_cut_at_the_width_and_the_cursor_is_where_the_next_character_goes() {
    for (text, width, rows, cursor) in [
        ("", 5, vec![""], (0, 0)),
        ("abcde", 5, vec!["abcde", ""], (1, 0)),
        ("abcdef", 5, vec!["abcde", "f"], (1, 1)),
        ("ab\n", 5, vec!["ab", ""], (1, 0)),
        ("漢字漢", 5, vec!["漢字", "漢"], (1, 2)),
        ("漢", 1, vec!["?", ""], (1, 0)),
        ("a\tb", 8, vec!["a   b"], (0, 5)),
        ("a\u{202e}b\u{200b}", 8, vec!["ab"], (0, 2)),
    ] {
        let mut editor = PromptEditor::default();
        editor.insert(text);
        let layout = editor.layout(width);
        let shown: Vec<&str> = layout.rows.iter().map(|row| row.text.as_str()).collect();
        assert_eq!((shown, layout.cursor), (rows, cursor), "{text:?}");
    }
}

#[test]
fn the_history_gives_the_draft_back() {
    let mut history = InputHistory::default();
    history.push("two");
    history.push("two");
    history.prepend(vec!["one".into()]);
    assert_eq!(history.earlier("draft"), Some("two"));
    assert_eq!(history.earlier("two"), Some("one"));
    assert_eq!(history.earlier("one"), None);
    assert_eq!(history.later().as_deref(), Some("two"));
    assert_eq!(history.later().as_deref(), Some("draft"));
    assert_eq!(history.later(), None);
    let mut search = HistorySearch::default();
    search.push('O', &history);
    assert_eq!(search.found(&history), Some("two"));
    search.find_older(&history);
    assert_eq!(search.found(&history), Some("one"));
    search.find_older(&history);
    assert_eq!(search.found(&history), Some("one"));
    search.push('z', &history);
    assert_eq!(search.found(&history), None);
    search.pop(&history);
    assert_eq!(search.found(&history), Some("two"));
}

#[test]
fn a_line_keeps_colours_and_loses_everything_else() {
    for (line, safe) in [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("a\x1b[2Jb\x1b]0;title\x07c", "a[2Jb]0;titlec"),
        ("a\u{9b}31mb\u{202e}c\rd", "a31mbcd"),
        ("\x1b\x1b[31m\x1b[?25l", "\x1b[31m[?25l"),
    ] {
        assert_eq!(safe_line(line), safe, "{line:?}");
    }
    assert_eq!(wrap_line("\x1b[31mabc\x1b[0md", 2), ["\x1b[31mab\x1b[0m", "\x1b[31mc\x1b[0md"]);
    assert_eq!(fit_line("abcdef", 4), "abc…");
}

fn any_key() -> impl Strategy<Value = KeyEvent> {
    let letter = prop_oneof![
        any::<char>(),
        proptest::sample::select(
            "ab \n\t漢👩\u{200d}💻\u{301}\u{fe0f}🇩🇪\u{202e}".chars().collect::<Vec<_>>()
        ),
    ];
    let plain = letter.prop_map(|letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE));
    let ctrl = proptest::sample::select("abefpnjhdwkuy_".chars().collect::<Vec<_>>())
        .prop_map(|letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    let alt = proptest::sample::select("bfdy<>".chars().collect::<Vec<_>>())
        .prop_map(|letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::ALT));
    let other = proptest::sample::select(vec![
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Backspace,
        KeyCode::Delete,
    ])
    .prop_map(|code| KeyEvent::new(code, KeyModifiers::NONE));
    prop_oneof![3 => plain, 2 => ctrl, 1 => alt, 2 => other]
}

proptest! {
    #[test]
    fn whatever_is_typed_the_cursor_is_at_a_character_and_every_row_fits(
        keys in proptest::collection::vec(any_key(), 0..60), width in 1usize..40,
    ) {
        let mut editor = PromptEditor::default();
        for key in keys {
            let outcome = apply_key(&mut editor, key, width);
            prop_assert!(outcome != EditorKeyOutcome::Unused || key.modifiers != KeyModifiers::NONE);
            let text = editor.text();
            let place = editor.before_cursor().len();
            let is_edge = place == text.len() || text.grapheme_indices(true).any(|(at, _)| at == place);
            prop_assert!(is_edge, "{text:?} {place}");
            let layout = editor.layout(width);
            prop_assert!(layout.rows.iter().all(|row| line_width(&row.text) <= width));
            prop_assert!(layout.cursor.0 < layout.rows.len() && layout.cursor.1 < width);
        }
        for _ in 0..200 {
            editor.undo();
        }
        prop_assert!(editor.is_empty());
    }

    #[test]
    fn rows_of_a_line_are_the_line(text in ".{0,80}", width in 1usize..20) {
        let safe = safe_line(&text);
        prop_assert_eq!(safe_line(&safe), safe.clone());
        prop_assert!(safe.chars().all(|c| c == '\t' || c == '\x1b' || !c.is_control()));
        let rows = wrap_line(&safe, width);
        prop_assert!(rows.iter().all(|row| line_width(row) <= width));
        if width > 1 && !safe.contains(['\t', '\x1b']) {
            prop_assert_eq!(rows.concat(), safe);
        }
        prop_assert!(line_width(&fit_line(&text, width)) <= width);
    }
}

/// What happens to a screen.
#[derive(Debug, Clone)]
enum Step {
    /// Lines of these lengths are finished.
    Finish(Vec<usize>),
    /// The live part changes: lengths of its rows, and the cursor.
    Live(Vec<usize>, usize, usize),
    Resize(usize, usize),
}

fn any_step(most_width: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => proptest::collection::vec(0..200usize, 1..6).prop_map(Step::Finish),
        4 => (proptest::collection::vec(0..most_width, 1..8), 0..8usize, 0..most_width)
            .prop_map(|(rows, row, column)| Step::Live(rows, row, column)),
        2 => (1..120usize, 1..40usize).prop_map(|(width, height)| Step::Resize(width, height)),
    ]
}

/// Draws the steps and gives the finished lines, telling the terminal of every write and size.
fn play(
    screen: &mut Screen,
    steps: &[Step],
    mut terminal: impl FnMut(&str, ScreenSize),
) -> Vec<String> {
    let mut finished = Vec::new();
    let mut frame = LiveFrame::default();
    for step in steps {
        let mut new = Vec::new();
        match step {
            Step::Finish(lengths) => {
                for length in lengths {
                    let line = format!("#{} {}.", finished.len(), "x".repeat(*length));
                    finished.push(line.clone());
                    new.push(line);
                }
            }
            Step::Live(lengths, row, column) => {
                let width = screen.size().width;
                let rows: Vec<String> =
                    lengths.iter().map(|length| "~".repeat((*length).min(width))).collect();
                let row = *row % rows.len();
                frame = LiveFrame {
                    cursor: (row, (*column).min(rows[row].len()).min(width - 1)),
                    rows,
                };
            }
            Step::Resize(width, height) => {
                let size = ScreenSize { width: *width, height: *height };
                terminal("", size);
                screen.resize(size);
            }
        }
        let size = screen.size();
        let bytes = screen.draw(&new, frame.clone());
        for bad in ["\x1b[2J", "\x1b[3J", "\x1b[?100", "\x1b[?1049", "\x1bc"] {
            assert!(!bytes.contains(bad), "{bytes:?}");
        }
        terminal(&bytes, size);
    }
    terminal(&screen.erase(), screen.size());
    finished
}

proptest! {
    #[test]
    fn in_an_emulator_every_finished_line_stands_once_and_in_order(
        steps in proptest::collection::vec(any_step(60), 1..40), width in 2u16..80, height in 2u16..30,
    ) {
        let steps: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Resize(..))).collect();
        let size = ScreenSize { width: width.into(), height: height.into() };
        let mut parser = vt100::Parser::new(height, width, 100_000);
        let mut screen = Screen::new(size, false);
        let finished = play(&mut screen, &steps, |bytes, _| parser.process(bytes.as_bytes()));
        parser.screen_mut().set_scrollback(usize::MAX);
        let all = parser.screen().scrollback();
        let mut rows = Vec::new();
        for back in (1..=all).rev() {
            parser.screen_mut().set_scrollback(back);
            rows.push((parser.screen().rows(0, width).next().unwrap(), parser.screen().row_wrapped(0)));
        }
        parser.screen_mut().set_scrollback(0);
        for (place, row) in parser.screen().rows(0, width).enumerate() {
            rows.push((row, parser.screen().row_wrapped(place.try_into().unwrap())));
        }
        let mut lines = vec![String::new()];
        for (row, is_wrapped) in rows {
            lines.last_mut().unwrap().push_str(&row);
            if !is_wrapped {
                lines.push(String::new());
            }
        }
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        prop_assert_eq!(lines, finished);
    }

    #[test]
    fn whatever_the_window_does_every_finished_line_stands_once_and_in_order(
        steps in proptest::collection::vec(any_step(100), 1..60), width in 1usize..80, height in 1usize..30,
    ) {
        let size = ScreenSize { width, height };
        let mut terminal = ReflowTerminal::new(size);
        let mut screen = Screen::new(size, true);
        let finished = play(&mut screen, &steps, |bytes, size| {
            terminal.resize(size);
            terminal.write(bytes);
        });
        let lines: Vec<String> = terminal.lines().into_iter().filter(|line| line.starts_with('#')).collect();
        prop_assert_eq!(lines, finished);
    }
}
