//! Tests with repositories that git wrote: the reader finds what git finds.

mod damage;
mod hostile;
pub(crate) mod support;

use std::collections::HashSet;

use support::{TestRepository, file_with, parse_id, zlib};

use super::*;

const LIMIT: u64 = 8 << 20;

/// Compares every object of a packed repository with the output of git.
fn compare_with_git(repository: &TestRepository) {
    let pack = repository.pack();
    let objects = repository.objects();
    assert_eq!(pack.index().object_count() as usize, objects.len());
    let mut kinds = HashSet::new();
    for object in objects {
        let position = pack.index().find(&object.id).unwrap().unwrap();
        assert_eq!(pack.index().id_at(position).unwrap(), object.id);
        assert_eq!(pack.index().find_in_file(&object.id).unwrap(), Some(position));
        let found = pack.read_blob(position, LIMIT);
        assert_eq!(pack.check_blob(position, LIMIT).is_ok(), found.is_ok());
        if object.kind == "blob" {
            assert!(found.unwrap() == object.content, "{}", object.id);
            assert_eq!(repository.format.blob_id(&object.content), object.id);
        } else {
            support::assert_refused(found, "the object is not a blob");
        }
        kinds.insert(object.kind);
    }
    assert_eq!(kinds.len(), 3, "{kinds:?}");
}

#[test]
fn blobs_in_long_chains_of_offset_deltas_are_read_as_git_reads_them() {
    for (format, large) in [(ObjectFormat::Sha1, 3 << 20), (ObjectFormat::Sha256, 10)] {
        let repository = TestRepository::new(format);
        repository.import(120, large);
        repository.git(&["repack", "-adfq", "--depth=50", "--window=60"], b"");
        assert!(repository.deepest_chain() >= 40, "{}", repository.deepest_chain());
        compare_with_git(&repository);
    }
}

#[test]
fn blobs_in_chains_of_id_deltas_are_read_as_git_reads_them() {
    for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
        let repository = TestRepository::with_history(format, 60);
        let no_offsets = "repack.useDeltaBaseOffset=false";
        repository.git(&["-c", no_offsets, "repack", "-adfq", "--depth=50"], b"");
        assert!(repository.deepest_chain() >= 10, "{}", repository.deepest_chain());
        compare_with_git(&repository);
    }
}

#[test]
fn loose_blobs_are_read_as_git_reads_them() {
    for (format, large) in [(ObjectFormat::Sha1, 3 << 20), (ObjectFormat::Sha256, 10)] {
        let packed = TestRepository::new(format);
        packed.import(8, large);
        let repository = TestRepository::new(format);
        let pack = std::fs::read(packed.pack_file("pack")).unwrap();
        repository.git(&["unpack-objects", "-q"], &pack);
        let objects = repository.objects();
        assert!(objects.iter().any(|object| object.content.is_empty()));
        assert!(objects.iter().any(|object| object.content.len() == large));
        for object in objects {
            let found = loose::read_blob(&repository.loose_file(&object.id), LIMIT);
            if object.kind == "blob" {
                assert!(found.unwrap() == object.content, "{}", object.id);
            } else {
                support::assert_refused(found, "the object is not a blob");
            }
        }
    }
}

#[test]
fn a_blob_that_is_exactly_as_large_as_the_limit_is_read_and_a_larger_one_is_refused() {
    let content = vec![b'x'; 1000];
    let file = file_with(&zlib(&[b"blob 1000\0", content.as_slice()].concat()));
    assert_eq!(loose::read_blob(&file, 1000).unwrap(), content);
    let refused = loose::read_blob(&file, 999);
    support::assert_refused(refused, "the blob has 1000 bytes, which is more than 999");

    let repository = TestRepository::with_history(ObjectFormat::Sha1, 30);
    repository.git(&["repack", "-adfq", "--depth=50"], b"");
    let pack = repository.pack();
    for object in repository.objects().into_iter().filter(|object| object.kind == "blob") {
        let position = pack.index().find(&object.id).unwrap().unwrap();
        let size = object.content.len() as u64;
        assert!(pack.read_blob(position, size).unwrap() == object.content);
        let Some(limit) = size.checked_sub(1) else { continue };
        let refused = pack.read_blob(position, limit);
        support::assert_refused(refused, "the blob has");
    }
}

#[test]
fn offsets_of_64_bits_are_followed() {
    let repository = TestRepository::with_history(ObjectFormat::Sha1, 30);
    let (pack, index) = (repository.pack_file("pack"), repository.pack_file("idx"));
    let before = std::fs::metadata(&index).unwrap().len();
    // Git writes every offset from 0x100 on with 64 bits.
    let pack = pack.to_str().unwrap();
    repository
        .git(&["index-pack", "--index-version=2,0x100", "-o", index.to_str().unwrap(), pack], b"");
    assert!(std::fs::metadata(&index).unwrap().len() > before + 8 * 100);
    compare_with_git(&repository);
}

