//! Parser of shell commands, for display and for permission questions; not a security boundary.
//!
//! The sandbox enforces what a command may do: a command that is parsed as read-only runs in a sandbox
//! without writes, so a parser error costs a question or a failed command, not a file.

use tree_sitter::{Node, Parser, Tree};

/// Longer commands are not parsed.
const LONGEST: usize = 64 * 1024;

/// The most parts that are listed.
const MOST_PARTS: usize = 200;

/// A shell text and its syntax tree.
pub struct ShellScript<'a> {
    text: &'a str,
    tree: Tree,
}

impl<'a> ShellScript<'a> {
    /// Parses a shell text; `None` unless all of it is understood.
    pub fn parse(text: &'a str) -> Option<Self> {
        // The grammar splits words at blanks that are ordinary characters to a shell.
        let is_odd = |c: char| (c.is_control() || c.is_whitespace()) && !" \t\n".contains(c);
        if text.len() > LONGEST || text.contains(is_odd) {
            return None;
        }
        let mut parser = Parser::new();
        parser.set_language(&tree_sitter_bash::LANGUAGE.into()).ok()?;
        let tree = parser.parse(text, None)?;
        (!tree.root_node().has_error()).then_some(Self { text, tree })
    }

    /// Each command and each redirection, substitutions included, in the order of the text.
    pub fn parts(&self) -> Vec<String> {
        let mut parts = Vec::new();
        let mut waiting = vec![self.tree.root_node()];
        while let Some(node) = waiting.pop() {
            if parts.len() == MOST_PARTS {
                parts.push("…".to_owned());
                break;
            }
            let is_part = matches!(
                node.kind(),
                "command"
                    | "declaration_command"
                    | "unset_command"
                    | "test_command"
                    | "file_redirect"
                    | "herestring_redirect"
            );
            let is_setting = node.kind() == "variable_assignment"
                && node.parent().is_none_or(|parent| parent.kind() != "command");
            if is_part || is_setting {
                parts.push(self.node_text(node).to_owned());
            } else if node.kind() == "heredoc_redirect" {
                let first = self.node_text(node).lines().next().unwrap_or_default();
                parts.push(first.to_owned());
            }
            let mut cursor = node.walk();
            let children: Vec<Node<'_>> = node.named_children(&mut cursor).collect();
            waiting.extend(children.into_iter().rev());
        }
        parts
    }

    /// The words of a command that is one command and nothing else: no pipe, no list, no
    /// substitution, no redirection, no assignment, no pattern.
    pub fn simple_words(&self) -> Option<Vec<String>> {
        // Commands of several lines are excluded: a question may show the first line only.
        if self.text.trim().contains('\n') {
            return None;
        }
        let root = self.tree.root_node();
        let mut cursor = root.walk();
        let mut children = root.named_children(&mut cursor);
        let only = children.next()?;
        if children.next().is_some() || root.child_count() != 1 {
            return None;
        }
        if self.node_text(only) != self.text.trim() {
            return None;
        }
        if only.kind() != "command" {
            return None;
        }
        let PlainCommand { variables, words, .. } = self.plain_command(only, false)?;
        let is_exact = variables.is_empty() && words.iter().all(|word| !word.has_pattern);
        is_exact.then(|| words.into_iter().map(|word| word.text).collect())
    }

    /// The commands of a script that consists only of plain commands, pipes and lists, whose words are
    /// all known beforehand, and which redirects only to `/dev/null` or another stream.
    pub fn plain_commands(&self) -> Option<Vec<Vec<ShellWord>>> {
        let script = self.plain_script()?;
        let is_plain =
            |command: &PlainCommand| command.variables.is_empty() && !command.has_joined_lines;
        if script.has_other_redirect || !script.commands.iter().all(is_plain) {
            return None;
        }
        let commands: Vec<_> = script.commands.into_iter().map(|command| command.words).collect();
        (!commands.is_empty()).then_some(commands)
    }

