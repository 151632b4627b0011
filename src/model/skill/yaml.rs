//! Reads untrusted YAML into a small tree with line numbers.
//!
//! Only text, lists and maps with text keys are built from the parser's events. Aliases are refused,
//! because a few lines of them can expand to millions of values, and so are tags and deep nesting.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::FileDiagnostic;

/// How deep lists and maps may be nested.
const DEEPEST: usize = 6;
/// The most values of a document.
const MOST: usize = 2000;

/// A value, and its first line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlNode {
    pub line: usize,
    pub value: YamlValue,
}

/// The content of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlValue {
    /// A scalar; `plain` when it is not quoted, so that `true` may be a boolean.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<YamlNode>),
    /// A map in the order of the file, without duplicate keys.
    Map(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// The text of a scalar.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Text { text, .. } => Some(text),
            YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    /// Whether the value is null: absent, `~` or `null`.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, YamlValue::Text { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The boolean value of a scalar, in all spellings of YAML, and `1` or `0`.
    pub fn as_bool(&self) -> Option<bool> {
        match self.as_text()?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    /// The value of a key of a map.
    pub fn get(&self, key: &str) -> Option<&YamlNode> {
        self.entries().iter().find(|(own, _)| own == key).map(|(_, node)| node)
    }

    /// The entries of a map; empty for any other value.
    pub fn entries(&self) -> &[(String, YamlNode)] {
        match &self.value {
            YamlValue::Map(entries) => entries,
            YamlValue::Text { .. } | YamlValue::List(_) => &[],
        }
    }
}

/// Reads one document.
pub fn parse(text: &str) -> Result<YamlNode, FileDiagnostic> {
    let mut reader = YamlReader { parser: Parser::new_from_str(text), count: 0 };
    let mut root = None;
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if root.is_some() => {
                return Err(FileDiagnostic::at_line(line, "a second document begins here"));
            }
            event => root = Some(reader.read_node(event, line, 0)?),
        }
    }
    Ok(root.unwrap_or(YamlNode { line: 1, value: YamlValue::Map(Vec::new()) }))
}

struct YamlReader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    count: usize,
}

impl<'a> YamlReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), FileDiagnostic> {
        match self.parser.next_event() {
            None => Ok((Event::StreamEnd, 1)),
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(FileDiagnostic::at_line(
                error.marker().line(),
                &explain_parse_error(error.info()),
            )),
        }
    }

    fn read_node(
        &mut self,
        event: Event<'a>,
        line: usize,
        depth: usize,
    ) -> Result<YamlNode, FileDiagnostic> {
        self.count += 1;
        if self.count > MOST {
            return Err(FileDiagnostic::at_line(
                line,
                &format!("there are more than {MOST} values"),
            ));
        }
        if depth > DEEPEST {
            return Err(FileDiagnostic::at_line(
                line,
                &format!("it is nested more than {DEEPEST} deep"),
            ));
        }
        let kind = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return Err(FileDiagnostic::at_line(line, "tags are not supported"));
            }
            Event::Scalar(text, style, _, None) => {
                YamlValue::Text { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(_, None) => self.read_list(depth)?,
            Event::MappingStart(_, None) => self.read_map(depth)?,
            Event::Alias(_) => {
                return Err(FileDiagnostic::at_line(line, "aliases are not supported"));
            }
            _ => return Err(FileDiagnostic::at_line(line, "something is missing here")),
        };
        Ok(YamlNode { line, value: kind })
    }

    fn read_list(&mut self, depth: usize) -> Result<YamlValue, FileDiagnostic> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(YamlValue::List(nodes)),
                (event, line) => nodes.push(self.read_node(event, line, depth + 1)?),
            }
        }
    }

    fn read_map(&mut self, depth: usize) -> Result<YamlValue, FileDiagnostic> {
        let mut entries: Vec<(String, YamlNode)> = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(YamlValue::Map(entries));
            }
            let key = self.read_node(event, line, depth + 1)?;
            let Some(key) = key.as_text().map(str::to_owned) else {
                return Err(FileDiagnostic::at_line(line, "a key must be a word"));
            };
            if entries.iter().any(|(own, _)| *own == key) {
                return Err(FileDiagnostic::at_line(line, &format!("duplicate key `{key}`")));
            }
            let (event, line) = self.next()?;
            entries.push((key, self.read_node(event, line, depth + 1)?));
        }
    }
}

/// The parser's message, with advice on the most common mistake.
fn explain_parse_error(info: &str) -> String {
    if info.contains("mapping values are not allowed") {
        return format!("{info}; put a text with a colon in it in quotes");
    }
    info.to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flaw(text: &str) -> (Option<usize>, String) {
        let flaw = parse(text).unwrap_err();
        (flaw.line, flaw.message)
    }

    #[test]
    fn ordinary_front_matter_is_read_as_yaml_is() {
        let node = parse(
            "name: a-b # not a comment of the name\ndescription: >-\n  two\n  lines\nlist: [x, \"y: z\"]\n\
             metadata:\n  author: me\n  version: \"1.0\"\nempty:\n",
        )
        .unwrap();
        let text = |key: &str| node.get(key).and_then(YamlNode::as_text).unwrap().to_owned();
        assert_eq!((text("name"), text("description")), ("a-b".into(), "two lines".into()));
        let YamlValue::List(list) = &node.get("list").unwrap().value else { panic!("a list") };
        assert_eq!(list[1].as_text(), Some("y: z"));
        assert_eq!(node.get("metadata").unwrap().get("version").unwrap().as_text(), Some("1.0"));
        assert!(node.get("empty").unwrap().is_null());
        assert_eq!(node.get("list").unwrap().line, 5);
        assert_eq!(parse("").unwrap().entries(), []);
    }

    #[test]
    fn what_could_be_a_trap_is_refused_with_its_line() {
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
        assert_eq!(flaw(bomb), (Some(2), "aliases are not supported".to_owned()));
        assert_eq!(flaw("x: 1\ny: !!python/object a\n").0, Some(2));
        assert_eq!(flaw("a: 1\nb: 2\na: 3\n"), (Some(3), "duplicate key `a`".to_owned()));
        let deep = format!("a: {}{}", "[".repeat(20), "]".repeat(20));
        assert!(flaw(&deep).1.contains("deep"));
        assert!(parse(&format!("a: {}", "[".repeat(5000))).is_err());
        let wide = format!("a: [{}]", "x,".repeat(5000));
        assert!(flaw(&wide).1.contains("more than"));
        assert!(flaw("a: \"never closed\nb: c\n").0.is_some());
        assert!(flaw("a: b\n---\nc: d\n").1.contains("second document"));
        assert!(flaw("[a, b]: c\n").1.contains("key"));
        assert!(flaw("a: b: c\n").1.contains("in quotes"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fall(text in "\\PC*") {
            parse(&text).ok();
        }

        #[test]
        fn no_pile_of_signs_makes_it_fall(
            text in "([-:#&*!|>'\"%@`{}\\[\\],? \n\ta0]|---\n){0,60}",
        ) {
            parse(&text).ok();
        }
    }
}
