//! Kill: a Session dies at every append and at random, and nothing that was durable is lost.

mod after;
mod point;
mod scene;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::json;

use after::Found;
use point::{Death, Point};
use scene::{Before, GO_ON};

use crate::support::Stage;
use crate::support::stage::copy_tree;
use crate::support::torture::{self, Size};

/// How many Sessions die side by side.
const WORKERS: usize = 3;

/// What came of all the points.
#[derive(Debug, Default)]
struct Tally {
    points: usize,
    killed: usize,
    finished: usize,
    /// Killed again while the first death was dealt with.
    twice: usize,
    no_session: usize,
    torn: usize,
    /// Files that were being written and never got their name.
    temporaries: usize,
}

impl Tally {
    fn count(&mut self, point: &Point, died: &Died) {
        let Died { death, found, temporaries } = died;
        let found = *found;
        self.temporaries += temporaries;
        self.points += 1;
        self.twice += usize::from(point.again.is_some() && found != Found::NoSession);
        let was_killed = death.ended.status.code().is_none();
        *(if was_killed { &mut self.killed } else { &mut self.finished }) += 1;
        match found {
            Found::NoSession => self.no_session += 1,
            Found::Torn => self.torn += 1,
            Found::Whole => {}
        }
    }
}

/// One point, dealt with.
struct Died {
    death: Death,
    found: Found,
    temporaries: usize,
}

async fn die(before: &Before, point: &Point) -> Died {
    let (mark, requests) = (Stage::mark(), Arc::new(AtomicUsize::new(0)));
    let script = scene::script(&mark, point.habit(), requests.clone());
    let stage = Stage::new(mark, script).await;
    stage.configure(&json!({"durability": point.durability}));
    copy_tree(before.folder.path(), &stage.workspace());
    let mut words = scene::words(before.id.as_ref(), point.turn);
    words.extend(point.events.then_some("--events"));
    tokio::task::block_in_place(|| {
        let kill = |when, words: &[&str]| {
            let death = point::strike(&stage, when, words, &requests);
            let code = death.ended.status.code();
            assert!(matches!(code, None | Some(0)), "{point:?}: {:?}", death.ended);
            let found = after::check(&stage, before, point, &death);
            (death, found)
        };
        let (death, mut found) = kill(point.when, &words);
        let first = found;
        let temporaries = scene::traces(&stage.workspace())
            .iter()
            .filter(|(name, ..)| ![scene::FILE, "notes.txt"].contains(&name.as_str()))
            .count();
        if let (Some((id, path)), Some(again)) = (stage.session(), point.again) {
            let length = fs::metadata(path).unwrap().len();
            found = kill(again.when(length), &["resume", id.as_str(), GO_ON, "--events"]).1;
        }
        if found != Found::NoSession {
            after::resume(&stage, point, found);
        }
        Died { death, found: first, temporaries }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_session_that_is_killed_anywhere_loses_nothing_and_goes_on() {
    let (size, seed, began) = (Size::asked(), torture::seed(), Instant::now());
    let mut random = fastrand::Rng::with_seed(seed);
    let states = Arc::new(scene::rehearse().await);
    let mut points = point::choose(&states, size.of(1, 6), size.of(24, 360), &mut random);
    random.shuffle(&mut points);
    let (points, next) = (Arc::new(points), Arc::new(AtomicUsize::new(0)));
    let tally = Arc::new(Mutex::new(Tally::default()));
    let workers = (0..WORKERS).map(|_| {
        let (states, points) = (states.clone(), points.clone());
        let (next, tally) = (next.clone(), tally.clone());
        tokio::spawn(async move {
            while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                let died = die(&states[point.turn], point).await;
                tally.lock().unwrap().count(point, &died);
            }
        })
    });
    for ended in futures_util::future::join_all(workers).await {
        ended.unwrap();
    }
    let Tally { points: count, killed, finished, twice, no_session, torn, temporaries } =
        *tally.lock().unwrap();
    assert_eq!(count, points.len());
    assert!(killed * 2 > count, "{killed} of {count} were killed in time");
    assert!(size == Size::Sample || killed >= 300, "{killed} kills");
    torture::say(&format!(
        "kill: points={count} killed={killed} finished before the kill={finished} struck twice={twice} \
         before a Session={no_session} torn tails={torn} temporaries left={temporaries} survivors=0 seed={seed}, {:.1} s",
        began.elapsed().as_secs_f64(),
    ));
}
