//! Kill: a Session dies at every append and at random, and nothing that was durable is lost.

mod after;
mod point;
mod scene;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use after::Found;
use point::{Death, Point};
use scene::Before;

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
    no_session: usize,
    torn: usize,
}

impl Tally {
    fn count(&mut self, death: &Death, found: Found) {
        self.points += 1;
        let was_killed = death.ended.status.code().is_none();
        *(if was_killed { &mut self.killed } else { &mut self.finished }) += 1;
        match found {
            Found::NoSession => self.no_session += 1,
            Found::Torn => self.torn += 1,
            Found::Whole => {}
        }
    }
}

async fn die(state: &Before, point: &Point) -> (Death, Found) {
    let (mark, requests) = (Stage::mark(), Arc::new(AtomicUsize::new(0)));
    let script = scene::script(&mark, point.habit(), requests.clone());
    let stage = Stage::new(mark, script).await;
    stage.configure(point.durability);
    copy_tree(state.folder.path(), &stage.workspace());
    let words = scene::words(state.id.as_ref(), point.turn);
    tokio::task::block_in_place(|| {
        let death = point::strike(&stage, point, &words, &requests);
        let code = death.ended.status.code();
        assert!(matches!(code, None | Some(0)), "{point:?}: {:?}", death.ended);
        let found = after::check(&stage, state, point, &death);
        (death, found)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_session_that_is_killed_anywhere_loses_nothing_and_goes_on() {
    let (size, seed, began) = (Size::asked(), torture::seed(), Instant::now());
    let mut random = fastrand::Rng::with_seed(seed);
    let states = Arc::new(scene::rehearse().await);
    let mut points = point::choose(&states, size.of(1, 4), size.of(36, 240), &mut random);
    random.shuffle(&mut points);
    if size == Size::Sample {
        points.truncate(48);
    }
    let (points, next) = (Arc::new(points), Arc::new(AtomicUsize::new(0)));
    let tally = Arc::new(Mutex::new(Tally::default()));
    let workers = (0..WORKERS).map(|_| {
        let (states, points) = (states.clone(), points.clone());
        let (next, tally) = (next.clone(), tally.clone());
        tokio::spawn(async move {
            while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (death, found) = die(&states[point.turn], point).await;
                tally.lock().unwrap().count(&death, found);
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let Tally { points: count, killed, finished, no_session, torn } = *tally.lock().unwrap();
    assert_eq!(count, points.len());
    assert!(killed * 2 > count, "{killed} of {count} were killed in time");
    assert!(size == Size::Sample || killed >= 300, "{killed} kills");
    torture::say(&format!(
        "kill: points={count} killed={killed} finished before the kill={finished} \
         before a Session={no_session} torn tails={torn} survivors=0 seed={seed}, {:.1} s",
        began.elapsed().as_secs_f64(),
    ));
}
