//! Replies of the scripted model: the content of one answer, and the faults while it is sent.

use std::time::Duration;

use serde_json::{Value, json};

/// One answer, built step by step.
#[derive(Debug, Clone)]
#[must_use]
pub struct Reply {
    pub(super) head: ReplyHead,
    pub(super) headers: Vec<(String, String)>,
    pub(super) steps: Vec<ReplyStep>,
    pub(super) ending: ReplyEnding,
    pub(super) usage: Value,
    pub(super) delivery: ReplyDelivery,
    pub(super) after: AfterReply,
    /// How many bytes of the body are sent before the connection is closed.
    pub(super) cut_after: Option<usize>,
    pub(super) disconnect: Disconnect,
    /// The index of an event that is sent twice.
    pub(super) duplicate_event: Option<usize>,
}

/// The kind of answer: an event stream, or a status with a body.
#[derive(Debug, Clone)]
pub(super) enum ReplyHead {
    /// 200 and a stream of events.
    Stream,
    /// Any status with a plain body.
    Plain { status: u16, body: String },
}

#[derive(Debug, Clone)]
pub(super) enum ReplyStep {
    Text {
        chunks: Vec<String>,
        phase: Option<&'static str>,
        /// Address and title of each cited page.
        cites: Vec<(String, String)>,
    },
    /// A web search by the Provider.
    WebSearch {
        query: String,
        sources: Vec<String>,
    },
    Refusal(String),
    Reasoning {
        summary: String,
        encrypted: EncryptedContent,
    },
    /// `arguments` is sent as it is, JSON or not.
    Call {
        call_id: Option<String>,
        name: String,
        arguments: String,
    },
    Pause(Duration),
    /// Raw bytes between two events.
    Raw(String),
    Binary,
    Close(u16),
}

/// Where the encrypted content of a reasoning item is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncryptedContent {
    WithItem,
    /// Only in the output list of the last event, as some gateways do.
    AtTheEnd,
    Nowhere,
}

#[derive(Debug, Clone)]
pub(super) enum ReplyEnding {
    Completed,
    Incomplete(String),
    Failed {
        code: String,
        message: String,
        /// Whether the failure is billed.
        billed: bool,
    },
    /// A top-level `error` event.
    Error {
        code: String,
        message: String,
    },
    /// The body ends without a final event.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyDelivery {
    AsOne,
    /// Every byte is a separate chunk and packet.
    ByteByByte,
}

/// How the connection is closed in the middle of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disconnect {
    /// An orderly close, as when the server process ends.
    Closed,
    /// A reset, as when the machine has lost the connection.
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterReply {
    /// The body ends and the connection can be used again.
    End,
    /// The body never ends; the socket is held open in silence.
    HoldOpen,
}

impl Reply {
    /// An answer without content, to which steps are added.
    pub fn new() -> Self {
        Self {
            head: ReplyHead::Stream,
            headers: Vec::new(),
            steps: Vec::new(),
            ending: ReplyEnding::Completed,
            usage: usage(100, 0, 20),
            delivery: ReplyDelivery::AsOne,
            after: AfterReply::End,
            cut_after: None,
            disconnect: Disconnect::Closed,
            duplicate_event: None,
        }
    }

    /// An answer of text, streamed word by word.
    pub fn says(text: &str) -> Self {
        Self::new().text(text)
    }

    /// An answer that calls one tool.
    pub fn calls(name: &str, arguments: Value) -> Self {
        Self::new().call(name, arguments)
    }

    /// An HTTP answer without a stream.
    pub fn status(status: u16, body: impl Into<String>) -> Self {
        Self { head: ReplyHead::Plain { status, body: body.into() }, ..Self::new() }
    }

    /// Adds a header; over a WebSocket only an error has any.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A message, streamed word by word.
    pub fn text(self, text: &str) -> Self {
        self.text_in(text.split_inclusive(' '))
    }

