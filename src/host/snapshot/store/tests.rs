//! Tests of the content store: with a real git repository, limits, and damaged tables.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::git_pins::PackFiles;
use super::*;
use crate::host::git_objects::ObjectFormat;
use crate::host::git_objects::tests::support::{
    BLOB, OFS_DELTA, delta_bytes, distance_bytes, fake_files_with_ids, pack_entry,
};
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

/// The files of the repository's only pack.
fn pack_files(repository: &RepositoryFixture) -> Vec<PathBuf> {
    let packs = fs::read_dir(repository.path().join(".git/objects/pack")).unwrap();
    let paths = packs.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "pack" || it == "idx")).collect()
}

/// A repository whose contents are in one pack.
fn packed_repository(contents: &[String]) -> RepositoryFixture {
    let repository = RepositoryFixture::new();
    repository.git(&["init", "-q"]);
    repository.commit(contents);
    repository.git(&["gc", "-q"]);
    repository
}

/// Overwrites the middle of a file in place, also where it is read-only.
fn overwrite(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle / 2..middle].fill(0x55);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn contents_of_a_truncated_segment_are_stored_again() {
    let contents = contents(200);
    for is_batch in [true, false] {
        let repository = RepositoryFixture::new();
        let hashes = repository.keep(&contents);
        let segments = fs::read_dir(repository.path().join(".pixir/snapshots/segments")).unwrap();
        let data = segments.map(|entry| entry.unwrap().path());
        let data = data.into_iter().find(|path| path.extension().is_some_and(|it| it == "data"));
        let data = data.unwrap();
        let half = fs::metadata(&data).unwrap().len() / 2;
        fs::File::options().write(true).open(&data).unwrap().set_len(half).unwrap();
        let lost = open_store(repository.path()).find_lost_contents(hashes.iter()).unwrap();
        assert!(!lost.is_empty() && lost.len() < hashes.len(), "{}", lost.len());
        if is_batch {
            assert_eq!(repository.keep(&contents), hashes);
        } else {
            let store = open_store(repository.path());
            for content in &contents {
                store.put_within(content.as_bytes(), 1 << 20).unwrap();
            }
        }
        assert_holds(&open_store(repository.path()), &hashes, &contents);
        assert!(repository.store.find_lost_contents(hashes.iter()).unwrap().is_empty());
    }
}

#[test]
fn a_pack_that_was_damaged_and_then_replaced_is_pinned_again() {
    let contents = contents(200);
    for kind in ["pack", "idx"] {
        let repository = packed_repository(&contents);
        let hashes = repository.keep(&contents);
        let files = pack_files(&repository);
        let copies: Vec<_> = files.iter().map(|path| (path, fs::read(path).unwrap())).collect();
        overwrite(files.iter().find(|path| path.extension().is_some_and(|it| it == kind)).unwrap());
        let store = open_store(repository.path());
        assert_eq!(store.find_lost_contents(hashes.iter()).unwrap().len(), hashes.len());
        for (path, bytes) in copies {
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
        }
        assert_eq!(repository.keep(&contents), hashes);
        assert_eq!(repository.copied_bytes(), 0, "git has them again");
        fs::remove_dir_all(repository.path().join(".git")).unwrap();
        let store = open_store(repository.path());
        assert_holds(&store, &hashes, &contents);
        assert!(store.find_lost_contents(hashes.iter()).unwrap().is_empty());
    }
}

#[test]
fn contents_of_a_pack_that_stays_damaged_are_copied() {
    let contents = contents(200);
    let repository = packed_repository(&contents);
    let hashes = repository.keep(&contents);
    for path in pack_files(&repository) {
        overwrite(&path);
    }
    assert_eq!(repository.keep(&contents), hashes);
    assert!(repository.copied_bytes() > 0);
    assert_holds(&open_store(repository.path()), &hashes, &contents);
}

