//! The text of a permission question on a terminal, and the parser of its answer.
//!
//! Nothing is cut, because the user must see everything that is allowed. The content was written by a
//! model: characters that a terminal would obey or hide are shown by their numbers, so that they have
//! no effect on the text after them, and the question names them.

use super::diff;
use crate::record::event::{
    PermissionAnswer, PermissionRequest, PermissionResponse, find_hidden, spell_hidden,
    split_mcp_name,
};

/// The width of the labels, in cells.
const LABEL_WIDTH: usize = 11;

/// The meaning of a typed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypedAnswer {
    Response(PermissionResponse),
    /// The line is not one of the answers.
    Unclear,
}

/// The whole question, followed by the choices and the input prompt.
pub fn question_text(request: &PermissionRequest, colour: bool) -> String {
    question_body(request, colour) + &choices_text(request)
}

/// The whole question without the choices.
pub fn question_body(request: &PermissionRequest, colour: bool) -> String {
    let mut text = String::from("\n");
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    let paint = |text: &str| {
        if colour { format!("\x1b[1;33m{text}\x1b[0m") } else { text.to_owned() }
    };
    let is_guest = split_mcp_name(&request.tool).is_some();
    let who = if is_guest { "an MCP tool".to_owned() } else { on_one_line(&request.tool) };
    let child = request.agent.as_deref().map(|agent| format!("{}: ", on_one_line(agent)));
    let child = child.unwrap_or_default();
    line(&paint(&format!("? {child}{who} asks: {}", on_one_line(&request.summary))));
    let mut field = |label: &str, value: &str| {
        for (place, part) in value.split('\n').enumerate() {
            let label = if place == 0 { label } else { "" };
            line(format!("  {label:<LABEL_WIDTH$}{}", spell_hidden(part)).trim_end());
        }
    };
    if let Some(command) = &request.command {
        field("command", command.text.trim_end_matches('\n'));
        match command.parts.as_slice() {
            [] => field("parts", "unknown: the command could not be parsed"),
            [only] if *only == command.text.trim() => {}
            parts => {
                let each: Vec<String> = parts.iter().map(|part| on_one_line(part)).collect();
                field("parts", &each.join("\n"));
            }
        }
    }
    if !request.paths.is_empty() {
        let paths: Vec<String> = request.paths.iter().map(|path| on_one_line(path)).collect();
        field("files", &paths.join("\n"));
    }
    field("in", &on_one_line(&request.directory));
    if request.network {
        field("network", "yes, it asks for internet access");
    }
    if request.local_sockets {
        field("sockets", "yes, it asks for the Unix sockets of other programs on this machine");
    }
    if request.is_unsandboxed {
        field("sandbox", "off: this command is not confined");
    }
    if is_guest {
        field("sandbox", "none: an MCP server is not confined");
    }
    // A diff that was cut is incomplete; the arguments are not.
    let arguments = (request.command.is_none() && (request.diff.is_none() || request.diff_is_cut))
        .then(|| request.args.to_string());
    let hidden = hidden_characters(request, arguments.as_deref());
    if !hidden.is_empty() {
        field("beware", &format!("it contains hidden characters: {}", hidden.join(" ")));
    }
    if let Some(diff) = &request.diff {
        let shown: Vec<String> = diff.lines().map(spell_hidden).collect();
        diff::show_diff(&shown.join("\n"), colour, usize::MAX, &mut line);
    }
    if request.diff_is_cut {
        line("  the change is too large to be shown line by line; these are all of its arguments:");
    }
    if let Some(arguments) = arguments {
        line(&format!("  {:<LABEL_WIDTH$}{}", "arguments", on_one_line(&arguments)));
    }
    text
}

/// The choices, followed by the input prompt.
pub fn choices_text(request: &PermissionRequest) -> String {
    let offered: Vec<String> =
        request.answers.iter().map(|answer| choice_text(*answer, request)).collect();
    format!("  {}\n  › ", offered.join("\n  "))
}

/// An answer with its key and what it covers.
pub fn choice_text(answer: PermissionAnswer, request: &PermissionRequest) -> String {
    let session = match request.agent {
        Some(_) => "in the Session of this Subagent",
        None => "in this Session",
    };
    match answer {
        PermissionAnswer::Once => "[y] yes, once".to_owned(),
        PermissionAnswer::Session => format!("[s] always exactly this call {session}"),
        PermissionAnswer::SessionTool => {
            let (server, tool) = split_mcp_name(&request.tool).unwrap_or_default();
            let (server, tool) = (on_one_line(server), on_one_line(tool));
            format!("[t] always the tool `{tool}` of MCP server `{server}` {session}")
        }
        PermissionAnswer::SessionEdits => {
            format!(
                "[e] always let write, edit and apply_patch change, create, move and delete files {session}"
            )
        }
        PermissionAnswer::Project => "[p] always exactly this call in this project".to_owned(),
        PermissionAnswer::Prefix => {
            let prefix = on_one_line(request.prefix.as_deref().unwrap_or_default());
            let network = if request.network { ", with network access" } else { "" };
            let sandbox = if request.is_unsandboxed { ", without the sandbox" } else { "" };
            format!("[c] always `{prefix} …` in this project{network}{sandbox}")
        }
        PermissionAnswer::No => "[n] no, or: n and what the model should do instead".to_owned(),
    }
}

