//! A strict JSON parser: refuses duplicate keys and deep nesting, and reports every mistake with its pointer.

use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::diagnostic::{SpecDiagnostic, SpecError, child_pointer, quoted};

/// The largest accepted spec, in bytes.
pub const MAX_BYTES: usize = 1_000_000;

/// The deepest accepted nesting of arrays and objects.
pub const MAX_DEPTH: usize = 64;

/// The most flaws that are listed when parsing fails: the failure and duplicate keys before it.
const MAX_PARSE_FLAWS: usize = 20;

/// Parses a text.
pub fn parse(bytes: &[u8]) -> Result<Value, SpecError> {
    let whole = |message: String| SpecError::single(SpecDiagnostic::new("", message));
    if bytes.len() > MAX_BYTES {
        return Err(whole(format!("it has {} bytes, {MAX_BYTES} are allowed", bytes.len())));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(whole("it begins with a byte order mark; save it as plain UTF-8".to_owned()));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| whole(format!("it is not UTF-8 from byte {} on", error.valid_up_to())))?;
    let mut notes = ParseNotes::default();
    let mut parser = serde_json::Deserializer::from_str(text);
    let read = StrictVisitor(&mut notes).deserialize(&mut parser);
    match read.and_then(|value| parser.end().map(|()| value)) {
        Ok(value) => match SpecError::from_flaws(notes.flaws) {
            None => Ok(value),
            Some(error) => Err(error),
        },
        Err(error) => {
            let flaw = if notes.is_too_deep {
                too_deep(&notes.pointer())
            } else {
                let (line, column) = (error.line(), error.column());
                let what = if error.is_eof() { "it ends too early" } else { "it is not JSON" };
                SpecDiagnostic::new(
                    notes.pointer(),
                    format!("{what}: line {line}, column {column}"),
                )
            };
            notes.flaws.insert(0, flaw);
            notes.flaws.truncate(MAX_PARSE_FLAWS);
            Err(SpecError { flaws: notes.flaws, left_out: 0 })
        }
    }
}

/// Applies the limits of `parse` to a value that was parsed elsewhere.
pub fn check_strict(value: &Value) -> Result<(), SpecError> {
    parse(value.to_string().as_bytes()).map(drop)
}

fn too_deep(pointer: &str) -> SpecDiagnostic {
    // A pointer of thousands of parts would be useless.
    let short: String = pointer.chars().take(200).collect();
    SpecDiagnostic::new(short, format!("it is nested more than {MAX_DEPTH} levels deep"))
}

/// The state of parsing: the current path, and the flaws so far.
#[derive(Default)]
struct ParseNotes {
    path: Vec<String>,
    flaws: Vec<SpecDiagnostic>,
    is_too_deep: bool,
}

impl ParseNotes {
    fn pointer(&self) -> String {
        self.path.iter().fold(String::new(), |pointer, part| child_pointer(&pointer, part))
    }
}

/// Builds a value. On an error the path is not unwound, so that it names the place.
struct StrictVisitor<'a>(&'a mut ParseNotes);

impl StrictVisitor<'_> {
    fn check_depth<E: Error>(&mut self) -> Result<(), E> {
        if self.0.path.len() >= MAX_DEPTH {
            self.0.is_too_deep = true;
            return Err(E::custom("too deep"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for StrictVisitor<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut values = Vec::new();
        loop {
            self.0.path.push(values.len().to_string());
            let Some(value) = items.next_element_seed(StrictVisitor(self.0))? else { break };
            values.push(value);
            self.0.path.pop();
        }
        self.0.path.pop();
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut fields = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.0.path.push(key.clone());
            let value = entries.next_value_seed(StrictVisitor(self.0))?;
            if fields.contains_key(&key) {
                let message = format!("the key {} occurs twice", quoted(&key));
                self.0.flaws.push(SpecDiagnostic::new(self.0.pointer(), message));
            } else {
                fields.insert(key, value);
            }
            self.0.path.pop();
        }
        Ok(Value::Object(fields))
    }
}
