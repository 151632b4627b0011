//! Damaged Logs of every kind, opened by every command that reads one.

use std::fs;

use serde_json::Value;

use super::{log_of, new_test_env, state};
use crate::support::test_env::PIXIR;

/// Every command that must open a damaged Log.
const COMMANDS: &[&[&str]] = &[
    &["inspect-replay", "ID", "--json"],
    &["inspect-replay", "ID", "--items", "--json"],
    &["diagnose", "ID", "--json"],
    &["export", "ID", "--format", "json", "--json"],
];

type DamageBytes = fn(&[u8]) -> Vec<u8>;

/// Replaces the Log at this path with something else.
type ReplaceLog = fn(&std::path::Path);

/// Damages to the bytes of a Log, by name.
const DAMAGED_LOGS: &[(&str, DamageBytes)] = &[
    ("an empty file", |_| Vec::new()),
    ("one newline", |_| b"\n".to_vec()),
    ("a torn tail", |log| log[..log.len() - 37].to_vec()),
    ("a missing last newline", |log| log[..log.len() - 1].to_vec()),
    ("half of it", |log| log[..log.len() / 2].to_vec()),
    ("a bad line in the middle", |log| in_the_middle(log, b"{\"seq\":\n")),
    ("invalid UTF-8", |log| in_the_middle(log, b"\xff\xfe{\"type\":\"user_message\"}\xff\n")),
    ("a block of NUL", |log| in_the_middle(log, &[0; 9000])),
    ("an event of the future", |log| {
        in_the_middle(
            log,
            br#"{"id":"00","session_id":"x","seq":4,"ts":"x","type":"hologram","data":{"a":[1]}}
"#,
        )
    }),
    ("a known type with an odd payload", |log| {
        in_the_middle(
            log,
            br#"{"id":"00","session_id":"x","seq":4,"ts":"x","type":"tool_call","data":[7]}
"#,
        )
    }),
    ("a huge line", |log| in_the_middle(log, &[vec![b'x'; 70 << 20], vec![b'\n']].concat())),
    ("deeply nested JSON", |log| {
        in_the_middle(log, &["[".repeat(50_000).into_bytes(), b"\n".to_vec()].concat())
    }),
    ("a broken chain", |log| {
        let mut lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
        lines.remove(2);
        lines.concat()
    }),
    ("lines in reverse", |log| {
        let mut lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
        lines.reverse();
        lines.concat()
    }),
    ("every line twice", |log| {
        log.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [line, line].concat()).collect()
    }),
    ("a missing blob", |log| {
        in_the_middle(log, format!(r#"{{"id":"00","session_id":"x","seq":5,"ts":"x","type":"tool_result","data":{{"call_id":"c","ok":true,"$blob":{{"sha256":"{}","bytes":9}}}}}}
"#, "ab".repeat(32)).as_bytes())
    }),
    ("a blob with a name that leads away", |log| {
        in_the_middle(log, br#"{"id":"00","session_id":"x","seq":5,"ts":"x","type":"user_message","data":{"$blob":{"sha256":"../../../../etc/passwd","bytes":9}}}
"#)
    }),
    ("no line that parses", |_| b"not json\nstill not\n".repeat(50)),
    ("a Log of the first Pixir", |_| include_bytes!("../../fixtures/first-pixir.ndjson").to_vec()),
];

fn in_the_middle(log: &[u8], piece: &[u8]) -> Vec<u8> {
    let half = log.len() / 2;
    let end = half + log[half..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    [&log[..end], piece, &log[end..]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_opens_every_damaged_log_and_changes_nothing() {
    let (env, id) = new_test_env().await;
    let path = log_of(&env, &id);
    let whole = fs::read(&path).unwrap();
    for (name, harm) in DAMAGED_LOGS {
        fs::write(&path, harm(&whole)).unwrap();
        let before = state(&env.workspace());
        for command in COMMANDS {
            let args: Vec<&str> =
                command.iter().map(|word| if *word == "ID" { id.as_str() } else { word }).collect();
            let run = env.run_pixir(&args);
            assert!(
                matches!(run.code, Some(0 | 1)),
                "{name}, {args:?}: {:?} {}",
                run.code,
                run.err
            );
            if args.contains(&"--json") {
                let envelope: Value = serde_json::from_str(&run.out).expect(name);
                assert_eq!(envelope["kind"], args[0], "{name}: {envelope}");
                assert!(envelope["output"].is_object(), "{name}, {args:?}: {envelope}");
            }
            assert!(!run.err.contains("panicked"), "{name}: {}", run.err);
        }
        assert!(state(&env.workspace()) == before, "{name}: a reading command changed files");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_another_process_writes_is_read_without_its_lock() {
    let (env, id) = new_test_env().await;
    let held = fs::File::options().append(true).open(log_of(&env, &id)).unwrap();
    held.lock().unwrap();
    for command in COMMANDS {
        let args: Vec<&str> =
            command.iter().map(|word| if *word == "ID" { id.as_str() } else { word }).collect();
        let run = env.run_pixir(&args);
        assert!(matches!(run.code, Some(0 | 1)), "{args:?}: {:?} {}", run.code, run.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_log_is_refused_in_words() {
    let (env, id) = new_test_env().await;
    let path = log_of(&env, &id);
    fs::remove_file(&path).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(pipe.success());
    let states: [(&str, ReplaceLog); 3] = [
        ("a pipe", |_| {}),
        ("a folder", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a link", |path| {
            fs::remove_dir(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        }),
    ];
    for (name, make) in states {
        make(&path);
        for command in COMMANDS {
            let args: Vec<&str> =
                command.iter().map(|word| if *word == "ID" { id.as_str() } else { word }).collect();
            let run = env.run_pixir(&args);
            assert_eq!(run.code, Some(2), "{name}, {args:?}: {}", run.err);
            assert!(!run.out.contains("root:"), "{name}");
        }
    }
    assert!(std::path::Path::new(PIXIR).exists());
}
