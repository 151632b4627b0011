//! Kill points: where in a Turn the process is killed, and the watch on the Log that kills it there.

use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::scene::{self, ModelBehaviour, SessionBeforeTurn, TURNS, count_lines};
use crate::support::BinaryEnv;
use crate::support::binary_env::{AtSizeLimit, ProcessOutput};
use crate::support::test_env::DEADLINE;
use crate::support::torture;

/// One kill.
#[derive(Debug, Clone)]
pub struct KillPoint {
    /// From 0.
    pub turn: usize,
    pub when: KillMoment,
    /// The run that resumes is killed too, where this says.
    pub again: Option<SecondKill>,
    pub durability: &'static str,
    /// Whether the run prints its Events, so that what was published can be compared.
    pub events: bool,
}

/// The moment of a kill.
#[derive(Debug, Clone, Copy)]
pub enum KillMoment {
    /// When the Turn's n-th line has appeared, and a little later.
    Line { number: usize, later: Duration },
    /// When the Log would grow beyond this offset: in the middle of the append. Needs `strace`.
    Offset(u64),
    /// So long after the start.
    Delay(Duration),
    /// When the first change is seen in the Workspace, and a little later.
    Change { later: Duration },
    /// When so many processes of a command that does not end are there, and a little later.
    Command { processes: usize, later: Duration },
    /// When the model has received the n-th request, and a little later.
    Request { number: usize, later: Duration, stalls: bool },
}

/// The moment of a second kill, while a resume recovers from the first.
#[derive(Debug, Clone, Copy)]
pub enum SecondKill {
    /// As `When::Line`.
    Line(usize),
    /// As `When::Offset`, counted from where the Log ended.
    Offset(u64),
    /// As `When::Delay`.
    Delay(Duration),
}

impl SecondKill {
    /// The moment in a Log that is so long by now.
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

/// Every point of a run: each append `rounds` times, and as many of the others as asked for.
pub fn choose_kill_points(
    states: &[SessionBeforeTurn],
    rounds: usize,
    others: usize,
    random: &mut fastrand::Rng,
) -> Vec<KillPoint> {
    let mut points = Vec::new();
    let add = |points: &mut Vec<KillPoint>, random: &mut fastrand::Rng, turn, when| {
        let durability = ["none", "none", "turn", "event"][random.usize(0..4)];
        let (again, events) = (SecondKill::choose(random), random.u8(0..3) == 0);
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
            // Half of them at once: what is half done at that moment is soon whole.
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
fn has_strace() -> bool {
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

/// A killed run, and what was durable before.
pub struct KilledRun {
    pub ended: ProcessOutput,
    /// Every whole line that was in the Log before the strike.
    pub durable: Vec<u8>,
}

/// Starts the Turn and kills the process at the point.
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
    let (before, untouched) = (watch.lines, scene::traces(&env.workspace()));
    loop {
        watch.read_log(env);
        let strikes = match when {
            KillMoment::Line { number, .. } => watch.lines >= before + number,
            KillMoment::Offset(_) => false,
            KillMoment::Delay(delay) => began.elapsed() >= delay,
            KillMoment::Change { .. } => scene::traces(&env.workspace()) != untouched,
            KillMoment::Command { processes, .. } => {
                env.survivors().iter().filter(|line| line.ends_with(" 300 ")).count() >= processes
            }
            KillMoment::Request { number, .. } => requests.load(Ordering::SeqCst) >= number,
        };
        if strikes || running.child.try_wait().unwrap().is_some() {
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

/// The Log as it grows.
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
