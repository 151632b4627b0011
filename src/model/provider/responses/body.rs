//! Request bodies: a `ModelRequest` as the JSON that `/responses` accepts. Pure; the same request always
//! gives the same bytes, because the Provider's cache matches prefixes byte by byte.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value;

use crate::model::credential::FieldPolicy;
use crate::model::provider::Request;
use crate::model::provider::input;
use crate::model::provider::input::Reader;
use crate::model::tool_spec::{Schema, ToolSpec};

/// The longest cache key that the server accepts, in characters.
const CACHE_KEY_LIMIT: usize = 64;

/// The fields before `input`.
#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    /// Always false: the Log is the record, and the server stores nothing.
    store: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
}

/// The fields after `input`.
#[derive(Serialize)]
struct Tail<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    tool_choice: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    include: &'static [&'static str],
    #[serde(skip_serializing_if = "str::is_empty")]
    prompt_cache_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Tool<'a> {
    Function(Function<'a>),
    /// A tool that the Provider runs.
    Hosted {
        r#type: &'static str,
    },
}

#[derive(Serialize)]
struct Function<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    strict: bool,
    parameters: &'a Schema,
}

#[derive(Serialize)]
struct Reasoning<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'a str>,
    summary: &'static str,
}

#[derive(Serialize)]
struct Text<'a> {
    format: Format<'a>,
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    name: &'static str,
    strict: bool,
    schema: &'a Value,
}

/// Instructions for a backend that refuses a body without any.
const STOCK_INSTRUCTIONS: &str = "You are a careful coding agent.";

/// Without the encrypted content, reasoning could not be replayed, because responses are not stored.
const INCLUDE: &[&str] = &["reasoning.encrypted_content"];
const INCLUDE_SOURCES: &[&str] = &["reasoning.encrypted_content", "web_search_call.action.sources"];

/// The start of a WebSocket frame, in place of the field `stream`.
const FRAME: &[u8] = b"{\"type\":\"response.create\",";

/// The form of a body: of an HTTP request or of a WebSocket frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Http,
    Frame,
}

/// The bytes of a request body, and the range of `input` in them.
#[derive(Debug)]
pub struct Parts {
    bytes: Vec<u8>,
    input: Range<usize>,
}

impl Parts {
    /// Builds the body of a request, with the fields that the policy accepts.
    pub fn write(request: &Request, reader: &Reader<'_>, policy: FieldPolicy, form: Form) -> Self {
        let mut instructions = request.instructions.trim();
        if instructions.is_empty() && policy.needs_instructions() {
            instructions = STOCK_INSTRUCTIONS;
        }
        let stream = (form == Form::Http).then_some(true);
        let head = Head { model: &request.model, stream, store: false, instructions };
        let searches = request.wishes.web_search && policy != FieldPolicy::Portable;
        let schema = request.wishes.answer_schema.as_ref();
        let has_key = policy.accepts("prompt_cache_key");
        let tail = Tail {
            tools: tools(&request.tools, searches),
            tool_choice: "auto",
            parallel_tool_calls: policy.accepts("parallel_tool_calls").then_some(true),
            reasoning: policy.accepts("reasoning").then(|| Reasoning {
                effort: request.effort.as_deref().map(wire_effort),
                summary: "auto",
            }),
            include: match policy.accepts("include") {
                false => &[],
                true if searches => INCLUDE_SOURCES,
                true => INCLUDE,
            },
            prompt_cache_key: if has_key { cut(&request.cache_key) } else { "" },
            text: schema.map(|schema| Text {
                format: Format {
                    r#type: "json_schema",
                    name: "answer",
                    strict: schema.is_strict(),
                    schema: schema.schema(),
                },
            }),
        };
        // Encrypted reasoning is left out when the backend does not accept it.
        let nobody = Reader { contents: reader.contents, ..Reader::of("") };
        let reader = if policy.accepts("include") { reader } else { &nobody };
        let mut out = Vec::with_capacity(16 * 1024);
        if form == Form::Frame {
            out.extend_from_slice(FRAME);
        }
        let head_start = out.len();
        object(&mut out, &head);
        if form == Form::Frame {
            out.remove(head_start);
        }
        out.pop();
        out.extend_from_slice(b",\"input\":");
        let input_start = out.len();
        input::write(&mut out, &request.history, reader, request.project.as_deref());
        let input = input_start..out.len();
        let tail_start = out.len();
        object(&mut out, &tail);
        out[tail_start] = b',';
        Self { bytes: out, input }
    }

    /// The whole body.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes before `input`.
    pub fn head(&self) -> &[u8] {
        &self.bytes[..self.input.start]
    }

