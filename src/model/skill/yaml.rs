//! Reads untrusted YAML into a small tree with line numbers.
//!
//! Only text, lists and maps with text keys are built from the parser's events. Aliases are refused,
//! because a few lines of them can expand to millions of values, and so are tags and deep nesting.

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::Flaw;

/// How deep lists and maps may be nested.
const DEEPEST: usize = 6;
/// How many values there may be.
const MOST: usize = 2000;

/// A value, and its first line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub line: usize,
    pub kind: Kind,
}

/// The content of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A scalar; `plain` when it is not quoted, so that `true` may be a boolean.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the file, without duplicate keys.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text { text, .. } => Some(text),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Whether it is null: no value after a key.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Text { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The boolean value of a scalar, in all spellings of YAML.
    pub fn truth(&self) -> Option<bool> {
        match self.text()?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    /// The value of a key of a map.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(own, _)| own == key).map(|(_, node)| node)
    }

    /// The entries of a map; empty for any other value.
    pub fn entries(&self) -> &[(String, Node)] {
        match &self.kind {
            Kind::Map(entries) => entries,
            Kind::Text { .. } | Kind::List(_) => &[],
        }
    }
}

/// Reads one document.
pub fn parse(text: &str) -> Result<Node, Flaw> {
    let mut reader = Reader { parser: Parser::new_from_str(text), count: 0 };
    let mut root = None;
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if root.is_some() => return Err(Flaw::at(line, "a second document begins here")),
            event => root = Some(reader.node(event, line, 0)?),
        }
    }
    Ok(root.unwrap_or(Node { line: 1, kind: Kind::Map(Vec::new()) }))
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    count: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), Flaw> {
        match self.parser.next_event() {
            None => Ok((Event::StreamEnd, 1)),
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(Flaw::at(error.marker().line(), &advised(error.info()))),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, Flaw> {
        self.count += 1;
        if self.count > MOST {
            return Err(Flaw::at(line, &format!("there are more than {MOST} values")));
        }
        if depth > DEEPEST {
            return Err(Flaw::at(line, &format!("it is nested more than {DEEPEST} deep")));
        }
        let kind = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return Err(Flaw::at(line, "tags are not supported"));
            }
            Event::Scalar(text, style, _, None) => {
                Kind::Text { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(_, None) => self.list(depth)?,
            Event::MappingStart(_, None) => self.map(depth)?,
            Event::Alias(_) => return Err(Flaw::at(line, "aliases are not supported")),
            _ => return Err(Flaw::at(line, "something is missing here")),
        };
        Ok(Node { line, kind })
    }

    fn list(&mut self, depth: usize) -> Result<Kind, Flaw> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Kind::List(nodes)),
                (event, line) => nodes.push(self.node(event, line, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Kind, Flaw> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Kind::Map(entries));
            }
            let key = self.node(event, line, depth + 1)?;
            let Some(key) = key.text().map(str::to_owned) else {
                return Err(Flaw::at(line, "a key must be a word"));
            };
            if entries.iter().any(|(own, _)| *own == key) {
                return Err(Flaw::at(line, &format!("duplicate key `{key}`")));
            }
            let (event, line) = self.next()?;
            entries.push((key, self.node(event, line, depth + 1)?));
        }
    }
}

/// The parser's message, with advice on the most common mistake.
fn advised(info: &str) -> String {
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
        let text = |key: &str| node.get(key).and_then(Node::text).unwrap().to_owned();
        assert_eq!((text("name"), text("description")), ("a-b".into(), "two lines".into()));
        let Kind::List(list) = &node.get("list").unwrap().kind else { panic!("a list") };
        assert_eq!(list[1].text(), Some("y: z"));
        assert_eq!(node.get("metadata").unwrap().get("version").unwrap().text(), Some("1.0"));
        assert!(node.get("empty").unwrap().is_null());
        assert_eq!(node.get("list").unwrap().line, 5);
        assert_eq!(parse("").unwrap().entries(), []);
    }

    #[test]
    fn what_could_be_a_trap_is_refused_with_its_line() {
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
        assert_eq!(flaw(bomb), (Some(2), "aliases are not supported".to_owned()));
        assert_eq!(flaw("x: 1\ny: !!python/object a\n").0, Some(2));
        assert_eq!(flaw("a: 1\nb: 2\na: 3\n"), (Some(3), "`a` stands here twice".to_owned()));
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
