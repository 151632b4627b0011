//! Context sources: files, git queries and read-only commands whose output a Skill gets when it is
//! activated.
//!
//! ```yaml
//! context:
//!   - id: manifest
//!     files: [Cargo.toml, "docs/*.md"]
//!   - id: changes
//!     git: status
//!   - id: todo
//!     command: grep -rn TODO src
//! ```

use super::Flaw;
use super::front::checked_name;
use super::yaml::{Kind, Node};

/// How many sources a Skill may have.
const MOST: usize = 8;
/// How many globs a source may have.
const MOST_GLOBS: usize = 16;
/// The longest command, in bytes.
const LONGEST_COMMAND: usize = 2000;

/// git without the programs that a repository can name: a pager, hooks, a file system monitor, and the
/// transport of a remote from which missing objects would be fetched.
const QUIETLY: &str = "env GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 git --no-pager \
    --no-optional-locks -c core.fsmonitor=false -c core.hooksPath=/dev/null";

/// One source of context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub id: String,
    pub what: What,
}

/// The kind of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Files of the Workspace.
    Files(Vec<String>),
    /// The output of a git query.
    Git(Fact),
    /// A command that runs in a read-only sandbox.
    Command(String),
}

/// A git query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    Branch,
    Status,
    Log,
    Diff,
}

impl Fact {
    const ALL: [(&'static str, Fact); 4] = [
        ("branch", Fact::Branch),
        ("status", Fact::Status),
        ("log", Fact::Log),
        ("diff", Fact::Diff),
    ];

    /// The shell command of the query. It starts no program that a repository names and takes no lock.
    pub fn command(self) -> String {
        let asked = match self {
            Fact::Branch => "rev-parse --abbrev-ref HEAD",
            Fact::Status => "status --short --branch --ignore-submodules=dirty",
            Fact::Log => "log --oneline --no-decorate --no-show-signature --max-count=20",
            Fact::Diff => "diff --no-ext-diff --no-textconv --ignore-submodules=dirty --stat HEAD",
        };
        match self {
            Fact::Branch | Fact::Log => format!("{QUIETLY} {asked}"),
            // These read files through the filters that a repository names, so each filter is emptied.
            Fact::Status | Fact::Diff => format!(
                "sh -c 'git config --name-only --get-regexp \"^filter[.]\" | {{ n=0; \
                 while IFS= read -r key; do \
                 export \"GIT_CONFIG_KEY_$n=$key\" \"GIT_CONFIG_VALUE_$n=\"; n=$((n+1)); done; \
                 export GIT_CONFIG_COUNT=$n; {QUIETLY} {asked}; }}'"
            ),
        }
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, fact)| *fact == self).map_or("", |(name, _)| name)
    }
}

impl What {
    /// The name of the kind, for the Log.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Files(_) => "files",
            What::Git(_) => "git",
            What::Command(_) => "command",
        }
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Files(globs) => write!(f, "files {}", globs.join(" ")),
            What::Git(fact) => write!(f, "git {}", fact.name()),
            What::Command(command) => write!(f, "command {command}"),
        }
    }
}

