//! Test repositories that git writes, and packs that git would never write.
#![expect(clippy::disallowed_methods, reason = "git is the reference")]

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use tempfile::TempDir;

use crate::host::git_objects::{ObjectFormat, ObjectId, Pack, PackIndex, into_invalid_data};

/// An object as git prints it.
pub struct GitObject {
    pub id: ObjectId,
    pub kind: String,
    pub content: Vec<u8>,
}

/// A bare repository.
pub struct TestRepository {
    folder: TempDir,
    pub format: ObjectFormat,
}

impl TestRepository {
    pub fn new(format: ObjectFormat) -> Self {
        let repository = Self { folder: tempfile::tempdir().unwrap(), format };
        let name = if format == ObjectFormat::Sha1 { "sha1" } else { "sha256" };
        repository.git(&["init", "--bare", "-q", "--object-format", name, "."], b"");
        repository
    }

    /// A repository with this many versions of a few files, in a pack.
    pub fn with_history(format: ObjectFormat, versions: usize) -> Self {
        let repository = Self::new(format);
        repository.import(versions, 10_000);
        repository
    }

    /// Adds many versions of a few files, an empty blob and one of size `large`, all in a pack.
    pub fn import(&self, versions: usize, large: usize) {
        let stays_packed = "fastimport.unpackLimit=1";
        self.git(&["-c", stays_packed, "fast-import", "--quiet"], &history(versions, large));
    }

    /// Runs git without settings of the user, and returns its output.
    pub fn git(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("git")
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.org"])
            .args(["-c", "gc.auto=0", "-c", "pack.threads=1"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            // git may write before it has read all input, so both must run at once.
            scope.spawn(move || stdin.write_all(input));
            child.wait_with_output().unwrap()
        });
        assert!(output.status.success(), "git {arguments:?}");
        output.stdout
    }

    pub fn objects(&self) -> Vec<GitObject> {
        let output = self.git(&["cat-file", "--batch", "--batch-all-objects"], b"");
        let mut rest = output.as_slice();
        let mut objects = Vec::new();
        while !rest.is_empty() {
            let end = rest.iter().position(|&byte| byte == b'\n').unwrap();
            let head: Vec<_> = str::from_utf8(&rest[..end]).unwrap().split(' ').collect();
            let [id, kind, size] = head[..] else { panic!("{head:?}") };
            let content = &rest[end + 1..][..size.parse().unwrap()];
            rest = &rest[end + 1 + content.len() + 1..];
            let (id, kind) = (parse_id(id), kind.to_owned());
            objects.push(GitObject { id, kind, content: content.to_vec() });
        }
        objects
    }

    /// The path of the only pack, with this extension.
    pub fn pack_file(&self, extension: &str) -> PathBuf {
        let folder = self.folder.path().join("objects/pack");
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let is_wanted = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
        let found: Vec<_> = paths.filter(is_wanted).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }

    pub fn index(&self) -> PackIndex {
        PackIndex::open(File::open(self.pack_file("idx")).unwrap(), self.format).unwrap()
    }

    pub fn pack(&self) -> Pack {
        Pack::open(File::open(self.pack_file("pack")).unwrap(), self.index()).unwrap()
    }

    pub fn loose_file(&self, id: &ObjectId) -> File {
        let id = id.to_string();
        File::open(self.folder.path().join("objects").join(&id[..2]).join(&id[2..])).unwrap()
    }

    /// The length of the longest delta chain, as git counts it.
    pub fn deepest_chain(&self) -> usize {
        let index = self.pack_file("idx");
        let output = self.git(&["verify-pack", "-s", index.to_str().unwrap()], b"");
        let lines = String::from_utf8(output).unwrap();
        let last = lines.lines().last().unwrap();
        last.strip_prefix("chain length = ").unwrap().split(':').next().unwrap().parse().unwrap()
    }
}

