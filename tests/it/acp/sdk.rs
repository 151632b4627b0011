//! The official Rust SDK as a client of `pixir acp`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, CloseSessionRequest, ContentBlock, EnvVariable, InitializeRequest,
    ListSessionsRequest, LoadSessionRequest, McpServer, McpServerStdio, NewSessionRequest,
    PermissionOptionKind, PromptRequest, PromptResponse, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, ResumeSessionRequest,
    SelectedPermissionOutcome, SessionId, SessionNotification, SessionUpdate, StopReason,
    TextContent, ToolCallContent, ToolCallStatus,
};
use agent_client_protocol::{AcpAgent, AcpAgentConfig, Agent, Client, Error};

use super::conformance::scripted_model::{self, script_prompt};
use crate::mcp::server::arguments;
use crate::support::BinaryEnv;
use crate::support::leaks;
use crate::support::test_env::DEADLINE;

/// The updates and requests that the client received.
#[derive(Clone, Default)]
struct ClientRecord {
    updates: Arc<Mutex<Vec<SessionUpdate>>>,
    asked: Arc<Mutex<Vec<RequestPermissionRequest>>>,
}

impl ClientRecord {
    fn take_updates(&self) -> Vec<SessionUpdate> {
        std::mem::take(&mut self.updates.lock().unwrap())
    }

    fn has(&self, wished: impl Fn(&SessionUpdate) -> bool) -> bool {
        self.updates.lock().unwrap().iter().any(wished)
    }

