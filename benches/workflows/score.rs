//! Checks of a run: answers, Logs and usage must be right. The times are taken from the Log.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Times and concurrency of a run, from the parent's Log.
#[derive(Debug, Clone, Default)]
pub struct Spans {
    /// From the first Event of the run to the end of its last child.
    pub whole_ms: f64,
    /// Sum over all children, each from being queued to its end.
    pub children_ms: f64,
    /// Most children that were open at the same time.
    pub most_at_once: usize,
}

/// Checks that each answer is at its index.
pub fn check_answers<'a>(
    answers: impl Iterator<Item = &'a str>,
    count: usize,
    faults: &mut Vec<String>,
) {
    let mut found = 0;
    for (place, text) in answers.enumerate() {
        found += 1;
        if text.lines().next() != Some(format!("answer {place}").as_str()) {
            faults.push(format!("the answer at {place} is {text:?}"));
        }
    }
    if found != count {
        faults.push(format!("{found} answers, not {count}"));
    }
}

/// Checks that the Logs of a run are intact and their usage adds up; returns its times.
pub fn check_logs(work: &Path, envelope: &Value, count: usize, faults: &mut Vec<String>) -> Spans {
    if envelope["ok"] != true {
        faults.push(format!("it says: {}", envelope["error"]));
    }
    let Some(parent) = envelope["session_id"].as_str() else {
        faults.push("there is no Session".to_owned());
        return Spans::default();
    };
    let events = events(&log(work, parent));
    let subagent_events = || events.iter().filter(|event| event["type"] == "subagent_event");
    let of =
        |name: &'static str| subagent_events().filter(move |life| life["data"]["event"] == name);
    let (mut children, mut starts_and_ends) = (0.0, Vec::new());
    for ended in of("finished") {
        let id = ended["data"]["child_session_id"].as_str().unwrap();
        let is_same = |life: &&Value| life["data"]["subagent_id"] == ended["data"]["subagent_id"];
        let (queued, started) = (of("queued").find(is_same), of("started").find(is_same));
        children += event_seconds(ended) - queued.map_or(0.0, event_seconds);
        starts_and_ends
            .extend([(started.map_or(0.0, event_seconds), 1), (event_seconds(ended), -1)]);
        let proof = pixir::verify_log(work, &pixir::SessionId::parse(id).unwrap()).unwrap();
        let spent = tokens(&self::events(&log(work, id)));
        if !proof.ok || Some(spent) != ended["data"]["usage"]["total_tokens"].as_u64() {
            faults.push(format!("{id} does not add up"));
        }
    }
    if starts_and_ends.len() != 2 * count {
        faults.push(format!("{} of {count} children ended", starts_and_ends.len() / 2));
    }
    let first = events
        .iter()
        .find(|event| event["type"] == "workflow_event" || event["data"]["event"] == "queued");
    let last = events
        .iter()
        .rfind(|event| event["data"]["kind"] == "finished" || event["data"]["event"] == "finished");
    Spans {
        whole_ms: (last.map_or(0.0, event_seconds) - first.map_or(0.0, event_seconds)) * 1e3,
        children_ms: children * 1e3,
        most_at_once: most_at_once(starts_and_ends),
    }
}

/// Most children that were open at the same time.
fn most_at_once(mut starts_and_ends: Vec<(f64, i32)>) -> usize {
    starts_and_ends.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let (mut now, mut most) = (0, 0);
    for (_, change) in starts_and_ends {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or_default()
}

fn tokens(events: &[Value]) -> u64 {
    let usage_records = events.iter().filter(|event| event["type"] == "provider_usage");
    usage_records
        .filter_map(|usage_record| usage_record["data"]["usage"]["total_tokens"].as_u64())
        .sum()
}

fn log(work: &Path, id: &str) -> PathBuf {
    work.join(format!(".pixir/sessions/{id}.ndjson"))
}

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Seconds of the day; a run that crosses midnight must be repeated.
fn event_seconds(event: &Value) -> f64 {
    let clock = event["ts"].as_str().unwrap().split_once('T').unwrap().1.trim_end_matches('Z');
    clock.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}
