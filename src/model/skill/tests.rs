//! Tests of Skill packages on a real disk: found, counted, refused and read again.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::*;

struct SkillsFixture {
    folder: tempfile::TempDir,
}

impl SkillsFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["repo/.git", "repo/inner", "user", "home"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn skill(&self, root: &str, name: &str, words: &str) -> PathBuf {
        let text = format!("---\nname: {name}\ndescription: {words}\n---\nDo {words}.\n");
        self.write(&format!("{root}/{name}/SKILL.md"), text)
    }

    fn skills(&self) -> Skills {
        Skills::new(DiscoveryFolders {
            workspace: self.at("repo/inner"),
            user: Some(self.at("user")),
            home: Home::new(self.at("home")),
        })
    }

    fn trust(&self, path: &Path) {
        let digest = crate::base::id::sha256(&fs::read(path).unwrap());
        TrustStore::new(&Home::new(self.at("home"))).record_decision(path, &digest, true).unwrap();
    }
}

fn names(found: &FoundSkills) -> Vec<String> {
    let one = |skill: &Arc<Skill>| format!("{}={}", skill.name(), skill.front_matter.description);
    found.skills.iter().map(one).collect()
}

#[test]
fn the_nearest_that_is_trusted_counts() {
    let fixture = SkillsFixture::new();
    assert!(fixture.skills().read_all().skills.is_empty());
    fixture.skill("home/skills", "a", "pixir");
    fixture.skill("user/.agents/skills", "a", "user");
    fixture.skill("user/.agents/skills", "b", "user");
    let outer = fixture.skill("repo/.claude/skills", "a", "outer");
    let inner = fixture.skill("repo/inner/.pixir/skills", "a", "inner");
    fixture.skill("repo/.agents/skills", "c", "stranger");
    let skills = fixture.skills();
    let found = skills.read_all();
    assert_eq!(names(&found), ["a=user", "b=user", "c=stranger"]);
    assert!(!found.skills[2].is_trusted && found.skills[0].is_trusted);
    assert_eq!(found.shadowed.len(), 1);
    assert_eq!(
        found.shadowed[0].to_string(),
        "`a` is user:.agents/skills/a/SKILL.md; not used: pixir:home/skills/a/SKILL.md, \
         repo:.pixir/skills/a/SKILL.md, repo:.claude/skills/a/SKILL.md"
    );
    fixture.trust(&outer);
    assert_eq!(names(&skills.read_all())[0], "a=outer");
    fixture.trust(&inner);
    assert_eq!(names(&skills.read_all())[0], "a=inner");
    // One more byte changes the digest.
    fs::write(&inner, format!("{}\n", fs::read_to_string(&inner).unwrap())).unwrap();
    assert_eq!(names(&skills.read_all())[0], "a=outer");
}

#[test]
fn what_changes_is_read_again_and_what_does_not_is_not() {
    let fixture = SkillsFixture::new();
    let path = fixture.skill("user/.agents/skills", "a", "one");
    let skills = fixture.skills();
    let first = skills.read_all().skills[0].clone();
    assert!(Arc::ptr_eq(&first.text, &skills.read_all().skills[0].text), "not read again");
    fs::remove_file(&path).unwrap();
    assert!(skills.read_all().skills.is_empty());
    fixture.skill("user/.agents/skills", "a", "two");
    assert_eq!(names(&skills.read_all()), ["a=two"]);
    fs::write(&path, "---\nname: a\ndescription: [\n---\n").unwrap();
    let found = skills.read_all();
    assert!(found.skills.is_empty() && found.broken[0].line.is_some(), "{:?}", found.broken);
}

#[test]
fn a_worktree_is_a_repository_too() {
    let fixture = SkillsFixture::new();
    fs::remove_dir(fixture.at("repo/.git")).unwrap();
    fixture.write("repo/.git", "gitdir: elsewhere\n");
    fixture.skill("repo/.agents/skills", "a", "repo");
    fixture.skill(".agents/skills", "z", "beyond");
    assert_eq!(names(&fixture.skills().read_all()), ["a=repo"]);
}

