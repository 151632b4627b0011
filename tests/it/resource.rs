//! Attached files and viewed images, checked by the Log.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pixir::scripted::{ModelScript, ReceivedRequest, Reply};
use pixir::{Attachment, SessionStatus, TransportSetting, UserInput};
use serde_json::{Value, json};

use crate::support::test_env::{TestEnv, send_and_finish, wait_for_turn_end};
use crate::support::{BinaryEnv, binary_env::ProcessOutput};

/// A PNG image of one pixel; the mark after it makes its bytes unique.
fn image_bytes(mark: &str) -> Vec<u8> {
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
    [STANDARD.decode(pixel).unwrap(), mark.into()].concat()
}

fn data_url(mark: &str) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(image_bytes(mark)))
}

async fn new_binary_env(replies: impl IntoIterator<Item = Reply>) -> BinaryEnv {
    BinaryEnv::new(BinaryEnv::new_mark(), ModelScript::new(replies)).await
}

/// Writes a file that is not in the Workspace.
fn put(binary_env: &BinaryEnv, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = binary_env.workspace().parent().unwrap().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).map(|event| &event["data"]).collect()
}

/// The parts of the last user message.
fn last_words(request: &ReceivedRequest) -> Vec<Value> {
    let mut users = request.input().iter().rev().filter(|item| item["role"] == "user");
    users.next().unwrap()["content"].as_array().unwrap().clone()
}

/// The Resource of this name in the Log.
fn attached(binary_env: &BinaryEnv, name: &str) -> Value {
    let events = binary_env.events();
    let resources = of_type(&events, "user_message")[0]["resources"].as_array().unwrap().clone();
    resources.into_iter().find(|own| own["name"] == name).unwrap()
}

