//! Kill points: where in a Turn the process is killed, and the watch on the Log that kills it there.

use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::turns::{self, ModelBehaviour, SessionBeforeTurn, TURNS, count_lines};
use crate::support::BinaryEnv;
use crate::support::binary_env::{AtSizeLimit, ProcessOutput};
use crate::support::test_env::DEADLINE;
use crate::support::torture;

/// One kill: its Turn, its moment, and the settings of the run.
#[derive(Debug, Clone)]
pub struct KillPoint {
    /// Number of the killed Turn, from 0.
    pub turn: usize,
    pub when: KillMoment,
    /// The kill of the run that resumes, if there is one.
    pub again: Option<SecondKill>,
    pub durability: &'static str,
    /// Whether the run prints its Events, so that they can be compared with the Log.
    pub events: bool,
}

/// The moment of a kill.
#[derive(Debug, Clone, Copy)]
pub enum KillMoment {
    /// After the Turn's n-th line has appeared.
    Line { number: usize, later: Duration },
    /// In the middle of the append that would exceed this offset. Needs `strace`.
    Offset(u64),
    /// After this time since the start.
    Delay(Duration),
    /// After the first change in the Workspace.
    Change { later: Duration },
    /// After this many processes of an endless command have started.
    Command { processes: usize, later: Duration },
    /// After the model has received the n-th request.
    Request { number: usize, later: Duration, stalls: bool },
}

/// The moment of a second kill, while a resume recovers from the first.
#[derive(Debug, Clone, Copy)]
pub enum SecondKill {
    /// As `KillMoment::Line`.
    Line(usize),
    /// As `KillMoment::Offset`, counted from the end of the Log.
    Offset(u64),
    /// As `KillMoment::Delay`.
    Delay(Duration),
}

impl SecondKill {
    /// The moment of the kill in a Log of this length.
    pub fn when(self, length: u64) -> KillMoment {
        match self {
            Self::Line(number) => KillMoment::Line { number, later: Duration::ZERO },
            Self::Offset(offset) => KillMoment::Offset(length + offset),
            Self::Delay(delay) => KillMoment::Delay(delay),
        }
    }

    fn choose(random: &mut fastrand::Rng) -> Option<Self> {
        match random.u8(0..9) {
            0 => Some(Self::Line(random.usize(1..8))),
            1 if has_strace() => Some(Self::Offset(random.u64(0..900))),
            2 => Some(Self::Delay(Duration::from_micros(random.u64(0..100_000)))),
            _ => None,
        }
    }
}

impl KillPoint {
    pub fn model_behaviour(&self) -> ModelBehaviour {
        match self.when {
            KillMoment::Request { number, stalls: true, .. } => ModelBehaviour::StallAt(number),
            KillMoment::Command { .. } => ModelBehaviour::Hang,
            _ => ModelBehaviour::Normal,
        }
    }
}

/// Kill points of a run: each append `rounds` times, and this many other moments.
pub fn choose_kill_points(
    states: &[SessionBeforeTurn],
    rounds: usize,
    others: usize,
    random: &mut fastrand::Rng,
) -> Vec<KillPoint> {
    let mut points = Vec::new();
    let add = |points: &mut Vec<KillPoint>, random: &mut fastrand::Rng, turn, when| {
        let durability = ["none", "none", "turn", "event"][random.usize(0..4)];
        let again = SecondKill::choose(random);
        let events = random.u8(0..3) == 0;
        points.push(KillPoint { turn, when, again, durability, events });
    };
    let soon = |random: &mut fastrand::Rng| Duration::from_micros(random.u64(0..4000));
    for (turn, state) in states.iter().enumerate() {
        for number in 1..=state.lines {
            for round in 0..rounds {
                let later = if round == 0 { Duration::ZERO } else { soon(random) };
                add(&mut points, random, turn, KillMoment::Line { number, later });
            }
        }
    }
    for round in 0..others {
        let turn = random.usize(0..TURNS);
        let state = &states[turn];
        let when = match round % 5 {
            0 if has_strace() => KillMoment::Offset(random.u64(state.log.len() as u64..state.end)),
            1 => KillMoment::Delay(state.took.mul_f64(random.f64() * 1.1)),
            // Half of them without delay, because a change is half done for a short time only.
            2 => KillMoment::Change {
                later: Duration::from_micros(random.u64(0..3000)) * u32::from(random.bool()),
            },
            // The last Turn runs no command.
            3 if turn + 1 < TURNS => {
                KillMoment::Command { processes: random.usize(1..=3), later: soon(random) }
            }
            _ => KillMoment::Request {
                number: random.usize(1..=state.requests),
                later: soon(random),
                stalls: random.bool(),
            },
        };
        add(&mut points, random, turn, when);
    }
    points
}