    async fn wait(&self, wished: impl Fn(&SessionUpdate) -> bool) {
        while !self.has(&wished) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// `pixir acp`, as the SDK starts it.
fn agent(env: &BinaryEnv) -> AcpAgent {
    let mut dressed = std::process::Command::new(env.program());
    env.configure_command(&mut dressed);
    let mut config = AcpAgentConfig::new(env.program()).arg("acp");
    for (name, value) in dressed.get_envs() {
        let value = value.unwrap_or_default();
        config = config.env(name.to_string_lossy(), value.to_string_lossy());
    }
    AcpAgent::new(config).with_debug(|line, _| leaks::check_stream(line))
}

/// Runs a client against the agent; every permission request is allowed once.
async fn run_with_client(
    env: &BinaryEnv,
    client_record: &ClientRecord,
    run_client: impl AsyncFnOnce(ConnectionTo<Agent>) -> Result<(), Error>,
) {
    let recorded = client_record.clone();
    let asked = client_record.clone();
    let driven = Client
        .v1()
        .name("story")
        .on_receive_notification(
            async move |notification: SessionNotification, _| {
                recorded.updates.lock().unwrap().push(notification.update);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _| {
                let mut options = request.options.iter();
                let once = options.find(|option| option.kind == PermissionOptionKind::AllowOnce);
                let chosen = SelectedPermissionOutcome::new(once.unwrap().option_id.clone());
                asked.asked.lock().unwrap().push(request.clone());
                responder.respond(RequestPermissionResponse::new(
                    RequestPermissionOutcome::Selected(chosen),
                ))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(agent(env), run_client);
    tokio::time::timeout(DEADLINE, driven).await.expect("the story ends").unwrap();
}

async fn initialize(client: &ConnectionTo<Agent>) -> Result<(), Error> {
    let hello = client.send_request(InitializeRequest::new(ProtocolVersion::V1));
    let hello = hello.block_task().await?;
    assert_eq!(hello.protocol_version, ProtocolVersion::V1);
    assert!(hello.agent_capabilities.load_session);
    Ok(())
}

async fn prompt(
    client: &ConnectionTo<Agent>,
    session: &SessionId,
    text: &str,
) -> Result<PromptResponse, Error> {
    let blocks = vec![ContentBlock::Text(TextContent::new(text))];
    client.send_request(PromptRequest::new(session.clone(), blocks)).block_task().await
}

fn text_of(updates: &[SessionUpdate]) -> String {
    let texts = updates.iter().filter_map(|update| match update {
        SessionUpdate::AgentMessageChunk(chunk) => match &chunk.content {
            ContentBlock::Text(text) => Some(text.text.clone()),
            _ => None,
        },
        _ => None,
    });
    texts.collect()
}

fn has_diff(updates: &[SessionUpdate]) -> bool {
    updates.iter().any(|update| match update {
        SessionUpdate::ToolCallUpdate(call) => {
            let content = call.fields.content.as_deref().unwrap_or_default();
            content.iter().any(|piece| matches!(piece, ToolCallContent::Diff(_)))
                && call.fields.status == Some(ToolCallStatus::Completed)
        }
        _ => false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_prompts_asks_cancels_loads_and_resumes() {
    let mark = BinaryEnv::new_mark();
    let sleeping = format!("bash echo begun; sleep 600; echo {mark}");
    let env = BinaryEnv::new(mark, scripted_model::script()).await;
    let work: PathBuf = env.workspace().canonicalize().unwrap();
    let client_record = ClientRecord::default();
    let made: Arc<Mutex<Option<SessionId>>> = Arc::default();
    let own_record = client_record.clone();
    let place = work.clone();
    let made_here = Arc::clone(&made);
    run_with_client(&env, &client_record, async move |client: ConnectionTo<Agent>| {
        initialize(&client).await?;
        let opened =
            client.send_request(NewSessionRequest::new(place.clone())).block_task().await?;
        let session = opened.session_id;
        *made_here.lock().unwrap() = Some(session.clone());
        // A prompt with tools, one of which needs permission.
        let write = r#"call write {"path":"made.txt","content":"made\n"}"#;
        let script = script_prompt("go", &[write, "bash cat made.txt", "echo"]);
        let answer = prompt(&client, &session, &script).await?;
        assert_eq!(answer.stop_reason, StopReason::EndTurn);
        let updates = own_record.take_updates();
        assert!(has_diff(&updates) && text_of(&updates).contains("made"), "{updates:?}");
        assert_eq!(own_record.asked.lock().unwrap().len(), 1);
        // A command that is cancelled while it runs.
        let script = script_prompt("go", &[&sleeping]);
        let running = prompt(&client, &session, &script);
        let cancelling = async {
            own_record.wait(|update| format!("{update:?}").contains("begun\\n")).await;
            client.send_notification(CancelNotification::new(session.clone()))
        };
        let (answer, cancelled) = tokio::join!(running, cancelling);
        cancelled?;
        assert_eq!(answer?.stop_reason, StopReason::Cancelled);
        // The Session is listed, closed, and loaded with its full replay.
        let listed = client.send_request(ListSessionsRequest::new()).block_task().await?;
        assert!(listed.sessions.iter().any(|one| one.session_id == session));
        client.send_request(CloseSessionRequest::new(session.clone())).block_task().await?;
        own_record.take_updates();
        let load = LoadSessionRequest::new(session.clone(), place.clone());
        client.send_request(load).block_task().await?;
        let updates = own_record.take_updates();
        assert!(updates.iter().any(|update| matches!(update, SessionUpdate::UserMessageChunk(_))));
        assert!(text_of(&updates).contains("made"));
        client.send_request(CloseSessionRequest::new(session)).block_task().await?;
        Ok(())
    })
    .await;
    env.assert_nothing_survives();
    // Another process resumes the Session.
    let session = made.lock().unwrap().clone().unwrap();
    let own_record = client_record.clone();
    run_with_client(&env, &client_record, async move |client: ConnectionTo<Agent>| {
        initialize(&client).await?;
        own_record.take_updates();
        let resume = ResumeSessionRequest::new(session.clone(), work);
        client.send_request(resume).block_task().await?;
        let answer = prompt(&client, &session, "what was said » repeat").await?;
        assert_eq!(answer.stop_reason, StopReason::EndTurn);
        assert!(text_of(&own_record.take_updates()).contains("cat made.txt"));
        client.send_request(CloseSessionRequest::new(session)).block_task().await?;
        Ok(())
    })
    .await;
    env.assert_nothing_survives();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_hands_over_a_server_whose_tool_is_called() {
    let env = BinaryEnv::new(BinaryEnv::new_mark(), scripted_model::script()).await;
    env.configure(&serde_json::json!({"durability": "none", "mcp": {"wait_ms": 60_000}}));
    let work = env.workspace().canonicalize().unwrap();
    let server = McpServerStdio::new("story", "/bin/sh")
        .args(arguments(&env.mark))
        .env(vec![EnvVariable::new("STORY_SERVER", "{}")]);
    let client_record = ClientRecord::default();
    let own_record = client_record.clone();
    run_with_client(&env, &client_record, async move |client: ConnectionTo<Agent>| {
        initialize(&client).await?;
        let new = NewSessionRequest::new(work).mcp_servers(vec![McpServer::Stdio(server)]);
        let session = client.send_request(new).block_task().await?.session_id;
        let script = script_prompt("go", &[r#"call mcp__story__echo {"text":"hello"}"#, "echo"]);
        let answer = prompt(&client, &session, &script).await?;
        assert_eq!(answer.stop_reason, StopReason::EndTurn);
        assert!(text_of(&own_record.take_updates()).contains("you said hello"));
        assert_eq!(
            own_record.asked.lock().unwrap().len(),
            1,
            "a tool of unknown effect needs permission"
        );
        client.send_request(CloseSessionRequest::new(session)).block_task().await?;
        Ok(())
    })
    .await;
    env.assert_nothing_survives();
}
