//! Request bodies: a `ModelRequest` as the JSON that `/responses` accepts. Pure; the same request always
//! gives the same bytes, because the Provider's cache matches prefixes byte by byte.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value;

use crate::model::credential::FieldPolicy;
use crate::model::provider::ModelRequest;
use crate::model::provider::input;
use crate::model::provider::input::InputOptions;
use crate::model::tool_spec::{ToolSchema, ToolSpec};

/// The longest cache key that the server accepts, in characters.
const CACHE_KEY_LIMIT: usize = 64;

/// The fields before `input`.
#[derive(Serialize)]
struct BodyHead<'a> {
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
struct BodyTail<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    tool_choice: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<ReasoningParameter<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    include: &'static [&'static str],
    #[serde(skip_serializing_if = "str::is_empty")]
    prompt_cache_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<TextParameter<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WireTool<'a> {
    Function(FunctionTool<'a>),
    /// A tool that the Provider runs.
    Hosted {
        r#type: &'static str,
    },
}

#[derive(Serialize)]
struct FunctionTool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    strict: bool,
    parameters: &'a ToolSchema,
}

#[derive(Serialize)]
struct ReasoningParameter<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'a str>,
    summary: &'static str,
}

#[derive(Serialize)]
struct TextParameter<'a> {
    format: TextFormat<'a>,
}

#[derive(Serialize)]
struct TextFormat<'a> {
    r#type: &'static str,
    name: &'static str,
    strict: bool,
    schema: &'a Value,
}

/// Instructions for a backend that refuses a body without any.
const DEFAULT_INSTRUCTIONS: &str = "You are a careful coding agent.";

/// Encrypted reasoning is requested, because reasoning could not be replayed otherwise: responses are not stored.
const INCLUDE: &[&str] = &["reasoning.encrypted_content"];
const INCLUDE_SOURCES: &[&str] = &["reasoning.encrypted_content", "web_search_call.action.sources"];

/// The start of a WebSocket frame, in place of the field `stream`.
const FRAME_START: &[u8] = b"{\"type\":\"response.create\",";

/// The form of a body: of an HTTP request or of a WebSocket frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyForm {
    Http,
    Frame,
}

/// The bytes of a request body, and the range of `input` in them.
#[derive(Debug)]
pub struct RequestBody {
    bytes: Vec<u8>,
    input: Range<usize>,
}

impl RequestBody {
    /// Builds the body of a request, with the fields that the policy accepts.
    pub fn build(
        request: &ModelRequest,
        options: &InputOptions<'_>,
        policy: FieldPolicy,
        form: BodyForm,
    ) -> Self {
        let mut instructions = request.instructions.trim();
        if instructions.is_empty() && policy.needs_instructions() {
            instructions = DEFAULT_INSTRUCTIONS;
        }
        let stream = (form == BodyForm::Http).then_some(true);
        let head = BodyHead { model: &request.model, stream, store: false, instructions };
        let searches = request.response_options.web_search && policy != FieldPolicy::Portable;
        let schema = request.response_options.answer_schema.as_ref();
        let has_key = policy.accepts("prompt_cache_key");
        let tail = BodyTail {
            tools: wire_tools(&request.tools, searches),
            tool_choice: "auto",
            parallel_tool_calls: policy.accepts("parallel_tool_calls").then_some(true),
            reasoning: policy.accepts("reasoning").then(|| ReasoningParameter {
                effort: request.effort.as_deref().map(wire_effort),
                summary: "auto",
            }),
            include: match policy.accepts("include") {
                false => &[],
                true if searches => INCLUDE_SOURCES,
                true => INCLUDE,
            },
            prompt_cache_key: if has_key { truncated_key(&request.cache_key) } else { "" },
            text: schema.map(|schema| TextParameter {
                format: TextFormat {
                    r#type: "json_schema",
                    name: "answer",
                    strict: schema.is_strict(),
                    schema: schema.schema(),
                },
            }),
        };
        // Encrypted reasoning is left out when the backend does not accept it.
        let without_reasoning =
            InputOptions { contents: options.contents, ..InputOptions::for_model("") };
        let options = if policy.accepts("include") { options } else { &without_reasoning };
        let mut out = Vec::with_capacity(16 * 1024);
        if form == BodyForm::Frame {
            out.extend_from_slice(FRAME_START);
        }
        let head_start = out.len();
        write_json(&mut out, &head);
        if form == BodyForm::Frame {
            out.remove(head_start);
        }
        out.pop();
        out.extend_from_slice(b",\"input\":");
        let input_start = out.len();
        input::write_input(&mut out, &request.history, options, request.project.as_deref());
        let input = input_start..out.len();
        let tail_start = out.len();
        write_json(&mut out, &tail);
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
    pub fn to_frame(&self, previous: Option<&str>, items: &[u8]) -> Vec<u8> {
        let Some(previous) = previous else { return self.bytes.clone() };
        let mut out = Vec::with_capacity(self.bytes.len() - self.input.len() + items.len() + 100);
        out.extend_from_slice(FRAME_START);
        out.extend_from_slice(b"\"previous_response_id\":");
        write_json(&mut out, &previous);
        out.push(b',');
        out.extend_from_slice(self.head().strip_prefix(FRAME_START).unwrap_or_default());
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
pub fn http_body(request: &ModelRequest, policy: FieldPolicy) -> Vec<u8> {
    let options = InputOptions {
        contents: Some(&request.contents),
        ..InputOptions::for_model(&request.model)
    };
    RequestBody::build(request, &options, policy, BodyForm::Http).into_bytes()
}

fn write_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Plain structs always serialise, and writing to a `Vec` cannot fail.
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "a request has no JSON form");
    }
}