/// Reads the `context` of the front matter.
pub fn read(node: &Node) -> Result<Vec<Source>, Flaw> {
    if node.is_null() {
        return Ok(Vec::new());
    }
    let Kind::List(nodes) = &node.kind else {
        return Err(Flaw::at(node.line, "`context` must be a list of sources"));
    };
    if nodes.len() > MOST {
        return Err(Flaw::at(node.line, &format!("`context` has more than {MOST} sources")));
    }
    let mut sources: Vec<Source> = Vec::new();
    for node in nodes {
        let source = one(node)?;
        if sources.iter().any(|other| other.id == source.id) {
            return Err(Flaw::at(node.line, &format!("two sources have the id `{}`", source.id)));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn one(node: &Node) -> Result<Source, Flaw> {
    let Some(id) = node.get("id") else {
        return Err(Flaw::at(node.line, "a source needs an `id`"));
    };
    let id = checked_name(id.text().unwrap_or_default(), id.line)?;
    let stated: Vec<(&str, &Node)> = ["files", "git", "command"]
        .into_iter()
        .filter_map(|key| Some((key, node.get(key)?)))
        .collect();
    let [(key, value)] = stated.as_slice() else {
        return Err(Flaw::at(node.line, "a source has one of `files`, `git` and `command`"));
    };
    if let Some((other, value)) = node.entries().iter().find(|(own, _)| own != "id" && own != key) {
        return Err(Flaw::at(value.line, &format!("`{other}` is not a key of a source")));
    }
    let what = match *key {
        "files" => What::Files(globs(value)?),
        "git" => What::Git(fact(value)?),
        _ => What::Command(command(value)?),
    };
    Ok(Source { id, what })
}

fn globs(node: &Node) -> Result<Vec<String>, Flaw> {
    let texts: Option<Vec<String>> = match &node.kind {
        Kind::Text { text, .. } => Some(vec![text.clone()]),
        Kind::List(nodes) => nodes.iter().map(|node| node.text().map(str::to_owned)).collect(),
        Kind::Map(_) => None,
    };
    let texts = texts.filter(|texts| !texts.is_empty() && texts.len() <= MOST_GLOBS);
    let texts = texts.ok_or_else(|| {
        Flaw::at(node.line, &format!("`files` is a glob, or a list of at most {MOST_GLOBS}"))
    })?;
    let is_bad = |glob: &&String| {
        glob.is_empty()
            || glob.starts_with('/')
            || glob.split('/').any(|part| part == "..")
            || globset::Glob::new(glob).is_err()
    };
    match texts.iter().find(is_bad) {
        Some(bad) => {
            let message = format!("`{bad}` is not a glob relative to the Workspace");
            Err(Flaw::at(node.line, &message))
        }
        None => Ok(texts),
    }
}

fn fact(node: &Node) -> Result<Fact, Flaw> {
    let name = node.text().unwrap_or_default();
    let known = Fact::ALL.iter().find(|(own, _)| *own == name).map(|(_, fact)| *fact);
    known.ok_or_else(|| {
        let names: Vec<&str> = Fact::ALL.iter().map(|(name, _)| *name).collect();
        Flaw::at(node.line, &format!("`git` is one of {}", names.join(", ")))
    })
}

fn command(node: &Node) -> Result<String, Flaw> {
    let text = node.text().map(str::trim).unwrap_or_default();
    if text.is_empty() || text.len() > LONGEST_COMMAND {
        let message = format!("`command` is a text of at most {LONGEST_COMMAND} bytes");
        return Err(Flaw::at(node.line, &message));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::yaml;
    use super::*;

    fn look(text: &str) -> Result<Vec<Source>, Flaw> {
        read(yaml::parse(text).unwrap().get("context").unwrap())
    }

    #[test]
    fn sources_are_files_facts_and_commands() {
        let sources = look(
            "context:\n  - {id: a, files: [Cargo.toml, 'docs/*.md']}\n  - {id: b, git: status}\n  \
             - id: c\n    command: grep -rn TODO src\n",
        )
        .unwrap();
        let shown: Vec<String> = sources.iter().map(|source| source.what.to_string()).collect();
        let wanted = ["files Cargo.toml docs/*.md", "git status", "command grep -rn TODO src"];
        assert_eq!(shown, wanted);
        assert!(Fact::Status.command().contains("fsmonitor=false"));
    }

    #[test]
    fn a_source_that_makes_no_sense_is_refused_with_its_line() {
        for (text, line) in [
            ("context: x\n", 1),
            ("context:\n  - {git: status}\n", 2),
            ("context:\n  - {id: a}\n", 2),
            ("context:\n  - {id: a, git: status, command: ls}\n", 2),
            ("context:\n  - {id: a, git: push}\n", 2),
            ("context:\n  - {id: a, files: ../x}\n", 2),
            ("context:\n  - {id: a, files: /etc/passwd}\n", 2),
            ("context:\n  - {id: a, git: log, mood: bad}\n", 2),
            ("context:\n  - {id: a, git: log}\n  - {id: a, git: log}\n", 3),
            ("context:\n  - {id: 'a b', git: log}\n", 2),
        ] {
            let flaw = look(text).unwrap_err();
            assert_eq!(flaw.line, Some(line), "{text}: {flaw}");
        }
    }
}