    /// A message, streamed in the given pieces.
    pub fn text_in<'a>(self, chunks: impl IntoIterator<Item = &'a str>) -> Self {
        self.step(ReplyStep::Text {
            chunks: chunks.into_iter().map(str::to_owned).collect(),
            phase: None,
            cites: Vec::new(),
        })
    }

    /// A message that cites web pages: address and title.
    pub fn citing(self, text: &str, pages: &[(&str, &str)]) -> Self {
        let chunks = text.split_inclusive(' ').map(str::to_owned).collect();
        let cites =
            pages.iter().map(|(url, title)| ((*url).to_owned(), (*title).to_owned())).collect();
        self.step(ReplyStep::Text { chunks, phase: None, cites })
    }

    /// A web search by the Provider, with the addresses it found.
    pub fn web_search(self, query: &str, sources: &[&str]) -> Self {
        let sources = sources.iter().map(|url| (*url).to_owned()).collect();
        self.step(ReplyStep::WebSearch { query: query.to_owned(), sources })
    }

    /// A message that repeats one delta.
    pub fn deltas(self, count: usize, piece: &str) -> Self {
        let chunks = vec![piece.to_owned(); count];
        self.step(ReplyStep::Text { chunks, phase: None, cites: Vec::new() })
    }

    /// A message that the server marks as commentary.
    pub fn commentary(self, text: &str) -> Self {
        let chunks = text.split_inclusive(' ').map(str::to_owned).collect();
        self.step(ReplyStep::Text { chunks, phase: Some("commentary"), cites: Vec::new() })
    }

    /// A message that only refuses.
    pub fn refusal(self, text: &str) -> Self {
        self.step(ReplyStep::Refusal(text.to_owned()))
    }

    /// A reasoning item with its summary and encrypted content.
    pub fn reasoning(self, summary: &str) -> Self {
        self.step(ReplyStep::Reasoning {
            summary: summary.to_owned(),
            encrypted: EncryptedContent::WithItem,
        })
    }

    /// A reasoning item whose encrypted content comes with the last event.
    pub fn reasoning_sealed_late(self, summary: &str) -> Self {
        self.step(ReplyStep::Reasoning {
            summary: summary.to_owned(),
            encrypted: EncryptedContent::AtTheEnd,
        })
    }

    /// A reasoning item that cannot be replayed.
    pub fn reasoning_unsealed(self, summary: &str) -> Self {
        self.step(ReplyStep::Reasoning {
            summary: summary.to_owned(),
            encrypted: EncryptedContent::Nowhere,
        })
    }

    /// A tool call.
    #[expect(clippy::needless_pass_by_value, reason = "scripts read best with a bare `json!`")]
    pub fn call(self, name: &str, arguments: Value) -> Self {
        self.call_as(None, name, &arguments.to_string())
    }

    /// A tool call with a given id and with arguments that need not be JSON.
    pub fn call_as(self, call_id: Option<&str>, name: &str, arguments: &str) -> Self {
        let call_id = call_id.map(str::to_owned);
        self.step(ReplyStep::Call {
            call_id,
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    /// Sets the reported usage.
    pub fn usage(mut self, input: u64, cached: u64, output: u64) -> Self {
        self.usage = usage(input, cached, output);
        self
    }

    /// Sets how many of the reported output tokens were reasoning.
    pub fn reasoning_tokens(mut self, count: u64) -> Self {
        self.usage["output_tokens_details"]["reasoning_tokens"] = count.into();
        self
    }

    /// A pause.
    pub fn pause(self, time: Duration) -> Self {
        self.step(ReplyStep::Pause(time))
    }

    /// A comment line, as servers send it to keep a connection alive.
    pub fn comment(self, text: &str) -> Self {
        self.step(ReplyStep::Raw(format!(": {text}\n\n")))
    }

    /// Any event, known or not.
    pub fn event(self, name: &str, data: &Value) -> Self {
        self.step(ReplyStep::Raw(format!("event: {name}\ndata: {data}\n\n")))
    }

    /// Bytes that are not an event.
    pub fn garbage(self, text: &str) -> Self {
        self.step(ReplyStep::Raw(text.to_owned()))
    }

    /// Ends as incomplete, for a reason.
    pub fn incomplete(mut self, reason: &str) -> Self {
        self.ending = ReplyEnding::Incomplete(reason.to_owned());
        self
    }

    /// Ends with `response.failed`.
    pub fn fails(mut self, code: &str, message: &str) -> Self {
        let (code, message) = (code.to_owned(), message.to_owned());
        self.ending = ReplyEnding::Failed { code, message, billed: false };
        self
    }

    /// Ends with `response.failed` that has usage.
    pub fn fails_billed(mut self, code: &str, message: &str) -> Self {
        let (code, message) = (code.to_owned(), message.to_owned());
        self.ending = ReplyEnding::Failed { code, message, billed: true };
        self
    }

    /// Ends with a top-level `error` event.
    pub fn errors(mut self, code: &str, message: &str) -> Self {
        self.ending = ReplyEnding::Error { code: code.to_owned(), message: message.to_owned() };
        self
    }

    /// Ends the body without a final event.
    pub fn ends_silently(mut self) -> Self {
        self.ending = ReplyEnding::Nothing;
        self
    }

    /// Holds the socket open in silence after the last byte.
    pub fn left_open(mut self) -> Self {
        self.after = AfterReply::HoldOpen;
        self
    }

    /// Stays silent after the steps so far, with the socket held open.
    pub fn stalls(self) -> Self {
        self.ends_silently().left_open()
    }

    /// Closes the connection after so many bytes of the body.
    pub fn cut_at(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }

    /// Resets the connection after so many bytes of the body.
    pub fn reset_at(mut self, bytes: usize) -> Self {
        self.disconnect = Disconnect::Reset;
        self.cut_at(bytes)
    }

    /// Sends the event at this index, from 0, twice.
    pub fn twice(mut self, place: usize) -> Self {
        self.duplicate_event = Some(place);
        self
    }

    /// Sends a binary frame; over SSE, closes the connection.
    pub fn binary(self) -> Self {
        self.step(ReplyStep::Binary)
    }

    /// Closes the WebSocket with a code; over SSE, closes the connection.
    pub fn closes(self, code: u16) -> Self {
        self.step(ReplyStep::Close(code))
    }

    /// Sends every byte separately.
    pub fn byte_by_byte(mut self) -> Self {
        self.delivery = ReplyDelivery::ByteByByte;
        self
    }

    fn step(mut self, step: ReplyStep) -> Self {
        self.steps.push(step);
        self
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

fn usage(input: u64, cached: u64, output: u64) -> Value {
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input + output,
    })
}