/// The tools in the stable order of the Toolbox, so that the cached prefix never changes by order.
fn wire_tools(specs: &[ToolSpec], searches: bool) -> Vec<WireTool<'_>> {
    let functions = specs.iter().map(|spec| FunctionTool {
        r#type: "function",
        name: &spec.name,
        description: &spec.description,
        strict: false,
        parameters: &spec.parameters,
    });
    let hosted = searches.then_some(WireTool::Hosted { r#type: "web_search" });
    functions.map(WireTool::Function).chain(hosted).collect()
}

/// The effort for the API: its strongest is `max`, which users also know as `ultra`.
fn wire_effort(effort: &str) -> &str {
    if effort == "ultra" { "max" } else { effort }
}

fn truncated_key(key: &str) -> &str {
    key.char_indices().nth(CACHE_KEY_LIMIT).map_or(key, |(end, _)| &key[..end])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::base::id::SessionId;
    use crate::model::provider::ResponseOptions;
    use crate::record::history::History;
    use crate::record::resource::ResourceContents;
    use crate::settings::config::AnswerSchema;

    fn spec(name: &str) -> ToolSpec {
        let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        ToolSpec {
            name: name.to_owned(),
            description: format!("Does {name}."),
            parameters: parameters.into(),
        }
    }

    fn request(tools: Vec<ToolSpec>) -> ModelRequest {
        ModelRequest {
            model: "gpt-5.5".to_owned(),
            effort: Some("high".to_owned()),
            instructions: Arc::from("Be good.\n"),
            project: Some(Arc::from("Use tabs.")),
            tools: tools.into(),
            history: History::default(),
            contents: ResourceContents::default(),
            cache_key: "pxr1:key".to_owned(),
            response_options: ResponseOptions::default(),
            session: SessionId::parse("s").unwrap(),
            resends: 1,
        }
    }

    /// The body with one field per line, for snapshots.
    fn text(request: &ModelRequest) -> String {
        String::from_utf8(http_body(request, FieldPolicy::OpenAi)).unwrap().replace(",\"", ",\n\"")
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
        let bare = ModelRequest {
            effort: None,
            project: None,
            cache_key: String::new(),
            ..request(vec![])
        };
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
        let parts = RequestBody::build(
            &request,
            &InputOptions::for_model(&request.model),
            FieldPolicy::OpenAi,
            BodyForm::Frame,
        );
        let mut frame: Value = serde_json::from_slice(&parts.to_frame(None, b"")).unwrap();
        let mut http: Value =
            serde_json::from_slice(&http_body(&request, FieldPolicy::OpenAi)).unwrap();
        assert_eq!(
            frame.as_object_mut().unwrap().shift_remove("type"),
            Some("response.create".into())
        );
        assert_eq!(http.as_object_mut().unwrap().shift_remove("stream"), Some(true.into()));
        assert_eq!(frame, http);
        let next: Value = serde_json::from_slice(&parts.to_frame(Some("r\"1"), b"{}")).unwrap();
        assert_eq!(next["previous_response_id"], "r\"1");
        assert_eq!(next["input"], json!([{}]));
        assert_eq!(next["tools"], frame["tools"]);
    }

    #[test]
    fn a_body_has_only_fields_that_its_backend_accepts() {
        let bare = ModelRequest { instructions: "".into(), ..request(vec![spec("read")]) };
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
            let body: Value = serde_json::from_slice(&http_body(&bare, policy)).unwrap();
            let found: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(found.join(" "), fields, "{policy:?}");
            assert!(found.iter().all(|field| policy.accepts(field)), "{policy:?}");
            assert_eq!((&body["store"], &body["stream"]), (&false.into(), &true.into()));
        }
    }

    #[test]
    fn response_options_are_sent_where_they_are_supported() {
        let schema = AnswerSchema::parse(r#"{"type":"object","properties":{"a":{}}}"#).unwrap();
        let mut wishing = request(vec![spec("read")]);
        wishing.response_options =
            ResponseOptions { web_search: true, answer_schema: Some(schema) };
        let sent: Value =
            serde_json::from_slice(&http_body(&wishing, FieldPolicy::OpenAi)).unwrap();
        assert_eq!(sent["tools"][1], json!({"type": "web_search"}));
        assert_eq!(sent["include"][1], "web_search_call.action.sources");
        assert_eq!(sent["text"]["format"]["type"], "json_schema");
        assert_eq!(sent["text"]["format"]["strict"], false);
        assert_eq!(sent["text"]["format"]["schema"]["type"], "object");
        let sent: Value =
            serde_json::from_slice(&http_body(&wishing, FieldPolicy::Portable)).unwrap();
        assert_eq!(sent["tools"].as_array().unwrap().len(), 1);
        assert!(sent.get("include").is_none() && sent.get("text").is_some());
    }

    #[test]
    fn tools_stand_in_the_order_of_the_toolbox() {
        let own = [spec("write"), spec("mcp__a__b")];
        let sent = http_body(&request(own.to_vec()), FieldPolicy::OpenAi);
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!(sent["tools"][0]["name"], "write", "guests come behind");
    }

    #[test]
    fn keys_and_efforts_fit_the_wire() {
        let mut long = request(vec![]);
        long.cache_key = "é".repeat(90);
        long.effort = Some("ultra".to_owned());
        let body: Value = serde_json::from_slice(&http_body(&long, FieldPolicy::OpenAi)).unwrap();
        assert_eq!(body["prompt_cache_key"].as_str().unwrap().chars().count(), 64);
        assert_eq!(body["reasoning"]["effort"], "max");
    }
}