    /// The commands of a script that consists only of plain commands, pipes, lists and redirections,
    /// in the order of the text, if all of their words are known beforehand.
    pub fn plain_script(&self) -> Option<PlainScript> {
        let mut script = PlainScript::default();
        // Each node with the place where its pipeline begins.
        let mut waiting: Vec<(Node<'_>, Option<usize>)> = vec![(self.tree.root_node(), None)];
        while let Some((node, pipeline)) = waiting.pop() {
            match node.kind() {
                "program" | "list" | "pipeline" | "redirected_statement" | "negated_command" => {
                    let begins = (node.kind() == "pipeline").then(|| node.start_byte());
                    let pipeline = pipeline.or(begins);
                    let mut cursor = node.walk();
                    let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
                    for token in children.iter().filter(|child| !child.is_named()) {
                        match token.kind() {
                            "|" | "&&" | ";" | "\n" => {}
                            "||" => script.has_or = true,
                            "!" => script.has_negation = true,
                            // A command in the background runs in parallel with those that follow.
                            _ => return None,
                        }
                    }
                    // In `a && b 2>&1 | c` the grammar takes the whole list as the first command
                    // of the pipeline, where a shell takes only the last command of the list.
                    let is_list = node.kind() == "list" && pipeline == Some(node.start_byte());
                    let named: Vec<Node<'_>> =
                        children.into_iter().filter(Node::is_named).collect();
                    for (at, child) in named.iter().enumerate().rev() {
                        let is_before = is_list && at + 1 < named.len();
                        waiting.push((*child, pipeline.filter(|_| !is_before)));
                    }
                }
                "command" => script.commands.push(self.plain_command(node, pipeline.is_some())?),
                "file_redirect" => {
                    script.has_other_redirect |= !self.is_harmless_redirect(node);
                    self.parse_redirect(node, &mut script)?;
                }
                "comment" => {}
                _ => return None,
            }
        }
        Some(script)
    }

    fn plain_command(&self, node: Node<'_>, is_in_pipeline: bool) -> Option<PlainCommand> {
        let has_joined_lines = self.has_joined_lines(node)?;
        let mut command =
            PlainCommand { is_in_pipeline, has_joined_lines, ..PlainCommand::default() };
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match child.kind() {
                "variable_assignment" => command.variables.push(self.parse_assignment(child)?),
                "command_name" => command.words.push(self.parse_word(child.named_child(0)?)?),
                _ => command.words.push(self.parse_word(child)?),
            }
        }
        Some(command)
    }

    fn parse_assignment(&self, node: Node<'_>) -> Option<(String, String)> {
        let (name, value) = self.node_text(node).split_once('=')?;
        // A name only: `+=` and an index, which is computed, are refused.
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let value = match node.child_by_field_name("value") {
            Some(value) => self.parse_word(value)?.text,
            None => value.is_empty().then(String::new)?,
        };
        is_name.then(|| (name.to_owned(), value))
    }

    fn parse_redirect(&self, node: Node<'_>, script: &mut PlainScript) -> Option<()> {
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
        let operator = children.iter().find(|child| !child.is_named())?.kind();
        // The grammar reports further words as files, although they are words of the command.
        let mut files =
            children.iter().filter(|child| child.is_named() && child.kind() != "file_descriptor");
        let file = self.parse_word(*files.next()?).filter(|word| !word.has_pattern)?.text;
        if files.next().is_some() {
            return None;
        }
        match operator {
            _ if file == "/dev/null" => {}
            ">&" if file.bytes().all(|byte| byte.is_ascii_digit()) => {}
            "<" => script.inputs.push(file),
            ">" | ">>" | ">|" | "&>" | "&>>" => script.outputs.push(script.commands.len()),
            _ => return None,
        }
        Some(())
    }

    /// Whether there is an escaped line end between words; `None` for an escaped blank, which is a
    /// word to a shell and nothing to the grammar.
    fn has_joined_lines(&self, command: Node<'_>) -> Option<bool> {
        let mut cursor = command.walk();
        let mut end = command.start_byte();
        let mut is_joined = false;
        for child in command.children(&mut cursor) {
            let gap = self.text.get(end..child.start_byte())?;
            end = child.end_byte();
            is_joined |= gap.contains("\\\n");
            let is_blank =
                gap.replace("\\\n", " ").bytes().all(|byte| matches!(byte, b' ' | b'\t'));
            if !is_blank {
                return None;
            }
        }
        Some(is_joined)
    }

    /// Whether a redirection leads to `/dev/null` or from one stream to another.
    fn is_harmless_redirect(&self, node: Node<'_>) -> bool {
        let text: String = self.node_text(node).chars().filter(|c| !c.is_whitespace()).collect();
        let text = text.trim_start_matches(|c: char| c.is_ascii_digit());
        matches!(text, ">/dev/null" | ">>/dev/null" | "&>/dev/null" | "</dev/null" | ">&1" | ">&2")
    }

    fn parse_word(&self, node: Node<'_>) -> Option<ShellWord> {
        let text = self.node_text(node);
        match node.kind() {
            "word" | "number" => {
                let has_pattern = text.contains(['*', '?', '[', ']', '{', '}', '~']);
                // An escaped character is not plain.
                (!text.contains(['\\', '$', '`']))
                    .then(|| ShellWord { text: text.to_owned(), has_pattern })
            }
            "raw_string" => {
                let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
                Some(ShellWord { text: inner.to_owned(), has_pattern: false })
            }
            "string" => {
                let inner = text.strip_prefix('"')?.strip_suffix('"')?;
                (!inner.contains(['\\', '$', '`', '"']))
                    .then(|| ShellWord { text: inner.to_owned(), has_pattern: false })
            }
            "concatenation" => {
                let mut cursor = node.walk();
                let mut whole = ShellWord { text: String::new(), has_pattern: false };
                for child in node.children(&mut cursor) {
                    let part = self.parse_word(child)?;
                    whole.text.push_str(&part.text);
                    whole.has_pattern |= part.has_pattern;
                }
                Some(whole)
            }
            _ => None,
        }
    }

    fn node_text(&self, node: Node<'_>) -> &'a str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }
}

