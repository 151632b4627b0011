//! Tests with files that git would never write: they are refused without delay.

use std::time::{Duration, Instant};

use super::LIMIT;
use super::support::*;
use crate::host::git_objects::delta::Delta;
use crate::host::git_objects::{ObjectFormat, ObjectId, PackIndex, loose};

/// An instruction that copies this many bytes, at most `0xff_ffff`, from the start of the base.
fn copy_instruction(size: u32) -> Vec<u8> {
    [&[0b1111_0000], &size.to_le_bytes()[..3]].concat()
}

#[test]
fn a_delta_that_announces_10_gib_is_refused_at_once() {
    let begin = Instant::now();
    let base = pack_entry(BLOB, 4, b"", b"base");
    let distance = distance_bytes(base.len());
    let too_long =
        pack_entry(OFS_DELTA, 10 << 30, &distance, &delta_bytes(4, 4, &copy_instruction(4)));
    assert_refused(
        fake_pack(&[base.clone(), too_long]).read_blob(1, LIMIT),
        "the delta chain needs too much memory or work",
    );

    let data = delta_bytes(4, 10 << 30, &copy_instruction(4));
    let large_result = pack_entry(OFS_DELTA, data.len() as u64, &distance, &data);
    assert_refused(fake_pack(&[base.clone(), large_result]).read_blob(1, LIMIT), "the blob has");

    let data = delta_bytes(10 << 30, 4, &copy_instruction(4));
    let large_base = pack_entry(OFS_DELTA, data.len() as u64, &distance, &data);
    let small = fake_pack(&[base, large_base]);
    assert_refused(small.read_blob(1, LIMIT), "a delta is malformed");
    let base = pack_entry(BLOB, 10 << 30, b"", b"base");
    let distance = distance_bytes(base.len());
    let large_base = pack_entry(OFS_DELTA, data.len() as u64, &distance, &data);
    assert_refused(
        fake_pack(&[base, large_base]).read_blob(1, LIMIT),
        "the delta chain needs too much memory or work",
    );

    assert_refused(
        fake_pack(&[pack_entry(BLOB, 10 << 30, b"", b"")]).read_blob(0, LIMIT),
        "the blob has",
    );
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn data_that_is_longer_or_shorter_than_announced_is_refused() {
    let zeros = vec![0; 64 << 20];
    for announced in [0, 1, 4095, 4096, 1 << 20] {
        let pack = fake_pack(&[pack_entry(BLOB, announced, b"", &zeros)]);
        assert_refused(
            pack.read_blob(0, LIMIT),
            "the compressed data does not have the announced size",
        );
    }
    assert_refused(
        fake_pack(&[pack_entry(BLOB, 5, b"", b"four")]).read_blob(0, LIMIT),
        "the compressed data does not have the announced size",
    );
    assert_refused(
        fake_pack(&[pack_entry(BLOB, LIMIT, b"", b"four")]).read_blob(0, LIMIT),
        "the compressed data does not have the announced size",
    );
    let huge = u64::MAX >> 4;
    let pack = fake_pack(&[pack_entry(BLOB, huge, b"", b"four")]);
    assert_refused(
        pack.read_blob(0, u64::MAX),
        "the compressed data does not have the announced size",
    );
}

#[test]
fn a_stream_without_its_checksum_is_refused() {
    let mut whole = pack_entry(BLOB, 4, b"", b"four");
    let end = whole.len();
    whole[end - 1] ^= 1;
    assert_refused(
        fake_pack(&[whole.clone()]).read_blob(0, LIMIT),
        "the compressed data is corrupt",
    );
    for cut in 1..=4 {
        let pack = fake_pack(&[whole[..end - cut].to_vec()]);
        assert_refused(pack.read_blob(0, LIMIT), "the file is truncated");
        let loose = zlib(b"blob 4\0four");
        let file = file_with(&loose[..loose.len() - cut]);
        assert_refused(loose::read_blob(&file, LIMIT), "the file is truncated");
    }
}

#[test]
fn a_cycle_of_deltas_is_refused() {
    let data = delta_bytes(4, 4, &copy_instruction(4));
    let link = |base| pack_entry(REF_DELTA, data.len() as u64, &fake_id(base), &data);
    assert_refused(fake_pack(&[link(0)]).read_blob(0, LIMIT), "the delta chain is a cycle");
    let circle = fake_pack(&[link(1), link(2), link(3), link(0)]);
    for position in 0..4 {
        assert_refused(circle.read_blob(position, LIMIT), "the delta chain is a cycle");
    }
    let backwards = fake_pack(&[link(2), link(0), link(1)]);
    assert_refused(backwards.read_blob(1, LIMIT), "the delta chain is a cycle");
}

#[test]
fn a_chain_may_have_4096_deltas_and_no_more() {
    let data = delta_bytes(4, 4, &copy_instruction(4));
    let first = pack_entry(BLOB, 4, b"", b"base");
    let mut entries = vec![first];
    for _ in 0..4097 {
        let distance = distance_bytes(entries.last().unwrap().len());
        entries.push(pack_entry(OFS_DELTA, data.len() as u64, &distance, &data));
    }
    let pack = fake_pack(&entries);
    assert_eq!(pack.read_blob(4096, LIMIT).unwrap(), b"base");
    assert_refused(pack.read_blob(4097, LIMIT), "the delta chain is too deep");
}

#[test]
fn a_small_pack_that_would_build_a_terabyte_is_refused_before_anything_is_built() {
    let size = 200 << 20;
    let chunk = 10_u32 << 20;
    let small = pack_entry(BLOB, chunk.into(), b"", &vec![0; chunk as usize]);
    let copies = copy_instruction(chunk).repeat(20);
    let mut entries = vec![small];
    for link in 0..4000 {
        let base_size = if link == 0 { chunk.into() } else { size };
        let data = delta_bytes(base_size, size, &copies);
        let distance = distance_bytes(entries.last().unwrap().len());
        entries.push(pack_entry(OFS_DELTA, data.len() as u64, &distance, &data));
    }
    let data = delta_bytes(size, 4, &copy_instruction(4));
    let distance = distance_bytes(entries.last().unwrap().len());
    entries.push(pack_entry(OFS_DELTA, data.len() as u64, &distance, &data));
    let pack = fake_pack(&entries);
    let begin = Instant::now();
    assert_refused(pack.read_blob(4001, LIMIT), "the delta chain needs too much memory or work");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn what_the_headers_of_a_chain_show_is_what_reading_it_finds() {
    let data = delta_bytes(4, 4, &copy_instruction(4));
    let size = data.len() as u64;
    let above = |entries: &[Vec<u8>]| distance_bytes(entries.last().unwrap().len());
    let mut entries = vec![pack_entry(BLOB, 4, b"", b"base")];
    for _ in 0..4097 {
        entries.push(pack_entry(OFS_DELTA, size, &above(&entries), &data));
    }
    let deep = fake_pack(&entries);
    let small_file_of_large_base = |base: u64| {
        let mut entries = vec![pack_entry(BLOB, base, b"", b"")];
        let data = delta_bytes(base, 4, &copy_instruction(4));
        entries.push(pack_entry(OFS_DELTA, data.len() as u64, &above(&entries), &data));
        fake_pack(&entries)
    };
    // The chain that ends at 4096 is checked first, so that the next one uses its cost.
    for place in [0, 1, 4095, 4096, 4097] {
        assert_eq!(
            deep.check_blob(place, LIMIT).is_ok(),
            deep.read_blob(place, LIMIT).is_ok(),
            "{place}"
        );
    }
    assert_refused(
        small_file_of_large_base((256 << 20) + 1).check_blob(1, LIMIT),
        "the delta chain needs too much memory or work",
    );
    small_file_of_large_base(256 << 20).check_blob(1, LIMIT).unwrap();
    let other = fake_pack(&[pack_entry(1, 4, b"", b"base")]);
    assert_refused(other.check_blob(0, LIMIT), "the object is not a blob");
    let circle = fake_pack(&[pack_entry(REF_DELTA, size, &fake_id(0), &data)]);
    assert_refused(circle.check_blob(0, LIMIT), "the delta chain is a cycle");
}

#[test]
fn a_small_blob_does_not_keep_the_memory_of_its_large_base() {
    let large = pack_entry(BLOB, 2 << 20, b"", &vec![b'x'; 2 << 20]);
    let mut entries = vec![large];
    for (base_size, size) in [(2 << 20, 2_u32 << 20), (2 << 20, 4)] {
        let data = delta_bytes(base_size, size.into(), &copy_instruction(size));
        let distance = distance_bytes(entries.last().unwrap().len());
        entries.push(pack_entry(OFS_DELTA, data.len() as u64, &distance, &data));
    }
    let content = fake_pack(&entries).read_blob(2, 4).unwrap();
    assert_eq!(content, b"xxxx");
    assert!(content.capacity() < 1000, "{}", content.capacity());
}

#[test]
fn a_delta_that_does_not_fit_its_base_or_its_result_is_refused() {
    let base = pack_entry(BLOB, 4, b"", b"base");
    let distance = distance_bytes(base.len());
    let read = |data: &[u8]| {
        let second = pack_entry(OFS_DELTA, data.len() as u64, &distance, data);
        fake_pack(&[base.clone(), second]).read_blob(1, LIMIT)
    };
    let good = [copy_instruction(4).as_slice(), &[0x91, 1, 2], b"\x03new"].concat();
    assert_eq!(read(&delta_bytes(4, 9, &good)).unwrap(), b"baseasnew");
    let outside: &[u8] = &[0x91, 3, 2];
    let unfinished: &[u8] = &[0x91, 1];
    let without_size: &[u8] = &[0x80];
    let bad: [Vec<u8>; 12] = [
        vec![],
        vec![0x80; 30],
        delta_bytes(4, 9, b""),
        delta_bytes(4, 8, &good),
        delta_bytes(4, 10, &good),
        delta_bytes(3, 9, &good),
        delta_bytes(5, 9, &good),
        delta_bytes(4, 2, outside),
        delta_bytes(4, 2, unfinished),
        delta_bytes(4, 1 << 16, without_size),
        delta_bytes(4, 1, b"\0"),
        delta_bytes(4, 3, b"\x03ne"),
    ];
    for data in bad {
        assert_refused(read(&data), "a delta is malformed");
    }
}

#[test]
fn a_delta_that_makes_more_than_it_announces_is_stopped_there() {
    let base = vec![0; 1 << 20];
    let delta =
        Delta::parse(delta_bytes(1 << 20, 4, &copy_instruction(1 << 20).repeat(100))).unwrap();
    let mut result = Vec::new();
    assert_refused(delta.apply(&base, &mut result), "a delta is malformed");
    assert!(result.capacity() < 1000, "{}", result.capacity());
}

#[test]
fn a_delta_of_something_else_than_a_blob_is_not_a_blob() {
    let data = delta_bytes(4, 4, &copy_instruction(4));
    for kind in [1, 2, 4] {
        let other = pack_entry(kind, 4, b"", b"base");
        let distance = distance_bytes(other.len());
        let second = pack_entry(OFS_DELTA, data.len() as u64, &distance, &data);
        let pack = fake_pack(&[other, second]);
        assert_refused(pack.read_blob(0, LIMIT), "the object is not a blob");
        assert_refused(pack.read_blob(1, LIMIT), "the object is not a blob");
    }
}

#[test]
fn entries_that_point_to_nothing_are_refused() {
    let data = delta_bytes(4, 4, &copy_instruction(4));
    let size = data.len() as u64;
    let read = |entry: Vec<u8>| fake_pack(&[entry]).read_blob(0, LIMIT);
    assert_refused(read(pack_entry(REF_DELTA, size, &fake_id(5), &data)), "the delta base");
    assert_refused(
        read(pack_entry(OFS_DELTA, size, &[0], &data)),
        "the header of a pack entry is malformed",
    );
    assert_refused(
        read(pack_entry(OFS_DELTA, size, &distance_bytes(1), &data)),
        "the pack has no object at offset",
    );
    assert_refused(
        read(pack_entry(OFS_DELTA, size, &distance_bytes(13), &data)),
        "the pack has no object at offset",
    );
    assert_refused(
        read(pack_entry(OFS_DELTA, size, &[0xff; 20], &data)),
        "the header of a pack entry is malformed",
    );
    assert_refused(read(pack_entry(0, 4, b"", b"base")), "the header of a pack entry is malformed");
    assert_refused(read(pack_entry(5, 4, b"", b"base")), "the header of a pack entry is malformed");
    assert_refused(read(vec![0xbf; 20]), "the header of a pack entry is malformed");
    assert_refused(read(vec![0xbf; 3]), "the file is truncated");
    assert_refused(read(vec![0x3f, 1, 2, 3]), "the compressed data is corrupt");
}

#[test]
fn a_malformed_index_is_refused() {
    let entries: Vec<_> = (0..300).map(|_| pack_entry(BLOB, 4, b"", b"base")).collect();
    let (pack, index) = fake_files(&entries);
    let with = |place: usize, bytes: &[u8]| {
        let mut index = index.clone();
        index[place..][..bytes.len()].copy_from_slice(bytes);
        open_pack(&pack, &index, ObjectFormat::Sha1)
    };
    assert_refused(with(0, b"x"), "not a pack index of version 2");
    assert_refused(with(4, &[0, 0, 0, 3]), "not a pack index of version 2");
    assert_refused(with(8, &[0xff; 4]), "the fan-out table of the pack index is not monotonic");
    assert_refused(with(8 + 255 * 4, &4_000_001_u32.to_be_bytes()), "does not fit its");
    assert_refused(with(8 + 255 * 4, &u32::MAX.to_be_bytes()), "does not fit its");
    assert_refused(with(8 + 255 * 4, &301_u32.to_be_bytes()), "does not fit its");

    let ids = 8 + 256 * 4;
    let unsorted = with(ids, &[0, 99]).unwrap();
    assert_refused(unsorted.index().id_at(0), "the ids of the pack index are not sorted");
    let elsewhere = with(ids + 255 * 20, &[1]).unwrap();
    assert_refused(
        elsewhere.index().find(&ObjectId::from_bytes(&[0; 20]).unwrap()),
        "the ids of the pack index are not sorted",
    );

    let offsets = ids + 300 * 24;
    let large = with(offsets, &[0x80, 0, 0, 0]).unwrap();
    assert_refused(large.read_blob(0, LIMIT), "the pack index lacks a 64-bit offset");
    for outside in [0, 11, u32::try_from(pack.len()).unwrap() - 20, 0x7fff_ffff] {
        let elsewhere = with(offsets, &outside.to_be_bytes()).unwrap();
        assert_refused(elsewhere.read_blob(0, LIMIT), "the pack has no object at offset");
    }
    for length in [0, 7, 8, 1031, 1032, index.len() - 8, index.len() - 1] {
        let cut = PackIndex::open(file_with(&index[..length]), ObjectFormat::Sha1);
        assert!(cut.is_err(), "{length}");
    }
}

#[test]
fn a_malformed_pack_is_refused() {
    let (pack, index) = fake_files(&[pack_entry(BLOB, 4, b"", b"base")]);
    let with = |place: usize, byte: u8| {
        let mut pack = pack.clone();
        pack[place] = byte;
        open_pack(&pack, &index, ObjectFormat::Sha1)
    };
    assert_eq!(with(7, 3).unwrap().read_blob(0, LIMIT).unwrap(), b"base");
    assert_refused(with(0, b'p'), "not a pack of version 2 or 3");
    assert_refused(with(7, 4), "not a pack of version 2 or 3");
    assert_refused(with(11, 2), "the pack has 2 objects and its index 1");
    assert_refused(with(pack.len() - 1, 0), "the index belongs to another pack");
    assert_refused(open_pack(&pack[..11], &index, ObjectFormat::Sha1), "the file is truncated");
    assert_refused(open_pack(&pack[..20], &index, ObjectFormat::Sha1), "the file is truncated");
}

#[test]
fn a_malformed_loose_object_is_refused() {
    let read = |content: &[u8]| loose::read_blob(&file_with(&zlib(content)), LIMIT);
    assert_eq!(read(b"blob 4\0four").unwrap(), b"four");
    assert_eq!(read(b"blob 0\0").unwrap(), b"");
    for header in ["", "\0", "blob\0", "blob \0", "blob  4\0four", "blob +4\0four", "BLOB 4\0four"]
    {
        assert_refused(read(header.as_bytes()), "the header of a loose object is malformed");
    }
    assert_refused(read(b"blob 04\0four"), "the header of a loose object is malformed");
    assert_refused(
        read(b"blob 99999999999999999999999\0"),
        "the header of a loose object is malformed",
    );
    assert_refused(read(&[b'b'; 100]), "the header of a loose object is malformed");
    assert_refused(read(b"blob 3\0four"), "the compressed data does not have the announced size");
    assert_refused(read(b"blob 5\0four"), "the compressed data does not have the announced size");
    assert_refused(read(b"blob 10737418240\0four"), "the blob has");
    assert_refused(read(b"tree 4\0four"), "the object is not a blob");
    assert_refused(loose::read_blob(&file_with(b""), LIMIT), "the file is truncated");
    assert_refused(
        loose::read_blob(&file_with(b"blob 4\0four"), LIMIT),
        "the compressed data is corrupt",
    );
    let followed = [zlib(b"blob 4\0four"), b"x".to_vec()].concat();
    assert_refused(
        loose::read_blob(&file_with(&followed), LIMIT),
        "the loose object is followed by other data",
    );
}