#[test]
fn a_loose_object_that_was_damaged_is_pinned_again_or_copied() {
    let contents = contents(100);
    let repository = RepositoryFixture::new();
    repository.git(&["init", "-q"]);
    repository.commit(&contents);
    let hashes = repository.keep(&contents);
    let ids = contents
        .iter()
        .map(|content| ObjectFormat::Sha1.blob_id(content.as_bytes()).to_string())
        .map(|id| repository.path().join(".git/objects").join(&id[..2]).join(&id[2..]));
    let objects: Vec<PathBuf> = ids.collect();
    let good = fs::read(&objects[0]).unwrap();
    overwrite(&objects[0]);
    overwrite(&objects[1]);
    let store = open_store(repository.path());
    let lost = store.find_lost_contents(hashes.iter()).unwrap();
    assert_eq!(lost, [hashes[0], hashes[1]].into());
    fs::remove_file(&objects[0]).unwrap();
    fs::write(&objects[0], good).unwrap();
    assert_eq!(repository.keep(&contents), hashes);
    assert_eq!(repository.copied_bytes(), contents[1].len() as u64);
    assert_holds(&open_store(repository.path()), &hashes, &contents);
}

#[test]
fn a_content_whose_delta_chain_is_too_large_to_be_read_is_copied() {
    let repository = RepositoryFixture::new();
    repository.git(&["init", "-q"]);
    let base_size = (256 << 20) + 1;
    let base = pack_entry(BLOB, base_size, b"", b"");
    let delta = delta_bytes(base_size, 4, b"\x04text");
    let distance = distance_bytes(base.len());
    let entries = [base, pack_entry(OFS_DELTA, delta.len() as u64, &distance, &delta)];
    let id = ObjectFormat::Sha1.blob_id(b"text");
    let ids = [[0; 20], id.as_bytes().try_into().unwrap()];
    let (pack, index) = fake_files_with_ids(&entries, &ids);
    let path = repository.path().join(".git/objects/pack").join(format!("pack-{id}"));
    fs::write(path.with_extension("pack"), pack).unwrap();
    fs::write(path.with_extension("idx"), index).unwrap();
    let contents = ["text".to_owned()];
    let hashes = repository.keep(&contents);
    assert_eq!(repository.copied_bytes(), 4);
    assert_holds(&open_store(repository.path()), &hashes, &contents);
    assert!(
        !repository.path().join(".pixir/snapshots/git").join(format!("pack-{id}.pack")).exists()
    );
}

#[test]
fn pins_that_a_command_made_unreadable_are_read() {
    let contents = contents(100);
    let repository = packed_repository(&contents);
    let hashes = repository.keep(&contents);
    for path in pack_files(&repository) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    }
    assert_holds(&open_store(repository.path()), &hashes, &contents);
}

#[test]
fn packs_that_had_to_be_copied_count_and_those_that_are_too_large_are_not_copied() {
    let contents = contents(200);
    let repository = packed_repository(&contents);
    let [one, other] = &pack_files(&repository)[..] else { panic!("one pack has two files") };
    let name = one.file_stem().unwrap().to_str().unwrap();
    let (pack, index) =
        if one.extension().unwrap() == "pack" { (one, other) } else { (other, one) };
    let size = fs::metadata(pack).unwrap().len() + fs::metadata(index).unwrap().len();
    let open = || PackFiles { pack: File::open(pack).unwrap(), index: File::open(index).unwrap() };
    let (files, again) = (open(), open());
    // A file without a name cannot be linked.
    fs::remove_dir_all(repository.path().join(".git")).unwrap();
    let pins = GitPins::create(&repository.store.folder).unwrap();
    assert!(pins.pin_pack(name, &files, size - 1).is_err());
    assert_eq!(pins.pin_pack(name, &again, size).unwrap(), size);
    assert_eq!(repository.store.size().unwrap(), size);
    assert!(pins.is_intact(name) && pins.open_pack(name).is_ok());
}

#[test]
fn only_packs_with_a_content_are_pinned_and_named() {
    let repository = packed_repository(&contents(100));
    let more: Vec<String> = (0..100).map(|number| format!("more {number}")).collect();
    repository.commit(&more);
    repository.git(&["repack", "-dq"]);
    assert_eq!(pack_files(&repository).len(), 4, "two packs");
    let hashes = repository.keep(&more);
    let table = repository.store.segments().unwrap().remove(0);
    assert_eq!(table.table().packs.len(), 1);
    let pins = fs::read_dir(repository.path().join(".pixir/snapshots/git")).unwrap();
    assert_eq!(pins.count(), 3, "a pack, its index and its record");
    assert_holds(&open_store(repository.path()), &hashes, &more);
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