#[test]
fn the_users_own_folder_within_a_workspace_needs_trust() {
    let fixture = SkillsFixture::new();
    fixture.skill("user/.agents/skills", "a", "own");
    let places = DiscoveryFolders {
        workspace: fixture.at("user"),
        user: Some(fixture.at("user")),
        home: Home::new(fixture.at("home")),
    };
    let found = Skills::new(places).read_all();
    assert_eq!((found.skills.len(), found.skills[0].is_trusted), (1, false));
    assert_eq!(found.skills[0].scope, SkillScope::User);
    // The same holds for every name or link that leads to the folder.
    symlink(fixture.at("user"), fixture.at("alias")).unwrap();
    fixture.write("alias/.agents/prompts/p.md", "words");
    let places = DiscoveryFolders {
        workspace: fixture.at("user"),
        user: Some(fixture.folder.path().canonicalize().unwrap().join("alias")),
        home: Home::new(fixture.folder.path().canonicalize().unwrap().join("alias/.agents")),
    };
    let skills = Skills::new(places);
    let (found, prompts) = (skills.read_all(), skills.read_prompts().prompts);
    assert!(!found.all.is_empty() && found.all.iter().all(|skill| !skill.is_trusted));
    assert!(prompts.len() == 1 && !prompts[0].is_trusted);
}

#[test]
fn a_folder_of_endless_skills_is_cut_off_and_reported() {
    let fixture = SkillsFixture::new();
    for number in 0..70 {
        let text = format!("---\nname: s{number}\n---\n{}", "x".repeat(250 * 1024));
        fixture.write(&format!("user/.agents/skills/s{number}/SKILL.md"), text);
    }
    fixture.skill("home/skills", "good", "still here");
    let found = fixture.skills().read_all();
    assert!(found.skills.len() < 70 && found.skills.iter().any(|skill| skill.name() == "good"));
    assert!(found.broken[0].message.contains("16 MiB"), "{:?}", found.broken);
}

