//! Queue of runs: parents take turns, and one at its limit is skipped.

use std::collections::VecDeque;

use crate::base::id::SessionId;

/// Queued children, by parent.
#[derive(Debug, Default)]
pub struct RunQueue {
    /// The parent that was served longest ago comes first.
    parents: VecDeque<(SessionId, VecDeque<String>)>,
}

impl RunQueue {
    /// Queues a child behind its siblings.
    pub fn push(&mut self, parent: &SessionId, child: String) {
        match self.parents.iter_mut().find(|(own, _)| own == parent) {
            Some((_, waiting)) => waiting.push_back(child),
            None => self.parents.push_back((parent.clone(), VecDeque::from([child]))),
        }
    }

    /// Whether no child is queued.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// Whether a child is queued whose parent may have one more running.
    pub fn has_next(&self, may_start: impl Fn(&SessionId) -> bool) -> bool {
        self.parents.iter().any(|(parent, _)| may_start(parent))
    }

    /// Removes and returns the next child whose parent may have one more running.
    pub fn pop_next(&mut self, may_start: impl Fn(&SessionId) -> bool) -> Option<String> {
        let place = self.parents.iter().position(|(parent, _)| may_start(parent))?;
        let (parent, mut waiting) = self.parents.remove(place)?;
        let child = waiting.pop_front();
        if !waiting.is_empty() {
            self.parents.push_back((parent, waiting));
        }
        child
    }

    /// Removes a child.
    pub fn remove(&mut self, child: &str) {
        for (_, waiting) in &mut self.parents {
            waiting.retain(|own| own != child);
        }
        self.parents.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// The position of a child among its siblings, from 1; 0 if it is not queued.
    pub fn position(&self, child: &str) -> usize {
        let mut places = self.parents.iter().map(|(_, waiting)| {
            waiting.iter().position(|own| own == child).map_or(0, |place| place + 1)
        });
        places.find(|place| *place > 0).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> SessionId {
        SessionId::parse(name).unwrap()
    }

    #[test]
    fn parents_take_turns_and_a_parent_at_its_limit_is_skipped() {
        let mut queue = RunQueue::default();
        for child in ["a1", "a2", "a3"] {
            queue.push(&id("a"), child.to_owned());
        }
        queue.push(&id("b"), "b1".to_owned());
        queue.push(&id("c"), "c1".to_owned());
        assert_eq!((queue.position("a3"), queue.position("b1"), queue.position("x")), (3, 1, 0));
        let order: Vec<String> = std::iter::from_fn(|| queue.pop_next(|_| true)).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "a3"]);
        for child in ["a1", "b1", "b2"] {
            queue.push(&id(&child[..1]), child.to_owned());
        }
        let full = id("a");
        assert_eq!(queue.pop_next(|parent| *parent != full).as_deref(), Some("b1"));
        queue.remove("b2");
        assert_eq!(queue.pop_next(|parent| *parent != full), None);
        assert_eq!(queue.pop_next(|_| true).as_deref(), Some("a1"));
    }
}