pub fn parse_id(hex: &str) -> ObjectId {
    let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
    ObjectId::from_bytes(&bytes.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
}

/// The input of `git fast-import`: each version changes a line of each file and adds one.
fn history(versions: usize, large: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut line = move || format!("{:x} and {:x}\n", random.u64(..), random.u64(..));
    let mut files = vec![(0..40).map(|_| line()).collect::<Vec<_>>(); 3];
    let mut stream = Vec::new();
    for version in 0..versions {
        write!(stream, "commit refs/heads/main\ncommitter T <t@e.org> {version} +0000\n").unwrap();
        stream.extend(b"data 1\nx\n");
        for (number, lines) in files.iter_mut().enumerate() {
            let place = (version * 7 + number) % lines.len();
            lines[place] = line();
            lines.push(line());
            add_file(&mut stream, &format!("file{number}"), lines.concat().as_bytes());
        }
    }
    let mut random = fastrand::Rng::with_seed(8);
    let large: Vec<_> = (0..large).map(|_| random.u8(b'a'..b'i')).collect();
    add_file(&mut stream, "large", &large);
    add_file(&mut stream, "empty", b"");
    stream
}

fn add_file(stream: &mut Vec<u8>, name: &str, content: &[u8]) {
    write!(stream, "M 100644 inline {name}\ndata {}\n", content.len()).unwrap();
    stream.extend_from_slice(content);
    stream.push(b'\n');
}

/// An unnamed temporary file with this content.
pub fn file_with(content: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(content, 0).unwrap();
    file
}

pub fn zlib(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

pub const BLOB: u8 = 3;
pub const OFS_DELTA: u8 = 6;
pub const REF_DELTA: u8 = 7;

/// An entry of a pack; `base` is the distance or the id of the base of a delta.
pub fn pack_entry(kind: u8, size: u64, base: &[u8], data: &[u8]) -> Vec<u8> {
    let low = u8::try_from(size & 0x0f).unwrap();
    let has_more = size >> 4 != 0;
    let mut entry = vec![kind << 4 | low | u8::from(has_more) << 7];
    if has_more {
        entry.extend(size_bytes(size >> 4));
    }
    [&entry, base, &zlib(data)].concat()
}

pub fn size_bytes(mut size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(size & 0x7f).unwrap();
        size >>= 7;
        bytes.push(low | u8::from(size != 0) << 7);
        if size == 0 {
            return bytes;
        }
    }
}

pub fn distance_bytes(mut distance: usize) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(distance & 0x7f).unwrap()];
    while distance >> 7 != 0 {
        distance = (distance >> 7) - 1;
        bytes.insert(0, 0x80 | u8::try_from(distance & 0x7f).unwrap());
    }
    bytes
}

pub fn delta_bytes(base_size: u64, result_size: u64, instructions: &[u8]) -> Vec<u8> {
    [&size_bytes(base_size), &size_bytes(result_size), instructions].concat()
}

/// The made-up id of the entry at a position.
pub fn fake_id(position: usize) -> [u8; 20] {
    let mut id = [0; 20];
    id[..4].copy_from_slice(&u32::try_from(position).unwrap().rotate_left(16).to_be_bytes());
    id
}

/// The bytes of a pack with these entries and of its index.
pub fn fake_files(entries: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let ids: Vec<_> = (0..entries.len()).map(fake_id).collect();
    fake_files_with_ids(entries, &ids)
}

/// The same with the ids of the entries, which must be sorted.
pub fn fake_files_with_ids(entries: &[Vec<u8>], ids: &[[u8; 20]]) -> (Vec<u8>, Vec<u8>) {
    let count = u32::try_from(entries.len()).unwrap().to_be_bytes();
    let mut pack = [b"PACK\0\0\0\x02", count.as_slice()].concat();
    let mut offsets = Vec::new();
    for entry in entries {
        offsets.extend(u32::try_from(pack.len()).unwrap().to_be_bytes());
        pack.extend_from_slice(entry);
    }
    pack.extend([0xcc; 20]);
    let mut index = b"\xfftOc\0\0\0\x02".to_vec();
    for first_byte in 0..=u8::MAX {
        let end = ids.iter().filter(|id| id[0] <= first_byte).count();
        index.extend(u32::try_from(end).unwrap().to_be_bytes());
    }
    index.extend(ids.concat());
    index.extend(vec![0; entries.len() * 4]);
    index.extend(offsets);
    index.extend([0xcc; 20]);
    index.extend([0xdd; 20]);
    (pack, index)
}

pub fn open_pack(pack: &[u8], index: &[u8], format: ObjectFormat) -> io::Result<Pack> {
    Pack::open(file_with(pack), PackIndex::open(file_with(index), format)?)
}

pub fn fake_pack(entries: &[Vec<u8>]) -> Pack {
    let (pack, index) = fake_files(entries);
    open_pack(&pack, &index, ObjectFormat::Sha1).unwrap()
}

/// Asserts that a result is an error whose message contains `words`.
#[track_caller]
pub fn assert_refused<T>(result: io::Result<T>, words: &str) {
    let message =
        result.err().map(|error| into_invalid_data(error).to_string()).unwrap_or_default();
    assert!(message.contains(words), "{message:?} and not {words:?}");
}