#[test]
fn hostile_packages_are_reported_with_path_and_line() {
    let fixture = SkillsFixture::new();
    let root = "user/.agents/skills";
    fixture.skill(root, "good", "still here");
    fixture.write(&format!("{root}/huge/SKILL.md"), vec![b'x'; 300 * 1024]);
    fixture.write(&format!("{root}/binary/SKILL.md"), b"---\nname: b\n\0\n---\n");
    fixture.write(&format!("{root}/latin/SKILL.md"), b"---\nname: l\n# caf\xe9\n---\n");
    let bomb = "---\na: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n---\n";
    fixture.write(&format!("{root}/bomb/SKILL.md"), bomb);
    fixture.write(&format!("{root}/bad name/SKILL.md"), "# Hello\n");
    fixture.write(&format!("{root}/lower/skill.md"), "# Hello\n");
    let odd = fixture.at(root).join(std::ffi::OsStr::from_bytes(b"o\xffd"));
    fs::create_dir_all(&odd).unwrap();
    fs::write(odd.join("SKILL.md"), "---\nname: odd\ndescription: y\n---\n").unwrap();
    fixture.write(&format!("{root}/evil/SKILL.md"), "---\nname: ../../x\ndescription: y\n---\n");
    fs::create_dir_all(fixture.at(&format!("{root}/folder/SKILL.md"))).unwrap();
    fs::create_dir_all(fixture.at(&format!("{root}/nothing"))).unwrap();
    fixture.write(&format!("{root}/file"), "no folder");
    fs::create_dir_all(fixture.at(&format!("{root}/out"))).unwrap();
    symlink("/etc/passwd", fixture.at(&format!("{root}/out/SKILL.md"))).unwrap();
    fs::create_dir_all(fixture.at(&format!("{root}/pipe"))).unwrap();
    let pipe = fixture.at(&format!("{root}/pipe/SKILL.md"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let found = fixture.skills().read_all();
    assert_eq!(names(&found), ["good=still here"]);
    let reports: Vec<String> = found
        .broken
        .iter()
        .map(|flaw| {
            let inside = flaw.path.strip_prefix(fixture.at(root)).unwrap();
            let line = flaw.line.map_or_else(String::new, |line| format!(":{line}"));
            format!("{}{line}", inside.parent().unwrap().display())
        })
        .collect();
    let wanted = [
        "bad name:1",
        "binary:3",
        "bomb:3",
        "evil:2",
        "folder",
        "huge",
        "latin:3",
        "lower",
        "out",
        "o\u{fffd}d",
        "pipe",
    ];
    assert_eq!(reports, wanted, "{:#?}", found.broken);
}

#[test]
fn links_of_a_project_stay_in_it_and_the_users_lead_anywhere() {
    let fixture = SkillsFixture::new();
    fixture.skill("shared", "s", "elsewhere");
    fixture.skill("repo/lib", "t", "inside");
    for root in ["repo/.agents/skills", "user/.agents/skills"] {
        fs::create_dir_all(fixture.at(root)).unwrap();
        symlink(fixture.at("shared/s"), fixture.at(root).join("s")).unwrap();
    }
    symlink(fixture.at("repo/lib/t"), fixture.at("repo/.agents/skills/t")).unwrap();
    let found = fixture.skills().read_all();
    assert_eq!(names(&found), ["s=elsewhere", "t=inside"]);
    assert_eq!(found.skills[0].scope, SkillScope::User);
    assert!(found.broken[0].message.contains("leads out of the project"));
}

#[test]
fn files_of_a_package_are_shown_and_nothing_else_is() {
    let fixture = SkillsFixture::new();
    fixture.skill("user/.agents/skills", "a", "words");
    let root = "user/.agents/skills/a";
    fixture.write(&format!("{root}/references/guide.md"), "Guide.\n");
    fixture.write(&format!("{root}/logo.png"), b"\x89PNG\0\0");
    fixture.write("user/secret", "no");
    symlink(fixture.at("user/secret"), fixture.at(root).join("link")).unwrap();
    symlink("SKILL.md", fixture.at(root).join("main")).unwrap();
    let skill = fixture.skills().find("a").unwrap();
    let view = |path: &str| skill.read_package_file(Path::new(path));
    assert_eq!(view("references/guide.md").unwrap().text, "Guide.\n");
    assert!(view("SKILL.md").unwrap().is_main && view("main").unwrap().is_main);
    assert_eq!(
        skill.list_package_files().0,
        [Path::new("logo.png"), Path::new("references/guide.md")]
    );
    for (path, kind) in [
        ("logo.png", "binary_file"),
        ("../../../secret", "outside_workspace"),
        ("/etc/passwd", "outside_workspace"),
        ("link", "outside_workspace"),
        ("references", "invalid_args"),
        ("missing", "not_found"),
    ] {
        let error = view(path).unwrap_err();
        assert_eq!(crate::base::error::Explain::kind(&error).name(), kind, "{path}");
    }
}

#[test]
fn templates_are_checked_and_filled_with_their_types() {
    let fixture = SkillsFixture::new();
    fixture.skill("user/.agents/skills", "a", "words");
    let root = "user/.agents/skills/a/workflows";
    let review = json!({
        "parameters": {
            "paths": {"type": "array", "required": true},
            "count": {"type": "integer", "default": 3},
            "note": {"type": "string"},
        },
        "workflow": {
            "max_concurrency": "{{count}}",
            "name": "{{ note }}",
            "steps": [{"id": "look", "task": "Look at {{paths}} {{ count }} times{{note}}. {{", "read_set": "{{ paths }}"}],
        },
    });
    fixture.write(&format!("{root}/review.json"), review.to_string());
    fixture.write(&format!("{root}/broken.json"), "{\n  \"workflow\": {\n");
    fixture.write(&format!("{root}/odd.json"), r#"{"workflow": {"x": "{{ nobody }}"}}"#);
    fixture.write(&format!("{root}/late.json"), r#"{"version": 2, "workflow": {}}"#);
    fixture.write(&format!("{root}/id.json"), r#"{"id": "../x", "workflow": {}}"#);
    let typed = r#"{"parameters": {"n": {"type": "integer", "default": "3"}}, "workflow": {}}"#;
    fixture.write(&format!("{root}/typed.json"), typed);
    let skill = fixture.skills().find("a").unwrap();
    let (templates, broken) = skill.read_templates();
    assert_eq!(broken.len(), 5, "{broken:?}");
    assert_eq!(broken[0].line, Some(3));
    let [template] = templates.as_slice() else { panic!("{templates:?}") };
    assert_eq!(template.full_id, "a/review");
    let arguments = |value: serde_json::Value| value.as_object().cloned().unwrap_or_default();
    let workflow = serde_json::Value::Object(template.workflow().clone());
    let fill = |given: Map<String, serde_json::Value>| {
        let filling = TemplateArguments::new(&template.parameters, &given)
            .map_err(|mut all| all.remove(0))?;
        let filled = filling.fill_value(&workflow).unwrap();
        // Omitted entries are counted when a pointer is translated.
        assert_eq!(filling.source_pointer(&workflow, "/steps/0/read_set/1"), "/steps/0/read_set");
        Ok::<_, TemplateError>(filled)
    };
    let filled = fill(arguments(json!({"paths": ["src", "docs"]}))).unwrap();
    assert_eq!(
        filled,
        json!({
            "max_concurrency": 3,
            "steps": [{
                "id": "look",
                "task": "Look at [\"src\",\"docs\"] 3 times. {{",
                "read_set": ["src", "docs"],
            }],
        })
    );
    for (given, wanted) in [
        (json!({}), "the template needs `paths`"),
        (json!({"paths": "src"}), "`paths` must be of type array"),
        (json!({"paths": [], "x": 1}), "the template has no parameter `x`"),
        (json!({"paths": [], "count": 1.5}), "`count` must be of type integer"),
    ] {
        let error = fill(arguments(given)).unwrap_err();
        assert_eq!(error.to_string(), wanted);
    }
    assert!(fill(Map::new()).is_err());
}

#[test]
fn prompts_are_found_like_skills() {
    let fixture = SkillsFixture::new();
    let text = "---\ndescription: Look closely\nargument-hint: what\n---\nReview $1.\n";
    fixture.write("home/prompts/review.md", text);
    let strange = fixture.write("repo/.pixir/prompts/review.md", "Evil $1.");
    fixture.write("repo/inner/.pixir/prompts/other.md", "Other.");
    fixture.write("home/prompts/bad name.md", "x");
    let skills = fixture.skills();
    let found = skills.read_prompts();
    let shown: Vec<_> = found.prompts.iter().map(|p| (p.name.as_str(), p.is_trusted)).collect();
    assert_eq!(shown, [("other", false), ("review", true)]);
    assert_eq!(found.prompts[1].expand("it"), "Review it.");
    assert_eq!(found.prompts[1].hint, "what");
    assert_eq!(found.broken.len(), 1);
    fixture.trust(&strange);
    assert_eq!(skills.read_prompts().prompts[1].expand("x"), "Evil x.");
}

#[test]
fn a_name_whose_file_cannot_be_used_is_reported_and_stays_text() {
    let fixture = SkillsFixture::new();
    fixture.write("home/skills/bent/SKILL.md", "---\nname: bent\ndescription: a: b\n---\nx\n");
    fixture.write("home/prompts/long.md", "x".repeat(70_000));
    let skills = fixture.skills();
    for (text, flaw) in [
        ("/bent it", "bent/SKILL.md: line 3: "),
        ("do $bent, please", "bent/SKILL.md: line 3: "),
        ("/long it", "long.md: it is larger than"),
    ] {
        let expanded = skills.expand(text);
        assert_eq!(expanded.text, text);
        assert_eq!(expanded.notices.len(), 1, "{text}: {:?}", expanded.notices);
        assert!(expanded.notices[0].contains(flaw), "{text}: {:?}", expanded.notices);
    }
    assert!(skills.expand("/nothing and $nobody").notices.is_empty());
}
