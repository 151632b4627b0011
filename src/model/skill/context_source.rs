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

use super::FileDiagnostic;
use super::front_matter::validate_name;
use super::yaml::{YamlNode, YamlValue};

/// How many sources a Skill may have.
const MOST: usize = 8;
/// How many globs a source may have.
const MOST_GLOBS: usize = 16;
/// The longest command, in bytes.
const LONGEST_COMMAND: usize = 2000;

/// git without the programs that a repository can name: a pager, hooks, a file system monitor, and the
/// transport of a remote from which missing objects would be fetched.
const SAFE_GIT: &str = "env GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 git --no-pager \
    --no-optional-locks -c core.fsmonitor=false -c core.hooksPath=/dev/null";

/// One source of context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSource {
    pub id: String,
    pub kind: ContextSourceKind,
}

/// The kind of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextSourceKind {
    /// Files of the Workspace.
    Files(Vec<String>),
    /// The output of a git query.
    Git(GitQuery),
    /// A command that runs in a read-only sandbox.
    Command(String),
}

/// A git query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitQuery {
    Branch,
    Status,
    Log,
    Diff,
}

impl GitQuery {
    const ALL: [(&'static str, GitQuery); 4] = [
        ("branch", GitQuery::Branch),
        ("status", GitQuery::Status),
        ("log", GitQuery::Log),
        ("diff", GitQuery::Diff),
    ];

    /// The shell command of the query, which starts no program that a repository names and takes no lock.
    pub fn command(self) -> String {
        let asked = match self {
            GitQuery::Branch => "rev-parse --abbrev-ref HEAD",
            GitQuery::Status => "status --short --branch --ignore-submodules=dirty",
            GitQuery::Log => "log --oneline --no-decorate --no-show-signature --max-count=20",
            GitQuery::Diff => {
                "diff --no-ext-diff --no-textconv --ignore-submodules=dirty --stat HEAD"
            }
        };
        match self {
            GitQuery::Branch | GitQuery::Log => format!("{SAFE_GIT} {asked}"),
            // These read files through the filters that a repository names, so each filter is emptied.
            GitQuery::Status | GitQuery::Diff => format!(
                "sh -c 'git config --name-only --get-regexp \"^filter[.]\" | {{ n=0; \
                 while IFS= read -r key; do \
                 export \"GIT_CONFIG_KEY_$n=$key\" \"GIT_CONFIG_VALUE_$n=\"; n=$((n+1)); done; \
                 export GIT_CONFIG_COUNT=$n; {SAFE_GIT} {asked}; }}'"
            ),
        }
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, fact)| *fact == self).map_or("", |(name, _)| name)
    }
}

impl ContextSourceKind {
    /// The name of the kind, for the Log.
    pub fn name(&self) -> &'static str {
        match self {
            ContextSourceKind::Files(_) => "files",
            ContextSourceKind::Git(_) => "git",
            ContextSourceKind::Command(_) => "command",
        }
    }
}

impl std::fmt::Display for ContextSourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ContextSourceKind::Files(globs) => write!(f, "files {}", globs.join(" ")),
            ContextSourceKind::Git(fact) => write!(f, "git {}", fact.name()),
            ContextSourceKind::Command(command) => write!(f, "command {command}"),
        }
    }
}

