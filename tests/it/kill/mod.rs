//! Kills at every append and at random moments: no durable Event is lost, and the Session continues.

mod after;
mod point;
mod turns;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::json;

use after::LogEnd;
use point::{KillPoint, KilledRun};
use turns::{GO_ON, SessionBeforeTurn};

use crate::support::BinaryEnv;
use crate::support::binary_env::copy_tree;
use crate::support::torture::{self, SuiteSize};

/// Number of Sessions that run in parallel.
const WORKERS: usize = 3;

/// Counts over all kill points.
#[derive(Debug, Default)]
struct KillTotals {
    points: usize,
    killed: usize,
    finished: usize,
    /// Runs that were killed again while they resumed.
    twice: usize,
    no_session: usize,
    torn: usize,
    /// Temporary files that were left behind.
    temporaries: usize,
}

impl KillTotals {
    fn count(&mut self, point: &KillPoint, checked: &CheckedKill) {
        let CheckedKill { killed_run, found, temporaries } = checked;
        let found = *found;
        self.temporaries += temporaries;
        self.points += 1;
        self.twice += usize::from(point.again.is_some() && found != LogEnd::NoSession);
        let was_killed = killed_run.ended.status.code().is_none();
        *(if was_killed { &mut self.killed } else { &mut self.finished }) += 1;
        match found {
            LogEnd::NoSession => self.no_session += 1,
            LogEnd::Torn => self.torn += 1,
            LogEnd::Whole => {}
        }
    }
}

/// Result of one kill point.
struct CheckedKill {
    killed_run: KilledRun,
    found: LogEnd,
    temporaries: usize,
}

async fn kill_and_check(before: &SessionBeforeTurn, point: &KillPoint) -> CheckedKill {
    let mark = BinaryEnv::new_mark();
    let requests = Arc::new(AtomicUsize::new(0));
    let script = turns::script(&mark, point.model_behaviour(), requests.clone());
    let env = BinaryEnv::new(mark, script).await;
    env.configure(&json!({"durability": point.durability}));
    copy_tree(before.folder.path(), &env.workspace());
    let mut words = turns::words(before.id.as_ref(), point.turn);
    words.extend(point.events.then_some("--events"));
    tokio::task::block_in_place(|| {
        let kill = |when, words: &[&str]| {
            let killed_run = point::kill_at(&env, when, words, &requests);
            let code = killed_run.ended.status.code();
            assert!(matches!(code, None | Some(0)), "{point:?}: {:?}", killed_run.ended);
            let found = after::check_state_after_kill(&env, before, point, &killed_run);
            (killed_run, found)
        };
        let (killed_run, mut found) = kill(point.when, &words);
        let first = found;
        let temporaries = turns::traces(&env.workspace())
            .iter()
            .filter(|(name, ..)| ![turns::FILE, "notes.txt"].contains(&name.as_str()))
            .count();
        if let (Some((id, path)), Some(again)) = (env.session(), point.again) {
            let length = fs::metadata(path).unwrap().len();
            found = kill(again.when(length), &["resume", id.as_str(), GO_ON, "--events"]).1;
        }
        if found != LogEnd::NoSession {
            after::resume(&env, point, found);
        }
        CheckedKill { killed_run, found: first, temporaries }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_session_that_is_killed_anywhere_loses_nothing_and_goes_on() {
    let size = SuiteSize::from_environment();
    let seed = torture::seed();
    let began = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let states = Arc::new(turns::record_undisturbed_turns().await);
    let mut points =
        point::choose_kill_points(&states, size.choose(1, 6), size.choose(24, 360), &mut random);
    random.shuffle(&mut points);
    let points = Arc::new(points);
    let next = Arc::new(AtomicUsize::new(0));
    let totals = Arc::new(Mutex::new(KillTotals::default()));
    let workers = (0..WORKERS).map(|_| {
        let states = states.clone();
        let points = points.clone();
        let next = next.clone();
        let totals = totals.clone();
        tokio::spawn(async move {
            while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                let checked = kill_and_check(&states[point.turn], point).await;
                totals.lock().unwrap().count(point, &checked);
            }
        })
    });
    for ended in futures_util::future::join_all(workers).await {
        ended.unwrap();
    }
    let KillTotals { points: count, killed, finished, twice, no_session, torn, temporaries } =
        *totals.lock().unwrap();
    assert_eq!(count, points.len());
    assert!(killed * 2 > count, "{killed} of {count} were killed in time");
    assert!(size == SuiteSize::Sample || killed >= 300, "{killed} kills");
    assert!(twice > 0, "no resume was killed");
    assert!(torn > 0 || !point::has_strace(), "no kill hit the middle of an append");
    torture::print_summary(&format!(
        "kill: points={count} killed={killed} finished before the kill={finished} killed twice={twice} \
         before a Session={no_session} torn tails={torn} temporaries left={temporaries} survivors=0 seed={seed}, {:.1} s",
        began.elapsed().as_secs_f64(),
    ));
}
