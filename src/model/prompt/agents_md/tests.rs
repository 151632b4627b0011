//! Tests of the AGENTS.md chain: order, limits, hidden characters and odd files.

use tempfile::TempDir;

use super::*;

/// A home, a repository and a Workspace two folders down in it.
struct ProjectTree {
    folder: TempDir,
}

impl ProjectTree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for path in ["home", "outside", "repo/.git", "repo/a/b"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        Self { folder }
    }

    fn with(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        fs::write(self.path(path), content).unwrap();
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn load(&self, limit: usize) -> AgentsMd {
        let (workspace, user_file) = (self.path("repo/a/b"), self.path("home/AGENTS.md"));
        let secrets = Secrets::new([("KEY".to_owned(), "very-hidden-value".to_owned())]);
        AgentsMd::load(&AgentsMdSources {
            workspace: &workspace,
            user_file: &user_file,
            limit,
            secrets: &secrets,
        })
    }
}

#[test]
fn no_files_say_nothing() {
    assert_eq!(ProjectTree::new().load(1000), AgentsMd::default());
    assert_eq!(ProjectTree::new().with("repo/AGENTS.md", " \n").load(1000), AgentsMd::default());
}

#[test]
fn a_secret_is_replaced_also_where_the_text_is_cut() {
    let tree =
        ProjectTree::new().with("repo/AGENTS.md", "token very-hidden-value and more and more");
    let texts: Vec<_> = (1..400).filter_map(|limit| tree.load(limit).text).collect();
    assert!(texts.iter().any(|text| text.contains("[redacted")), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains("ver")), "{texts:?}");
}

#[test]
fn the_nearest_word_is_the_last() {
    let tree = ProjectTree::new()
        .with("AGENTS.md", "above the root")
        .with("home/AGENTS.md", "user")
        .with("repo/AGENTS.md", "root\n")
        .with("repo/a/b/AGENTS.md", "workspace");
    let project = tree.load(1000);
    let text = project.text.unwrap();
    let places: Vec<usize> = ["user", "root", "workspace"]
        .iter()
        .map(|word| text.find(&format!("\n\n{word}")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{text}");
    assert!(!text.contains("above"), "{text}");
    assert!(text.contains("repo/a/b/AGENTS.md"));
    assert_eq!(project.notices, Vec::<String>::new());
}

#[test]
fn a_worktree_has_a_root_too() {
    let tree = ProjectTree::new()
        .with("repo/AGENTS.md", "root")
        .with("repo/a/AGENTS.md", "middle")
        .with("repo/a/.git", "gitdir: x");
    let text = tree.load(1000).text.unwrap();
    assert!(text.contains("middle") && !text.contains("\nroot"), "{text}");
}

#[test]
fn the_limit_is_for_all_files_and_the_cut_is_honest() {
    let tree = ProjectTree::new()
        .with("repo/AGENTS.md", "é".repeat(40))
        .with("repo/a/AGENTS.md", "ü".repeat(40));
    let project = tree.load(101);
    let text = project.text.unwrap();
    assert_eq!((text.matches('é').count(), text.matches('ü').count()), (40, 10));
    assert!(text.ends_with("[cut here: the limit of 101 bytes is reached]"), "{text}");
    assert_eq!(project.notices.len(), 1);
    assert!(project.notices[0].contains("repo/a/AGENTS.md"));
}

#[test]
fn hidden_characters_are_removed_and_reported() {
    let hidden = "\u{feff}fine\nbi\u{202e}di\r\nzero\u{200b}width\ntag\u{e0041}\u{e0042}s, esc\u{1b}[0m ☺\u{fe0f}";
    let project = ProjectTree::new().with("repo/AGENTS.md", hidden).load(1000);
    let text = project.text.unwrap();
    assert!(text.ends_with("fine\nbidi\r\nzerowidth\ntags, esc[0m ☺\u{fe0f}"), "{text:?}");
    let notices = project.notices.join("\n");
    for words in [
        "line 2 has the hidden character U+202E",
        "line 3 has the hidden character U+200B",
        "U+E0041",
        "U+001B",
    ] {
        assert!(notices.contains(words), "{words} in {notices}");
    }
    let flood = ProjectTree::new().with("repo/AGENTS.md", "x\u{200b}".repeat(100)).load(1000);
    assert_eq!(flood.notices.len(), MAX_NAMED_CHARACTERS + 1);
    assert!(flood.notices[MAX_NAMED_CHARACTERS].contains("95 more"));
}

#[test]
fn odd_files_are_noticed_and_not_fatal() {
    let tree = ProjectTree::new()
        .with("outside/secret", "key")
        .with("repo/a/AGENTS.md", "bin\0ary")
        .with("repo/kept", "linked");
    std::os::unix::fs::symlink(tree.path("outside/secret"), tree.path("repo/AGENTS.md")).unwrap();
    fs::create_dir(tree.path("repo/a/b/AGENTS.md")).unwrap();
    std::os::unix::fs::symlink(tree.path("nowhere"), tree.path("home/AGENTS.md")).unwrap();
    let project = tree.load(1000);
    assert_eq!(project.text, None);
    assert_eq!(project.notices.len(), 4, "{:?}", project.notices);
    assert!(project.notices.iter().any(|notice| notice.contains("leads out of the project")));
    fs::remove_file(tree.path("repo/AGENTS.md")).unwrap();
    std::os::unix::fs::symlink("kept", tree.path("repo/AGENTS.md")).unwrap();
    assert!(tree.load(1000).text.unwrap().contains("linked"));
}

#[test]
fn a_huge_file_is_not_read_whole() {
    let project = ProjectTree::new().with("repo/AGENTS.md", "x".repeat(1 << 20)).load(32 * 1024);
    assert!(project.text.unwrap().len() < 33 * 1024);
    let spent = ProjectTree::new()
        .with("home/AGENTS.md", "x".repeat(10))
        .with("repo/AGENTS.md", "more")
        .load(10);
    assert!(spent.text.unwrap().ends_with("[cut here: the limit of 10 bytes is reached]"));
}
