//! Checks JSON against the schema of a type and reports every flaw with its pointer, in Pixir's own words.

use std::collections::HashSet;

use jsonschema::error::ValidationErrorKind as Wrong;
use jsonschema::{Keyword, ValidationError, Validator};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use super::diagnostic::{SpecDiagnostic, child_pointer, quoted};

/// Checks values against the schema of a type.
pub struct SchemaChecker {
    schema: Value,
    validator: Option<Validator>,
}

/// The flaws of a checked value.
pub struct CheckedValue {
    pub flaws: Vec<SpecDiagnostic>,
    /// The pointers of all flaws and of the values that contain them.
    flawed: HashSet<String>,
}

impl SchemaChecker {
    pub fn new<T: JsonSchema>() -> Self {
        let schema = schema_of::<T>();
        let options = jsonschema::draft202012::options()
            .with_keyword("format", |schema, name, _| {
                Ok(Box::new(FormatKeyword::new(schema, name)))
            });
        Self { validator: options.build(&schema).ok(), schema }
    }

    /// All flaws of a value.
    pub fn check(&self, value: &Value) -> CheckedValue {
        let mut flaws = Vec::new();
        match &self.validator {
            Some(validator) => {
                for error in validator.iter_errors(value) {
                    self.report_error(&error, &mut flaws);
                }
            }
            None => {
                flaws.push(SpecDiagnostic::new("", "the schema that it must fit cannot be used"));
            }
        }
        let mut flawed = HashSet::new();
        for flaw in &flaws {
            let ends = flaw.pointer.match_indices('/').map(|(end, _)| end);
            flawed.extend(ends.map(|end| flaw.pointer[..end].to_owned()));
            flawed.insert(flaw.pointer.clone());
        }
        CheckedValue { flaws, flawed }
    }

    fn report_error(&self, error: &ValidationError<'_>, flaws: &mut Vec<SpecDiagnostic>) {
        let pointer = error.instance_path().as_str();
        let value = error.instance();
        let path = error.schema_path().as_str();
        let place = path.rsplit_once('/').map_or("", |(place, _)| place);
        let schema = self.schema.pointer(place).unwrap_or(&Value::Null);
        let what = schema["title"].as_str().unwrap_or("it");
        let flaw = |message: String| SpecDiagnostic::new(pointer, message);
        flaws.push(match error.kind() {
            Wrong::AdditionalProperties { unexpected } => {
                let names = schema["properties"].as_object().into_iter().flat_map(Map::keys);
                let names: Vec<&String> = names.collect();
                flaws.extend(unexpected.iter().map(|name| {
                    let message = format!("{what} has no key {}", quoted(name));
                    SpecDiagnostic::new(child_pointer(pointer, name), message)
                        .with_accepted(name, &names)
                }));
                return;
            }
            Wrong::AnyOf { context } => match context
                .iter()
                .find(|way| is_intended_branch(way, pointer))
            {
                Some(way) => return way.iter().for_each(|error| self.report_error(error, flaws)),
                None => flaw(must_be(schema, value)),
            },
            Wrong::Required { property } => {
                flaw(format!("{what} needs `{}`", property.as_str().unwrap_or_default()))
            }
            Wrong::PropertyNames { error } => {
                let name = error.instance().as_str().unwrap_or_default();
                SpecDiagnostic::new(
                    child_pointer(pointer, name),
                    format!("{} cannot be a name", quoted(name)),
                )
            }
            Wrong::Enum { options } => match (value.as_str(), strings_in(options)) {
                (Some(given), words) => {
                    let message = format!("{} is none of: {}", quoted(given), words.join(", "));
                    flaw(message).with_accepted(given, &words)
                }
                _ => flaw(must_be(schema, value)),
            },
            Wrong::MinItems { .. } | Wrong::MaxItems { .. } => {
                let has = value.as_array().map_or(0, Vec::len);
                let least = schema["minItems"].as_u64().unwrap_or(0);
                let most = &schema["maxItems"];
                flaw(format!("it has {has} entries, it must have {least} to {most}"))
            }
            Wrong::MaxProperties { limit } => {
                let has = value.as_object().map_or(0, Map::len);
                flaw(format!("it has {has} entries, {limit} are allowed"))
            }
            Wrong::MaxLength { limit } => {
                flaw(too_long(value.as_str().unwrap_or_default(), *limit))
            }
            Wrong::Custom { message, .. } => flaw(message.clone()),
            _ => match place.strip_prefix("/$defs/").filter(|name| !name.contains('/')) {
                Some(name) => {
                    flaw(format!("it must be an object ({name}), not {}", describe_value(value)))
                }
                None => flaw(must_be(schema, value)),
            },
        });
    }
}

