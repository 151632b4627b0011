//! Writes a Reply as an event stream of the Responses API, in the order of a real server.

use std::time::Duration;

use serde_json::{Value, json};

use super::reply::{EncryptedContent, Reply, ReplyEnding, ReplyStep};

/// A piece of a streamed body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamPiece {
    /// One event, or bytes that are sent as they are.
    Bytes(Vec<u8>),
    Pause(Duration),
    /// A binary frame; WebSocket only.
    Binary,
    /// A close frame with a code; WebSocket only.
    Close(u16),
}

/// The body of a streamed reply. `serial` makes ids unique per request.
pub fn stream_pieces(reply: &Reply, model: &Value, serial: usize) -> Vec<StreamPiece> {
    let mut stream = StreamBuilder {
        pieces: Vec::new(),
        output: Vec::new(),
        sequence: 0,
        response: json!({"id": format!("resp_{serial}"), "object": "response", "model": model, "status": "in_progress"}),
    };
    stream.event("response.created", json!({"response": stream.response}));
    stream.event("response.in_progress", json!({"response": stream.response}));
    for step in &reply.steps {
        stream.step(step, serial);
    }
    stream.end(&reply.ending, &reply.usage);
    if let Some((place, piece)) =
        reply.duplicate_event.and_then(|at| Some((at, stream.pieces.get(at)?.clone())))
    {
        stream.pieces.insert(place, piece);
    }
    stream.pieces
}

struct StreamBuilder {
    pieces: Vec<StreamPiece>,
    /// Finished items, repeated in the last event.
    output: Vec<Value>,
    sequence: u64,
    response: Value,
}

impl StreamBuilder {
    fn step(&mut self, step: &ReplyStep, serial: usize) {
        let index = self.output.len();
        match step {
            ReplyStep::Pause(time) => self.pieces.push(StreamPiece::Pause(*time)),
            ReplyStep::Binary => self.pieces.push(StreamPiece::Binary),
            ReplyStep::Close(code) => self.pieces.push(StreamPiece::Close(*code)),
            ReplyStep::Raw(text) => self.pieces.push(StreamPiece::Bytes(text.clone().into_bytes())),
            ReplyStep::WebSearch { query, sources } => {
                self.web_search(&format!("ws_{serial}_{index}"), query, sources);
            }
            ReplyStep::Text { chunks, phase, cites } => {
                let notes: Vec<Value> = cites
                    .iter()
                    .map(|(url, title)| {
                        json!({"type": "url_citation", "url": url, "title": title, "start_index": 0, "end_index": 1})
                    })
                    .collect();
                let part =
                    |text: &str| json!({"type": "output_text", "text": text, "annotations": notes});
                self.message(&format!("msg_{serial}_{index}"), "output_text", chunks, *phase, part);
            }
            ReplyStep::Refusal(text) => {
                let part = |text: &str| json!({"type": "refusal", "refusal": text});
                self.message(
                    &format!("msg_{serial}_{index}"),
                    "refusal",
                    std::slice::from_ref(text),
                    None,
                    part,
                );
            }
            ReplyStep::Reasoning { summary, encrypted } => {
                self.reasoning(&format!("rs_{serial}_{index}"), summary, *encrypted);
            }
            ReplyStep::Call { call_id, name, arguments } => {
                let call_id = call_id.clone().unwrap_or_else(|| format!("call_{serial}_{index}"));
                self.call(&format!("fc_{serial}_{index}"), &call_id, name, arguments);
            }
        }
    }

    fn message(
        &mut self,
        id: &str,
        kind: &str,
        chunks: &[String],
        phase: Option<&str>,
        part: impl Fn(&str) -> Value,
    ) {
        let index = self.output.len();
        let text = chunks.concat();
        let mut item = json!({"id": id, "type": "message", "role": "assistant", "status": "in_progress", "content": []});
        if let Some(phase) = phase {
            item["phase"] = phase.into();
        }
        let place = json!({"item_id": id, "output_index": index, "content_index": 0});
        let at = |mut fields: Value| {
            for (name, value) in place.as_object().into_iter().flatten() {
                fields[name] = value.clone();
            }
            fields
        };
        self.event("response.output_item.added", json!({"output_index": index, "item": item}));
        self.event("response.content_part.added", at(json!({"part": part("")})));
        for chunk in chunks {
            self.event(&format!("response.{kind}.delta"), at(json!({"delta": chunk})));
        }
        let field = if kind == "refusal" { "refusal" } else { "text" };
        self.event(&format!("response.{kind}.done"), at(json!({field: text})));
        self.event("response.content_part.done", at(json!({"part": part(&text)})));
        item["status"] = "completed".into();
        item["content"] = json!([part(&text)]);
        self.finish(&item.clone(), item);
    }

