//! Tests of streamed text over retries, of iteration limits, and of Turns with a fake model and
//! tools.

use super::complete::ShownText;

#[track_caller]
fn check(attempts: &[&[&str]], expected: &str) {
    let mut shown = ShownText::default();
    let mut screen = String::new();
    for (number, attempt) in attempts.iter().enumerate() {
        if number > 0 {
            shown.start_over();
        }
        for delta in *attempt {
            screen.extend(shown.add_delta((*delta).to_owned()));
        }
    }
    assert_eq!(screen, expected);
}

#[test]
fn a_first_attempt_streams_as_it_comes() {
    check(&[&["One ", "two"]], "One two");
}

#[test]
fn a_second_attempt_shows_only_what_is_new() {
    check(&[&["One ", "two"], &["One two", " three"]], "One two three");
    check(&[&["One two"], &["One", " two", "", " three", " four"]], "One two three four");
    check(&[&["One two"], &["One"], &["One two", "!"]], "One two!");
}

#[test]
fn an_attempt_that_says_something_else_is_not_streamed() {
    check(&[&["One two"], &["Eins", " zwei"]], "One two");
    check(&[&["One two"], &["One three"], &["One two", " three"]], "One two three");
}

#[test]
fn a_turn_has_its_iterations_and_no_limit_is_none() {
    let check = |cap, iteration| super::check_cap(cap, iteration).map_err(|error| error.message);
    for iteration in [0, 499, 500, 100_000, u32::MAX] {
        assert_eq!(check(None, iteration), Ok(()), "0 in the settings is no limit");
    }
    let default =
        crate::settings::config::Config::new(crate::base::paths::Home::new("")).max_iterations;
    assert_eq!(default, Some(500));
    assert_eq!(check(default, 499), Ok(()));
    let words = "the Turn used its 500 iterations without an answer";
    assert_eq!(check(default, 500), Err(words.to_owned()));
    let words = "the Turn used its 1 iteration without an answer";
    assert_eq!(check(Some(1), 1), Err(words.to_owned()));
}

/// A fake model and fake tools around the real Turn and the real Session.
mod fakes {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::StreamExt;
    use futures_util::future::BoxFuture;
    use futures_util::stream::{self, BoxStream};
    use serde_json::{Value, json};
    use tokio::sync::Barrier;

    use crate::agent::session::{Session, SessionOptions};
    use crate::agent::turn;
    use crate::agent::turn::{PromptParts, TurnInput, TurnSettings};
    use crate::base::id::SessionId;
    use crate::base::paths::Home;
    use crate::base::tool_error::ToolError;
    use crate::host::workspace::Workspace;
    use crate::model::provider::{
        CompletedResponse, FunctionCall, ModelEvent, ModelRequest, OutputItem, Provider,
        ProviderError, ResponseOptions,
    };
    use crate::model::tool_spec::ToolSpec;
    use crate::record::event::{Canonical, PermissionMode, SessionStatus};
    use crate::record::resource::Resources;
    use crate::settings::config::{
        BudgetLimits as Limits, CompactionSettings, ContextWindowSize, ImageSupport, LogDurability,
        Prices, RetryPolicy,
    };
    use crate::settings::role::Role;
    use crate::tools::mcp::McpServers;
    use crate::tools::permission::ApprovalStore;
    use crate::tools::tool::{AnyTool, CallEffect, CallPlan, ToolContext, ToolOutput};
    use crate::tools::toolbox::Toolbox;

