//! `allowed-tools`: the only tools of a Turn in which a Skill is active.
//!
//! It narrows what the Session has and never widens it: a tool that is named here is still judged by
//! mode, bounds and sandbox. Names are ours, or those that other agents use for the same thing.

use super::Flaw;
use super::yaml::{Kind, Node};

/// What others call our tools.
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

/// Tools that change nothing but the conversation; a Skill cannot be used without them.
const ALWAYS: &[&str] = &["resource_view", "skill_view", "skills_list", "update_plan"];

/// The most that may be named.
const MOST: usize = 100;

/// A list of tools, each perhaps with the words that its command begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTools(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    /// As it was written.
    text: String,
    tool: String,
    /// `Bash(git add:*)`: a command must begin with these words.
    prefix: Option<String>,
}

impl AllowedTools {
    /// Reads a list, or words parted by commas and blanks. `None` when nothing is named: an empty
    /// value says nothing.
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

    /// The same from what a Log kept of it.
    pub fn of_words(words: &[String]) -> Option<Self> {
        let rules: Vec<Rule> = words.iter().cloned().map(Rule::read).collect();
        (!rules.is_empty()).then_some(Self(rules))
    }

    /// What was written, for people and for the Log.
    pub fn words(&self) -> Vec<String> {
        self.0.iter().map(|rule| rule.text.clone()).collect()
    }

    /// Whether a call stays within it; `parts` are the commands in a shell text, which must all
    /// begin as some rule says. A command that nobody can take apart has none, and stays outside.
    pub fn permit(&self, tool: &str, parts: Option<&[String]>) -> bool {
        if ALWAYS.contains(&tool) {
            return true;
        }
        let rules: Vec<&Rule> = self.0.iter().filter(|rule| rule.names(tool)).collect();
        if rules.iter().any(|rule| rule.prefix.is_none()) {
            return true;
        }
        // What was started by a command that was allowed may be looked at, fed and stopped.
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

/// Words parted by commas and blanks, but not within parentheses.
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
