//! The scripted model in a separate process, which answers at once or after a pause.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pixir::scripted::{ModelScript, ReceivedRequest, Reply, ScriptedServer};
use serde_json::{Value, json};

/// The role of the model's process.
pub const MODEL: &str = "__model";

/// Serves until the process is killed.
pub fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = ScriptedServer::start(ModelScript::answering(answer)).await.unwrap();
        println!("{}", server.base_url());
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    });
}

/// The model's reply: `fan N` is a parent's prompt, `noop I` a child's task, `slow I PAUSE` a slow child's task.
fn answer(request: &ReceivedRequest) -> Reply {
    let texts = request.user_texts();
    let first = texts.first().and_then(|text| text.lines().next()).unwrap_or_default();
    let words: Vec<&str> = first.split(' ').collect();
    let number = |place: usize| words.get(place).and_then(|word| word.parse().ok()).unwrap_or(0);
    let done = request.input().iter().filter(|item| item["type"] == "function_call_output").count();
    match words[0] {
        "fan" if done == 0 => (0..number(1)).fold(Reply::new(), |reply, child| {
            let args: Value = json!({"task": format!("noop {child}"), "role": "explorer"});
            reply.call("spawn_agent", args)
        }),
        "fan" if done == number(1) => Reply::calls("wait_agent", json!({})),
        "fan" => Reply::says("All done."),
        "slow" => Reply::new()
            .pause(Duration::from_millis(number(2) as u64))
            .text(&format!("answer {}", number(1))),
        _ => Reply::says(&format!("answer {}\ncheckpoint_status: checkpoint_ready", number(1))),
    }
}

/// The model's process, killed on drop.
pub struct Model {
    child: Child,
    pub url: String,
}

impl Model {
    pub fn start() -> Self {
        let mut child = Command::new("/bin/sh")
            .args(["-c", r#"ulimit -n 65536 2>/dev/null || ulimit -n 4096; exec "$@""#, "sh"])
            .arg(std::env::current_exe().unwrap())
            .arg(MODEL)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
