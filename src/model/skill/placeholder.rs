//! Placeholders for arguments in a JSON value: `{{ name }}` in its strings, with types.
//!
//! A string that is exactly one placeholder becomes the value itself, with its type; within other text a
//! value is inserted as text. A placeholder without a value removes its field. Keys are not changed, and
//! placeholders in arguments are not expanded.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::error::{Explain, Explanation, Kind};
use crate::base::names::names;

/// A parameter of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateParameter {
    /// The key of the parameter.
    #[serde(skip_deserializing)]
    pub name: String,
    #[serde(rename = "type", default)]
    pub kind: ParameterType,
    #[serde(rename = "required", default)]
    pub is_required: bool,
    pub default: Option<Value>,
    #[serde(default)]
    pub description: String,
}

/// The JSON type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ParameterType {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
    Array,
    Object,
    Any,
}

names!(ParameterType {
    String = "string", Integer = "integer", Number = "number", Boolean = "boolean",
    Array = "array", Object = "object", Any = "any",
});

impl ParameterType {
    /// Whether a value has this type.
    pub fn accepts(self, value: &Value) -> bool {
        match self {
            ParameterType::String => value.is_string(),
            ParameterType::Integer => value.is_i64() || value.is_u64(),
            ParameterType::Number => value.is_number(),
            ParameterType::Boolean => value.is_boolean(),
            ParameterType::Array => value.is_array(),
            ParameterType::Object => value.is_object(),
            ParameterType::Any => true,
        }
    }
}

/// The arguments for the placeholders, checked.
#[derive(Debug)]
pub struct TemplateArguments<'a>(Vec<(&'a str, Option<&'a Value>)>);

impl<'a> TemplateArguments<'a> {
    /// Checks arguments against the parameters; returns all errors.
    pub fn new(
        parameters: &'a [TemplateParameter],
        arguments: &'a Map<String, Value>,
    ) -> Result<Self, Vec<TemplateError>> {
        let known = || parameters.iter().map(|own| own.name.clone()).collect();
        let is_known = |name: &&String| parameters.iter().any(|own| own.name == **name);
        let mut wrong: Vec<TemplateError> = arguments
            .keys()
            .filter(|name| !is_known(name))
            .map(|name| TemplateError::Unknown { name: name.clone(), known: known() })
            .collect();
        let mut values = Vec::new();
        for TemplateParameter { name, kind, is_required, default, .. } in parameters {
            let given = arguments.get(name).or(default.as_ref());
            let name_of = || name.clone();
            match given {
                None if *is_required => wrong.push(TemplateError::Missing { name: name_of() }),
                Some(value) if !kind.accepts(value) => {
                    wrong.push(TemplateError::Mistyped { name: name_of(), expected: kind.name() });
                }
                given => values.push((name.as_str(), given)),
            }
        }
        if wrong.is_empty() { Ok(Self(values)) } else { Err(wrong) }
    }

    /// Fills the placeholders of a value; `None` when it is a placeholder without a value.
    pub fn fill_value(&self, value: &Value) -> Option<Value> {
        fill_placeholders(value, &|name| self.find_value(name))
    }

    /// Translates a JSON pointer in the filled value to one in the template.
    pub fn source_pointer(&self, value: &Value, pointer: &str) -> String {
        let (mut at, mut translated) = (value, String::new());
        for part in pointer.split('/').skip(1) {
            let (next, part) = match at {
                Value::Object(fields) => {
                    let key = part.replace("~1", "/").replace("~0", "~");
                    (fields.get(&key), part.to_owned())
                }
                Value::Array(values) => {
                    let is_left = |value: &Value| self.fill_value(value).is_some();
                    let mut left = values.iter().enumerate().filter(|(_, value)| is_left(value));
                    let found = part.parse().ok().and_then(|place| left.nth(place));
                    match found {
                        Some((place, value)) => (Some(value), place.to_string()),
                        None => (None, part.to_owned()),
                    }
                }
                // The rest of the pointer is within the argument.
                _ => return translated,
            };
            translated.extend(["/", &part]);
            let Some(next) = next else { return translated };
            at = next;
        }
        translated
    }

    fn find_value(&self, name: &str) -> Option<&'a Value> {
        self.0.iter().find(|(own, _)| *own == name).and_then(|(_, value)| *value)
    }
}

/// Placeholders that name no parameter: their JSON pointers and names.
pub fn unknown_placeholders(
    value: &Value,
    parameters: &[TemplateParameter],
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![(String::new(), value)];
    while let Some((pointer, value)) = waiting.pop() {
        match value {
            Value::Array(values) => {
                let inner = values.iter().enumerate().rev();
                waiting.extend(inner.map(|(place, value)| (format!("{pointer}/{place}"), value)));
            }
            Value::Object(fields) => {
                let escape_key = |key: &str| key.replace('~', "~0").replace('/', "~1");
                let inner = fields.iter().rev();
                waiting.extend(inner.map(|(key, v)| (format!("{pointer}/{}", escape_key(key)), v)));
            }
            Value::String(text) => {
                for (_, _, name) in find_placeholders(text) {
                    if !parameters.iter().any(|own| own.name == name) {
                        found.push((pointer.clone(), name.to_owned()));
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// Whether a text can name a parameter.
pub fn is_parameter_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Fills the placeholders of a value; `None` where an argument is missing, so that the field is left out.
fn fill_placeholders<'v>(
    value: &Value,
    look: &impl Fn(&str) -> Option<&'v Value>,
) -> Option<Value> {
    Some(match value {
        Value::String(text) => {
            let places = find_placeholders(text);
            match places.as_slice() {
                [] => value.clone(),
                [(0, end, name)] if *end == text.len() => return look(name).cloned(),
                places => {
                    let (mut filled, mut from) = (String::new(), 0);
                    for (start, end, name) in places {
                        filled.push_str(&text[from..*start]);
                        match look(name) {
                            Some(Value::String(text)) => filled.push_str(text),
                            Some(other) => filled.push_str(&other.to_string()),
                            None => {}
                        }
                        from = *end;
                    }
                    filled.push_str(&text[from..]);
                    Value::String(filled)
                }
            }
        }
        Value::Array(values) => values
            .iter()
            .filter_map(|value| fill_placeholders(value, look))
            .collect::<Vec<_>>()
            .into(),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                Some((key.clone(), fill_placeholders(value, look)?))
            };
            Value::Object(fields.iter().filter_map(field).collect())
        }
        other => other.clone(),
    })
}

/// The placeholders in a text: start, end, name.
fn find_placeholders(text: &str) -> Vec<(usize, usize, &str)> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(start) = text[from..].find("{{").map(|place| from + place) {
        let Some(end) = text[start..].find("}}").map(|place| start + place) else { break };
        let name = text[start + 2..end].trim();
        if is_parameter_name(name) {
            found.push((start, end + 2, name));
        }
        from = end + 2;
    }
    found
}

/// Why a template cannot be filled.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TemplateError {
    #[error("the template has no parameter `{name}`")]
    Unknown { name: String, known: Vec<String> },
    #[error("the template needs `{name}`")]
    Missing { name: String },
    #[error("`{name}` must be of type {expected}")]
    Mistyped { name: String, expected: &'static str },
}

impl Explain for TemplateError {
    fn explain(&self) -> Explanation {
        Kind::InvalidArgs.with_details(match self {
            Self::Unknown { name, known } => json!({ "parameter": name, "known": known }),
            Self::Missing { name } => json!({ "parameter": name }),
            Self::Mistyped { name, expected } => json!({ "parameter": name, "expected": expected }),
        })
    }
}