    /// The `input` array.
    pub fn input(&self) -> &[u8] {
        &self.bytes[self.input.clone()]
    }

    /// The bytes after `input`.
    pub fn tail(&self) -> &[u8] {
        &self.bytes[self.input.end..]
    }

    /// The WebSocket frame: the whole body, or only the new `items` that continue the response `previous`.
    pub fn frame(&self, previous: Option<&str>, items: &[u8]) -> Vec<u8> {
        let Some(previous) = previous else { return self.bytes.clone() };
        let mut out = Vec::with_capacity(self.bytes.len() - self.input.len() + items.len() + 100);
        out.extend_from_slice(FRAME);
        out.extend_from_slice(b"\"previous_response_id\":");
        object(&mut out, &previous);
        out.push(b',');
        out.extend_from_slice(self.head().strip_prefix(FRAME).unwrap_or_default());
        out.push(b'[');
        out.extend_from_slice(items);
        out.push(b']');
        out.extend_from_slice(self.tail());
        out
    }

    #[cfg(test)]
    pub fn from_text(head: &str, input: &str, tail: &str) -> Self {
        let input_range = head.len()..head.len() + input.len();
        Self { bytes: format!("{head}{input}{tail}").into_bytes(), input: input_range }
    }
}

/// The body of one call over HTTP, with the fields that the policy accepts and no others.
pub fn body(request: &Request, policy: FieldPolicy) -> Vec<u8> {
    let reader = Reader { contents: Some(&request.contents), ..Reader::of(&request.model) };
    Parts::write(request, &reader, policy, Form::Http).into_bytes()
}

fn object(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Plain structs always serialise, and writing to a `Vec` cannot fail.
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "a request has no JSON form");
    }
}

