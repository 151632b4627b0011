//! The keys of the editor, as in emacs and readline.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::editor::PromptEditor;

/// What became of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditorKeyOutcome {
    Done,
    /// Up at the first row: the history may go back.
    AtTop,
    /// Down at the last row.
    AtBottom,
    /// The key is none of the editor's.
    Unused,
}

/// Applies a key to the editor.
pub fn apply_key(editor: &mut PromptEditor, key: KeyEvent, width: usize) -> EditorKeyOutcome {
    let modifiers = key.modifiers;
    let is_ctrl = modifiers.contains(KeyModifiers::CONTROL);
    let is_alt = modifiers.contains(KeyModifiers::ALT);
    match key.code {
        KeyCode::Char(letter) if is_ctrl && is_alt => return apply_motion(editor, letter, width),
        KeyCode::Char(letter) if is_ctrl => return apply_ctrl(editor, letter, width),
        KeyCode::Char(letter) if is_alt => return apply_alt(editor, letter),
        KeyCode::Char(letter) => editor.insert(letter.encode_utf8(&mut [0; 4])),
        KeyCode::Backspace if is_ctrl || is_alt => editor.kill_word_backward(),
        KeyCode::Backspace => editor.delete_backward(),
        KeyCode::Delete if is_ctrl || is_alt => editor.kill_word_forward(),
        KeyCode::Delete => editor.delete_forward(),
        KeyCode::Left if is_ctrl || is_alt => editor.move_word_left(),
        KeyCode::Right if is_ctrl || is_alt => editor.move_word_right(),
        KeyCode::Left => editor.move_left(),
        KeyCode::Right => editor.move_right(),
        KeyCode::Up => return apply_motion(editor, 'p', width),
        KeyCode::Down => return apply_motion(editor, 'n', width),
        KeyCode::Home if is_ctrl => editor.move_to_start(),
        KeyCode::End if is_ctrl => editor.move_to_end(),
        KeyCode::Home => editor.move_to_line_start(),
        KeyCode::End => editor.move_to_line_end(),
        _ => return EditorKeyOutcome::Unused,
    }
    EditorKeyOutcome::Done
}

fn apply_ctrl(editor: &mut PromptEditor, letter: char, width: usize) -> EditorKeyOutcome {
    match letter.to_ascii_lowercase() {
        'j' => editor.insert("\n"),
        'h' => editor.delete_backward(),
        'd' => editor.delete_forward(),
        'w' => editor.kill_blank_word_backward(),
        'k' => editor.kill_to_line_end(),
        'u' => editor.kill_to_line_start(),
        'y' => editor.yank(),
        // Terminals send the same byte for Ctrl+-, Ctrl+_, Ctrl+/ and Ctrl+7.
        '-' | '_' | '/' | '7' | 'z' => editor.undo(),
        other => return apply_motion(editor, other, width),
    }
    EditorKeyOutcome::Done
}

fn apply_motion(editor: &mut PromptEditor, letter: char, width: usize) -> EditorKeyOutcome {
    match letter.to_ascii_lowercase() {
        'a' => editor.move_to_line_start(),
        'e' => editor.move_to_line_end(),
        'b' => editor.move_left(),
        'f' => editor.move_right(),
        'p' if !editor.move_vertically(true, width) => return EditorKeyOutcome::AtTop,
        'n' if !editor.move_vertically(false, width) => return EditorKeyOutcome::AtBottom,
        'p' | 'n' => {}
        _ => return EditorKeyOutcome::Unused,
    }
    EditorKeyOutcome::Done
}

fn apply_alt(editor: &mut PromptEditor, letter: char) -> EditorKeyOutcome {
    match letter.to_ascii_lowercase() {
        'b' => editor.move_word_left(),
        'f' => editor.move_word_right(),
        'd' => editor.kill_word_forward(),
        'y' => editor.yank_earlier(),
        '<' => editor.move_to_start(),
        '>' => editor.move_to_end(),
        _ => return EditorKeyOutcome::Unused,
    }
    EditorKeyOutcome::Done
}