    fn web_search(&mut self, id: &str, query: &str, sources: &[String]) {
        let index = self.output.len();
        let place = json!({"output_index": index, "item_id": id});
        let sources: Vec<Value> =
            sources.iter().map(|url| json!({"type": "url", "url": url})).collect();
        let item = json!({"id": id, "type": "web_search_call", "status": "in_progress"});
        self.event("response.output_item.added", json!({"output_index": index, "item": item}));
        for step in ["in_progress", "searching", "completed"] {
            self.event(&format!("response.web_search_call.{step}"), place.clone());
        }
        let action = json!({"type": "search", "query": query, "sources": sources});
        let item =
            json!({"id": id, "type": "web_search_call", "status": "completed", "action": action});
        self.finish(&item.clone(), item);
    }

    fn reasoning(&mut self, id: &str, summary: &str, encrypted: EncryptedContent) {
        let index = self.output.len();
        let part = json!({"type": "summary_text", "text": summary});
        let item = json!({"id": id, "type": "reasoning", "summary": []});
        let place = |name: &str, value: Value| json!({"item_id": id, "output_index": index, "summary_index": 0, name: value});
        self.event("response.output_item.added", json!({"output_index": index, "item": item}));
        self.event(
            "response.reasoning_summary_part.added",
            place("part", json!({"type": "summary_text", "text": ""})),
        );
        for word in summary.split_inclusive(' ') {
            self.event("response.reasoning_summary_text.delta", place("delta", word.into()));
        }
        self.event("response.reasoning_summary_text.done", place("text", summary.into()));
        self.event("response.reasoning_summary_part.done", place("part", part.clone()));
        let open = json!({"id": id, "type": "reasoning", "summary": [part]});
        let mut sealed = open.clone();
        sealed["encrypted_content"] = format!("sealed:{id}").into();
        match encrypted {
            EncryptedContent::WithItem => self.finish(&sealed.clone(), sealed),
            EncryptedContent::AtTheEnd => self.finish(&open, sealed),
            EncryptedContent::Nowhere => self.finish(&open.clone(), open),
        }
    }

    fn call(&mut self, id: &str, call_id: &str, name: &str, arguments: &str) {
        let index = self.output.len();
        let mut item = json!({
            "id": id, "type": "function_call", "status": "in_progress",
            "call_id": call_id, "name": name, "arguments": "",
        });
        self.event("response.output_item.added", json!({"output_index": index, "item": item}));
        let place = |name: &str| json!({"item_id": id, "output_index": index, name: arguments});
        self.event("response.function_call_arguments.delta", place("delta"));
        self.event("response.function_call_arguments.done", place("arguments"));
        item["status"] = "completed".into();
        item["arguments"] = arguments.into();
        self.finish(&item.clone(), item);
    }

    /// Sends an item's `done` event, and records how the last event repeats the item.
    fn finish(&mut self, item: &Value, repeated: Value) {
        self.event(
            "response.output_item.done",
            json!({"output_index": self.output.len(), "item": item}),
        );
        self.output.push(repeated);
    }

    fn end(&mut self, ending: &ReplyEnding, usage: &Value) {
        let mut response = self.response.clone();
        response["output"] = self.output.clone().into();
        response["usage"] = usage.clone();
        let status = match ending {
            ReplyEnding::Nothing => return,
            ReplyEnding::Error { code, message } => {
                return self
                    .event("error", json!({"code": code, "message": message, "param": null}));
            }
            ReplyEnding::Completed => "completed",
            ReplyEnding::Incomplete(reason) => {
                response["incomplete_details"] = json!({"reason": reason});
                "incomplete"
            }
            ReplyEnding::Failed { code, message, billed } => {
                response["error"] = json!({"code": code, "message": message});
                if !billed {
                    response["usage"] = Value::Null;
                }
                "failed"
            }
        };
        response["status"] = status.into();
        self.event(&format!("response.{status}"), json!({"response": response}));
    }

    fn event(&mut self, name: &str, fields: Value) {
        let mut data = json!({"type": name, "sequence_number": self.sequence});
        if let (Value::Object(data), Value::Object(fields)) = (&mut data, fields) {
            data.extend(fields);
        }
        self.sequence += 1;
        self.pieces
            .push(StreamPiece::Bytes(format!("event: {name}\ndata: {data}\n\n").into_bytes()));
    }
}
