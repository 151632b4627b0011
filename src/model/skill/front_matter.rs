//! The front matter of a SKILL.md: its YAML between two lines of dashes.

use super::FileDiagnostic;
use super::allowed_tools::AllowedTools;
use super::context_source::{self, ContextSource};
use super::yaml::{self, YamlNode, YamlValue};
use crate::base::text::on_one_line;

/// The longest front matter, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;
/// The longest name, in characters.
const LONGEST_NAME: usize = 64;
/// The longest description that the format allows, in characters.
const LONGEST_DESCRIPTION: usize = 1024;

/// The fields of the front matter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrontMatter {
    pub name: String,
    pub description: String,
    pub license: Option<String>,
    pub compatibility: Option<String>,
    pub metadata: Vec<(String, String)>,
    /// The only tools of a Turn in which the Skill is active.
    pub allowed_tools: Option<AllowedTools>,
    /// Whether only the user may activate the Skill, not the model.
    pub is_user_only: bool,
    /// The sources of the Skill's context.
    pub sources: Vec<ContextSource>,
}

/// The keys that cause no warning.
const KNOWN_KEYS: &[&str] = &[
    "name",
    "description",
    "license",
    "compatibility",
    "metadata",
    "allowed-tools",
    "disable-model-invocation",
    "context",
];

/// Reads the front matter of a file. Errors make the Skill unusable; warnings go to `odd`.
pub fn read_front_matter(
    text: &str,
    folder: &str,
    odd: &mut Vec<FileDiagnostic>,
) -> Result<FrontMatter, FileDiagnostic> {
    let (head, body) = split_front_matter(text)?;
    let Some(head) = head else {
        odd.push(FileDiagnostic::at_line(
            1,
            "it has no front matter: name and description are guessed",
        ));
        let name = validate_name(folder, 1)?;
        return Ok(FrontMatter { name, description: first_line(body), ..FrontMatter::default() });
    };
    // The front matter begins on the second line of the file.
    let node = yaml::parse(head).map_err(FileDiagnostic::shifted_one_line)?;
    let mut read = || -> Result<FrontMatter, FileDiagnostic> {
        if !matches!(node.value, YamlValue::Map(_)) {
            return Err(FileDiagnostic::at_line(node.line, "the front matter is not a map"));
        }
        parse_front_matter(&node, folder, body, odd)
    };
    read().map_err(FileDiagnostic::shifted_one_line)
}

fn parse_front_matter(
    node: &YamlNode,
    folder: &str,
    body: &str,
    odd: &mut Vec<FileDiagnostic>,
) -> Result<FrontMatter, FileDiagnostic> {
    let mut wonder =
        |line: usize, message: String| odd.push(FileDiagnostic::at_line(line + 1, &message));
    for (key, value) in node.entries() {
        if !KNOWN_KEYS.contains(&key.as_str()) {
            wonder(value.line, format!("`{key}` is not a key of the format"));
        }
    }
    let name = if let Some(name) = node.get("name") {
        let text = validate_name(name.as_text().unwrap_or_default(), name.line)?;
        if text != folder {
            wonder(name.line, format!("its name differs from the name of its folder, `{folder}`"));
        }
        text
    } else {
        wonder(node.line, "it has no name: the name of its folder is used".to_owned());
        validate_name(folder, node.line)?
    };
    if !is_standard_name(&name) {
        let words = "the format allows only a-z, 0-9 and single hyphens in names";
        wonder(node.get("name").map_or(1, |name| name.line), words.to_owned());
    }
    let description = optional_text(node, "description")?.unwrap_or_default();
    let description = if description.trim().is_empty() {
        wonder(node.line, "it has no description: its first line is used".to_owned());
        first_line(body)
    } else {
        description
    };
    if description.chars().count() > LONGEST_DESCRIPTION {
        let line = node.get("description").map_or(1, |node| node.line);
        wonder(line, format!("its description is longer than {LONGEST_DESCRIPTION} characters"));
    }
    let is_for_people = match node.get("disable-model-invocation") {
        None => false,
        Some(node) => node.as_bool().ok_or_else(|| {
            FileDiagnostic::at_line(node.line, "`disable-model-invocation` is true or false")
        })?,
    };
    Ok(FrontMatter {
        name,
        description: on_one_line(&description),
        license: optional_text(node, "license")?,
        compatibility: optional_text(node, "compatibility")?,
        metadata: read_metadata(node)?,
        allowed_tools: node.get("allowed-tools").map(AllowedTools::parse).transpose()?.flatten(),
        is_user_only: is_for_people,
        sources: node
            .get("context")
            .map(context_source::read_sources)
            .transpose()?
            .unwrap_or_default(),
    })
}

/// Splits a file into the front matter, if there is one, and the rest.
pub fn split_front_matter(text: &str) -> Result<(Option<&str>, &str), FileDiagnostic> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    if first.trim_end() != "---" {
        return Ok((None, text));
    }
    let mut end = first.len();
    for line in lines {
        if line.trim_end() == "---" {
            return Ok((Some(&text[first.len()..end]), &text[end + line.len()..]));
        }
        end += line.len();
        if end > LONGEST_HEAD {
            let message = format!("the front matter is longer than {LONGEST_HEAD} bytes");
            return Err(FileDiagnostic::at_line(1, &message));
        }
    }
    Err(FileDiagnostic::at_line(1, "the front matter does not end: there is no second `---`"))
}

