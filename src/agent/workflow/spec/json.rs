//! A strict JSON parser: refuses duplicate keys and deep nesting, and reports every mistake with its pointer.

use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::flaw::{Flaw, SpecError, inside, quoted};

/// The largest accepted spec, in bytes.
pub const LARGEST: usize = 1_000_000;

/// The deepest accepted nesting of arrays and objects.
pub const DEEPEST: usize = 64;

/// The most flaws that are listed when parsing fails: the failure and duplicate keys before it.
const MOST_TWICE: usize = 20;

/// Parses a text.
pub fn read(bytes: &[u8]) -> Result<Value, SpecError> {
    let whole = |message: String| SpecError::one(Flaw::new("", message));
    if bytes.len() > LARGEST {
        return Err(whole(format!("it has {} bytes, {LARGEST} are allowed", bytes.len())));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(whole("it begins with a byte order mark; save it as plain UTF-8".to_owned()));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| whole(format!("it is not UTF-8 from byte {} on", error.valid_up_to())))?;
    let mut notes = Notes::default();
    let mut parser = serde_json::Deserializer::from_str(text);
    let read = Strict(&mut notes).deserialize(&mut parser);
    match read.and_then(|value| parser.end().map(|()| value)) {
        Ok(value) => match SpecError::of(notes.flaws) {
            None => Ok(value),
            Some(error) => Err(error),
        },
        Err(error) => {
            let flaw = if notes.is_too_deep {
                too_deep(&notes.pointer())
            } else {
                let (line, column) = (error.line(), error.column());
                let what = if error.is_eof() { "it ends too early" } else { "it is not JSON" };
                Flaw::new(notes.pointer(), format!("{what}: line {line}, column {column}"))
            };
            notes.flaws.insert(0, flaw);
            notes.flaws.truncate(MOST_TWICE);
            Err(SpecError { flaws: notes.flaws, left_out: 0 })
        }
    }
}

/// Applies the limits of `parse` to a value that was parsed elsewhere.
pub fn check(value: &Value) -> Result<(), SpecError> {
    read(value.to_string().as_bytes()).map(drop)
}

fn too_deep(pointer: &str) -> Flaw {
    // A pointer of thousands of parts would be useless.
    let short: String = pointer.chars().take(200).collect();
    Flaw::new(short, format!("it is nested more than {DEEPEST} levels deep"))
}

/// The state of parsing: the current path, and the flaws so far.
#[derive(Default)]
struct Notes {
    way: Vec<String>,
    flaws: Vec<Flaw>,
    is_too_deep: bool,
}

impl Notes {
    fn pointer(&self) -> String {
        self.way.iter().fold(String::new(), |pointer, part| inside(&pointer, part))
    }
}

/// Builds a value. On an error the path is not unwound, so that it names the place.
struct Strict<'a>(&'a mut Notes);

impl Strict<'_> {
    fn go_in<E: Error>(&mut self) -> Result<(), E> {
        if self.0.way.len() >= DEEPEST {
            self.0.is_too_deep = true;
            return Err(E::custom("too deep"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
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
        self.go_in()?;
        let mut values = Vec::new();
        loop {
            self.0.way.push(values.len().to_string());
            let Some(value) = items.next_element_seed(Strict(self.0))? else { break };
            values.push(value);
            self.0.way.pop();
        }
        self.0.way.pop();
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        self.go_in()?;
        let mut fields = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.0.way.push(key.clone());
            let value = entries.next_value_seed(Strict(self.0))?;
            if fields.contains_key(&key) {
                let message = format!("the key {} occurs twice", quoted(&key));
                self.0.flaws.push(Flaw::new(self.0.pointer(), message));
            } else {
                fields.insert(key, value);
            }
            self.0.way.pop();
        }
        Ok(Value::Object(fields))
    }
}