/// Parses the line that the user typed.
pub fn parse_answer(line: &str, request: &PermissionRequest) -> TypedAnswer {
    let line = line.trim();
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let first = first.trim_end_matches([',', ':', '.', '!']).to_lowercase();
    let answer = match first.as_str() {
        "n" | "no" => PermissionAnswer::No,
        _ if !rest.is_empty() => return TypedAnswer::Unclear,
        "y" | "yes" | "once" => PermissionAnswer::Once,
        "s" | "session" => PermissionAnswer::Session,
        "t" | "tool" => PermissionAnswer::SessionTool,
        "e" | "edits" => PermissionAnswer::SessionEdits,
        "p" | "project" => PermissionAnswer::Project,
        "c" => PermissionAnswer::Prefix,
        _ => return TypedAnswer::Unclear,
    };
    if !request.answers.contains(&answer) {
        return TypedAnswer::Unclear;
    }
    let words = Some(rest.trim().to_owned()).filter(|words| !words.is_empty());
    TypedAnswer::Response(PermissionResponse { answer, message: words })
}

/// The text on one line, uncut: newlines are marked, hidden characters spelled and blanks kept, so that
/// padding cannot push the end of a name out of sight.
pub fn on_one_line(text: &str) -> String {
    let marked: String = text.chars().map(|c| if c == '\n' { '⏎' } else { c }).collect();
    spell_hidden(&marked)
}

