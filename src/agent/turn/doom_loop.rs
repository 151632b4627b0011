//! The doom-loop guard: the same calls with the same results, again and again, are stopped.

use std::collections::VecDeque;

/// How many rounds of a cycle run before the next one is refused.
const ROUNDS: usize = 3;

/// The longest cycle that is detected, in calls.
const LONGEST_CYCLE: usize = 8;

/// How many responses with refused calls do not end the Turn.
const MAX_REFUSED_RESPONSES: u32 = 2;

/// How many responses in a row may have no calls.
const MAX_RESPONSES_WITHOUT_CALLS: u32 = 3;

/// The decision about the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopVerdict {
    Go,
    /// Refuse the call; it is part of a cycle of this many calls.
    Refuse(usize),
    /// End the Turn: the model repeats a refused cycle of this many calls.
    End(usize),
}

/// A call that ran, and its result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ObservedCall {
    call: String,
    result: String,
}

/// Watches the calls of one Turn.
#[derive(Debug, Default)]
pub(super) struct DoomLoopGuard {
    /// The last calls, the oldest first.
    observed: VecDeque<ObservedCall>,
    /// Responses with refused calls since the last new call or result.
    refusals: u32,
    /// Whether the current response is counted among them.
    is_counted: bool,
    /// Responses in a row without calls.
    responses_without_calls: u32,
}

impl DoomLoopGuard {
    /// Whether the Turn may continue after a response without calls and final answer.
    pub(super) fn may_go_on_without_calls(&mut self) -> bool {
        self.responses_without_calls += 1;
        self.responses_without_calls <= MAX_RESPONSES_WITHOUT_CALLS
    }

    /// Starts the calls of another response.
    pub(super) fn begin_response(&mut self) {
        self.responses_without_calls = 0;
        self.is_counted = false;
    }

    /// Whether a call may turn out to be refused when those before it have run.
    pub(super) fn may_be_refused(&self, call: &str) -> bool {
        self.observed.iter().filter(|own| own.call == call).count() >= ROUNDS
    }

    /// Judges a call before it runs; `call` is its name and arguments.
    pub(super) fn judge(&mut self, call: &str) -> LoopVerdict {
        let Some(length) = (1..=LONGEST_CYCLE).find(|length| self.is_cycle(*length, call)) else {
            return LoopVerdict::Go;
        };
        if !std::mem::replace(&mut self.is_counted, true) {
            self.refusals += 1;
        }
        if self.refusals > MAX_REFUSED_RESPONSES {
            LoopVerdict::End(length)
        } else {
            LoopVerdict::Refuse(length)
        }
    }

    /// Whether the last calls are rounds of a cycle of `length` calls that this call belongs to.
    /// The order within a round does not matter, because that of parallel calls does not.
    fn is_cycle(&self, length: usize, call: &str) -> bool {
        let Some(start) = self.observed.len().checked_sub(ROUNDS * length) else { return false };
        let round = |number: usize| {
            let from = start + number * length;
            let mut round: Vec<&ObservedCall> = self.observed.range(from..from + length).collect();
            round.sort_unstable();
            round
        };
        let first = round(0);
        first.iter().any(|own| own.call == call) && (1..ROUNDS).all(|next| round(next) == first)
    }

    /// Forgets all calls, after a call that reported on unfinished work: such work changes without
    /// the model, so the call is never part of a cycle.
    pub(super) fn clear(&mut self) {
        self.observed.clear();
    }

    /// Records a call that ran and its result.
    pub(super) fn record(&mut self, call: String, result: String) {
        let observed = ObservedCall { call, result };
        if !self.observed.contains(&observed) {
            self.refusals = 0;
        }
        self.observed.push_back(observed);
        if self.observed.len() > ROUNDS * LONGEST_CYCLE {
            self.observed.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts on calls, each in a separate response and always with the same result.
    fn verdicts<'c>(calls: impl IntoIterator<Item = &'c str>) -> Vec<LoopVerdict> {
        let mut guard = DoomLoopGuard::default();
        let judge = |call: &str| {
            guard.begin_response();
            let verdict = guard.judge(call);
            if verdict == LoopVerdict::Go {
                guard.record(call.to_owned(), "same".to_owned());
            }
            verdict
        };
        calls.into_iter().map(judge).collect()
    }

    #[test]
    fn the_fourth_round_of_a_cycle_is_refused_and_then_the_turn_ends() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        for length in 1..=LONGEST_CYCLE {
            let calls = names[..length].iter().copied().cycle().take(ROUNDS * length + 3);
            let found = verdicts(calls);
            let (ran, rest) = found.split_at(ROUNDS * length);
            assert!(ran.iter().all(|verdict| *verdict == LoopVerdict::Go), "{length}: {found:?}");
            let refused = LoopVerdict::Refuse(length);
            assert_eq!(rest, [refused, refused, LoopVerdict::End(length)], "{length}");
        }
        let longer = verdicts(names.into_iter().cycle().take(90));
        assert!(
            longer.iter().all(|verdict| *verdict == LoopVerdict::Go),
            "more than eight are no cycle"
        );
    }

    #[test]
    fn the_order_within_a_round_does_not_matter() {
        let found = verdicts(["a", "b", "b", "a", "a", "b", "b"]);
        assert_eq!(found.last(), Some(&LoopVerdict::Refuse(2)));
    }

    #[test]
    fn all_calls_of_one_response_are_refused_before_the_turn_ends() {
        let mut guard = DoomLoopGuard::default();
        for _ in 0..ROUNDS {
            guard.begin_response();
            for call in ["a", "b", "c", "d"] {
                assert_eq!(guard.judge(call), LoopVerdict::Go);
                guard.record(call.to_owned(), "same".to_owned());
            }
        }
        for expected in [LoopVerdict::Refuse(4), LoopVerdict::Refuse(4), LoopVerdict::End(4)] {
            guard.begin_response();
            for call in ["d", "c", "b", "a"] {
                assert!(guard.may_be_refused(call));
                assert_eq!(guard.judge(call), expected);
            }
        }
    }

    #[test]
    fn a_changed_result_another_call_or_a_look_at_others_starts_the_count_again() {
        let mut guard = DoomLoopGuard::default();
        for round in 0..10 {
            guard.begin_response();
            assert_eq!(guard.judge("bash ls"), LoopVerdict::Go);
            guard.record("bash ls".into(), format!("{}", round / 2));
        }
        for _ in 0..10 {
            guard.begin_response();
            assert_eq!(guard.judge("wait"), LoopVerdict::Go);
            guard.clear();
            assert_eq!(guard.judge("bash date"), LoopVerdict::Go);
            guard.record("bash date".into(), "today".into());
        }
    }
}
