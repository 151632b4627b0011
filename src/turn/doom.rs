//! The doom-loop guard: the same call with the same result, again and again, is stopped.

/// How often a call may repeat with the same result before the next one is refused.
const REPEATS: u32 = 3;

/// How many refusals a Turn survives.
const REFUSALS: u32 = 2;

/// Tools that are meant to be asked again.
const EXEMPT: &[&str] = &["bash_output", "wait_agent", "list_agents"];

/// What becomes of the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    /// Tell the model to do something else.
    Refuse,
    /// It goes on like that: the Turn ends.
    End,
}

/// Watches the calls of one Turn.
#[derive(Debug, Default)]
pub(super) struct DoomGuard {
    last: Option<(String, String)>,
    repeats: u32,
    refusals: u32,
    /// Iterations in a row that only talked.
    idle: u32,
}

impl DoomGuard {
    /// Whether the Turn may go on although the model only announced that it will.
    pub(super) fn may_go_on_without_calls(&mut self) -> bool {
        self.idle += 1;
        self.idle <= REPEATS
    }

    /// Whether a call is the one that was made last.
    pub(super) fn is_last(&self, call: &str) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| last == call)
    }

    /// Judges a call before it runs; `call` is its name and arguments.
    pub(super) fn judge(&mut self, tool: &str, call: &str) -> Verdict {
        self.idle = 0;
        let is_same = self.is_last(call);
        if EXEMPT.contains(&tool) || !is_same || self.repeats < REPEATS {
            return Verdict::Go;
        }
        self.refusals += 1;
        if self.refusals > REFUSALS { Verdict::End } else { Verdict::Refuse }
    }

    /// Notes what a call that ran answered.
    pub(super) fn note(&mut self, call: String, result: String) {
        let now = (call, result);
        if self.last.as_ref() == Some(&now) {
            self.repeats += 1;
        } else {
            self.last = Some(now);
            self.repeats = 1;
            self.refusals = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_identical_call_is_refused_and_the_sixth_ends_the_turn() {
        let mut guard = DoomGuard::default();
        let mut verdicts = Vec::new();
        for _ in 0..6 {
            let verdict = guard.judge("bash", "bash ls");
            verdicts.push(verdict);
            if verdict == Verdict::Go {
                guard.note("bash ls".into(), "same".into());
            }
        }
        assert_eq!(
            verdicts,
            [Verdict::Go, Verdict::Go, Verdict::Go, Verdict::Refuse, Verdict::Refuse, Verdict::End]
        );
    }

    #[test]
    fn a_changed_result_or_another_call_starts_the_count_again() {
        let mut guard = DoomGuard::default();
        for round in 0..10 {
            assert_eq!(guard.judge("bash", "bash ls"), Verdict::Go);
            guard.note("bash ls".into(), format!("{}", round / 2));
        }
        for _ in 0..10 {
            assert_eq!(guard.judge("wait_agent", "wait"), Verdict::Go);
            guard.note("wait".into(), "nothing".into());
        }
    }
}
