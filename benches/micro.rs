//! Micro benchmarks: the Log, its fold, the reducer and request building, in one process.
//!
//! A row of n items always works on 100,000 items in all (a hundred Logs of 1,000, ten of 10,000,
//! one of 100,000), so that the caches are equally cold and the cost per item can be compared.

#![expect(clippy::unwrap_used, reason = "a benchmark stops at its first error")]
#![expect(clippy::print_stdout, reason = "the tables are the output")]

#[path = "support/table.rs"]
mod table;

use std::time::{Duration, Instant};

use pixir::bench::{Log, compact_history, reduce_stream, request_body};
use pixir::{
    AssistantMessage, CallId, Canonical, Extra, History, Phase, ProviderUsage, Reasoning,
    SessionId, TokenUsage, ToolCall, ToolResult, UserMessage,
};
use serde_json::json;
use table::{median, time, verdict};
use tempfile::TempDir;

/// How many items every row works on.
const TOTAL: usize = 100_000;
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// How often a History is copied and appended to.
const COPIES: usize = 1_000;
const MODEL: &str = "gpt-5.5";

struct Row {
    name: &'static str,
    size: usize,
    time: Duration,
    per_item: Duration,
}

fn main() {
    let began = Instant::now();
    let mut rows = Vec::new();
    let logs: Vec<Logs> = SIZES.iter().map(|size| Logs::write(*size, &mut rows)).collect();
    for logs in &logs {
        let opened = median_of(|| (), |()| logs.open());
        rows.push(row("open", logs.size, opened));
    }
    for logs in &logs {
        let histories = logs.open().into_iter().map(|log| log.history().clone()).collect();
        measure_histories(logs.size, histories, &mut rows);
    }
    measure_request(2_000, &logs[1], &mut rows);
    for deltas in [2_000, 20_000] {
        measure_reduction(deltas, &mut rows);
    }
    show(&rows);
    println!("\n{} in all", time(began.elapsed()));
}

/// Logs of one size on the disk, 100,000 Events together.
struct Logs {
    folder: TempDir,
    ids: Vec<SessionId>,
    size: usize,
}

impl Logs {
    /// Writes the Logs, which is the `append` row.
    fn write(size: usize, rows: &mut Vec<Row>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ids: Vec<SessionId> = (0..TOTAL / size).map(|_| SessionId::mint()).collect();
        let mut taken = Duration::ZERO;
        for id in &ids {
            let mut log = Log::create(folder.path(), id).unwrap();
            let facts: Vec<Canonical> = (0..size).map(fact).collect();
            let start = Instant::now();
            for fact in facts {
                log.append(fact).unwrap();
            }
            taken += start.elapsed();
        }
        rows.push(row("append", size, taken));
        Self { folder, ids, size }
    }

    fn open(&self) -> Vec<Log> {
        self.ids.iter().map(|id| Log::open(self.folder.path(), id).unwrap().0).collect()
    }
}

fn measure_histories(size: usize, histories: Vec<History>, rows: &mut Vec<Row>) {
    let folded = median_of(
        || (),
        |()| histories.iter().map(|h| (h.turns(), h.orphan_calls())).collect::<Vec<_>>(),
    );
    rows.push(row("fold (turns, orphans)", size, folded));
    let built = median_of(
        || (),
        |()| histories.iter().map(|history| request_body(history.clone()).len()).sum::<usize>(),
    );
    rows.push(row("request body", size, built));
    let compacted = median_of(|| (), |()| histories.iter().map(compact_history).sum::<u64>());
    rows.push(row("compaction", size, compacted));
    let first = histories.into_iter().next().unwrap();
    let next = first.iter().next().unwrap().clone();
    let copied = median_of(
        || (first.clone(), Vec::with_capacity(COPIES)),
        |(mut history, mut copies)| {
            for _ in 0..COPIES {
                copies.push(history.clone());
                history.push(next.clone());
            }
            (history, copies)
        },
    );
    let per_item = copied / u32::try_from(COPIES).unwrap();
    rows.push(Row { name: "copy + append, each", size, time: copied, per_item });
}

/// The request body of one warm History of `items` Events, as every Iteration of a Turn builds it.
fn measure_request(items: usize, logs: &Logs, rows: &mut Vec<Row>) {
    let log = logs.open().into_iter().next().unwrap();
    let visible = |event: &&pixir::SharedEvent| event.type_name() != "provider_usage";
    let events = log.history().iter().filter(visible).take(items).cloned().collect();
    let history = History::from_events(events);
    let taken = median_of(|| (), |()| request_body(history.clone()));
    let per_item = taken / u32::try_from(items).unwrap();
    rows.push(Row { name: "request body, warm", size: items, time: taken, per_item });
}

fn measure_reduction(deltas: usize, rows: &mut Vec<Row>) {
    let stream = sse(deltas);
    let length = (0..deltas).map(|place| text(place, 6).len()).sum::<usize>();
    let taken = median_of(|| (), |()| assert_eq!(reduce_stream(&stream, 16 * 1024), length));
    let per_item = taken / u32::try_from(deltas).unwrap();
    rows.push(Row { name: "reduce deltas", size: deltas, time: taken, per_item });
}