/// Checks a name: it must be usable after `$` and `/`, and safe to show anywhere.
pub fn validate_name(name: &str, line: usize) -> Result<String, FileDiagnostic> {
    let mut letters = name.chars();
    let is_first = |c: char| c.is_ascii_alphanumeric();
    let is_rest = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    let is_good = letters.next().is_some_and(is_first)
        && letters.all(is_rest)
        && !name.ends_with(['.', ':', '-'])
        && name.len() <= LONGEST_NAME;
    if is_good {
        return Ok(name.to_owned());
    }
    let shown: String = name.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
    let rule = "letters, digits, `_`, `.`, `:` and `-`, at most 64 of them, begin and end with \
        a letter or digit";
    Err(FileDiagnostic::at_line(line, &format!("`{shown}` cannot be a name: {rule}")))
}

fn is_standard_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.chars().all(is_letter) && !name.contains("--")
}

fn optional_text(node: &YamlNode, key: &str) -> Result<Option<String>, FileDiagnostic> {
    let Some(value) = node.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let text = value.as_text().map(str::to_owned);
    text.map(Some)
        .ok_or_else(|| FileDiagnostic::at_line(value.line, &format!("`{key}` must be text")))
}

fn read_metadata(node: &YamlNode) -> Result<Vec<(String, String)>, FileDiagnostic> {
    let Some(metadata) = node.get("metadata").filter(|node| !node.is_null()) else {
        return Ok(Vec::new());
    };
    if !matches!(metadata.value, YamlValue::Map(_)) {
        return Err(FileDiagnostic::at_line(metadata.line, "`metadata` must be a map"));
    }
    let pair = |(key, value): &(String, YamlNode)| Some((key.clone(), value.as_text()?.to_owned()));
    Ok(metadata.entries().iter().filter_map(pair).collect())
}

/// The first line of a text that is not empty.
fn first_line(body: &str) -> String {
    let line = body.lines().map(|line| line.trim_start_matches('#').trim());
    let words = line.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
    words.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(text: &str) -> (Result<FrontMatter, FileDiagnostic>, Vec<String>) {
        let mut odd = Vec::new();
        let front = read_front_matter(text, "pdf-forms", &mut odd);
        (front, odd.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_head_by_the_book_has_no_oddities() {
        let (front, odd) = look(
            "---\nname: pdf-forms\ndescription: Fill PDF forms: use when asked.\nlicense: MIT\n\
             compatibility: needs python3\nallowed-tools: Read Bash(git add:*), Grep\n\
             metadata:\n  author: me\n  version: 2\ndisable-model-invocation: true\n---\n# Body\n",
        );
        // A colon in a plain scalar is no YAML; the parser says so with its line.
        assert_eq!(front.unwrap_err().line, Some(3));
        assert!(odd.is_empty());
        let (front, odd) = look(
            "---\nname: pdf-forms\ndescription: >\n  Fill PDF forms;\n  use when asked.\n\
             license: MIT\nallowed-tools: Read Bash(git add:*), Grep\nmetadata:\n  version: 2\n\
             disable-model-invocation: yes\n---\n# Body\n",
        );
        let front = front.unwrap();
        assert_eq!(front.description, "Fill PDF forms; use when asked.");
        assert!(front.is_user_only && front.allowed_tools.is_some());
        assert_eq!(front.metadata, [("version".to_owned(), "2".to_owned())]);
        assert!(odd.is_empty(), "{odd:?}");
    }

    #[test]
    fn missing_fields_are_guessed_and_reported() {
        let (front, odd) = look("# Fill forms\nWith care.\n");
        let front = front.unwrap();
        assert_eq!((front.name.as_str(), front.description.as_str()), ("pdf-forms", "Fill forms"));
        assert!(odd[0].contains("no front matter"), "{odd:?}");
        let (front, odd) = look("---\nname: Other_Name\ncolour: red\n---\nHello\n");
        assert_eq!(front.unwrap().description, "Hello");
        assert_eq!(odd.len(), 4, "{odd:?}");
        assert!(odd[0].starts_with("line 3: `colour`"), "{odd:?}");
    }

    #[test]
    fn a_bad_head_is_refused_with_its_line() {
        for (text, line, words) in [
            ("---\nname: a\n", 1, "does not end"),
            ("---\n- a\n---\n", 2, "not a map"),
            ("---\nname: ../../etc\n---\n", 2, "cannot be a name"),
            ("---\nname: \"a b\"\n---\n", 2, "cannot be a name"),
            ("---\nname: [a]\n---\n", 2, "cannot be a name"),
            ("---\nname: ok\ndescription: {a: b}\n---\n", 3, "must be text"),
            ("---\nname: ok\nmetadata: x\n---\n", 3, "must be a map"),
            ("---\nname: ok\ndisable-model-invocation: perhaps\n---\n", 3, "true or false"),
            ("---\nname: ok\nx: *a\n---\n", 3, ""),
        ] {
            let flaw = look(text).0.unwrap_err();
            assert_eq!(flaw.line, Some(line), "{text}: {flaw}");
            assert!(flaw.message.contains(words), "{text}: {flaw}");
        }
        let long = format!("---\nname: a\ndescription: {}\n---\n", "x".repeat(20_000));
        assert!(look(&long).0.unwrap_err().message.contains("longer than"));
    }
}