/// Reads the `context` of the front matter.
pub fn read_sources(node: &YamlNode) -> Result<Vec<ContextSource>, FileDiagnostic> {
    if node.is_null() {
        return Ok(Vec::new());
    }
    let YamlValue::List(nodes) = &node.value else {
        return Err(FileDiagnostic::at_line(node.line, "`context` must be a list of sources"));
    };
    if nodes.len() > MOST {
        return Err(FileDiagnostic::at_line(
            node.line,
            &format!("`context` has more than {MOST} sources"),
        ));
    }
    let mut sources: Vec<ContextSource> = Vec::new();
    for node in nodes {
        let source = read_source(node)?;
        if sources.iter().any(|other| other.id == source.id) {
            return Err(FileDiagnostic::at_line(
                node.line,
                &format!("two sources have the id `{}`", source.id),
            ));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn read_source(node: &YamlNode) -> Result<ContextSource, FileDiagnostic> {
    let Some(id) = node.get("id") else {
        return Err(FileDiagnostic::at_line(node.line, "a source needs an `id`"));
    };
    let id = validate_name(id.as_text().unwrap_or_default(), id.line)?;
    let stated: Vec<(&str, &YamlNode)> = ["files", "git", "command"]
        .into_iter()
        .filter_map(|key| Some((key, node.get(key)?)))
        .collect();
    let [(key, value)] = stated.as_slice() else {
        return Err(FileDiagnostic::at_line(
            node.line,
            "a source has one of `files`, `git` and `command`",
        ));
    };
    if let Some((other, value)) = node.entries().iter().find(|(own, _)| own != "id" && own != key) {
        return Err(FileDiagnostic::at_line(
            value.line,
            &format!("`{other}` is not a key of a source"),
        ));
    }
    let what = match *key {
        "files" => ContextSourceKind::Files(read_globs(value)?),
        "git" => ContextSourceKind::Git(read_git_query(value)?),
        _ => ContextSourceKind::Command(read_command(value)?),
    };
    Ok(ContextSource { id, kind: what })
}

fn read_globs(node: &YamlNode) -> Result<Vec<String>, FileDiagnostic> {
    let texts: Option<Vec<String>> = match &node.value {
        YamlValue::Text { text, .. } => Some(vec![text.clone()]),
        YamlValue::List(nodes) => {
            nodes.iter().map(|node| node.as_text().map(str::to_owned)).collect()
        }
        YamlValue::Map(_) => None,
    };
    let texts = texts.filter(|texts| !texts.is_empty() && texts.len() <= MOST_GLOBS);
    let texts = texts.ok_or_else(|| {
        FileDiagnostic::at_line(
            node.line,
            &format!("`files` is a glob, or a list of at most {MOST_GLOBS}"),
        )
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
            Err(FileDiagnostic::at_line(node.line, &message))
        }
        None => Ok(texts),
    }
}

fn read_git_query(node: &YamlNode) -> Result<GitQuery, FileDiagnostic> {
    let name = node.as_text().unwrap_or_default();
    let known = GitQuery::ALL.iter().find(|(own, _)| *own == name).map(|(_, fact)| *fact);
    known.ok_or_else(|| {
        let names: Vec<&str> = GitQuery::ALL.iter().map(|(name, _)| *name).collect();
        FileDiagnostic::at_line(node.line, &format!("`git` is one of {}", names.join(", ")))
    })
}

fn read_command(node: &YamlNode) -> Result<String, FileDiagnostic> {
    let text = node.as_text().map(str::trim).unwrap_or_default();
    if text.is_empty() || text.len() > LONGEST_COMMAND {
        let message = format!("`command` is a text of at most {LONGEST_COMMAND} bytes");
        return Err(FileDiagnostic::at_line(node.line, &message));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::yaml;
    use super::*;

    fn look(text: &str) -> Result<Vec<ContextSource>, FileDiagnostic> {
        read_sources(yaml::parse(text).unwrap().get("context").unwrap())
    }

    #[test]
    fn sources_are_files_facts_and_commands() {
        let sources = look(
            "context:\n  - {id: a, files: [Cargo.toml, 'docs/*.md']}\n  - {id: b, git: status}\n  \
             - id: c\n    command: grep -rn TODO src\n",
        )
        .unwrap();
        let shown: Vec<String> = sources.iter().map(|source| source.kind.to_string()).collect();
        let wanted = ["files Cargo.toml docs/*.md", "git status", "command grep -rn TODO src"];
        assert_eq!(shown, wanted);
        assert!(GitQuery::Status.command().contains("fsmonitor=false"));
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
