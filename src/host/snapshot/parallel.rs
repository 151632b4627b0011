//! Parallel map over a slice, with the available parallelism.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::walk::threads;

/// Applies `work` to every piece; results are in the order of the pieces.
pub fn parallel_map<P: Sync, R: Send>(pieces: &[P], work: impl Fn(&P) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run_worker = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(place) else { return done };
            done.push((place, work(piece)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        // When no thread can be started, this one does all the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, run_worker).ok();
        let others: Vec<_> = (1..threads().min(pieces.len())).map_while(start).collect();
        let mut done = run_worker();
        for other in others {
            match other.join() {
                Ok(theirs) => done.extend(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_pieces() {
        for count in [0, 1, 2, 1000] {
            let pieces: Vec<usize> = (0..count).collect();
            let twice: Vec<usize> = pieces.iter().map(|piece| piece * 2).collect();
            assert_eq!(parallel_map(&pieces, |piece| piece * 2), twice);
        }
    }
}