#[test]
fn an_index_of_version_1_is_refused() {
    let repository = TestRepository::with_history(ObjectFormat::Sha1, 1);
    let (pack, index) = (repository.pack_file("pack"), repository.pack_file("idx"));
    let (pack, index) = (pack.to_str().unwrap(), index.to_str().unwrap());
    repository.git(&["index-pack", "--index-version=1", "-o", index, pack], b"");
    let refused = PackIndex::open(std::fs::File::open(index).unwrap(), ObjectFormat::Sha1);
    support::assert_refused(refused, "not a pack index of version 2");
}

#[test]
fn an_index_of_the_other_format_is_refused() {
    for (format, other) in
        [(ObjectFormat::Sha1, ObjectFormat::Sha256), (ObjectFormat::Sha256, ObjectFormat::Sha1)]
    {
        let repository = TestRepository::with_history(format, 4);
        let file = std::fs::File::open(repository.pack_file("idx")).unwrap();
        let refused = PackIndex::open(file, other);
        support::assert_refused(refused, "does not fit its");
    }
}

#[test]
fn a_pack_with_the_index_of_another_pack_is_refused() {
    let (one, two) =
        (TestRepository::new(ObjectFormat::Sha1), TestRepository::new(ObjectFormat::Sha1));
    for (repository, content) in [(&one, b"one"), (&two, b"two")] {
        let id = repository.git(&["hash-object", "-w", "--stdin"], content);
        repository.git(&["pack-objects", "-q", "objects/pack/pack"], &id);
    }
    let pack = std::fs::File::open(one.pack_file("pack")).unwrap();
    let refused = Pack::open(pack, two.index());
    support::assert_refused(refused, "the index belongs to another pack");
}

#[test]
fn what_the_pack_does_not_have_is_not_found() {
    let repository = TestRepository::with_history(ObjectFormat::Sha1, 30);
    let index = repository.index();
    for number in 0..2000_u32 {
        let id = ObjectFormat::Sha1.blob_id(&number.to_be_bytes());
        assert_eq!(index.find(&id).unwrap(), None);
        assert_eq!(index.find_in_file(&id).unwrap(), None);
    }
    for byte in [0, 0xff] {
        assert_eq!(index.find(&ObjectId::from_bytes(&[byte; 20]).unwrap()).unwrap(), None);
    }
    let first = index.id_at(0).unwrap();
    let longer = [first.as_bytes(), &[0; 12]].concat();
    assert_eq!(index.find(&ObjectId::from_bytes(&longer).unwrap()).unwrap(), None);
    for position in [index.object_count(), u32::MAX] {
        let refused = index.id_at(position);
        support::assert_refused(refused, "the pack index has no object at position");
        let refused = index.offset(position);
        support::assert_refused(refused, "the pack index has no object at position");
    }
}

#[test]
fn an_empty_index_finds_nothing() {
    let pack = support::fake_pack(&[]);
    assert_eq!(pack.index().object_count(), 0);
    assert_eq!(pack.index().find(&ObjectFormat::Sha1.blob_id(b"")).unwrap(), None);
    let refused = pack.read_blob(0, LIMIT);
    support::assert_refused(refused, "the pack index has no object at position 0");
}

#[test]
fn a_file_that_was_changed_anywhere_has_no_valid_checksum() {
    for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
        let repository = TestRepository::with_history(format, 4);
        for kind in ["pack", "idx"] {
            let bytes = std::fs::read(repository.pack_file(kind)).unwrap();
            assert!(format.has_valid_checksum(&file_with(&bytes)).unwrap());
            for place in [0, bytes.len() / 2, bytes.len() - 1] {
                let mut changed = bytes.clone();
                changed[place] ^= 1;
                assert!(!format.has_valid_checksum(&file_with(&changed)).unwrap(), "{place}");
            }
            for length in [0, 10, bytes.len() - 1] {
                let cut = file_with(&bytes[..length]);
                assert!(!format.has_valid_checksum(&cut).unwrap(), "{length}");
            }
        }
    }
}

#[test]
fn several_threads_read_one_pack() {
    let repository = TestRepository::with_history(ObjectFormat::Sha1, 30);
    let pack = repository.pack();
    let objects = repository.objects();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for object in objects.iter().filter(|object| object.kind == "blob") {
                    let position = pack.index().find(&object.id).unwrap().unwrap();
                    assert!(pack.read_blob(position, LIMIT).unwrap() == object.content);
                }
            });
        }
    });
}

#[test]
fn ids_are_those_of_git_and_keep_their_bytes() {
    let known = [
        (ObjectFormat::Sha1, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        (ObjectFormat::Sha256, "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"),
    ];
    for (format, hex) in known {
        let id = format.blob_id(b"");
        assert_eq!(id.to_string(), hex);
        assert_eq!(id, parse_id(hex));
        assert_eq!(id.as_bytes().len(), format.id_length());
        assert_eq!(ObjectId::from_bytes(id.as_bytes()), Some(id));
    }
    for length in [0, 19, 21, 31, 33] {
        assert_eq!(ObjectId::from_bytes(&vec![0; length]), None);
    }
    assert!(ObjectId::from_bytes(&[1; 20]) < ObjectId::from_bytes(&[2; 20]));
}