    /// Calls the given tools once, then answers.
    #[derive(Debug)]
    struct FakeModel(&'static [&'static str]);

    impl Provider for FakeModel {
        fn stream(
            &self,
            request: ModelRequest,
        ) -> BoxStream<'static, Result<ModelEvent, ProviderError>> {
            let results =
                request.history.facts().filter(|fact| matches!(fact, Canonical::ToolResult(_)));
            let mut items: Vec<OutputItem> = Vec::new();
            if results.count() == 0 {
                items.extend(self.0.iter().enumerate().map(|(place, name)| {
                    let arguments = json!({ "n": place }).to_string();
                    let (call_id, name) = (format!("c{place}"), (*name).to_owned());
                    OutputItem::Call(FunctionCall { call_id, name, arguments })
                }));
            } else {
                let (text, citations) = ("ok".to_owned(), Vec::new());
                items.push(OutputItem::Message { text, is_refusal: false, citations });
            }
            let end = ModelEvent::Completed(CompletedResponse::default());
            let events = items.into_iter().map(ModelEvent::Item).chain([end]).map(Ok);
            stream::iter(events.collect::<Vec<_>>()).boxed()
        }
    }

    enum FakeTool {
        /// Read-only; returns only when two of them run at once.
        Pair(Arc<Barrier>),
        Panics,
        /// Never ends and ignores interrupts.
        Deaf,
    }

    impl AnyTool for FakeTool {
        fn spec(&self) -> ToolSpec {
            let name = match self {
                FakeTool::Pair(_) => "pair",
                FakeTool::Panics => "panics",
                FakeTool::Deaf => "deaf",
            };
            let parameters = json!({ "type": "object" });
            ToolSpec {
                name: name.into(),
                description: String::new(),
                parameters: parameters.into(),
            }
        }
        fn plan(&self, _: &Value, _: &ToolContext) -> Result<CallPlan, ToolError> {
            let summary = "fake".to_owned();
            Ok(CallPlan::new(CallEffect::Read, summary))
        }
        fn run(&self, _: Value, _: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
            Box::pin(async move {
                match self {
                    FakeTool::Pair(barrier) => {
                        barrier.wait().await;
                    }
                    FakeTool::Panics => panic!("with very-hidden-value inside"),
                    FakeTool::Deaf => std::future::pending().await,
                }
                Ok(ToolOutput::new(true, "done", Value::Null))
            })
        }
    }

    struct TurnTestEnv {
        folder: tempfile::TempDir,
        session: Session,
    }

    impl TurnTestEnv {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let nothing = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
            let secret = ("S".to_owned(), "very-hidden-value".to_owned());
            let options = SessionOptions {
                secrets: Arc::new(crate::base::secret::Secrets::new([secret])),
                durability: LogDurability::None,
                grace: Duration::from_secs(20),
            };
            let first = Canonical::decode("session_started", &nothing);
            let session =
                Session::create(folder.path(), &SessionId::mint(), first, options).unwrap();
            Self { folder, session }
        }

        async fn send(&self, calls: &'static [&'static str]) {
            let pair = FakeTool::Pair(Arc::new(Barrier::new(2)));
            let tools: [Arc<dyn AnyTool>; 3] =
                [Arc::new(pair), Arc::new(FakeTool::Panics), Arc::new(FakeTool::Deaf)];
            let settings = Arc::new(TurnSettings {
                provider: Arc::new(FakeModel(calls)),
                toolbox: Toolbox::new(tools.clone()),
                tools: Toolbox::new(tools),
                mcp_servers: McpServers::default(),
                workspace: Workspace::open(self.folder.path()).unwrap(),
                secrets: Arc::default(),
                model: "m".into(),
                effort: None,
                permission_state: turn::PermissionState::new(
                    PermissionMode::Auto,
                    crate::host::sandbox::Profile::Workspace,
                ),
                can_ask: false,
                editor: None,
                tracker: None,
                approvals: ApprovalStore::new(&Home::new(self.folder.path())),
                role: Role::build(),
                dry_run: false,
                max_iterations: None,
                retry: RetryPolicy::default(),
                iteration_timeout: Duration::from_mins(1),
                tool_grace: Duration::from_millis(20),
                output_limit: 1024,
                session_folder: crate::record::state_dir::StateRoot::in_workspace(
                    self.folder.path(),
                )
                .session_folder(&SessionId::mint()),
                output_folders: [].into(),
                prompt: PromptParts {
                    contract: "test",
                    instructions: "x".into(),
                    project: None,
                    cache_key: "k".into(),
                    shell: String::new(),
                },
                usage_total: turn::UsageTotal::default(),
                budget: Arc::new(turn::RunBudget::new(Limits::default(), Prices::default())),
                response_options: ResponseOptions::default(),
                resources: Resources::new(&crate::base::files::StatePath::root(self.folder.path())),
                image_support: ImageSupport::new(true, (Home::new(""), ""), "m"),
                window: ContextWindowSize::new(Some(1_000_000), (Home::new(""), ""), "m"),
                pressure_gauge: Arc::default(),
                compaction: CompactionSettings::default(),
                skills: crate::model::skill::Skills::new(crate::model::skill::DiscoveryFolders {
                    workspace: self.folder.path().into(),
                    user: None,
                    home: Home::new(self.folder.path()),
                }),
            });
            let input = TurnInput { text: "go".into(), ..TurnInput::default() };
            let body = Box::new(move |context| -> BoxFuture<'static, SessionStatus> {
                Box::pin(turn::run(context, settings, input))
            });
            self.session.start_turn(body).await.unwrap();
        }

        async fn log_lines(&self) -> String {
            let history = self.session.history().await.unwrap();
            let fact = |fact: &Canonical| match fact {
                Canonical::TurnFailed(failed) => {
                    format!("turn_failed {} {}", failed.terminal_status, failed.error_message)
                }
                Canonical::ToolResult(result) => {
                    let kind = result.error.as_ref().map_or("ok", |error| &error.kind);
                    format!("tool_result {} {kind}", result.call_id)
                }
                fact => fact.type_name().to_owned(),
            };
            history.facts().map(fact).collect::<Vec<_>>().join("\n")
        }
    }

    #[tokio::test]
    async fn calls_that_only_look_run_at_the_same_time() {
        let env = TurnTestEnv::new();
        env.send(&["pair", "pair"]).await;
        let finished = env.session.wait_until_idle();
        let status = tokio::time::timeout(Duration::from_secs(20), finished).await;
        assert_eq!(status.expect("they met").unwrap(), SessionStatus::Done);
    }

    #[tokio::test]
    async fn a_panicking_tool_ends_its_turn_and_tells_no_secret() {
        let env = TurnTestEnv::new();
        env.send(&["panics"]).await;
        env.session.wait_until_idle().await.unwrap();
        insta::assert_snapshot!(env.log_lines().await, @r"
        session_started
        user_message
        provider_usage
        tool_call
        tool_result c0 orphan_tool_call
        turn_failed crashed the Turn panicked: with [redacted:S] inside
        ");
    }

    #[tokio::test]
    async fn a_tool_deaf_to_an_interrupt_gets_its_result_from_the_executor() {
        let env = TurnTestEnv::new();
        env.send(&["deaf", "deaf"]).await;
        while !matches!(env.log_lines().await.matches("tool_call").count(), 2) {
            tokio::task::yield_now().await;
        }
        env.session.interrupt().await.unwrap();
        insta::assert_snapshot!(env.log_lines().await, @r"
        session_started
        user_message
        provider_usage
        tool_call
        tool_call
        tool_result c0 orphan_tool_call
        tool_result c1 orphan_tool_call
        turn_failed interrupted the Turn was interrupted
        ");
    }
}