impl CheckedValue {
    /// The fields of the object at a pointer that have no flaws.
    pub fn valid_fields(&self, fields: &Map<String, Value>, pointer: &str) -> Map<String, Value> {
        let is_good = |key: &String| !self.flawed.contains(&child_pointer(pointer, key));
        let good = fields.iter().filter(|(key, _)| is_good(key));
        good.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Whether this branch of an `anyOf` was meant: its errors are not about the type of the whole value.
fn is_intended_branch(way: &[ValidationError<'_>], pointer: &str) -> bool {
    way.iter().filter(|error| error.instance_path().as_str() == pointer).all(|error| {
        match error.kind() {
            Wrong::Type { .. } => false,
            Wrong::AnyOf { context } => context.iter().any(|way| is_intended_branch(way, pointer)),
            _ => true,
        }
    })
}

fn must_be(schema: &Value, value: &Value) -> String {
    format!("it must be {}, not {}", describe_schema(schema), describe_value(value))
}

fn too_long(text: &str, most: u64) -> String {
    format!("it has {} bytes, {most} are allowed", text.len())
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Null => "null; leave it out".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => quoted(&other.to_string()),
    }
}

fn strings_in(options: &Value) -> Vec<&str> {
    options.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Describes in words what a schema accepts.
pub fn describe_schema(schema: &Value) -> String {
    let at = |key: &str| &schema[key];
    if let Some(name) = at("$ref").as_str() {
        return format!("an object ({})", name.trim_start_matches("#/$defs/"));
    }
    if let Some(ways) = at("anyOf").as_array() {
        let ways = ways.iter().map(|way| match (way["type"].as_str(), way["format"].as_str()) {
            (Some("array"), _) => format!("a list of at most {}", way["maxItems"]),
            (_, Some("text")) => "text".to_owned(),
            _ => describe_schema(way),
        });
        return ways.collect::<Vec<_>>().join(", or ");
    }
    match (at("type").as_str().unwrap_or_default(), at("format").as_str().unwrap_or_default()) {
        ("string", _) if at("enum").is_array() => {
            let words = strings_in(at("enum")).into_iter().map(|word| format!("`{word}`"));
            format!("one of {}", words.collect::<Vec<_>>().join(", "))
        }
        ("string", "glob") => "a glob".to_owned(),
        ("string", "line") => "one line of text".to_owned(),
        ("string", "text") => "text that is not blank".to_owned(),
        ("string", _) => "an id (letters, digits, `_` and `-`, at most 64)".to_owned(),
        ("boolean", _) => "true or false".to_owned(),
        ("integer", _) => format!("a whole number from {} to {}", at("minimum"), at("maximum")),
        ("number", _) => format!("a number above 0, at most {}", at("maximum")),
        ("array", _) => {
            let each = describe_schema(at("items"));
            format!("a list of {} to {}: {each}", at("minItems"), at("maxItems"))
        }
        ("object", _) if at("maxProperties").is_number() => {
            let each = describe_schema(at("additionalProperties"));
            format!("an object with at most {} names, each {each}", at("maxProperties"))
        }
        ("object", _) => "a JSON schema of an object".to_owned(),
        _ => "any value".to_owned(),
    }
}

/// The schema of a type. Optional fields may be left out, but not be null.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with_transform(RecursiveTransform(simplify_schema));
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Removes null from the types of fields, line breaks from descriptions, and `default`, which descriptions state in
/// words.
fn simplify_schema(schema: &mut Schema) {
    schema.remove("default");
    let description = schema.get("description").and_then(Value::as_str);
    if let Some(description) = description.map(|text| text.replace('\n', " ")) {
        schema.insert("description".to_owned(), description.into());
    }
    for key in ["type", "enum", "anyOf"] {
        let Some(Value::Array(ways)) = schema.get_mut(key) else { continue };
        ways.retain(|way| !way.is_null() && way != "null" && way["type"] != "null");
        match ways.as_slice() {
            [Value::Object(only)] => {
                let only = only.clone();
                schema.remove(key);
                for (key, value) in only {
                    schema.ensure_object().entry(key).or_insert(value);
                }
            }
            [Value::String(only)] if key == "type" => {
                let only = only.clone();
                schema.insert(key.to_owned(), only.into());
            }
            _ => {}
        }
    }
}

/// The keyword `format`, for rules that JSON Schema cannot express: lengths in bytes, no blank text, no control
/// characters, no whole numbers with a decimal point.
struct FormatKeyword {
    name: String,
    max_bytes: u64,
    /// The expected value, in words.
    expected: String,
}

impl FormatKeyword {
    fn new(schema: &Map<String, Value>, name: &Value) -> Self {
        Self {
            name: name.as_str().unwrap_or_default().to_owned(),
            max_bytes: schema.get("maxLength").and_then(Value::as_u64).unwrap_or(u64::MAX),
            expected: describe_schema(&Value::Object(schema.clone())),
        }
    }

    /// The message about a value that breaks the rules.
    fn find_violation(&self, value: &Value) -> Option<String> {
        let is_line = self.name != "text";
        let is_wrong = match value {
            Value::String(text) if text.len() as u64 > self.max_bytes => {
                return Some(too_long(text, self.max_bytes));
            }
            Value::String(text) if !is_line && text.contains('\0') => {
                return Some("it contains a NUL character".to_owned());
            }
            Value::String(text) => {
                text.trim().is_empty() || is_line && text.chars().any(char::is_control)
            }
            Value::Number(number) => self.name.starts_with("uint") && number.as_u64().is_none(),
            _ => false,
        };
        is_wrong.then(|| format!("it must be {}, not {}", self.expected, describe_value(value)))
    }
}

impl<'i> Keyword<'i> for FormatKeyword {
    fn validate(&self, value: &'i Value) -> Result<(), ValidationError<'i>> {
        self.find_violation(value).map_or(Ok(()), |fault| Err(ValidationError::custom(fault)))
    }

    fn is_valid(&self, value: &'i Value) -> bool {
        self.find_violation(value).is_none()
    }
}
