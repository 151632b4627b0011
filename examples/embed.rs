//! Drives a Conversation from another program: start, subscribe, send, listen, read the History.
//!
//! Runs against the scripted model, so it needs no key and no network:
//! `cargo run --example embed`.
#![expect(clippy::disallowed_methods, reason = "the example makes a folder to work in")]

use std::io::Write;
use std::process::ExitCode;

use pixir::scripted::{ModelScript, Reply, ScriptedServer};
use pixir::{
    Config, Credential, Ephemeral, EventKind, Harness, HarnessOptions, Home, ListenFrom,
    ListenerItem, SessionTarget, StartOptions, UserInput,
};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    // An embedder's binary supervises its own host commands, exactly like `pixir` itself.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == pixir::SUPERVISE) {
        return Ok(pixir::supervise(arguments));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(converse())?;
    Ok(ExitCode::SUCCESS)
}

async fn converse() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedServer::start(ModelScript::new([
        Reply::calls("bash", serde_json::json!({ "command": "echo embedded" })),
        Reply::says("The command said: embedded."),
    ]))
    .await?;
    let folder = std::env::temp_dir().join(format!("pixir-embed-{}", std::process::id()));
    let workspace = folder.join("work");
    std::fs::create_dir_all(&workspace)?;

    let harness = Harness::open(HarnessOptions {
        config: Config::new(Home::new(folder.join("home"))),
        credential: Credential::new(None, &model.base_url())?,
        environment: std::env::vars_os().collect(),
        own_binary: std::env::current_exe()?,
    });
    let start = StartOptions {
        workspace,
        session: SessionTarget::New,
        can_ask: false,
        mcp_servers: Vec::new(),
    };
    let conversation = harness.start(start).await?;

    // Subscribe before sending, so that nothing is missed.
    let mut listener = conversation.subscribe(ListenFrom::Now);
    conversation.send(UserInput { text: "Run something.".to_owned() }).await?;
    let mut out = std::io::stdout();
    while let Some(item) = listener.next().await {
        let ListenerItem::Event(event) = item else { continue };
        match event.kind() {
            EventKind::Ephemeral(Ephemeral::TextDelta(chunk)) => write!(out, "{chunk}")?,
            EventKind::Ephemeral(Ephemeral::Status(status)) if status.is_terminal() => break,
            EventKind::Canonical(fact) => writeln!(out, "[{}]", fact.type_name())?,
            EventKind::Ephemeral(_) => {}
        }
    }
    let events = conversation.history().await?.len();
    writeln!(out, "{events} Events in {}", conversation.log_path().display())?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