/// Repeats until there are enough runs and enough time has passed, and returns the median.
///
/// `prepare` is not timed, and what `work` returns is dropped after the clock has stopped.
fn median_of<I, O>(mut prepare: impl FnMut() -> I, mut work: impl FnMut(I) -> O) -> Duration {
    const RUNS: usize = 5;
    const ENOUGH: Duration = Duration::from_millis(400);
    let began = Instant::now();
    let mut times = Vec::new();
    while times.len() < RUNS || (began.elapsed() < ENOUGH && times.len() < 200) {
        let input = prepare();
        let start = Instant::now();
        let output = work(input);
        times.push(start.elapsed());
        drop(std::hint::black_box(output));
    }
    median(&mut times)
}

/// A row that worked on all items; its time is that of one part of `size` items.
fn row(name: &'static str, size: usize, all: Duration) -> Row {
    let part = all * u32::try_from(size).unwrap() / u32::try_from(TOTAL).unwrap();
    Row { name, size, time: part, per_item: all / u32::try_from(TOTAL).unwrap() }
}

/// The n-th Event of a long and busy Session: ten calls per Turn.
fn fact(place: usize) -> Canonical {
    const TURN: usize = 42;
    let serial = place / 4;
    let call_id = CallId::new(format!("call_{:024x}", (place % TURN) / 4 + place / TURN * 100));
    match place % TURN {
        0 => UserMessage { text: text(place, 300), ..UserMessage::default() }.into(),
        41 => AssistantMessage {
            text: text(place, 600),
            phase: Some(Phase::Final),
            metadata: None,
            extra: Extra::new(),
        }
        .into(),
        step => match step % 4 {
            1 => usage(serial).into(),
            2 => Reasoning {
                item: json!({
                    "id": format!("rs_{serial:032x}"), "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": text(place, 120)}],
                    "encrypted_content": text(place, 500).replace(' ', "A"),
                }),
                model: MODEL.to_owned(),
                extra: Extra::new(),
            }
            .into(),
            3 => ToolCall {
                call_id,
                name: "bash".to_owned(),
                args: json!({"command": text(place, 200), "timeout_ms": 60_000}),
                raw_args: None,
                extra: Extra::new(),
            }
            .into(),
            _ => ToolResult {
                call_id: CallId::new(format!(
                    "call_{:024x}",
                    (place % TURN - 1) / 4 + place / TURN * 100
                )),
                ok: true,
                output: Some(text(place, 450)),
                error: None,
                details: json!({"exit_code": 0, "duration_ms": 12, "output_bytes": 450}),
                extra: Extra::new(),
            }
            .into(),
        },
    }
}

fn usage(serial: usize) -> ProviderUsage {
    ProviderUsage {
        model: MODEL.to_owned(),
        status: Some("completed".to_owned()),
        usage: Some(TokenUsage {
            input_tokens: 12_345,
            cached_tokens: 12_000,
            output_tokens: 321,
            reasoning_tokens: 64,
            total_tokens: 12_666,
            extra: Extra::new(),
        }),
        transport: Some("sse".to_owned()),
        first_byte_ms: Some(400),
        duration_ms: Some(2_100),
        response_id: Some(format!("resp_{serial:032x}")),
        prompt_contract: Some("pxr1".to_owned()),
        prompt_cache_key: Some("pxr1:gpt-5.5:20260721T101112-abcdef".to_owned()),
        ..ProviderUsage::default()
    }
}

/// Text of `length` bytes or slightly more, with some newlines and quotes, as in code.
fn text(seed: usize, length: usize) -> String {
    const WORDS: [&str; 8] = [
        "let ",
        "the answer ",
        "= \"quoted\";\n",
        "src/main.rs:12 ",
        "über ",
        "42 ",
        "ok\n",
        "fn ",
    ];
    let words = (seed..).map(|place| WORDS[(place * 7 + place / 8) % WORDS.len()]);
    let mut text = String::with_capacity(length + 16);
    for word in words {
        if text.len() >= length {
            break;
        }
        text.push_str(word);
    }
    text
}

fn sse(deltas: usize) -> Vec<u8> {
    let mut stream = Vec::new();
    for place in 0..deltas {
        let data = json!({
            "type": "response.output_text.delta", "sequence_number": place, "item_id": "msg_1",
            "output_index": 0, "content_index": 0, "delta": text(place, 6),
        });
        let frame = format!("event: response.output_text.delta\ndata: {data}\n\n");
        stream.extend_from_slice(frame.as_bytes());
    }
    stream
}

fn show(rows: &[Row]) {
    let cells =
        |row: &Row| [row.name.to_owned(), row.size.to_string(), time(row.time), time(row.per_item)];
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by_key(|row| rows.iter().position(|first| first.name == row.name));
    let lines: Vec<_> = sorted.into_iter().map(cells).collect();
    table::print(["row", "n", "time", "per item"], &lines);
    println!("\nPromises:");
    let find = |name: &str, size| rows.iter().find(|row| row.name == name && row.size == size);
    let open = find("open", TOTAL).unwrap().time;
    let holds = open <= Duration::from_millis(500);
    println!("- open of 100,000 Events in {}, at most 500 ms: {}", time(open), verdict(holds));
    for first in rows.iter().filter(|row| row.size == 1_000) {
        let last = find(first.name, TOTAL).unwrap();
        let ratio = last.per_item.as_secs_f64() / first.per_item.as_secs_f64();
        println!(
            "- {}: an item of 100,000 costs {ratio:.2}× one of 1,000, at most 2×: {}",
            first.name,
            verdict(ratio <= 2.0)
        );
    }
}
