//! `allowed-tools`: the tools that may be used in a Turn with an active Skill.
//!
//! The list narrows what the Session may use and never widens it: permission mode, bounds and sandbox still
//! apply to a tool that is named. Names are Pixir's, or those of other agents for the same tool.

use super::FileDiagnostic;
use super::yaml::{YamlNode, YamlValue};

/// The names that other agents use, and Pixir's tools.
const ALIASES: &[(&str, &[&str])] = &[
    ("Bash", &["bash", "bash_input", "bash_output", "bash_stop"]),
    ("Edit", &["edit", "apply_patch"]),
    ("Glob", &["glob"]),
    ("Grep", &["grep"]),
    ("LS", &["list"]),
    ("MultiEdit", &["edit", "apply_patch"]),
    ("Read", &["read"]),
    ("Write", &["write"]),
    ("bash", &["bash", "bash_input", "bash_output", "bash_stop"]),
];

/// Tools that change only the conversation and are always allowed; a Skill cannot be used without them.
const ALWAYS: &[&str] = &["resource_view", "skill_view", "skills_list", "update_plan"];

/// The most names in the list.
const MOST: usize = 100;

/// A list of tools, each with an optional command prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTools(Vec<AllowedToolRule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedToolRule {
    /// The rule as written.
    text: String,
    tool: String,
    /// The words with which a command must begin, as in `Bash(git add:*)`.
    prefix: Option<String>,
}

impl AllowedTools {
    /// Parses a list, or a text separated by commas and spaces. `None` when it is empty, which does not
    /// narrow anything.
    pub fn parse(node: &YamlNode) -> Result<Option<Self>, FileDiagnostic> {
        let wrong = || FileDiagnostic::at_line(node.line, "`allowed-tools` is a list of names");
        let words: Vec<String> = match &node.value {
            YamlValue::Text { text, .. } => split_names(text),
            YamlValue::List(nodes) => {
                let text = |node: &YamlNode| node.as_text().map(|text| text.trim().to_owned());
                nodes.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?
            }
            YamlValue::Map(_) => return Err(wrong()),
        };
        if words.len() > MOST {
            return Err(FileDiagnostic::at_line(
                node.line,
                &format!("`allowed-tools` names more than {MOST}"),
            ));
        }
        let rules: Vec<AllowedToolRule> =
            words.into_iter().filter(|word| !word.is_empty()).map(AllowedToolRule::parse).collect();
        Ok((!rules.is_empty()).then_some(Self(rules)))
    }

    /// Parses the names that a Log has.
    pub fn from_words(words: &[String]) -> Option<Self> {
        let rules: Vec<AllowedToolRule> =
            words.iter().cloned().map(AllowedToolRule::parse).collect();
        (!rules.is_empty()).then_some(Self(rules))
    }

    /// The names as written, for display and for the Log.
    pub fn words(&self) -> Vec<String> {
        self.0.iter().map(|rule| rule.text.clone()).collect()
    }

    /// Whether a call is allowed. `parts` are the commands in a shell text, which must all match a rule; a
    /// text that cannot be parsed has none and is not allowed.
    pub fn permits(&self, tool: &str, parts: Option<&[String]>) -> bool {
        if ALWAYS.contains(&tool) {
            return true;
        }
        let rules: Vec<&AllowedToolRule> =
            self.0.iter().filter(|rule| rule.matches_tool(tool)).collect();
        if rules.iter().any(|rule| rule.prefix.is_none()) {
            return true;
        }
        // The input, output and end of a command that was allowed are allowed too.
        if rules.is_empty() || tool != "bash" {
            return !rules.is_empty();
        }
        let parts = parts.unwrap_or_default();
        let begins = |part: &String| rules.iter().any(|rule| rule.matches_command(part));
        !parts.is_empty() && parts.iter().all(begins)
    }
}

impl AllowedToolRule {
    fn parse(text: String) -> Self {
        let (tool, prefix) = match text.split_once('(') {
            Some((tool, rest)) => {
                let rest = rest.trim_end_matches(')').trim();
                let rest =
                    rest.strip_suffix(":*").or_else(|| rest.strip_suffix('*')).unwrap_or(rest);
                (tool.trim().to_owned(), Some(rest.trim().to_owned()))
            }
            None => (text.clone(), None),
        };
        let prefix = prefix.filter(|prefix| !prefix.is_empty());
        Self { text, tool, prefix }
    }

    fn matches_tool(&self, tool: &str) -> bool {
        let meant = ALIASES.iter().find(|(name, _)| *name == self.tool).map(|(_, own)| *own);
        meant.map_or(self.tool == tool, |own| own.contains(&tool))
    }

    fn matches_command(&self, part: &str) -> bool {
        let Some(prefix) = &self.prefix else { return true };
        let mut words = part.split_whitespace();
        prefix.split_whitespace().all(|wanted| words.next() == Some(wanted))
    }
}

/// Splits a text at commas and spaces outside of parentheses.
fn split_names(text: &str) -> Vec<String> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0usize);
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (letter == ',' || letter.is_whitespace()) {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(letter);
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str) -> AllowedTools {
        let kind = YamlValue::Text { text: text.to_owned(), plain: true };
        AllowedTools::parse(&YamlNode { line: 1, value: kind }).unwrap().unwrap()
    }

    #[test]
    fn names_of_others_mean_ours_and_prefixes_hold_for_every_part() {
        let tools = allowed("Read, Grep Bash(git add:*) Bash(ls) mcp__x__y");
        let words = ["Read", "Grep", "Bash(git add:*)", "Bash(ls)", "mcp__x__y"];
        assert_eq!(tools.words(), words);
        let command = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            tools.permits("bash", Some(&parts))
        };
        assert!(tools.permits("read", None) && tools.permits("grep", None));
        assert!(tools.permits("mcp__x__y", None) && tools.permits("skill_view", None));
        assert!(!tools.permits("write", None) && !tools.permits("edit", None));
        assert!(command(&["git add ."]) && command(&["ls", "git add x"]));
        assert!(!command(&["git address"]) && !command(&["git add .", "rm -rf x"]));
        assert!(!command(&[]) && !tools.permits("bash", None), "not understood, not allowed");
        assert!(tools.permits("bash_output", None));
        assert!(
            allowed("Bash").permits("bash", None) && allowed("Edit").permits("apply_patch", None)
        );
        assert!(!allowed("Read").permits("bash_stop", None));
        assert_eq!(AllowedTools::from_words(&tools.words()), Some(tools));
        assert_eq!(AllowedTools::from_words(&[]), None);
    }
}
