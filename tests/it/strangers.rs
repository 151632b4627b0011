//! Skills and roles that are malformed, hostile, or in folders where other users can write.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use pixir::scripted::Reply;
use serde_json::{Value, json};

use crate::support::House;
use crate::support::desk::ran;
use crate::support::terminal::Terminal;

fn plant(folder: &Path, head: &str, body: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("SKILL.md"), format!("---\n{head}\n---\n{body}\n")).unwrap();
}

fn events(conversation: &pixir::Conversation, kind: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(conversation.log_path()).unwrap();
    let all = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_no_text_are_told_and_break_no_list() {
    let house = House::with([]).await;
    let odd = |name: &[u8]| OsStr::from_bytes(name).to_owned();
    let root = house.workspace().join(".agents/skills");
    plant(&root.join(odd(b"od\xffd")), "name: odd\ndescription: x", "Text.");
    plant(&root.join("fine"), "name: fine\ndescription: y", "Text.");
    std::fs::write(root.join("fine").join(odd(b"no\xfftes.md")), "words").unwrap();
    let roles = house.workspace().join(".pixir/agents");
    std::fs::create_dir_all(&roles).unwrap();
    let role = "name = \"odd\"\ndescription = \"d\"\ndeveloper_instructions = \"i\"\n";
    std::fs::write(roles.join(odd(b"od\xffd.toml")), role).unwrap();
    let listed = house.pixir(&["skills", "--json"]).exits(0).envelope()["output"].clone();
    assert_eq!(listed["skills"].as_array().unwrap().len(), 1);
    assert!(listed["broken"][0]["message"].as_str().unwrap().contains("not UTF-8"), "{listed}");
    house.pixir(&["skills", "show", "fine", "--json"]).exits(0);
    assert!(house.pixir(&["skills", "validate"]).exits(1).out.contains("not UTF-8"));
    house.pixir(&["agents", "--json"]).exits(0);
    assert!(house.pixir(&["agents", "validate"]).exits(1).out.contains("not UTF-8"));
    // A pipe that nobody writes to, and a device without end.
    let specs = house.workspace().join(".pixir/workflows");
    std::fs::create_dir_all(&specs).unwrap();
    nix::unistd::mkfifo(&specs.join("pipe.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", specs.join("zero.json")).unwrap();
    let listed = house.pixir(&["workflow", "list", "--json"]).exits(0).envelope();
    assert_eq!(listed["output"]["broken"].as_array().unwrap().len(), 2, "{listed}");
    let mut terminal = Terminal::run(&house, &["trust"], &[]);
    terminal.shows("fine/SKILL.md");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_the_users_own_wants_trust_where_tools_can_write_it() {
    let house = House::with([Reply::says("ok"), Reply::says("ok")]).await;
    plant(&house.workspace().join("mine"), "name: mine\ndescription: x", "Sort lines.");
    house.write(
        "scribe.toml",
        "name = \"scribe\"\ndescription = \"d\"\ndeveloper_instructions = \"i\"\n",
    );
    for (folder, name, target) in
        [(".agents/skills", "mine", "mine"), (".pixir/agents", "scribe.toml", "scribe.toml")]
    {
        let folder = house.home().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        symlink(house.workspace().join(target), folder.join(name)).unwrap();
    }
    let listed = house.pixir(&["skills", "--json"]).exits(0).envelope()["output"].clone();
    let skill = &listed["skills"][0];
    assert_eq!((&skill["scope"], &skill["trusted"]), (&json!("user"), &json!(false)));
    house.pixir(&["--role", "scribe", "x"]).exits(3);
    assert!(house.pixir(&["use $mine"]).exits(0).err.contains("not trusted"));
    // It can be had: whoever is told so is asked.
    let mut terminal = Terminal::run(&house, &["trust"], &[]);
    terminal.shows("mine/SKILL.md");
    terminal.types("y\n");
    terminal.shows("scribe.toml");
    terminal.types("y\n");
    assert_eq!(terminal.ends(), Some(0));
    let told = house.pixir(&["--role", "scribe", "use $mine"]).exits(0);
    assert!(told.err.contains("skill mine"), "{}", told.err);
}

#[tokio::test]
async fn a_main_file_that_is_a_link_is_the_main_file() {
    let view = |name: &str| Reply::calls("skill_view", json!({ "name": name }));
    let house = House::with([view("linked"), view("quiet"), Reply::says("ok")]).await;
    let root = house.home().join(".agents/skills");
    for (name, head) in [("linked", ""), ("quiet", "\ndisable-model-invocation: true")] {
        plant(&root.join(name), &format!("name: {name}\ndescription: x{head}"), "Only this.");
        std::fs::rename(root.join(name).join("SKILL.md"), root.join(name).join("README.md"))
            .unwrap();
        symlink("README.md", root.join(name).join("SKILL.md")).unwrap();
    }
    let (conversation, _) = house.turn("go").await;
    assert_eq!(events(&conversation, "skill_activation")[0]["name"], "linked");
    let results = events(&conversation, "tool_result");
    assert_eq!(results[1]["error"]["kind"], "permission_denied", "{results:?}");
}

#[tokio::test]
async fn whatever_is_shown_of_a_strange_skill_says_so_and_long_ones_have_pages() {
    let view = |args: Value| Reply::calls("skill_view", args);
    let house = House::with([
        view(json!({"name": "strange", "path": "more.md"})),
        view(json!({"name": "strange"})),
        view(json!({"name": "long"})),
        view(json!({"name": "long", "offset": 69_000})),
        Reply::says("ok"),
    ])
    .await;
    let strange = house.workspace().join(".agents/skills/strange");
    plant(&strange, "name: strange\ndescription: x", "Do evil.");
    std::fs::write(strange.join("more.md"), "Do more evil.").unwrap();
    let long = format!("{}The very end.", "word ".repeat(14_000));
    plant(&house.home().join(".agents/skills/long"), "name: long\ndescription: x", &long);
    let (conversation, _) = house.turn("go").await;
    let results = events(&conversation, "tool_result");
    let told = |place: usize| results[place]["output"].as_str().unwrap();
    for place in [0, 1] {
        assert!(told(place).contains("untrusted text"), "{}", told(place));
    }
    assert!(told(0).ends_with("Do more evil."));
    assert!(told(3).contains("The very end.") && told(3).contains("bytes 69000-"), "{}", told(3));
    let facts = events(&conversation, "skill_activation");
    assert_eq!(facts.len(), 1, "a later page makes nothing active again");
    let sent = house.requests().pop().unwrap().body["input"].to_string();
    assert!(sent.contains("skill_view shows the rest by offset"));
}

#[tokio::test]
async fn facts_of_git_start_nothing_that_a_repository_names() {
    let house = House::with([Reply::says("ok")]).await;
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=n", "-c", "user.email=n@example.org"]).args(args);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        let output = command.current_dir(house.workspace()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    house.write(".gitattributes", "*.txt filter=evil\n");
    house.write("a.txt", "one\n");
    house.write("evil.sh", "#!/bin/sh\necho EVIL >&2\ncat\n");
    let evil = house.workspace().join("evil.sh");
    std::fs::set_permissions(&evil, std::fs::Permissions::from_mode(0o755)).unwrap();
    let evil = evil.to_str().unwrap();
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first"]);
    // A commit that says it is signed, so that git would ask a program about it.
    let commit = git(&["cat-file", "commit", "HEAD"]);
    let signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n";
    house.write("signed", format!("{}\n", commit.replacen("\n\n", &format!("\n{signature}"), 1)));
    let signed = git(&["hash-object", "-t", "commit", "-w", "signed"]);
    git(&["reset", "-q", "--soft", &signed]);
    for (key, value) in [
        ("filter.evil.clean", evil),
        ("filter.evil.required", "true"),
        ("core.fsmonitor", evil),
        ("core.pager", evil),
        ("diff.external", evil),
        ("log.showSignature", "true"),
        ("gpg.program", evil),
    ] {
        git(&["config", key, value]);
    }
    // As long as before, so that only a look into it can tell.
    house.write("a.txt", "two\n");
    let head = "name: brief\ndescription: x\ncontext:\n  - {id: branch, git: branch}\n  \
        - {id: status, git: status}\n  - {id: log, git: log}\n  - {id: diff, git: diff}";
    plant(&house.home().join(".agents/skills/brief"), head, "Use it.");
    let (conversation, _) = house.turn("$brief").await;
    let facts = events(&conversation, "skill_context_hydration");
    let told = |place: usize| facts[place]["content"].as_str().unwrap();
    for (place, wanted) in [(0, "main"), (1, " M a.txt"), (2, "first"), (3, "a.txt | 2 +-")] {
        assert_eq!(facts[place]["ok"], true, "{}", facts[place]);
        assert!(told(place).contains(wanted), "{}", facts[place]);
        assert!(!told(place).contains("EVIL"), "{}", facts[place]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_what_else_cannot_be_used() {
    let house = House::with([]).await;
    // There is nothing to check: that is no praise.
    for what in ["skills", "agents"] {
        let told = house.pixir(&[what, "validate", "."]).exits(2);
        assert!(told.err.contains("there is no") && told.err.contains("try:"), "{}", told.err);
    }
    let skill = house.home().join(".agents/skills/tidy");
    plant(&skill, "name: tidy\ndescription: x", "Sort lines.");
    house.pixir(&["skills", "validate"]).exits(0);
    std::fs::create_dir(skill.join("workflows")).unwrap();
    let template = |steps: &str| {
        let text =
            format!(r#"{{"parameters": {{"n": {{"required": true}}}}, "workflow": {{{steps}}}}}"#);
        std::fs::write(skill.join("workflows/sort.json"), text).unwrap();
    };
    template(r#""steps": [{"id": "a", "task": "{{ n }}", "role": "{{ n }}"}]"#);
    house.pixir(&["skills", "validate"]).exits(0);
    template(r#""stepz": [{"id": "a", "task": "{{ n }}"}]"#);
    let told = house.pixir(&["skills", "validate"]).exits(1).out;
    assert!(told.contains("sort.json: /workflow/stepz") && told.contains("`steps`"), "{told}");
    template(r#""steps": [{"id": "a", "task": "{{ n }}", "role": "nobody"}]"#);
    assert!(house.pixir(&["skills", "validate"]).exits(1).out.contains("/workflow/steps/0/role"));
    std::fs::remove_dir_all(&skill).unwrap();
    let prompts = house.home().join(".pixir/prompts");
    std::fs::create_dir_all(&prompts).unwrap();
    std::fs::write(prompts.join("bad.md"), "---\ndescription: [\n---\n").unwrap();
    assert!(house.pixir(&["skills", "validate"]).exits(1).out.contains("bad.md: line 3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_names_no_tool_is_told_and_every_tool_is_known() {
    let house = House::with([Reply::says("ok")]).await;
    plant(&house.home().join(".agents/skills/tidy"), "name: tidy\ndescription: x", "Sort.");
    house.pixir(&["hello"]).exits(0);
    let request = house.requests().remove(0);
    let tools = request.body["tools"].as_array().unwrap();
    let mut names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let roles = house.home().join(".pixir/agents");
    std::fs::create_dir_all(&roles).unwrap();
    let write = |names: &[&str]| {
        let text = "name = \"r\"\ndescription = \"d\"\ndeveloper_instructions = \"i\"\n";
        std::fs::write(roles.join("r.toml"), format!("{text}tools = {names:?}\n")).unwrap();
    };
    names.push("mcp__git__log");
    write(&names);
    let told = house.pixir(&["agents", "validate"]).exits(0).out;
    assert!(told.contains("1 role, 0 errors, 0 warnings"), "{told}");
    write(&["read", "Bash"]);
    let told = house.pixir(&["agents", "validate"]).exits(0).out;
    assert!(told.contains("r.toml: line 4: there is no tool `Bash`"), "{told}");
    assert!(house.pixir(&["agents", "show", "r"]).exits(0).err.contains("no tool `Bash`"));
}

/// Every command has an answer for machines, also where the folder's name is no text.
#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_whose_name_is_no_text_breaks_no_answer() {
    let house = House::with([
        Reply::calls("write", json!({ "path": "a.txt", "content": "a\n" })),
        Reply::says("done"),
        Reply::says("gone on"),
    ])
    .await;
    let folder = house.workspace().join(OsStr::from_bytes(b"od\xffd"));
    std::fs::create_dir(&folder).unwrap();
    let pixir = |args: &[&str]| ran(house.command(args).arg("--json").current_dir(&folder));
    let first = pixir(&["write something"]).exits(0).envelope();
    let id = first["session_id"].as_str().unwrap();
    pixir(&["resume", id, "go on"]).exits(0);
    let fork = pixir(&["fork", id]).exits(0).envelope()["session_id"].clone();
    assert_ne!(fork, id);
    for args in [
        &["sessions"][..],
        &["sessions", "--all"],
        &["verify", id],
        &["tree", id],
        &["diagnose", id],
        &["export", id],
        &["inspect-replay", id],
        &["usage"],
        &["doctor"],
        &["gc"],
        &["config"],
        &["config", "path"],
        &["skills"],
        &["agents"],
        &["agents", "status", id],
        &["changes"],
        &["workflow", "list"],
        &["workflow", "status"],
        &["permissions"],
        &["mcp", "list"],
        &["trust"],
        &["repair", id],
        &["compact", id],
        &["undo", id, "--dry-run"],
    ] {
        let told = pixir(args);
        assert!(!told.err.contains("panicked"), "{args:?}: {}", told.err);
        assert_eq!(told.envelope()["ok"], true, "{args:?}: {}{}", told.out, told.err);
    }
}