/// The hidden characters of the question, as code points; the line endings of a diff do not count.
fn hidden_characters(request: &PermissionRequest, arguments: Option<&str>) -> Vec<String> {
    let command = request.command.as_ref().map(|command| command.text.as_str());
    let names = request.paths.iter().map(String::as_str).chain(command).chain(arguments);
    find_hidden(names.chain(request.diff.as_deref().into_iter().flat_map(str::lines)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::id::CallId;
    use crate::record::event::ShownCommand;

    fn request(command: &str, parts: &[&str]) -> PermissionRequest {
        PermissionRequest {
            call_id: CallId::new("call_1"),
            agent: None,
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
            local_sockets: false,
            answers: vec![
                PermissionAnswer::Once,
                PermissionAnswer::Session,
                PermissionAnswer::Project,
                PermissionAnswer::No,
            ],
            prefix: None,
            digest: "d".into(),
            diff_is_cut: false,
            is_unsandboxed: false,
        }
    }

    #[test]
    fn a_command_is_shown_whole_with_its_parts() {
        let mut asked = request("cargo test && rm x", &["cargo test", "rm x"]);
        asked.network = true;
        insta::assert_snapshot!(question_text(&asked, false), @r"

        ? bash asks: run cargo test && rm x
          command    cargo test && rm x
          parts      cargo test
                     rm x
          in         /home/ada/app
          network    yes, it asks for internet access
          [y] yes, once
          [s] always exactly this call in this Session
          [p] always exactly this call in this project
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
        asked.answers.insert(3, PermissionAnswer::Prefix);
        asked.answers.insert(2, PermissionAnswer::SessionEdits);
        asked.prefix = Some("cargo test".into());
        insta::assert_snapshot!(question_text(&asked, false), @r"

        ? edit asks: change a.rs (+1 -1)
          files      src/a.rs
          in         /home/ada/app
          -old
          +new
          [y] yes, once
          [s] always exactly this call in this Session
          [e] always let write, edit and apply_patch change, create, move and delete files in this Session
          [p] always exactly this call in this project
          [c] always `cargo test …` in this project
          [n] no, or: n and what the model should do instead
          ›
        ");
    }

    #[test]
    fn a_call_of_a_server_is_shown_as_such() {
        let mut asked = request("", &[]);
        asked.tool = "mcp__story__look".into();
        asked.summary = "story: look (text: \"x\")".into();
        asked.args = json!({"text": "x"});
        asked.command = None;
        asked.answers.insert(2, PermissionAnswer::SessionTool);
        let shown = question_text(&asked, false);
        let wider = "[t] always the tool `look` of MCP server `story` in this Session\n";
        assert!(shown.contains(wider), "{shown}");
        asked.agent = Some("sub_1 (worker)".into());
        let of_child = question_text(&asked, false);
        assert!(of_child.contains("exactly this call in the Session of this Subagent\n"));
        assert!(of_child.contains("`story` in the Session of this Subagent\n"), "{of_child}");
        assert!(shown.contains("\n? an MCP tool asks: story: look (text: \"x\")\n"), "{shown}");
        assert!(shown.contains("  sandbox    none: an MCP server is not confined"), "{shown}");
        assert!(shown.contains("  arguments  {\"text\":\"x\"}\n"), "{shown}");
    }

    #[test]
    fn nothing_hides_and_nothing_escapes() {
        let evil = "echo ok\x1b[2K\x1b[1A\u{202e} \u{9b}31m; rm -rf x";
        let shown = question_text(&request(evil, &[evil]), false);
        assert!(!shown.contains(['\x1b', '\u{202e}', '\u{9b}']), "{shown:?}");
        assert!(shown.contains("<U+001B>[2K") && shown.contains("rm -rf x"), "{shown}");
        assert!(shown.contains("hidden characters: <U+001B> <U+202E> <U+009B>"), "{shown}");
        let padded = format!("ls{}; rm x", " ".repeat(500));
        assert!(
            question_text(&request(&padded, &["ls", "rm x"]), false)
                .contains("             rm x\n")
        );
    }

    #[test]
    fn what_a_terminal_would_swallow_is_read_all_the_same() {
        for (evil, mark) in [
            ("echo \x1b]0;\nrm -rf x", "<U+001B>"),
            ("echo \x1b]0;; rm -rf x", "<U+001B>"),
            ("echo \u{9d}0; rm -rf x", "<U+009D>"),
            ("rm -rf x\recho all good", "<U+000D>"),
            ("echo a\r\nrm -rf x", "<U+000D>"),
            ("rm\u{200b} -rf x", "<U+200B>"),
        ] {
            let shown = question_text(&request(evil, &[]), false);
            assert!(shown.contains("-rf x") && shown.contains(mark), "{evil:?}: {shown}");
            assert!(shown.contains("beware"), "{shown}");
        }
        let mut change = request("", &[]);
        change.command = None;
        change.diff = Some("-a\r\n+b\r\n".into());
        assert!(
            !question_text(&change, false).contains("beware"),
            "a file may end its lines as it likes"
        );
        change.diff = Some("+a\rb \x1b]0;evil\n".into());
        let shown = question_text(&change, false);
        assert!(shown.contains("+a<U+000D>b <U+001B>]0;evil"), "{shown}");
    }

    #[test]
    fn however_long_it_is_nothing_is_left_out() {
        let lines = |word: &str| (0..5000).map(|line| format!("{word} {line}")).collect::<Vec<_>>();
        let shown = question_text(&request(&lines("echo").join("\n"), &[]), false);
        assert!(lines("echo").iter().all(|line| shown.contains(&format!("{line}\n"))));
        let mut change = request("", &[]);
        change.command = None;
        change.diff = Some(lines("+line").join("\n"));
        assert!(question_text(&change, false).contains("+line 4999\n"));
        change.diff_is_cut = true;
        change.args = json!({"content": "all of it"});
        let shown = question_text(&change, false);
        assert!(shown.contains(r#"arguments  {"content":"all of it"}"#), "{shown}");
    }

    #[test]
    fn a_prefix_says_what_it_includes() {
        let mut asked = request("cargo test", &["cargo test"]);
        (asked.answers, asked.prefix) = (vec![PermissionAnswer::Prefix], Some("cargo test".into()));
        for (network, is_unsandboxed, end) in [
            (false, false, ""),
            (true, false, ", with network access"),
            (false, true, ", without the sandbox"),
            (true, true, ", with network access, without the sandbox"),
        ] {
            (asked.network, asked.is_unsandboxed) = (network, is_unsandboxed);
            let line = format!("[c] always `cargo test …` in this project{end}\n");
            assert!(choices_text(&asked).contains(&line), "{}", choices_text(&asked));
        }
    }

    #[test]
    fn a_command_that_nothing_holds_says_so() {
        let mut asked = request("touch x", &["touch x"]);
        assert!(!question_text(&asked, false).contains("sandbox"));
        asked.is_unsandboxed = true;
        assert!(
            question_text(&asked, false)
                .contains("  sandbox    off: this command is not confined\n")
        );
    }

    #[test]
    fn answers_are_understood_or_asked_again() {
        let asked = request("ls", &["ls"]);
        let answered = |answer, words: Option<&str>| {
            TypedAnswer::Response(PermissionResponse { answer, message: words.map(str::to_owned) })
        };
        assert_eq!(parse_answer(" Y ", &asked), answered(PermissionAnswer::Once, None));
        assert_eq!(parse_answer("s", &asked), answered(PermissionAnswer::Session, None));
        assert_eq!(parse_answer("project", &asked), answered(PermissionAnswer::Project, None));
        assert_eq!(parse_answer("no", &asked), answered(PermissionAnswer::No, None));
        assert_eq!(
            parse_answer("n, use rg", &asked),
            answered(PermissionAnswer::No, Some("use rg"))
        );
        for line in ["", "maybe", "c", "e", "t", "y please", "yesterday", "1"] {
            assert_eq!(parse_answer(line, &asked), TypedAnswer::Unclear, "{line}");
        }
    }
}