/// The tools in the stable order of the Toolbox, so that the cached prefix never changes by order.
fn tools(specs: &[ToolSpec], searches: bool) -> Vec<Tool<'_>> {
    let functions = specs.iter().map(|spec| Function {
        r#type: "function",
        name: &spec.name,
        description: &spec.description,
        strict: false,
        parameters: &spec.parameters,
    });
    let hosted = searches.then_some(Tool::Hosted { r#type: "web_search" });
    functions.map(Tool::Function).chain(hosted).collect()
}

/// The effort for the API: its strongest is `max`, which users also know as `ultra`.
fn wire_effort(effort: &str) -> &str {
    if effort == "ultra" { "max" } else { effort }
}

fn cut(key: &str) -> &str {
    key.char_indices().nth(CACHE_KEY_LIMIT).map_or(key, |(end, _)| &key[..end])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::base::id::SessionId;
    use crate::model::provider::Wishes;
    use crate::record::history::History;
    use crate::record::resource::Contents;
    use crate::settings::config::AnswerSchema;

    fn spec(name: &str) -> ToolSpec {
        let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        ToolSpec {
            name: name.to_owned(),
            description: format!("Does {name}."),
            parameters: parameters.into(),
        }
    }

    fn request(tools: Vec<ToolSpec>) -> Request {
        Request {
            model: "gpt-5.5".to_owned(),
            effort: Some("high".to_owned()),
            instructions: Arc::from("Be good.\n"),
            project: Some(Arc::from("Use tabs.")),
            tools: tools.into(),
            history: History::default(),
            contents: Contents::default(),
            cache_key: "pxr1:key".to_owned(),
            wishes: Wishes::default(),
            session: SessionId::parse("s").unwrap(),
            resends: 1,
        }
    }

    /// The body with one field per line, for snapshots.
    fn text(request: &Request) -> String {
        String::from_utf8(body(request, FieldPolicy::OpenAi)).unwrap().replace(",\"", ",\n\"")
    }

    #[test]
    fn a_body_has_every_field_in_a_fixed_order() {
        insta::assert_snapshot!(text(&request(vec![spec("bash"), spec("write")])), @r#"
        {"model":"gpt-5.5",
        "stream":true,
        "store":false,
        "instructions":"Be good.",
        "input":[{"type":"message",
        "role":"developer",
        "content":[{"type":"input_text",
        "text":"Use tabs."}]}],
        "tools":[{"type":"function",
        "name":"bash",
        "description":"Does bash.",
        "strict":false,
        "parameters":{"type":"object",
        "properties":{"path":{"type":"string"}}}},{"type":"function",
        "name":"write",
        "description":"Does write.",
        "strict":false,
        "parameters":{"type":"object",
        "properties":{"path":{"type":"string"}}}}],
        "tool_choice":"auto",
        "parallel_tool_calls":true,
        "reasoning":{"effort":"high",
        "summary":"auto"},
        "include":["reasoning.encrypted_content"],
        "prompt_cache_key":"pxr1:key"}
        "#);
    }

    #[test]
    fn absent_parts_are_left_out() {
        let bare =
            Request { effort: None, project: None, cache_key: String::new(), ..request(vec![]) };
        insta::assert_snapshot!(text(&bare), @r#"
        {"model":"gpt-5.5",
        "stream":true,
        "store":false,
        "instructions":"Be good.",
        "input":[],
        "tool_choice":"auto",
        "parallel_tool_calls":true,
        "reasoning":{"summary":"auto"},
        "include":["reasoning.encrypted_content"]}
        "#);
    }

    #[test]
    fn a_frame_says_the_same_without_what_only_http_needs() {
        let request = request(vec![spec("read")]);
        let parts =
            Parts::write(&request, &Reader::of(&request.model), FieldPolicy::OpenAi, Form::Frame);
        let mut frame: Value = serde_json::from_slice(&parts.frame(None, b"")).unwrap();
        let mut http: Value = serde_json::from_slice(&body(&request, FieldPolicy::OpenAi)).unwrap();
        assert_eq!(
            frame.as_object_mut().unwrap().shift_remove("type"),
            Some("response.create".into())
        );
        assert_eq!(http.as_object_mut().unwrap().shift_remove("stream"), Some(true.into()));
        assert_eq!(frame, http);
        let next: Value = serde_json::from_slice(&parts.frame(Some("r\"1"), b"{}")).unwrap();
        assert_eq!(next["previous_response_id"], "r\"1");
        assert_eq!(next["input"], json!([{}]));
        assert_eq!(next["tools"], frame["tools"]);
    }

    #[test]
    fn a_body_has_only_fields_that_its_backend_accepts() {
        let bare = Request { instructions: "".into(), ..request(vec![spec("read")]) };
        for (policy, fields) in [
            (
                FieldPolicy::OpenAi,
                "model stream store input tools tool_choice parallel_tool_calls reasoning include \
                 prompt_cache_key",
            ),
            (
                FieldPolicy::ChatGpt,
                "model stream store instructions input tools tool_choice parallel_tool_calls \
                 reasoning include prompt_cache_key",
            ),
            (FieldPolicy::Portable, "model stream store input tools tool_choice"),
        ] {
            let body: Value = serde_json::from_slice(&body(&bare, policy)).unwrap();
            let found: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(found.join(" "), fields, "{policy:?}");
            assert!(found.iter().all(|field| policy.accepts(field)), "{policy:?}");
            assert_eq!((&body["store"], &body["stream"]), (&false.into(), &true.into()));
        }
    }

    #[test]
    fn wishes_are_sent_where_they_are_understood() {
        let schema = AnswerSchema::parse(r#"{"type":"object","properties":{"a":{}}}"#).unwrap();
        let mut wishing = request(vec![spec("read")]);
        wishing.wishes = Wishes { web_search: true, answer_schema: Some(schema) };
        let sent: Value = serde_json::from_slice(&body(&wishing, FieldPolicy::OpenAi)).unwrap();
        assert_eq!(sent["tools"][1], json!({"type": "web_search"}));
        assert_eq!(sent["include"][1], "web_search_call.action.sources");
        assert_eq!(sent["text"]["format"]["type"], "json_schema");
        assert_eq!(sent["text"]["format"]["strict"], false);
        assert_eq!(sent["text"]["format"]["schema"]["type"], "object");
        let sent: Value = serde_json::from_slice(&body(&wishing, FieldPolicy::Portable)).unwrap();
        assert_eq!(sent["tools"].as_array().unwrap().len(), 1);
        assert!(sent.get("include").is_none() && sent.get("text").is_some());
    }

    #[test]
    fn tools_stand_in_the_order_of_the_toolbox() {
        let own = [spec("write"), spec("mcp__a__b")];
        let sent = body(&request(own.to_vec()), FieldPolicy::OpenAi);
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!(sent["tools"][0]["name"], "write", "guests come behind");
    }

    #[test]
    fn keys_and_efforts_fit_the_wire() {
        let mut long = request(vec![]);
        long.cache_key = "é".repeat(90);
        long.effort = Some("ultra".to_owned());
        let body: Value = serde_json::from_slice(&body(&long, FieldPolicy::OpenAi)).unwrap();
        assert_eq!(body["prompt_cache_key"].as_str().unwrap().chars().count(), 64);
        assert_eq!(body["reasoning"]["effort"], "max");
    }
}
