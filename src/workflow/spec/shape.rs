//! What may stand where: the shapes of values, by which a spec is checked, described and published.
//!
//! One table (`keys`) says which key has which shape. The check of a spec, the JSON schema and the
//! reference in the docs are three readings of it, so that they cannot differ.

use serde_json::{Map, Value, json};

use super::flaw::{Flaw, inside, quoted};

/// A table of keys.
pub struct Group {
    /// What it is called in the schema and the docs.
    pub name: &'static str,
    /// What an object of it is, for messages: "a step".
    pub what: &'static str,
    pub keys: &'static [Key],
}

/// A key and what stands behind it.
pub struct Key {
    pub name: &'static str,
    pub shape: Shape,
    pub is_required: bool,
    /// What holds when it is left out, in words; empty when nothing does.
    pub default: &'static str,
    pub doc: &'static str,
}

/// What a value may be.
pub enum Shape {
    /// A name by which others refer to it.
    Id,
    /// Words, at most so many bytes.
    Text(usize),
    /// A single line, at most so many bytes; may be blank when it is only read by people.
    Line(usize),
    Flag,
    /// A whole number.
    Count(u64, u64),
    /// A number greater than zero, and at most this.
    Amount(f64),
    Choice(&'static [&'static str]),
    /// A glob.
    Glob,
    /// A value, or a list of at most so many.
    OneOrMore(&'static Shape, usize),
    /// From so many to so many.
    List(&'static Shape, usize, usize),
    Object(&'static Group),
    /// Any keys that can be names, each with a value of this shape; at most so many.
    Named(&'static Shape, usize),
    /// Text, or an object.
    TextOr(usize, &'static Group),
    /// A JSON schema of an object.
    Schema,
    Any,
}

/// What an id looks like.
pub const ID: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$";
/// The longest glob, in bytes.
pub const LONGEST_GLOB: usize = 256;

/// Whether a text is an id.
pub fn is_id(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        && text.len() <= 64
}

impl Group {
    /// The names of all keys.
    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }

    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Says everything that is wrong with an object of this group.
    pub fn check(&self, fields: &Map<String, Value>, pointer: &str, flaws: &mut Vec<Flaw>) {
        self.good(fields, pointer, flaws);
    }

    /// The same, and gives what nothing is wrong with.
    pub fn good(
        &self,
        fields: &Map<String, Value>,
        pointer: &str,
        flaws: &mut Vec<Flaw>,
    ) -> Map<String, Value> {
        let mut good = Map::new();
        for (name, value) in fields {
            let (pointer, before) = (inside(pointer, name), flaws.len());
            let Some(key) = self.key(name) else {
                let message = format!("{} has no key {}", self.what, quoted(name));
                flaws.push(Flaw::new(pointer, message).accepting(name, &self.names()));
                continue;
            };
            key.shape.check(value, &pointer, flaws);
            if flaws.len() == before {
                good.insert(name.clone(), value.clone());
            }
        }
        let is_missing = |key: &&Key| key.is_required && !fields.contains_key(key.name);
        for key in self.keys.iter().filter(is_missing) {
            flaws.push(Flaw::new(pointer, format!("{} needs `{}`", self.what, key.name)));
        }
        good
    }
}

impl Shape {
    /// Says everything that is wrong with a value.
    pub fn check(&self, value: &Value, pointer: &str, flaws: &mut Vec<Flaw>) {
        let mut wrong = |message: String| flaws.push(Flaw::new(pointer, message));
        let is_wrong = match (self, value) {
            (Shape::Any, _) | (Shape::Flag, Value::Bool(_)) | (Shape::Schema, Value::Object(_)) => {
                false
            }
            (Shape::Id, Value::String(text)) => !is_id(text),
            (Shape::Choice(words), Value::String(text)) => {
                if !words.contains(&text.as_str()) {
                    let message = format!("{} is none of: {}", quoted(text), words.join(", "));
                    flaws.push(Flaw::new(pointer, message).accepting(text, words));
                }
                return;
            }
            (Shape::Text(most), Value::String(text)) => {
                if text.len() > *most {
                    return wrong(format!("it has {} bytes, {most} are allowed", text.len()));
                }
                if text.contains('\0') {
                    return wrong("it contains a NUL character".to_owned());
                }
                text.trim().is_empty()
            }
            (Shape::Line(most), Value::String(text)) => {
                if text.len() > *most {
                    return wrong(format!("it has {} bytes, {most} are allowed", text.len()));
                }
                text.trim().is_empty() || text.chars().any(char::is_control)
            }
            (Shape::Glob, Value::String(text)) => {
                if text.len() > LONGEST_GLOB {
                    let (has, most) = (text.len(), LONGEST_GLOB);
                    return wrong(format!("the glob has {has} bytes, {most} are allowed"));
                }
                text.trim().is_empty() || text.chars().any(char::is_control)
            }
            (Shape::Count(least, most), Value::Number(number)) => {
                number.as_u64().is_none_or(|number| !(*least..=*most).contains(&number))
            }
            (Shape::Amount(most), Value::Number(number)) => {
                number.as_f64().is_none_or(|number| !(number > 0.0 && number <= *most))
            }
            (Shape::OneOrMore(shape, most), Value::Array(values)) => {
                return list(shape, values, 0..=*most, pointer, flaws);
            }
            (Shape::OneOrMore(shape, _), value)
                if !value.is_object() || matches!(shape, Shape::TextOr(..)) =>
            {
                return shape.check(value, pointer, flaws);
            }
            (Shape::List(shape, least, most), Value::Array(values)) => {
                return list(shape, values, *least..=*most, pointer, flaws);
            }
            (Shape::TextOr(most, _), Value::String(_)) => {
                return Shape::Text(*most).check(value, pointer, flaws);
            }
            (Shape::Object(group) | Shape::TextOr(_, group), Value::Object(fields)) => {
                return group.check(fields, pointer, flaws);
            }
            (Shape::Named(shape, most), Value::Object(fields)) => {
                if fields.len() > *most {
                    return wrong(format!("it has {} entries, {most} are allowed", fields.len()));
                }
                return named(shape, fields, pointer, flaws);
            }
            _ => true,
        };
        if is_wrong {
            let given = match value {
                Value::String(text) => quoted(text),
                Value::Null => "null; leave it out".to_owned(),
                Value::Array(_) => "a list".to_owned(),
                Value::Object(_) => "an object".to_owned(),
                other => quoted(&other.to_string()),
            };
            flaws.push(Flaw::new(pointer, format!("it must be {}, not {given}", self.words())));
        }
    }

    /// What it may be, in words.
    pub fn words(&self) -> String {
        match self {
            Shape::Id => "an id (letters, digits, `_` and `-`, at most 64)".to_owned(),
            Shape::Text(_) => "text that is not blank".to_owned(),
            Shape::Line(_) => "one line of text".to_owned(),
            Shape::Flag => "true or false".to_owned(),
            Shape::Count(least, most) => format!("a whole number from {least} to {most}"),
            Shape::Amount(most) => format!("a number above 0, at most {most}"),
            Shape::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Shape::Glob => "a glob".to_owned(),
            Shape::OneOrMore(shape, most) => {
                format!("{}, or a list of at most {most}", shape.words())
            }
            Shape::List(shape, 0, most) => format!("a list of at most {most}: {}", shape.words()),
            Shape::List(shape, least, most) => {
                format!("a list of {least} to {most}: {}", shape.words())
            }
            Shape::Object(group) => format!("an object ({})", group.name),
            Shape::Named(shape, most) => {
                format!("an object with at most {most} names, each {}", shape.words())
            }
            Shape::TextOr(_, group) => format!("text, or an object ({})", group.name),
            Shape::Schema => "a JSON schema of an object".to_owned(),
            Shape::Any => "any value".to_owned(),
        }
    }

    /// The JSON schema of it. Wherever something may stand, a place for an argument may stand too.
    pub fn schema(&self) -> Value {
        let or_place = |schema: Value| json!({ "anyOf": [schema, { "$ref": "#/$defs/place" }] });
        let or_text = |schema: Value| json!({ "anyOf": [schema, { "$ref": "#/$defs/text" }] });
        match self {
            Shape::Id => or_text(json!({ "type": "string", "pattern": ID })),
            Shape::Text(most) | Shape::Line(most) => or_text(text(*most)),
            Shape::Glob => or_text(text(LONGEST_GLOB)),
            Shape::Flag => or_place(json!({ "type": "boolean" })),
            Shape::Count(least, most) => {
                or_place(json!({ "type": "integer", "minimum": least, "maximum": most }))
            }
            Shape::Amount(most) => {
                or_place(json!({ "type": "number", "exclusiveMinimum": 0, "maximum": most }))
            }
            Shape::Choice(words) => or_text(json!({ "enum": words })),
            Shape::OneOrMore(shape, most) => json!({ "anyOf": [
                shape.schema(),
                { "type": "array", "maxItems": most, "items": shape.schema() },
                { "$ref": "#/$defs/place" },
            ] }),
            Shape::List(shape, least, most) => or_place(json!({
                "type": "array", "minItems": least, "maxItems": most, "items": shape.schema(),
            })),
            Shape::Object(group) => or_place(json!({ "$ref": format!("#/$defs/{}", group.name) })),
            Shape::Named(shape, most) => or_place(json!({
                "type": "object",
                "maxProperties": most,
                "propertyNames": { "pattern": ID },
                "additionalProperties": shape.schema(),
            })),
            Shape::TextOr(most, group) => json!({ "anyOf": [
                text(*most),
                { "$ref": "#/$defs/text" },
                { "$ref": format!("#/$defs/{}", group.name) },
            ] }),
            Shape::Schema => or_place(json!({ "type": "object" })),
            Shape::Any => json!(true),
        }
    }
}

fn text(most: usize) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": most })
}

fn list(
    shape: &Shape,
    values: &[Value],
    count: std::ops::RangeInclusive<usize>,
    pointer: &str,
    flaws: &mut Vec<Flaw>,
) {
    if !count.contains(&values.len()) {
        let (least, most) = (count.start(), count.end());
        let message = format!("it has {} entries, it must have {least} to {most}", values.len());
        flaws.push(Flaw::new(pointer, message));
        return;
    }
    for (place, value) in values.iter().enumerate() {
        shape.check(value, &format!("{pointer}/{place}"), flaws);
    }
}

fn named(shape: &Shape, fields: &Map<String, Value>, pointer: &str, flaws: &mut Vec<Flaw>) {
    for (name, value) in fields {
        let pointer = inside(pointer, name);
        if is_id(name) {
            shape.check(value, &pointer, flaws);
        } else {
            let message = format!("{} cannot be a name", quoted(name));
            flaws.push(Flaw::new(pointer, message));
        }
    }
}
