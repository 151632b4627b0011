//! A question on a terminal: everything that would run, and the answers that there are.
//!
//! Nothing of it is cut silently, because what is not shown cannot be allowed; and everything in
//! it was written by a model, so it passes the sanitiser, and what the sanitiser takes out is told.

use super::diff;
use super::sanitise::clean;
use crate::event::{Answer, PermissionRequest, Said};

/// How many lines of a diff or a command a person can be asked to read.
const LINES: usize = 2000;

/// The column behind the labels.
const LABEL: usize = 11;

/// What a typed line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Said(Said),
    /// It is none of the answers.
    Unclear,
}

/// The whole question, with the prompt behind it.
pub fn text(request: &PermissionRequest, colour: bool) -> String {
    let mut text = String::from("\n");
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    let paint = |text: &str| {
        if colour { format!("\x1b[1;33m{text}\x1b[0m") } else { text.to_owned() }
    };
    line(&paint(&format!("? {} asks: {}", plain(&request.tool), plain(&request.summary))));
    let mut field = |label: &str, value: &str| {
        for (place, part) in value.lines().take(LINES).enumerate() {
            let label = if place == 0 { label } else { "" };
            line(format!("  {label:<LABEL$}{}", clean(part)).trim_end());
        }
        let more = value.lines().count().saturating_sub(LINES);
        if more > 0 {
            line(&format!("  … {more} more lines are not shown"));
        }
    };
    if let Some(command) = &request.command {
        field("command", &command.text);
        match command.parts.as_slice() {
            [] => field("parts", "it could not be taken apart"),
            [only] if *only == command.text.trim() => {}
            parts => {
                let each: Vec<String> = parts.iter().map(|part| plain(part)).collect();
                field("parts", &each.join("\n"));
            }
        }
    }
    if !request.paths.is_empty() {
        let paths: Vec<String> = request.paths.iter().map(|path| plain(path)).collect();
        field("files", &paths.join("\n"));
    }
    field("in", &plain(&request.directory));
    if request.network {
        field("network", "yes, it asks for the internet");
    }
    let hidden = hidden_characters(request);
    if !hidden.is_empty() {
        field(
            "beware",
            &format!("it contains characters that are not shown: {}", hidden.join(" ")),
        );
    }
    if let Some(diff) = &request.diff {
        diff::show(diff, colour, LINES, line);
    } else if request.command.is_none() {
        field("arguments", &plain(&request.args.to_string()));
    }
    text.push_str(&choices(request));
    text
}

/// The answers that there are, with the prompt behind them.
pub fn choices(request: &PermissionRequest) -> String {
    let offered: Vec<String> = request
        .answers
        .iter()
        .map(|answer| match answer {
            Answer::Once => "[y] yes, once".to_owned(),
            Answer::Session => "[s] always in this Session".to_owned(),
            Answer::Project => "[p] always in this project".to_owned(),
            Answer::Prefix => {
                let prefix = plain(request.prefix.as_deref().unwrap_or_default());
                format!("[c] always `{prefix} …` in this project")
            }
            Answer::No => "[n] no, or: n and what the model should do instead".to_owned(),
        })
        .collect();
    format!("  {}\n  › ", offered.join("\n  "))
}

/// What a person typed.
pub fn understand(line: &str, request: &PermissionRequest) -> Reply {
    let line = line.trim();
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let first = first.trim_end_matches([',', ':', '.', '!']).to_lowercase();
    let answer = match first.as_str() {
        "n" | "no" => Answer::No,
        _ if !rest.is_empty() => return Reply::Unclear,
        "y" | "yes" | "once" => Answer::Once,
        "s" | "session" => Answer::Session,
        "p" | "project" => Answer::Project,
        "c" => Answer::Prefix,
        _ => return Reply::Unclear,
    };
    if !request.answers.contains(&answer) {
        return Reply::Unclear;
    }
    let words = Some(rest.trim().to_owned()).filter(|words| !words.is_empty());
    Reply::Said(Said { answer, words })
}

/// On one line, blanks kept: padding must not push the end of a name out of sight.
fn plain(text: &str) -> String {
    let marked: String = text.chars().map(|c| if c == '\n' { '⏎' } else { c }).collect();
    clean(&marked)
}

