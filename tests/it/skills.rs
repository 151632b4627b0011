//! Skills: discovery, activation, replay and trust.

use std::path::Path;

use pixir::scripted::Reply;
use pixir::{SessionStatus, UserInput};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::terminal::TestTerminal;
use crate::support::test_env::{send_and_finish, wait_for_turn_end};

fn plant(root: &Path, name: &str, head: &str, body: &str) {
    let folder = root.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!("---\nname: {name}\n{head}\n---\n{body}\n");
    std::fs::write(folder.join("SKILL.md"), text).unwrap();
}

/// Adds a Skill of the user.
fn own(env: &TestEnv, name: &str, head: &str, body: &str) {
    plant(&env.home().join(".agents/skills"), name, head, body);
}

fn texts(input: &[Value], role: &str) -> Vec<String> {
    let of_role = input.iter().filter(|item| item["role"] == role);
    of_role.map(|item| item["content"][0]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

fn events(conversation: &pixir::Conversation, kind: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    let all = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

fn short(transcript: &str) -> String {
    let lines = transcript.lines().filter(|line| !line.contains("usage"));
    let cut = |line: &str| {
        line.split(" {").next().unwrap().split(" \"- quiet").next().unwrap().to_owned()
    };
    lines.map(cut).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_skill_that_the_user_names_is_recorded_before_their_words_and_replayed_as_it_was() {
    let env = TestEnv::with_replies((0..4).map(|_| Reply::says("ok"))).await;
    own(&env, "tidy", "description: Tidy up", "Sort lines.\nToken: secret-of-test-env");
    let conversation = env.start().await;
    send_and_finish(&conversation, "use $tidy, and $nobody").await;
    insta::assert_snapshot!(short(&env.transcript(&conversation)), @r#"
    0 session_started build auto
    1 skill_activation
    2 user_message "use $tidy, and $nobody"
    4 assistant_message final "ok"
    "#);
    let fact = &events(&conversation, "skill_activation")[0];
    assert_eq!(fact["activated_by"], "user");
    assert_eq!(fact["path"], "user:tidy/SKILL.md");
    assert!(fact["content"].as_str().unwrap().contains("[redacted:STORY_TOKEN]"));
    assert_eq!(fact["content_hash"].as_str().unwrap().len(), 64);
    let first = texts(env.requests()[0].input(), "user");
    assert!(first[0].starts_with("<skill name=\"tidy\"") && first[0].contains("Sort lines."));
    assert_eq!(first[1], "use $tidy, and $nobody");

    // A Skill that is named again is not repeated, and changes of its file do not matter.
    send_and_finish(&conversation, "$tidy again").await;
    let again = &events(&conversation, "skill_activation")[1];
    assert_eq!((&again["repeated"], &again["content"]), (&json!(true), &json!("")));
    own(&env, "tidy", "description: Tidy up", "Something else.");
    let id = conversation.id().clone();
    drop(conversation);
    let conversation = env.resume(&id).await;
    send_and_finish(&conversation, "and now?").await;
    let requests = env.requests();
    let third = texts(requests[2].input(), "user");
    assert!(third[0].contains("Sort lines.") && !third.concat().contains("Something else."));
    for pair in requests[..2].windows(2) {
        let prefix = pair[0].input();
        assert_eq!(&pair[1].input()[..prefix.len()], prefix, "append-only");
    }
    send_and_finish(&conversation, "$tidy").await;
    let changed = events(&conversation, "skill_activation");
    assert!(changed[2]["content"].as_str().unwrap().contains("Something else."));
}

#[tokio::test]
async fn the_model_finds_a_skill_in_the_index_and_activates_it_before_the_result() {
    let env = TestEnv::with_replies([
        Reply::calls("skill_view", json!({"name": "tidy"})),
        Reply::calls("skill_view", json!({"name": "tidy", "path": "references/guide.md"})),
        Reply::calls("skill_view", json!({"name": "tidy", "path": "../../../../secret"})),
        Reply::calls("skill_view", json!({"name": "tidy", "path": "logo.png"})),
        Reply::calls("skill_view", json!({"name": "quiet"})),
        Reply::calls("skill_view", json!({"name": "nobody"})),
        Reply::calls("skills_list", json!({})),
        Reply::says("Tidied."),
    ])
    .await;
    own(&env, "tidy", "description: Tidy things up", "Sort lines. See references/guide.md.");
    own(&env, "quiet", "description: x\ndisable-model-invocation: true", "Only for people.");
    own(&env, "broken", "description: [", "");
    let folder = env.home().join(".agents/skills/tidy");
    std::fs::create_dir(folder.join("references")).unwrap();
    std::fs::write(folder.join("references/guide.md"), "The guide.").unwrap();
    std::fs::write(folder.join("logo.png"), b"\x89PNG\0").unwrap();
    let (conversation, status) = env.run_turn("tidy up").await;
    assert_eq!(status, SessionStatus::Done);
    insta::assert_snapshot!(short(&env.transcript(&conversation)), @r#"
    0 session_started build auto
    1 user_message "tidy up"
    3 tool_call skill_view
    4 skill_activation
    5 tool_result ok=true "skill `tidy` is active; its instructions follow\nfiles: logo.png, references/guid…"
    7 tool_call skill_view
    8 tool_result ok=true "The guide."
    10 tool_call skill_view
    11 tool_result error outside_workspace
    13 tool_call skill_view
    14 tool_result error binary_file
    16 tool_call skill_view
    17 tool_result error permission_denied
    19 tool_call skill_view
    20 tool_result error not_found
    22 tool_call skills_list
    23 tool_result ok=true
    25 assistant_message final "Tidied."
    "#);
    let requests = env.requests();
    let index = &texts(requests[0].input(), "developer")[0];
    assert!(index.contains("- tidy: Tidy things up") && !index.contains("quiet"), "{index}");
    let names: Vec<&str> = requests[0].body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert!(names.contains(&"skill_view") && names.contains(&"skills_list"));
    // The text follows the result and keeps its place.
    let input = requests[1].input();
    let place = |wanted: &dyn Fn(&Value) -> bool| input.iter().position(wanted).unwrap();
    let output = place(&|item| item["type"] == "function_call_output");
    let text =
        place(&|item| item["content"][0]["text"].as_str().is_some_and(|t| t.contains("<skill")));
    assert_eq!(text, output + 1);
    let last = requests.last().unwrap().input();
    let listed = last.last().unwrap()["output"].as_str().unwrap();
    assert!(listed.contains("- quiet (only the user may activate it)"), "{listed}");
    assert!(listed.contains("broken/SKILL.md: line 4:"), "{listed}");
}

#[tokio::test]
async fn a_text_that_the_model_has_is_not_shown_to_it_twice() {
    let view = || Reply::calls("skill_view", json!({"name": "tidy"}));
    let env = TestEnv::with_replies([view(), view(), Reply::says("Tidied.")]).await;
    own(&env, "tidy", "description: Tidy things up", "Sort the lines.");
    let (conversation, _) = env.run_turn("tidy up").await;
    let facts = events(&conversation, "skill_activation");
    assert_eq!((&facts[0]["repeated"], &facts[1]["repeated"]), (&Value::Null, &json!(true)));
    assert_eq!(facts[0]["content_hash"], facts[1]["content_hash"]);
    let last = texts(env.requests().last().unwrap().input(), "user").concat();
    assert_eq!(last.matches("Sort the lines.").count(), 1, "{last}");
    assert!(last.contains("whose text stands above"), "{last}");
}

#[tokio::test]
async fn without_skills_there_is_nothing_to_see() {
    let env = TestEnv::with_replies([Reply::says("ok")]).await;
    std::fs::create_dir_all(env.workspace().join(".agents/skills/empty")).unwrap();
    env.run_turn("$hi there").await;
    let request = &env.requests()[0];
    let tools = request.body["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(
        names.contains(&"read") && !names.iter().any(|name| name.contains("skill")),
        "{names:?}"
    );
    assert!(!texts(request.input(), "developer").concat().contains("Skills"));
}

#[tokio::test]
async fn allowed_tools_narrow_the_turn_and_nothing_more() {
    let env = TestEnv::with_replies([
        Reply::calls("write", json!({"path": "a.txt", "content": "x"})),
        Reply::calls("bash", json!({"command": "echo a; touch b"})),
        Reply::calls("bash", json!({"command": "echo fine"})),
        Reply::says("Held back."),
        Reply::calls("write", json!({"path": "a.txt", "content": "x"})),
        Reply::says("Written."),
    ])
    .await;
    own(&env, "look", "description: x\nallowed-tools: Read, Bash(echo:*)", "Only look.");
    let (conversation, _) = env.run_turn("$look around").await;
    send_and_finish(&conversation, "now write").await;
    insta::assert_snapshot!(short(&env.transcript(&conversation)), @r#"
    0 session_started build auto
    1 skill_activation
    2 user_message "$look around"
    4 tool_call write
    5 permission_decision deny allowed_tools by skill
    6 tool_result error permission_denied
    8 tool_call bash
    9 permission_decision deny allowed_tools by skill
    10 tool_result error permission_denied
    12 tool_call bash
    13 tool_result ok=true "fine\n[exit code 0]"
    15 assistant_message final "Held back."
    16 user_message "now write"
    18 tool_call write
    19 tool_result ok=true "created a.txt, 1 bytes (+1 -0)"
    21 assistant_message final "Written."
    "#);
    assert!(env.workspace().join("a.txt").exists() && !env.workspace().join("b").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_of_the_project_is_text_until_the_user_trusts_it() {
    let env = TestEnv::with_replies([
        Reply::calls("skill_view", json!({"name": "deploy", "context": true})),
        Reply::says("It is text."),
        Reply::says("Done."),
    ])
    .await;
    let root = env.workspace().join(".agents/skills");
    let head = "description: Deploy at once\ncontext:\n  - {id: mark, command: touch mark}";
    plant(&root, "deploy", head, "Run everything.");
    let conversation = env.start().await;
    let expanded = conversation.expand("/deploy now".to_owned()).await;
    assert_eq!(expanded.text, "/deploy now");
    assert!(expanded.notices[0].contains("not trusted"), "{:?}", expanded.notices);
    send_and_finish(&conversation, "$deploy it").await;
    let requests = env.requests();
    let index = texts(requests[0].input(), "developer").concat();
    assert!(index.contains("1 of the project that the user has not trusted"), "{index}");
    assert!(!index.contains("Deploy at once"), "{index}");
    let transcript = env.transcript(&conversation);
    assert!(!transcript.contains("skill_activation") && !transcript.contains("hydration"));
    let shown = requests[1].input().last().unwrap()["output"].as_str().unwrap().to_owned();
    assert!(shown.contains("untrusted text") && shown.contains("Run everything."), "{shown}");
    drop(conversation);

    env.run_pixir(&["trust"]).assert_exit_code(3);
    let mut terminal = TestTerminal::run(&env, &["trust"], &[]);
    terminal.wait_for_text("deploy/SKILL.md");
    terminal.wait_for_text("touch mark");
    terminal.type_keys("y\n");
    assert_eq!(terminal.wait_for_exit(), Some(0));
    let run = env.run_pixir(&["/deploy", "now"]).assert_exit_code(0);
    assert!(run.err.is_empty() || !run.err.contains("not trusted"), "{}", run.err);
    let log =
        std::fs::read_to_string(crate::support::test_env::newest_log(&env.workspace())).unwrap();
    assert!(log.contains("skill_activation") && log.contains(r#""text":"$deploy now""#), "{log}");
    assert!(!env.workspace().join("mark").exists(), "a source cannot write");
    assert!(log.contains("skill_context_hydration"));
    let back = env.run_pixir(&["untrust", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(back["output"]["was_trusted"], true);
    let listed = env.run_pixir(&["skills", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(listed["output"]["skills"][0]["trusted"], false);
}

#[tokio::test]
async fn context_is_looked_up_through_the_executor_and_shown_in_its_turn_only() {
    let env = TestEnv::with_replies((0..3).map(|_| Reply::says("ok"))).await;
    let head = "description: x\ncontext:\n  - {id: notes, files: [notes.txt, '**/*.md']}\n  \
        - {id: facts, command: 'cat facts; echo late > made'}\n  - {id: branch, git: branch}";
    own(&env, "brief", head, "Use the context.");
    env.write("notes.txt", "remember the milk");
    env.write("facts", "two and two\nsecret-of-test-env");
    std::fs::create_dir(env.workspace().join("docs")).unwrap();
    env.write("docs/a.md", "about a");
    // Names that begin like notes in search results.
    std::fs::create_dir(env.workspace().join("(app)")).unwrap();
    env.write("(app)/[id].md", "about the app");
    env.write("[top].md", "about the top");
    let mut env = env;
    env.files_with_secrets = vec!["facts"];
    let (conversation, _) = env.run_turn("$brief me").await;
    send_and_finish(&conversation, "and later").await;
    let transcript = short(&env.transcript(&conversation));
    insta::assert_snapshot!(transcript, @r#"
    0 session_started build auto
    1 skill_activation
    2 user_message "$brief me"
    3 skill_context_hydration
    4 skill_context_hydration
    5 skill_context_hydration
    7 assistant_message final "ok"
    8 user_message "and later"
    10 assistant_message final "ok"
    "#);
    let facts = events(&conversation, "skill_context_hydration");
    let sources: Vec<&str> = facts.iter().map(|fact| fact["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["notes", "facts", "branch"]);
    assert_eq!((&facts[0]["ok"], &facts[0]["tools"]), (&json!(true), &json!(["glob", "read"])));
    for part in ["about a\n", "about the app", "about the top"] {
        assert!(facts[0]["content"].as_str().unwrap().contains(part), "{part}: {}", facts[0]);
    }
    assert_eq!(facts[1]["requested_by"], "user");
    assert!(facts[1]["content"].as_str().unwrap().contains("[redacted:STORY_TOKEN]"));
    assert!(!env.workspace().join("made").exists());
    let requests = env.requests();
    let now = texts(requests[0].input(), "developer").concat();
    assert!(now.contains("remember the milk") && now.contains("two and two"), "{now}");
    let place = |wanted: &str| {
        let text = |item: &Value| item["content"][0]["text"].as_str().unwrap_or("").to_owned();
        requests[0].input().iter().position(|item| text(item).contains(wanted)).unwrap()
    };
    assert!(place("remember the milk") > place("$brief me"), "late");
    let later = texts(requests[1].input(), "developer").concat();
    assert!(!later.contains("remember the milk"), "{later}");
}

#[tokio::test]
async fn the_model_may_ask_for_context_and_permission_still_decides() {
    let mut env = TestEnv::with_replies([
        Reply::calls("skill_view", json!({"name": "brief", "context": true})),
        Reply::says("ok"),
    ])
    .await;
    let head = "description: x\ncontext:\n  - {id: facts, command: 'sh ./facts.sh'}";
    own(&env, "brief", head, "Use the context.");
    env.write("facts.sh", "echo 42");
    env.config.permission_mode = pixir::PermissionMode::Ask;
    let conversation = env.start().await;
    conversation.send(UserInput { text: "go".into() }).await.unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    insta::assert_snapshot!(short(&env.transcript(&conversation)), @r#"
    0 session_started build ask
    1 user_message "go"
    3 tool_call skill_view
    4 permission_decision allow reading by mode
    5 skill_activation
    6 tool_result ok=true "skill `brief` is active; its instructions follow\ncontext that it declares: facts"
    7 permission_decision deny ask by nobody
    8 skill_context_hydration
    10 assistant_message final "ok"
    "#);
    let fact = &events(&conversation, "skill_context_hydration")[0];
    assert_eq!(fact["error"]["kind"], "permission_denied", "{fact}");
    let input = env.requests()[1].input().to_vec();
    assert!(texts(&input, "developer").concat().contains("[not available: "));
}

#[tokio::test]
async fn a_later_page_of_a_skill_brings_no_context() {
    let env = TestEnv::with_replies([
        Reply::calls("skill_view", json!({"name": "brief", "context": true, "offset": 1})),
        Reply::says("ok"),
    ])
    .await;
    let head = "description: x\ncontext:\n  - {id: facts, command: 'touch mark'}";
    own(&env, "brief", head, "Use the context.");
    let (conversation, _) = env.run_turn("go").await;
    let transcript = env.transcript(&conversation);
    assert!(!transcript.contains("skill_activation") && !transcript.contains("hydration"));
    assert!(!env.workspace().join("mark").exists(), "{transcript}");
}

#[tokio::test]
async fn undo_takes_the_activation_along() {
    let env = TestEnv::with_replies((0..3).map(|_| Reply::says("ok"))).await;
    own(&env, "tidy", "description: Tidy up", "Sort lines.");
    let (conversation, _) = env.run_turn("first").await;
    send_and_finish(&conversation, "$tidy").await;
    let id = conversation.id().clone();
    conversation.close().await;
    env.run_pixir(&["undo", "--yes", id.as_str()]).assert_exit_code(0);
    let conversation = env.resume(&id).await;
    send_and_finish(&conversation, "third").await;
    let requests = env.requests();
    let last = texts(requests.last().unwrap().input(), "user");
    assert_eq!(last, ["first", "third"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_expanded_before_it_is_sent_and_unknown_words_are_not() {
    let env = TestEnv::with_replies((0..3).map(|_| Reply::says("ok"))).await;
    let prompts = env.home().join(".pixir/prompts");
    std::fs::create_dir_all(&prompts).unwrap();
    std::fs::write(prompts.join("review.md"), "---\ndescription: d\n---\nReview $1 for $2.\n")
        .unwrap();
    env.run_pixir(&["/review 'the diff' bugs"]).assert_exit_code(0);
    env.run_pixir(&["/usr/bin is full"]).assert_exit_code(0);
    env.run_pixir(&["/nothing here"]).assert_exit_code(2);
    env.run_pixir(&["--", "/nothing here"]).assert_exit_code(0);
    let texts: Vec<String> = env
        .requests()
        .iter()
        .map(|request| texts(request.input(), "user").pop().unwrap())
        .collect();
    assert_eq!(texts, ["Review the diff for bugs.", "/usr/bin is full", "/nothing here"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_are_listed_shown_and_checked() {
    let env = TestEnv::with_replies([]).await;
    assert!(env.run_pixir(&["skills"]).assert_exit_code(0).err.contains("there are no skills"));
    own(&env, "tidy", "description: Tidy up", "Sort \u{1b}[31mlines\u{1b}[0m.");
    let listed = env.run_pixir(&["skills"]).assert_exit_code(0);
    assert_eq!(listed.out, "tidy  Tidy up  (user)\n");
    let shown = env.run_pixir(&["skills", "show", "tidy"]).assert_exit_code(0).out;
    assert!(shown.contains("sha256") && shown.contains("Sort ") && !shown.contains('\u{1b}'));
    env.run_pixir(&["skills", "show", "nobody"]).assert_exit_code(2);
    let checked = env.run_pixir(&["skills", "validate", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(checked["output"]["errors"], json!([]));
    own(&env, "bad", "description: [", "");
    let folder = env.home().join(".agents/skills");
    let checked =
        env.run_pixir(&["skills", "validate", folder.to_str().unwrap()]).assert_exit_code(1);
    assert!(checked.out.contains("bad/SKILL.md: line 4: "), "{}", checked.out);
    env.run_pixir(&["skills", "validate", "nowhere"]).assert_exit_code(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_works_as_it_is() {
    let env = TestEnv::with_replies([
        Reply::calls("skill_view", json!({"name": "release-notes", "path": "references/style.md"})),
        Reply::calls("bash", json!({"command": "git log --oneline"})),
        Reply::calls("bash", json!({"command": "rm -rf ."})),
        Reply::says("Notes."),
    ])
    .await;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/skills");
    let roots = env.home().join(".agents");
    std::fs::create_dir_all(&roots).unwrap();
    std::os::unix::fs::symlink(&example, roots.join("skills")).unwrap();
    env.write("Cargo.toml", "[package]\nversion = \"9.9.9\"\n");
    env.write("CHANGELOG.md", "# 9.9.8\n");
    let checked = env.run_pixir(&["skills", "validate", "--json"]).assert_exit_code(0).envelope();
    assert_eq!(checked["output"]["errors"], json!([]), "{checked}");
    assert_eq!(checked["output"]["warnings"], json!([]), "{checked}");
    let shown = env
        .run_pixir(&["skills", "show", "release-notes", "--json"])
        .assert_exit_code(0)
        .envelope();
    let template = &shown["output"]["workflow_templates"][0];
    assert_eq!(template["template_id"], "release-notes/by-area");
    assert_eq!(template["parameters"][0]["required"], true);
    let (conversation, status) = env.run_turn("$release-notes please").await;
    assert_eq!(status, SessionStatus::Done);
    let facts = events(&conversation, "skill_context_hydration");
    let contents: Vec<String> = facts.iter().map(|fact| fact["content"].to_string()).collect();
    assert!(contents[1].contains("9.9.8") && contents[2].contains("9.9.9"), "{contents:?}");
    let requests = env.requests();
    let style = requests[1].input().last().unwrap()["output"].to_string();
    assert!(style.contains("From the user's side"), "{style}");
    let transcript = env.transcript(&conversation);
    assert!(transcript.contains("deny allowed_tools by skill"), "{transcript}");
}

#[tokio::test]
async fn a_skill_behind_a_checkpoint_is_named_there_and_comes_whole_when_it_is_named_again() {
    let env = TestEnv::with_replies((0..8).map(|_| Reply::says("ok"))).await;
    own(
        &env,
        "tidy",
        "description: Tidy up",
        &format!("Sort lines. {}", "Long words. ".repeat(400)),
    );
    let conversation = env.start().await;
    send_and_finish(&conversation, "$tidy please").await;
    for number in 0..4 {
        send_and_finish(&conversation, &format!("and then {number}")).await;
    }
    let before = env.requests().pop().unwrap();
    assert!(texts(before.input(), "user").concat().contains("Sort lines."));
    let made = conversation.compact(Some(2), false).await.unwrap();
    assert!(made.is_some(), "the History was compacted");
    send_and_finish(&conversation, "go on").await;
    let after = env.requests().pop().unwrap();
    let input = serde_json::to_string(after.input()).unwrap();
    assert!(!input.contains("Sort lines."), "its text was compacted with its Turn");
    assert!(input.contains("tidy"), "the checkpoint names it: {input}");
    // The text was compacted away, so naming the Skill sends it again.
    send_and_finish(&conversation, "$tidy again").await;
    let facts = events(&conversation, "skill_activation");
    assert_eq!(facts.len(), 2);
    assert_eq!(facts[1]["repeated"], json!(null), "{}", facts[1]["repeated"]);
    let last = env.requests().pop().unwrap();
    assert!(texts(last.input(), "user").concat().contains("Sort lines."));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_the_next_request_says_what_the_prompt_would_make_active() {
    let env = TestEnv::with_replies((0..2).map(|_| Reply::says("ok"))).await;
    own(&env, "tidy", "description: Tidy up", "Sort lines.");
    plant(&env.workspace().join(".agents/skills"), "strange", "description: x", "Do evil.");
    env.run_pixir(&["hello"]).assert_exit_code(0);
    let log = crate::support::test_env::newest_log(&env.workspace());
    let id = log.file_stem().unwrap().to_str().unwrap().to_owned();
    let before = std::fs::read(&log).unwrap();
    let look = |prompt: &str| {
        let args = ["inspect-replay", &id, "--prompt", prompt, "--items", "--json"];
        env.run_pixir(&args).assert_exit_code(0).envelope()["output"].clone()
    };
    for prompt in ["use $tidy and $strange", "/tidy now"] {
        let output = look(prompt);
        assert_eq!(output["activates"], json!(["tidy"]), "{prompt}");
        let request = output["replay"]["request"].to_string();
        assert!(request.contains("Sort lines.") && !request.contains("Do evil."), "{request}");
        assert_eq!(output["notes"].to_string().contains("not trusted"), prompt.contains("strange"));
    }
    assert_eq!(look("plain words")["activates"], json!([]));
    assert_eq!(std::fs::read(&log).unwrap(), before, "a preview records nothing");
    // A Turn sends the request that was shown.
    let shown = look("use $tidy")["replay"]["request"]["input"].clone();
    env.run_pixir(&["resume", &id, "use $tidy"]).assert_exit_code(0);
    assert_eq!(json!(env.requests()[1].input()), shown);
}
