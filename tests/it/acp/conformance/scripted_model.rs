//! Scripted model that follows instructions in the prompt, so that one script serves every case.
//!
//! The replies follow `»`, one per line; a reply is a list of steps separated by ` ;; `. The line is
//! chosen by the number of calls answered since the user's message.

use std::time::Duration;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use serde_json::{Value, json};

/// The reply to a prompt without instructions.
pub const DEFAULT: &str = "That is all.";

/// The script of every case.
pub fn script() -> ModelScript {
    ModelScript::answering(reply)
}

/// A prompt with its replies.
pub fn script_prompt(words: &str, replies: &[&str]) -> String {
    format!("{words} » {}", replies.join("\n"))
}

fn reply(request: &ReceivedRequest) -> Reply {
    let texts = request.user_texts();
    let Some((_, script)) = texts.last().and_then(|text| text.split_once('»')) else {
        return Reply::says(DEFAULT);
    };
    let line = script.lines().nth(request.outputs().len()).unwrap_or("say Done.");
    line.split(" ;; ").fold(Reply::new(), |reply, step| apply_step(reply, step.trim(), request))
}

fn apply_step(reply: Reply, step: &str, request: &ReceivedRequest) -> Reply {
    let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
    let number = || rest.split(' ').next().unwrap().parse::<u64>().unwrap();
    let after = || rest.split_once(' ').map_or("", |(_, rest)| rest);
    match verb {
        "say" => reply.text(rest),
        "note" => reply.commentary(rest),
        "think" => reply.reasoning(rest),
        "refuse" => reply.refusal(rest),
        "bash" => reply.call("bash", json!({ "command": rest })),
        "call" => {
            let (name, arguments) = rest.split_once(' ').unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            reply.call(name, arguments)
        }
        "raw" => {
            let (name, arguments) = rest.split_once(' ').unwrap();
            reply.call_as(None, name, arguments)
        }
        // The output of the last call, for the case to check.
        "echo" => reply.text(request.outputs().last().copied().unwrap_or("nothing")),
        // All texts of the user.
        "repeat" => reply.text(&request.user_texts().join("\n")),
        "see" => reply.text(&format!("{} images", request.images().len())),
        "deltas" => reply.deltas(usize::try_from(number()).unwrap(), "word "),
        "pause" => reply.pause(Duration::from_millis(number())),
        "stall" => reply.stalls(),
        "cut" => reply.incomplete("max_output_tokens"),
        "filter" => reply.incomplete("content_filter"),
        "break" => reply.ends_silently(),
        "fail" => reply.fails("server_error", rest),
        "status" => {
            let error = json!({"error": {"code": "scripted", "message": after()}});
            Reply::status(u16::try_from(number()).unwrap(), error.to_string())
        }
        other => panic!("the actor does not know {other}"),
    }
}