/// Code points of the question that the sanitiser takes out.
fn hidden_characters(request: &PermissionRequest) -> Vec<String> {
    let command = request.command.as_ref().map(|command| command.text.as_str());
    let texts =
        request.paths.iter().map(String::as_str).chain(command).chain(request.diff.as_deref());
    let mut found: Vec<String> = Vec::new();
    for c in texts.flat_map(str::chars).filter(|c| !matches!(c, '\n' | '\t' | '\r')) {
        let code = format!("U+{:04X}", u32::from(c));
        if clean(c.encode_utf8(&mut [0; 4])).is_empty() && !found.contains(&code) {
            found.push(code);
        }
        if found.len() == 5 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::ShownCommand;
    use crate::id::CallId;

    fn request(command: &str, parts: &[&str]) -> PermissionRequest {
        PermissionRequest {
            call_id: CallId::new("call_1"),
            tool: "bash".into(),
            summary: format!("run {command}"),
            args: json!({ "command": command }),
            paths: Vec::new(),
            directory: "/home/ada/app".into(),
            diff: None,
            command: Some(ShownCommand {
                text: command.into(),
                parts: parts.iter().map(|part| (*part).to_owned()).collect(),
            }),
            network: false,
            answers: vec![Answer::Once, Answer::Session, Answer::Project, Answer::No],
            prefix: None,
            digest: "d".into(),
        }
    }

    #[test]
    fn a_command_is_shown_whole_with_its_parts() {
        let mut asked = request("cargo test && rm x", &["cargo test", "rm x"]);
        asked.network = true;
        insta::assert_snapshot!(text(&asked, false), @r"
        ? bash asks: run cargo test && rm x
          command    cargo test && rm x
          parts      cargo test
                     rm x
          in         /home/ada/app
          network    yes, it asks for the internet
          [y] yes, once
          [s] always in this Session
          [p] always in this project
          [n] no, or: n and what the model should do instead
          ›
        ");
    }

    #[test]
    fn a_change_is_shown_with_its_diff_and_a_prefix_with_its_words() {
        let mut asked = request("", &[]);
        asked.command = None;
        asked.tool = "edit".into();
        asked.summary = "change a.rs (+1 -1)".into();
        asked.paths = vec!["src/a.rs".into()];
        asked.diff = Some("-old\n+new".into());
        asked.answers.insert(3, Answer::Prefix);
        asked.prefix = Some("cargo test".into());
        insta::assert_snapshot!(text(&asked, false), @r"
        ? edit asks: change a.rs (+1 -1)
          files      src/a.rs
          in         /home/ada/app
          -old
          +new
          [y] yes, once
          [s] always in this Session
          [p] always in this project
          [c] always `cargo test …` in this project
          [n] no, or: n and what the model should do instead
          ›
        ");
    }

    #[test]
    fn nothing_hides_and_nothing_escapes() {
        let evil = "echo ok\x1b[2K\x1b[1A\u{202e} \u{9b}31m; rm -rf x";
        let shown = text(&request(evil, &[evil]), false);
        assert!(!shown.contains(['\x1b', '\u{202e}', '\u{9b}']), "{shown:?}");
        assert!(shown.contains("rm -rf x"), "{shown}");
        assert!(shown.contains("not shown: U+001B U+202E U+009B"), "{shown}");
        let padded = format!("ls{}; rm x", " ".repeat(500));
        assert!(text(&request(&padded, &["ls", "rm x"]), false).contains("             rm x\n"));
        let many = "x\n".repeat(3000);
        assert!(text(&request(&many, &[]), false).contains("1000 more lines are not shown"));
    }

    #[test]
    fn answers_are_understood_or_asked_again() {
        let asked = request("ls", &["ls"]);
        let said = |answer, words: Option<&str>| {
            Reply::Said(Said { answer, words: words.map(str::to_owned) })
        };
        assert_eq!(understand(" Y ", &asked), said(Answer::Once, None));
        assert_eq!(understand("s", &asked), said(Answer::Session, None));
        assert_eq!(understand("project", &asked), said(Answer::Project, None));
        assert_eq!(understand("no", &asked), said(Answer::No, None));
        assert_eq!(understand("n, use rg", &asked), said(Answer::No, Some("use rg")));
        for line in ["", "maybe", "c", "y please", "yesterday", "1"] {
            assert_eq!(understand(line, &asked), Reply::Unclear, "{line}");
        }
    }
}