/// Whether a process can be killed in the middle of an append, which needs `strace`.
pub fn has_strace() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = Command::new("strace").arg("-V").output().is_ok();
        if !found {
            torture::print_summary(
                "skipped: deaths in the middle of an append, because there is no strace",
            );
        }
        found
    })
}

/// A killed run, and the Log as it was before the kill.
pub struct KilledRun {
    pub ended: ProcessOutput,
    /// All complete lines of the Log before the kill.
    pub durable: Vec<u8>,
}

/// Starts the Turn and kills the process at the given moment.
pub fn kill_at(
    env: &BinaryEnv,
    when: KillMoment,
    words: &[&str],
    requests: &Arc<AtomicUsize>,
) -> KilledRun {
    let mut running = match when {
        KillMoment::Offset(limit) => env.start_limited(words, limit, AtSizeLimit::Kill),
        _ => env.start(words),
    };
    let began = Instant::now();
    let mut watch = LogWatch::new(env);
    let before = watch.lines;
    let untouched = turns::traces(&env.workspace());
    loop {
        watch.read_log(env);
        let is_due = match when {
            KillMoment::Line { number, .. } => watch.lines >= before + number,
            KillMoment::Offset(_) => false,
            KillMoment::Delay(delay) => began.elapsed() >= delay,
            KillMoment::Change { .. } => turns::traces(&env.workspace()) != untouched,
            KillMoment::Command { processes, .. } => {
                env.survivors().iter().filter(|line| line.ends_with(" 300 ")).count() >= processes
            }
            KillMoment::Request { number, .. } => requests.load(Ordering::SeqCst) >= number,
        };
        if is_due || running.child.try_wait().unwrap().is_some() {
            break;
        }
        assert!(began.elapsed() < DEADLINE, "{when:?} never came");
        std::thread::sleep(Duration::from_micros(60));
    }
    match when {
        KillMoment::Line { later, .. }
        | KillMoment::Change { later }
        | KillMoment::Command { later, .. }
        | KillMoment::Request { later, .. } => std::thread::sleep(later),
        KillMoment::Offset(_) | KillMoment::Delay(_) => {}
    }
    watch.read_log(env);
    running.child.kill().ok();
    KilledRun { ended: running.end(), durable: watch.whole_lines() }
}

/// Watch on a growing Log.
struct LogWatch {
    file: Option<File>,
    bytes: Vec<u8>,
    lines: usize,
}

impl LogWatch {
    fn new(env: &BinaryEnv) -> Self {
        let mut watch = Self { file: None, bytes: Vec::new(), lines: 0 };
        watch.read_log(env);
        watch
    }

    fn read_log(&mut self, env: &BinaryEnv) {
        if self.file.is_none() {
            self.file = env.session().and_then(|(_, path)| File::open(path).ok());
        }
        let Some(file) = &mut self.file else { return };
        let known = self.bytes.len();
        file.read_to_end(&mut self.bytes).unwrap();
        self.lines += count_lines(&self.bytes[known..]);
    }

    fn whole_lines(mut self) -> Vec<u8> {
        let end = memchr::memrchr(b'\n', &self.bytes).map_or(0, |place| place + 1);
        self.bytes.truncate(end);
        self.bytes
    }
}
