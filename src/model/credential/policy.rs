//! Field policies: which fields of a request body a backend accepts. One unknown field fails the whole call.

/// The fields that the backend of a credential accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPolicy {
    /// `api.openai.com` with a key: all documented fields.
    OpenAi,
    /// The subscription's backend, which refuses many of them.
    ChatGpt,
    /// Other servers with the Responses API: only the fields that all of them accept.
    Portable,
}

/// The fields that the subscription's backend answers with a 400. Over a WebSocket, and only there, it accepts
/// `previous_response_id`; the transport handles that.
const CHATGPT_REFUSES: &[&str] = &[
    "background",
    "conversation",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tool_calls",
    "metadata",
    "moderation",
    "multi_agent",
    "previous_response_id",
    "prompt",
    "prompt_cache_retention",
    "safety_identifier",
    "temperature",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

const PORTABLE_ACCEPTS: &[&str] = &[
    "input",
    "instructions",
    "max_output_tokens",
    "model",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
];

impl FieldPolicy {
    /// Whether a top-level field of a request body may be sent.
    pub fn accepts(self, field: &str) -> bool {
        match self {
            FieldPolicy::OpenAi => true,
            FieldPolicy::ChatGpt => !CHATGPT_REFUSES.contains(&field),
            FieldPolicy::Portable => PORTABLE_ACCEPTS.contains(&field),
        }
    }

    /// Whether a body without `instructions` is refused.
    pub fn needs_instructions(self) -> bool {
        self == FieldPolicy::ChatGpt
    }
}

#[cfg(test)]
mod tests {
    use super::FieldPolicy::{ChatGpt, OpenAi, Portable};

    #[test]
    fn the_table_of_fields() {
        for (field, open_ai, chatgpt, portable) in [
            ("model", true, true, true),
            ("store", true, true, true),
            ("stream", true, true, true),
            ("instructions", true, true, true),
            ("input", true, true, true),
            ("tools", true, true, true),
            ("tool_choice", true, true, true),
            ("parallel_tool_calls", true, true, false),
            ("reasoning", true, true, false),
            ("include", true, true, false),
            ("prompt_cache_key", true, true, false),
            ("text", true, true, true),
            ("service_tier", true, true, false),
            ("max_output_tokens", true, false, true),
            ("temperature", true, false, true),
            ("top_p", true, false, true),
            ("prompt_cache_retention", true, false, false),
            ("metadata", true, false, false),
            ("user", true, false, false),
            ("safety_identifier", true, false, false),
            ("truncation", true, false, false),
            ("background", true, false, false),
            ("conversation", true, false, false),
            ("prompt", true, false, false),
            ("max_tool_calls", true, false, false),
            ("top_logprobs", true, false, false),
            ("previous_response_id", true, false, false),
        ] {
            assert_eq!(OpenAi.accepts(field), open_ai, "{field} with a key");
            assert_eq!(ChatGpt.accepts(field), chatgpt, "{field} with a subscription");
            assert_eq!(Portable.accepts(field), portable, "{field} elsewhere");
        }
    }
}
