//! Tests of the content store: with a real git repository, limits, and damaged tables.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::host::workspace::Workspace;

struct RepositoryFixture {
    folder: TempDir,
    workspace: Workspace,
    store: ContentStore,
}

const NO_LIMITS: BatchLimits = BatchLimits { files: usize::MAX, bytes: u64::MAX };

impl RepositoryFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        let store = open_store(folder.path());
        fs::create_dir_all(folder.path().join(".pixir/snapshots")).unwrap();
        Self { folder, workspace, store }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn git(&self, args: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"]).arg(self.path()).args(args);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let output = git.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Commits files with these contents.
    fn commit(&self, contents: &[String]) {
        for (number, content) in contents.iter().enumerate() {
            fs::write(self.path().join(format!("file{number}")), content).unwrap();
        }
        self.git(&["add", "-A"]);
        self.git(&["commit", "-qm", "one"]);
    }

    fn keep(&self, contents: &[String]) -> Vec<ContentHash> {
        let batch = ContentBatch::new(&self.store, &self.workspace, NO_LIMITS).unwrap();
        let hashes = contents.iter().map(|content| batch.add(content.as_bytes()).unwrap());
        let hashes = hashes.collect();
        batch.finish().unwrap();
        hashes
    }

    fn copied_bytes(&self) -> u64 {
        let segments = self.path().join(".pixir/snapshots/segments");
        let entries = fs::read_dir(segments).into_iter().flatten().flatten();
        let data = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "data"));
        data.map(|entry| entry.metadata().unwrap().len()).sum()
    }
}

fn open_store(folder: &Path) -> ContentStore {
    ContentStore::new(StatePath::root(folder).join(".pixir").join("snapshots"))
}

fn contents(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("content {number}\n").repeat(number % 50 + 1)).collect()
}

fn assert_holds(store: &ContentStore, hashes: &[ContentHash], contents: &[String]) {
    for (hash, content) in hashes.iter().zip(contents) {
        assert_eq!(store.get(hash).unwrap(), content.as_bytes());
    }
}

#[test]
fn contents_of_a_batch_are_in_one_file_and_each_is_kept_once() {
    let repository = RepositoryFixture::new();
    let contents = contents(300);
    let hashes = repository.keep(&contents);
    let bytes: usize = contents.iter().map(String::len).sum();
    assert_eq!(repository.copied_bytes(), bytes as u64);
    assert_holds(&open_store(repository.path()), &hashes, &contents);
    assert_eq!(repository.keep(&contents), hashes);
    assert_eq!(repository.copied_bytes(), bytes as u64, "nothing is kept twice");
    assert!(!repository.store.has(&ContentHash::digest(b"something else")));
}

#[test]
fn what_git_holds_is_not_copied_and_outlasts_its_removal() {
    for format in ["sha1", "sha256"] {
        for is_packed in [true, false] {
            let repository = RepositoryFixture::new();
            repository.git(&["init", "-q", &format!("--object-format={format}")]);
            let contents = contents(200);
            repository.commit(&contents);
            if is_packed {
                repository.git(&["gc", "-q"]);
            }
            let hashes = repository.keep(&contents);
            assert_eq!(repository.copied_bytes(), 0, "{format}, packed: {is_packed}");
            fs::remove_dir_all(repository.path().join(".git")).unwrap();
            assert_holds(&open_store(repository.path()), &hashes, &contents);
        }
    }
}

#[test]
fn a_pinned_pack_that_was_overwritten_in_place_is_an_error_and_never_another_content() {
    let repository = RepositoryFixture::new();
    repository.git(&["init", "-q"]);
    let contents = contents(200);
    repository.commit(&contents);
    repository.git(&["gc", "-q"]);
    let hashes = repository.keep(&contents);
    let packs = fs::read_dir(repository.path().join(".git/objects/pack")).unwrap();
    let packs = packs.map(|entry| entry.unwrap().path());
    let pack = packs.into_iter().find(|path| path.extension().is_some_and(|it| it == "pack"));
    let pack = pack.unwrap();
    fs::set_permissions(&pack, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[12..middle].fill(0x55);
    fs::write(&pack, bytes).unwrap();
    let store = open_store(repository.path());
    let lost = hashes.iter().zip(&contents).filter(|(hash, content)| match store.get(hash) {
        Ok(own) => {
            assert_eq!(own, content.as_bytes());
            false
        }
        Err(_) => true,
    });
    assert!(lost.count() > 0);
}

#[test]
fn links_and_pipes_in_the_place_of_packs_are_not_followed() {
    let repository = RepositoryFixture::new();
    repository.git(&["init", "-q"]);
    let contents = contents(100);
    repository.commit(&contents);
    repository.git(&["gc", "-q"]);
    let packs = repository.path().join(".git/objects/pack");
    let elsewhere = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&packs).unwrap() {
        let path = entry.unwrap().path();
        let target = elsewhere.path().join(path.file_name().unwrap());
        fs::rename(&path, &target).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
    }
    let hashes = repository.keep(&contents);
    let bytes: usize = contents.iter().map(String::len).sum();
    assert_eq!(repository.copied_bytes(), bytes as u64);
    assert_holds(&open_store(repository.path()), &hashes, &contents);
}

#[test]
fn a_batch_has_limits_and_what_was_refused_leaves_nothing() {
    let repository = RepositoryFixture::new();
    let contents = contents(100);
    let refused = |limits: BatchLimits| {
        let batch = ContentBatch::new(&repository.store, &repository.workspace, limits).unwrap();
        contents.iter().find_map(|content| batch.add(content.as_bytes()).err())
    };
    let few = BatchLimits { files: 99, ..NO_LIMITS };
    assert!(matches!(refused(few), Some(StoreContentError::TooManyFiles)));
    let small = BatchLimits { bytes: 1000, ..NO_LIMITS };
    assert!(matches!(refused(small), Some(StoreContentError::TooManyBytes)));
    assert!(refused(NO_LIMITS).is_none());
    let segments = repository.path().join(".pixir/snapshots/segments");
    assert_eq!(fs::read_dir(segments).unwrap().count(), 0, "drafts are removed");
}

#[test]
fn what_the_store_has_already_takes_no_more_of_its_room() {
    let repository = RepositoryFixture::new();
    let contents = contents(100);
    for content in &contents {
        repository.store.put(content.as_bytes()).unwrap();
    }
    let limits = BatchLimits { bytes: repository.store.size().unwrap(), ..NO_LIMITS };
    let batch = ContentBatch::new(&repository.store, &repository.workspace, limits).unwrap();
    for content in &contents {
        batch.add(content.as_bytes()).unwrap();
    }
    assert!(matches!(batch.add(b"one more"), Err(StoreContentError::TooManyBytes)));
}

#[test]
fn a_table_that_was_cut_or_changed_is_refused() {
    let repository = RepositoryFixture::new();
    repository.keep(&contents(100));
    let table = repository.store.segments().unwrap().remove(0);
    let bytes = table.table().encode().unwrap();
    assert_eq!(&Segment::decode(&bytes).unwrap(), table.table());
    for length in 0..bytes.len() {
        assert!(Segment::decode(&bytes[..length]).is_err(), "{length}");
    }
    let mut changed = bytes.clone();
    changed[40] ^= 1;
    assert!(Segment::decode(&changed).is_err());
}