fn stored(binary_env: &BinaryEnv, resource: &Value) -> PathBuf {
    let (id, _) = binary_env.session().unwrap();
    let folder = binary_env.workspace().join(".pixir/sessions").join(id.as_str());
    folder.join("resources").join(resource["sha256"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_a_text_and_a_binary_go_with_a_prompt_and_later_only_their_names() {
    let binary_env = new_binary_env([
        Reply::calls("read", json!({"path": "here.txt"})),
        Reply::says("a pixel, a note and some bytes"),
        Reply::says("as before"),
    ])
    .await;
    std::fs::write(binary_env.workspace().join("here.txt"), "here\n").unwrap();
    let shot = put(&binary_env, "shot.jpg", image_bytes("one"));
    let note = put(&binary_env, "note.txt", "remember the secret sk-test-of-binary-env\n");
    let data = put(&binary_env, "data.png", b"\0\x01\x02");
    let ended = binary_env.run(&["--attach", &shot, "look", "--attach", &note, "--attach", &data]);
    ended.expect_code(0);
    assert_eq!(ended.stdout, "a pixel, a note and some bytes\n");
    std::fs::remove_file(note).unwrap();
    let length = image_bytes("one").len();
    assert!(ended.stderr.contains(&format!("attached shot.jpg (image/png, 1x1, {length} bytes)")));
    assert!(ended.stderr.contains("attached data.png (application/octet-stream, 3 bytes)"));

    let requests = binary_env.server.requests();
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert_eq!(request.images(), [data_url("one")], "in every request of the Turn");
    }
    let before = requests[0].body_text.find("],\"tools\":").unwrap();
    assert_eq!(requests[1].body_text[..before], requests[0].body_text[..before], "a prefix");
    let words = last_words(&requests[0]);
    let text = |place: usize| words[place]["text"].as_str().unwrap_or_default();
    assert_eq!((words.len(), text(0)), (4, "look"));
    let names = text(1);
    for name in ["shot.jpg (image/png, 1x1,", "note.txt (text/plain,", "data.png (application/"] {
        assert!(names.contains(name), "{names}");
    }
    assert_eq!(words[2]["type"], "input_image");
    assert!(
        text(3).contains("remember the secret [") && !text(3).contains("sk-test"),
        "{}",
        text(3)
    );

    let events = binary_env.events();
    let message = of_type(&events, "user_message")[0];
    let kinds: Vec<&str> = message["resources"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|own| own["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["image", "text", "file"], "in the order of the command line");
    let log = std::fs::read_to_string(binary_env.session().unwrap().1).unwrap();
    assert!(!log.contains("iVBOR") && !log.contains("remember the secret"), "no bytes");
    assert_eq!(
        std::fs::read(stored(&binary_env, &attached(&binary_env, "shot.jpg"))).unwrap(),
        image_bytes("one")
    );
    let kept =
        std::fs::read_to_string(stored(&binary_env, &attached(&binary_env, "note.txt"))).unwrap();
    assert!(!kept.contains("sk-test"), "{kept}");

    binary_env.run(&["resume", "--last", "and now?"]).expect_code(0);
    let later = &binary_env.server.requests()[2];
    assert!(later.images().is_empty());
    let users: Vec<&Value> = later.input().iter().filter(|item| item["role"] == "user").collect();
    let then = users[0]["content"].as_array().unwrap();
    assert_eq!(then[..], words[..2], "the names stay, the content is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_view_shows_again_what_another_process_has_stored() {
    let long = (0..9000).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
    let binary_env = new_binary_env([Reply::says("seen")]).await;
    let shot = put(&binary_env, "shot.png", image_bytes("two"));
    let note = put(&binary_env, "long.txt", &long);
    let data = put(&binary_env, "data.bin", b"\0\x01\x02");
    binary_env
        .run(&["--attach", &shot, "--attach", &note, "--attach", &data, "keep these"])
        .expect_code(0);
    let first = &binary_env.server.requests()[0];
    let [shot, note, data] =
        ["shot.png", "long.txt", "data.bin"].map(|name| attached(&binary_env, name));
    let inlined = note["inlined"].as_u64().unwrap();
    let marker =
        format!("[{inlined} of {} bytes; next: resource_view, offset {inlined}]", long.len());
    assert!(last_words(first)[3]["text"].as_str().unwrap().ends_with(&marker));
    std::fs::remove_file(put(&binary_env, "shot.png", "gone")).unwrap();

    let id = |own: &Value| own["id"].as_str().unwrap().to_owned();
    let shot_id = id(&shot);
    let note_id = id(&note);
    let data_id = id(&data);
    let view = move |request: &ReceivedRequest| match request.outputs().len() {
        0 => Reply::new()
            .call("resource_view", json!({"id": shot_id}))
            .call("resource_view", json!({"id": note_id, "offset": inlined}))
            .call("resource_view", json!({"id": data_id}))
            .call("resource_view", json!({"id": "res_0000000000000000"}))
            .call("resource_view", json!({"id": note_id, "offset": 99_999_999})),
        5 => Reply::calls("resource_view", json!({"id": shot_id})),
        _ => Reply::says("all of them"),
    };
    let again = pixir::scripted::ScriptedServer::start(ModelScript::answering(view)).await.unwrap();
    let mut command = binary_env.command(&["resume", "--last", "show me again"]);
    command.env("OPENAI_BASE_URL", again.base_url());
    let ended = crate::support::binary_env::RunningProcess::start(&mut command).end();
    ended.expect_code(0);
    let requests = again.requests();
    assert!(requests[0].images().is_empty());
    assert_eq!(requests[1].images(), [data_url("two")], "after its call");
    assert_eq!(requests[2].images(), [data_url("two")], "once is enough");
    let outputs = requests[2].outputs();
    assert!(outputs[0].starts_with("image shot.png (image/png, 1x1,"), "{}", outputs[0]);
    let from = usize::try_from(inlined).unwrap();
    assert!(outputs[1].starts_with(&long[from..from + 10]), "{}", outputs[1]);
    let note = outputs[1].lines().last().unwrap();
    let next = note.rsplit("next: offset ").next().unwrap().trim_end_matches(']');
    assert!(note.starts_with(&format!("[bytes {from}-{next} of {}; next:", long.len())), "{note}");
    assert!(outputs[2].contains("Its bytes are in .pixir/sessions/"), "{}", outputs[2]);
    assert!(outputs[3].contains("not_found") && outputs[3].contains(shot["id"].as_str().unwrap()));
    assert!(outputs[4].contains("has only"), "{}", outputs[4]);
    assert!(outputs[5].contains("already shown"), "{}", outputs[5]);
    let events = binary_env.events();
    let results = of_type(&events, "tool_result");
    assert_eq!(results[0]["details"]["resource"]["id"], shot["id"]);
    assert!(of_type(&events, "permission_decision").is_empty(), "it changes nothing");
    binary_env.run(&["verify", binary_env.session().unwrap().0.as_str()]).expect_code(0);
}

#[tokio::test]
async fn an_image_of_the_workspace_is_seen_by_the_model_that_reads_it() {
    for transport in [TransportSetting::Sse, TransportSetting::Auto] {
        let mut env = TestEnv::with_replies([
            Reply::new()
                .call("read", json!({"path": "a.txt"}))
                .call("read", json!({"path": "art.png"}))
                .call("read", json!({"path": "broken.png"})),
            Reply::calls("read", json!({"path": "a.txt"})),
            Reply::says("a pixel"),
            Reply::says("it was a pixel"),
        ])
        .await;
        env.config.transport = Some(transport);
        env.write("a.txt", "plain\n");
        env.write("art.png", image_bytes("three"));
        env.write("broken.png", &image_bytes("")[..12]);
        let (conversation, status) = env.run_turn("what is in art.png?").await;
        assert_eq!(status, SessionStatus::Done);
        let requests = env.requests();
        assert_eq!(requests[1].images(), [data_url("three")]);
        assert_eq!(requests[2].images(), [data_url("three")]);
        assert_eq!(&requests[2].input()[..requests[1].input().len()], requests[1].input());
        let is_socket = transport == TransportSetting::Auto;
        assert_eq!(requests[2].is_continued(), is_socket, "an image does not break the chain");
        let outputs = requests[1].outputs();
        assert!(outputs[1].starts_with("image art.png (image/png, 1x1,"), "{outputs:?}");
        assert!(outputs[2].contains("broken.png cannot be shown"), "{outputs:?}");

        assert_eq!(send_and_finish(&conversation, "and what was it?").await, SessionStatus::Done);
        let later = &env.requests()[3];
        assert!(later.images().is_empty() && !later.is_continued());
        let all = serde_json::to_string(later.input()).unwrap();
        assert!(all.contains("image art.png (image/png, 1x1,"), "its text stays");
        let log = std::fs::read_to_string(conversation.log_path()).unwrap();
        assert!(log.contains(r#""resource":{"id":"res_"#) && !log.contains("iVBOR"));
    }
}

#[tokio::test]
async fn a_write_after_a_look_notices_that_the_image_changed() {
    let env = TestEnv::with_replies([
        Reply::calls("read", json!({"path": "art.png"})),
        Reply::calls("bash", json!({"command": "echo other > art.png"})),
        Reply::calls("write", json!({"path": "art.png", "content": "x"})),
        Reply::says("no"),
    ])
    .await;
    env.write("art.png", image_bytes("four"));
    env.run_turn("overwrite it").await;
    assert!(env.requests()[3].outputs()[2].contains("file_changed"));
    assert_eq!(env.read("art.png"), "other\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_attached_stops_the_run_before_anything_is_recorded() {
    let binary_env = new_binary_env([]).await;
    let folder = binary_env.workspace().parent().unwrap().to_owned();
    put(&binary_env, "empty", "");
    put(&binary_env, "photo.heic", b"\0\0\0\x18ftypheic----");
    put(&binary_env, "cut.png", &image_bytes("")[..12]);
    put(&binary_env, "closed", "x");
    std::fs::File::create(folder.join("huge")).unwrap().set_len(17 << 20).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
    assert!(made.success());
    let many: Vec<String> =
        (0..21).map(|n| put(&binary_env, &format!("m{n}"), n.to_string())).collect();
    let mut cases: Vec<(Vec<String>, &str)> = [
        ("absent.png", "there is no such file"),
        (".", "a directory"),
        ("pipe", "a named pipe"),
        ("/dev/zero", "a device"),
        ("empty", "it is empty"),
        ("huge", "16777216 are allowed"),
        ("photo.heic", "convert it to PNG"),
        ("cut.png", "broken"),
    ]
    .map(|(name, words)| (vec![folder.join(name).to_str().unwrap().to_owned()], words))
    .into();
    cases.push((many, "20 attachments are allowed"));
    if !rustix::process::geteuid().is_root() {
        let path = folder.join("closed");
        let no_access = std::os::unix::fs::PermissionsExt::from_mode(0o000);
        std::fs::set_permissions(&path, no_access).unwrap();
        cases.push((vec![path.to_str().unwrap().to_owned()], "it cannot be read"));
    }
    for (paths, words) in cases {
        let mut args = vec!["--json", "look"];
        args.extend(paths.iter().flat_map(|path| ["--attach", path.as_str()]));
        let ended = binary_env.run(&args);
        ended.expect_code(2);
        let envelope: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(envelope.get("session_id").is_none());
        assert!(envelope["error"]["message"].as_str().unwrap().starts_with("cannot attach "));
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
        assert_eq!(binary_env.session(), None, "no Session");
    }
    binary_env.run(&["sessions", "--attach", "x"]).expect_code(2);
    assert!(binary_env.server.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_of_the_workspace_attaches_nothing_that_lies_outside() {
    let binary_env = new_binary_env([]).await;
    let workspace = binary_env.workspace();
    let outside = workspace.parent().unwrap().join("private");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("id_key"), r#"{"type": "object", "title": "precious"}"#).unwrap();
    symlink(outside.join("id_key"), workspace.join("notes.txt")).unwrap();
    symlink("../private/id_key", workspace.join("relative.txt")).unwrap();
    symlink("notes.txt", workspace.join("second.txt")).unwrap();
    symlink(&outside, workspace.join("docs")).unwrap();
    // The user's own link to a link of the checkout.
    symlink(workspace.join("notes.txt"), outside.join("shortcut")).unwrap();
    let absolute = workspace.join("notes.txt");
    let shortcut = outside.join("shortcut");
    let refused = ["notes.txt", "relative.txt", "second.txt", "docs/id_key", "../private/shortcut"];
    let named =
        refused.into_iter().chain([&absolute, &shortcut].map(|path| path.to_str().unwrap()));
    for (flag, path) in named.flat_map(|path| [("--attach", path), ("--output-schema", path)]) {
        let ended = binary_env.run(&["--json", flag, path, "look"]);
        ended.expect_code(2);
        let error = &serde_json::from_str::<Value>(&ended.stdout).unwrap()["error"];
        assert_eq!(error["kind"], "outside_workspace", "{flag} {path}: {error}");
        let real = outside.canonicalize().unwrap().join("id_key");
        let next = error["details"]["next_actions"][0].as_str().unwrap();
        assert!(next.contains(real.to_str().unwrap()), "{flag} {path}: {error}");
        assert_eq!(binary_env.session(), None, "no Session");
    }
    assert!(binary_env.server.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_outside_that_the_user_names_and_links_that_stay_inside_are_attached() {
    let binary_env = new_binary_env([Reply::says("seen"), Reply::says("seen again")]).await;
    let workspace = binary_env.workspace();
    put(&binary_env, "plain.txt", "named outside\n");
    std::fs::create_dir(workspace.join("docs")).unwrap();
    std::fs::write(workspace.join("docs/inside.txt"), "linked inside\n").unwrap();
    symlink("docs/inside.txt", workspace.join("inner.txt")).unwrap();
    let outside = workspace.parent().unwrap();
    symlink("plain.txt", outside.join("own-link.txt")).unwrap();
    symlink(workspace.join("docs"), outside.join("way-in")).unwrap();
    for args in [
        ["--attach", "../plain.txt", "--attach", "inner.txt", "look"].as_slice(),
        ["--attach", "docs/../../own-link.txt", "--attach", "../way-in/inside.txt", "look"]
            .as_slice(),
    ] {
        binary_env.run(args).expect_code(0);
    }
    let requests = binary_env.server.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert!(request.body_text.contains("named outside"), "{}", request.body_text);
        assert!(request.body_text.contains("linked inside"), "{}", request.body_text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_changed_is_named_and_does_not_stop_the_turn() {
    let binary_env = new_binary_env([
        Reply::says("seen"),
        Reply::calls("resource_view", json!({"id": "?"})),
        Reply::says("pity"),
    ])
    .await;
    let shot = put(&binary_env, "shot.png", image_bytes("five"));
    binary_env.run(&["--attach", &shot, "look"]).expect_code(0);
    let (id, _) = binary_env.session().unwrap();
    let path = stored(&binary_env, &attached(&binary_env, "shot.png"));
    let verify = |binary_env: &BinaryEnv| -> (ProcessOutput, Value) {
        let ended = binary_env.run(&["verify", id.as_str(), "--json"]);
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        (ended, printed["output"]["breaks"].clone())
    };
    verify(&binary_env).0.expect_code(0);

    std::fs::write(&path, image_bytes("5ive")).unwrap();
    let (ended, breaks) = verify(&binary_env);
    ended.expect_code(1);
    assert_eq!((breaks.as_array().unwrap().len(), &breaks[0]["kind"]), (1, &json!("resource")));
    assert!(
        breaks[0]["message"].as_str().unwrap().ends_with("(shot.png): it is not what was stored")
    );
    std::fs::remove_file(&path).unwrap();
    let (ended, breaks) = verify(&binary_env);
    ended.expect_code(1);
    assert!(breaks[0]["message"].as_str().unwrap().ends_with("it is missing"));
    binary_env.run(&["resume", "--last", "go on"]).expect_code(0);

    let view = json!({"id": attached(&binary_env, "shot.png")["id"]});
    let script = ModelScript::new([Reply::calls("resource_view", view), Reply::says("it is lost")]);
    let again = pixir::scripted::ScriptedServer::start(script).await.unwrap();
    let mut command = binary_env.command(&["resume", "--last", "look again"]);
    command.env("OPENAI_BASE_URL", again.base_url());
    crate::support::binary_env::RunningProcess::start(&mut command).end().expect_code(0);
    assert!(again.requests()[1].outputs()[0].contains("shot.png cannot be shown: it is missing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_its_resources_with_it() {
    let binary_env = new_binary_env([Reply::says("seen")]).await;
    let shot = put(&binary_env, "shot.png", image_bytes("six"));
    binary_env.run(&["--attach", &shot, "look"]).expect_code(0);
    let (id, _) = binary_env.session().unwrap();
    let path = stored(&binary_env, &attached(&binary_env, "shot.png"));
    let repaired = binary_env.run(&["repair", id.as_str(), "--json"]);
    repaired.expect_code(0);
    let copy: Value = serde_json::from_str(&repaired.stdout).unwrap();
    let copy = copy["output"]["session_id"].as_str().unwrap().to_owned();
    binary_env.run(&["verify", &copy]).expect_code(0);
    assert!(path.exists());
    binary_env.run(&["sessions", "delete", id.as_str()]).expect_code(0);
    assert!(!path.parent().unwrap().parent().unwrap().exists());
    binary_env.run(&["verify", &copy]).expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_images_gets_words_and_the_user_gets_a_notice() {
    let binary_env = new_binary_env([
        Reply::calls("read", json!({"path": "art.png"})),
        Reply::says("I cannot see it"),
    ])
    .await;
    let local = binary_env.server.portable_url();
    binary_env.configure(&json!({"durability": "none", "providers": {
        "local": {"base_url": local, "models": ["gpt-oss:20b"]},
    }}));
    std::fs::write(binary_env.workspace().join("art.png"), image_bytes("seven")).unwrap();
    let shot = put(&binary_env, "shot.png", image_bytes("eight"));
    let ended = binary_env.run(&["--provider", "local", "--attach", &shot, "look"]);
    ended.expect_code(0);
    assert!(
        ended.stderr.contains("gpt-oss:20b takes no images: shot.png will only be described"),
        "{}",
        ended.stderr
    );
    let requests = binary_env.server.requests();
    assert_eq!(requests.len(), 2, "nothing was refused");
    let words = last_words(&requests[0]);
    assert!(words[1]["text"].as_str().unwrap().contains("shot.png (image/png"));
    assert!(words[2]["text"].as_str().unwrap().ends_with("this model takes no images]"));
    assert!(requests[1].outputs()[0].ends_with("[image not shown: this model takes no images]"));
}

#[tokio::test]
async fn a_model_that_is_listed_as_blind_gets_words() {
    let env = TestEnv::with_replies([Reply::says("I cannot see it")]).await;
    std::fs::create_dir_all(env.home()).unwrap();
    let mut listing = json!({"version": 1, "endpoints": {}});
    listing["endpoints"][env.server.base_url()] = json!({"fetched_at": 1, "models": [
        {"name": env.config.model, "images": false},
    ]});
    std::fs::write(env.home().join("models.json"), listing.to_string()).unwrap();
    let conversation = env.start().await;
    assert!(!conversation.sees_images());
    let shot = Attachment::from_bytes("shot.png", image_bytes("nine")).unwrap();
    conversation
        .send_with_attachments(UserInput { text: "look".into() }, vec![shot])
        .await
        .unwrap();
    assert_eq!(wait_for_turn_end(&conversation).await, SessionStatus::Done);
    assert!(env.requests()[0].images().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_envelope_have_descriptors_and_no_bytes() {
    let binary_env = new_binary_env([Reply::says("one"), Reply::says("two")]).await;
    let shot = put(&binary_env, "shot\u{202e}gnp.png", image_bytes("ten"));
    let ended = binary_env.run(&["--events", "--attach", &shot, "look"]);
    ended.expect_code(0);
    let message = ended.stdout.lines().find(|line| line.contains("\"user_message\"")).unwrap();
    let event: Value = serde_json::from_str(message).unwrap();
    let resource = &event["data"]["resources"][0];
    assert_eq!(resource["name"], "shot_gnp.png", "no hidden characters");
    assert_eq!((&resource["width"], &resource["kind"]), (&json!(1), &json!("image")));
    assert!(!ended.stdout.contains("iVBOR"));
    let ended = binary_env.run(&["--json", "--attach", &shot, "look"]);
    ended.expect_code(0);
    assert!(!ended.stdout.contains("iVBOR") && ended.stdout.contains("\"output\":\"two\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_that_cannot_be_kept_is_not_said() {
    let binary_env = new_binary_env([Reply::says("seen"), Reply::says("again")]).await;
    let shot = put(&binary_env, "shot.png", image_bytes("eleven"));
    binary_env.run(&["begin"]).expect_code(0);
    let (id, log) = binary_env.session().unwrap();
    let before = std::fs::read(&log).unwrap();
    std::fs::write(binary_env.workspace().join(".pixir/sessions").join(id.as_str()), "a file")
        .unwrap();
    binary_env.run(&["resume", "--last", "--attach", &shot, "look"]).expect_code(7);
    assert_eq!(std::fs::read(&log).unwrap(), before, "nothing was recorded or sent");
    assert_eq!(binary_env.server.requests().len(), 1);
}
