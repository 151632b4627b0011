//! Property tests with damaged files: reading ends with bytes or an error.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;

use super::support::*;
use crate::host::git_objects::delta::Delta;
use crate::host::git_objects::{ObjectFormat, Pack, PackIndex, loose};

const LIMIT: u64 = 4 << 20;
/// Limit in bytes for the growth of the process's peak memory; other tests run at the same time.
const MOST_MEMORY: u64 = 512 << 20;

/// A pack that git wrote, and its index.
static FILES: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let repository = TestRepository::with_history(ObjectFormat::Sha1, 15);
    repository.git(&["repack", "-adfq", "--depth=50"], b"");
    let read = |extension| std::fs::read(repository.pack_file(extension)).unwrap();
    (read("pack"), read("idx"))
});

/// One change of a file, at a relative position that fits a file of any length.
#[derive(Debug, Clone)]
enum ByteChange {
    Flip(f64, u8),
    Overwrite(f64, [u8; 4]),
    Cut(f64),
}

fn byte_change() -> impl Strategy<Value = ByteChange> {
    prop_oneof![
        8 => (0.0..1.0, 1_u8..).prop_map(|(place, mask)| ByteChange::Flip(place, mask)),
        4 => (0.0..1.0, any::<[u8; 4]>()).prop_map(|(place, new)| ByteChange::Overwrite(place, new)),
        1 => (0.0..1.0).prop_map(ByteChange::Cut),
    ]
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn apply_changes(file: &[u8], changes: &[ByteChange]) -> Vec<u8> {
    let mut file = file.to_vec();
    for change in changes {
        let at = |share: f64| (share * file.len() as f64) as usize;
        match *change {
            ByteChange::Cut(share) => file.truncate(at(share)),
            ByteChange::Flip(share, mask) => {
                let at = at(share);
                file.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= mask);
            }
            ByteChange::Overwrite(share, new) => {
                let at = at(share);
                file.iter_mut().skip(at).zip(new).for_each(|(byte, new)| *byte = new);
            }
        }
    }
    file
}

fn read_everything(pack: &Pack) {
    for position in 0..pack.index().object_count().min(200) {
        if let Ok(id) = pack.index().id_at(position) {
            let _ = pack.index().find(&id);
        }
        if let Ok(content) = pack.read_blob(position, LIMIT) {
            assert!(content.len() as u64 <= LIMIT);
        }
    }
}

/// The peak memory of this process in bytes; 0 where the system does not report it.
fn peak_memory() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

fn assert_bounded(read: impl FnOnce()) {
    let (begin, before) = (Instant::now(), peak_memory());
    read();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    // The kernel counts roughly, so the peak may even seem to sink.
    assert!(peak_memory().saturating_sub(before) < MOST_MEMORY, "{}", peak_memory());
}

fn proptest_config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(proptest_config(96))]

    #[test]
    fn a_damaged_pack_and_a_damaged_index_give_bytes_or_errors(
        in_pack in vec(byte_change(), 0..20),
        in_index in vec(byte_change(), 0..4),
    ) {
        let (pack, index) = (apply_changes(&FILES.0, &in_pack), apply_changes(&FILES.1, &in_index));
        assert_bounded(|| {
            if let Ok(pack) = open_pack(&pack, &index, ObjectFormat::Sha1) {
                read_everything(&pack);
            }
        });
    }

    #[test]
    fn files_that_change_after_they_were_opened_give_bytes_or_errors(
        in_pack in vec(byte_change(), 0..20),
        in_index in vec(byte_change(), 0..20),
    ) {
        use std::os::unix::fs::FileExt;
        let files = [file_with(&FILES.0), file_with(&FILES.1)];
        let copies = files.each_ref().map(|file| file.try_clone().unwrap());
        let [pack, index] = files;
        let pack = Pack::open(pack, PackIndex::open(index, ObjectFormat::Sha1).unwrap()).unwrap();
        for (file, new) in copies.iter().zip([
            apply_changes(&FILES.0, &in_pack),
            apply_changes(&FILES.1, &in_index),
        ]) {
            file.set_len(new.len() as u64).unwrap();
            file.write_all_at(&new, 0).unwrap();
        }
        assert_bounded(|| read_everything(&pack));
    }
}

proptest! {
    #![proptest_config(proptest_config(500))]

    #[test]
    fn entries_of_any_kind_in_any_order_give_bytes_or_errors(
        entries in vec((0_u8..8, 0_u64..40, 0_usize..80, 0_usize..6, delta_data()), 1..6),
    ) {
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(kind, odd_size, distance, base, data)| {
                let size = if odd_size == 0 { u64::MAX >> 5 } else { data.len() as u64 };
                match kind {
                    OFS_DELTA => pack_entry(OFS_DELTA, size, &distance_bytes(distance), &data),
                    REF_DELTA => pack_entry(REF_DELTA, size, &fake_id(base), &data),
                    _ => pack_entry(kind.min(BLOB), size, b"", &data),
                }
            })
            .collect();
        assert_bounded(|| read_everything(&fake_pack(&entries)));
    }

    #[test]
    fn a_delta_of_any_bytes_makes_what_it_announces_or_nothing(
        base in vec(any::<u8>(), 0..64),
        data in delta_data(),
    ) {
        let mut result = Vec::new();
        if let Ok(delta) = Delta::parse(data)
            && delta.result_size <= LIMIT
            && delta.apply(&base, &mut result).is_ok()
        {
            assert_eq!(result.len() as u64, delta.result_size);
        }
    }

    #[test]
    fn a_loose_object_of_any_bytes_gives_bytes_or_an_error(
        header in "(blob|tree|b)? ?[0-9]{0,21}\0?",
        content in vec(any::<u8>(), 0..64),
        in_file in vec(byte_change(), 0..3),
    ) {
        let file = zlib(&[header.as_bytes(), &content].concat());
        let file = file_with(&apply_changes(&file, &in_file));
        assert_bounded(|| drop(loose::read_blob(&file, LIMIT)));
    }
}

/// The data of a delta whose sizes and copies are small enough to fit often.
fn delta_data() -> impl Strategy<Value = Vec<u8>> {
    let instruction = prop_oneof![
        4 => (0_u8..8, 0_u8..8).prop_map(|(start, size)| vec![0x91, start, size]),
        4 => vec(any::<u8>(), 1..8).prop_map(|new| {
            [&[u8::try_from(new.len()).unwrap()], new.as_slice()].concat()
        }),
        1 => vec(any::<u8>(), 0..6),
    ];
    (0_u64..32, 0_u64..64, vec(instruction, 0..8))
        .prop_map(|(base, result, instructions)| delta_bytes(base, result, &instructions.concat()))
}