/// A script that is a list of plain commands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PlainScript {
    pub commands: Vec<PlainCommand>,
    /// The files from which commands read.
    pub inputs: Vec<String>,
    /// For each file that is written, how many commands precede the redirection.
    pub outputs: Vec<usize>,
    /// Whether a command runs only if another one fails.
    pub has_or: bool,
    /// Whether the success of a command is negated.
    pub has_negation: bool,
    /// Whether a redirection has another target than `/dev/null` or a stream.
    pub has_other_redirect: bool,
}

/// A program, its words, and the variables that are set for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PlainCommand {
    pub variables: Vec<(String, String)>,
    pub words: Vec<ShellWord>,
    pub is_in_pipeline: bool,
    /// Whether the command spans several lines, which backslashes join.
    pub has_joined_lines: bool,
}

/// A word of a command, as the program will see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellWord {
    pub text: String,
    /// Whether the shell may expand it to other words.
    pub has_pattern: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(command: &str) -> Vec<String> {
        ShellScript::parse(command).map(|script| script.parts()).unwrap_or_default()
    }

    #[test]
    fn everything_that_runs_is_listed() {
        assert_eq!(parts("cargo test"), ["cargo test"]);
        assert_eq!(parts("a | b && c; d &"), ["a", "b", "c", "d"]);
        assert_eq!(parts("echo $(rm -rf x) > out"), ["echo $(rm -rf x)", "rm -rf x", "> out"]);
        assert_eq!(parts("echo `rm x`"), ["echo `rm x`", "rm x"]);
        assert_eq!(parts("for f in *; do rm \"$f\"; done"), ["rm \"$f\""]);
        assert_eq!(parts("f() { rm x; }; f"), ["rm x", "f"]);
        assert_eq!(parts("diff <(curl a) b"), ["diff <(curl a) b", "curl a"]);
        assert_eq!(parts("A=1 make"), ["A=1 make"]);
        assert_eq!(parts("PATH=. ; ls"), ["PATH=.", "ls"]);
        assert_eq!(parts("cat <<X\nrm\nX\n"), ["cat", "<<X"]);
        assert_eq!(parts("if [ -e x ]; then rm x; fi"), ["[ -e x ]", "rm x"]);
    }

    #[test]
    fn what_is_not_understood_is_not_taken_apart() {
        for command in ["echo 'open", "a | | b", "(", "$(", "if x", "echo \"a"] {
            assert!(ShellScript::parse(command).is_none(), "{command}");
        }
    }

    #[test]
    fn simple_means_one_command_of_known_words() {
        let simple =
            |command: &str| ShellScript::parse(command).and_then(|script| script.simple_words());
        assert_eq!(
            simple("cargo test --all"),
            Some(vec!["cargo".into(), "test".into(), "--all".into()])
        );
        assert_eq!(simple("git commit -m 'a b'").unwrap()[3], "a b");
        assert_eq!(simple("echo a\"b c\"").unwrap()[1], "ab c");
        for command in [
            "a; b",
            "a && b",
            "a | b",
            "a &",
            "a > x",
            "a $(b)",
            "a `b`",
            "a $B",
            "A=1 a",
            "(a)",
            "a *",
            "a {b,c}",
            "a ~",
            "a\nb",
            "! a",
            "a \\b",
            "a <(b)",
            "a <<< b",
            "",
            "a\u{b}/b c",
            "a\u{c}/b",
            "a\rb",
            "a\u{a0}b",
            "a\u{2003}b",
            "a \\ b",
            "\\ a b",
        ] {
            assert_eq!(simple(command), None, "{command:?}");
        }
    }

    proptest! {
        /// Any text is parsed or rejected, in bounded time and without a crash.
        #[test]
        fn nothing_breaks_the_parser(command in r#"[a-z0-9 \n'"$(){}\[\]|&;<>`\\=*~!#-]{0,80}"#) {
            if let Some(script) = ShellScript::parse(&command) {
                script.parts();
                script.plain_commands();
                script.plain_script();
                if let Some(words) = script.simple_words() {
                    prop_assert!(!words.is_empty());
                    prop_assert!(!command.trim().contains('\n'), "{command:?} {words:?}");
                    prop_assert!(!command.contains(['|', '&', ';', '$', '`', '<', '>'])
                        || command.contains(['\'', '"', '#']), "{command:?} {words:?}");
                }
            }
        }
    }

    #[test]
    fn deep_nesting_is_survived() {
        let kinds = [("( ", " )"), ("$( ", " )"), ("{ ", "; }"), ("if a; then ", "; fi")];
        for (opener, closer) in kinds {
            let nested = |depth: usize| opener.repeat(depth) + "true" + &closer.repeat(depth);
            let text = nested(20);
            let shallow = ShellScript::parse(&text).expect(opener);
            assert!(!shallow.parts().is_empty(), "{opener}");
            let most = LONGEST / (opener.len() + closer.len()) - 4;
            for text in [nested(most), opener.repeat(most)] {
                if let Some(script) = ShellScript::parse(&text) {
                    assert!(script.parts().len() <= MOST_PARTS + 1, "{opener}");
                    script.plain_script();
                }
            }
        }
    }
}
