//! `allowed-tools`: the tools that may be used in a Turn with an active Skill.
//!
//! It narrows what the Session may use and never widens it: permission mode, bounds and sandbox still apply
//! to a tool that is named. Names are Pixir's, or those of other agents for the same tool.

use super::Flaw;
use super::yaml::{Kind, Node};

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
pub struct AllowedTools(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    /// As written.
    text: String,
    tool: String,
    /// `Bash(git add:*)`: a command must begin with these words.
    prefix: Option<String>,
}

impl AllowedTools {
    /// Parses a list, or a text separated by commas and spaces. `None` when it is empty, which does not
    /// narrow anything.
    pub fn read(node: &Node) -> Result<Option<Self>, Flaw> {
        let wrong = || Flaw::at(node.line, "`allowed-tools` is a list of names");
        let words: Vec<String> = match &node.kind {
            Kind::Text { text, .. } => parted(text),
            Kind::List(nodes) => {
                let text = |node: &Node| node.text().map(|text| text.trim().to_owned());
                nodes.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?
            }
            Kind::Map(_) => return Err(wrong()),
        };
        if words.len() > MOST {
            return Err(Flaw::at(node.line, &format!("`allowed-tools` names more than {MOST}")));
        }
        let rules: Vec<Rule> =
            words.into_iter().filter(|word| !word.is_empty()).map(Rule::read).collect();
        Ok((!rules.is_empty()).then_some(Self(rules)))
    }

    /// Parses the names that a Log has.
    pub fn of_words(words: &[String]) -> Option<Self> {
        let rules: Vec<Rule> = words.iter().cloned().map(Rule::read).collect();
        (!rules.is_empty()).then_some(Self(rules))
    }

    /// The names as written, for people and for the Log.
    pub fn words(&self) -> Vec<String> {
        self.0.iter().map(|rule| rule.text.clone()).collect()
    }

    /// Whether a call is allowed. `parts` are the commands in a shell text, which must all match a rule; a
    /// text that cannot be parsed has none and is not allowed.
    pub fn permit(&self, tool: &str, parts: Option<&[String]>) -> bool {
        if ALWAYS.contains(&tool) {
            return true;
        }
        let rules: Vec<&Rule> = self.0.iter().filter(|rule| rule.names(tool)).collect();
        if rules.iter().any(|rule| rule.prefix.is_none()) {
            return true;
        }
        // The input, output and end of a command that was allowed are allowed too.
        if rules.is_empty() || tool != "bash" {
            return !rules.is_empty();
        }
        let parts = parts.unwrap_or_default();
        let begins = |part: &String| rules.iter().any(|rule| rule.begins(part));
        !parts.is_empty() && parts.iter().all(begins)
    }
}

impl Rule {
    fn read(text: String) -> Self {
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

    fn names(&self, tool: &str) -> bool {
        let meant = ALIASES.iter().find(|(name, _)| *name == self.tool).map(|(_, own)| *own);
        meant.map_or(self.tool == tool, |own| own.contains(&tool))
    }

    fn begins(&self, part: &str) -> bool {
        let Some(prefix) = &self.prefix else { return true };
        let mut words = part.split_whitespace();
        prefix.split_whitespace().all(|wanted| words.next() == Some(wanted))
    }
}

/// Splits a text at commas and spaces outside of parentheses.
fn parted(text: &str) -> Vec<String> {
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
        let kind = Kind::Text { text: text.to_owned(), plain: true };
        AllowedTools::read(&Node { line: 1, kind }).unwrap().unwrap()
    }

    #[test]
    fn names_of_others_mean_ours_and_prefixes_hold_for_every_part() {
        let tools = allowed("Read, Grep Bash(git add:*) Bash(ls) mcp__x__y");
        let words = ["Read", "Grep", "Bash(git add:*)", "Bash(ls)", "mcp__x__y"];
        assert_eq!(tools.words(), words);
        let command = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            tools.permit("bash", Some(&parts))
        };
        assert!(tools.permit("read", None) && tools.permit("grep", None));
        assert!(tools.permit("mcp__x__y", None) && tools.permit("skill_view", None));
        assert!(!tools.permit("write", None) && !tools.permit("edit", None));
        assert!(command(&["git add ."]) && command(&["ls", "git add x"]));
        assert!(!command(&["git address"]) && !command(&["git add .", "rm -rf x"]));
        assert!(!command(&[]) && !tools.permit("bash", None), "not understood, not allowed");
        assert!(tools.permit("bash_output", None));
        assert!(
            allowed("Bash").permit("bash", None) && allowed("Edit").permit("apply_patch", None)
        );
        assert!(!allowed("Read").permit("bash_stop", None));
        assert_eq!(AllowedTools::of_words(&tools.words()), Some(tools));
        assert_eq!(AllowedTools::of_words(&[]), None);
    }
}
