//! Whose turn it is: parents take turns, and who is at its limit is stepped over.

use std::collections::VecDeque;

use crate::id::SessionId;

/// Children that wait for their turn, by parent.
#[derive(Debug, Default)]
pub struct Queue {
    /// The parent that comes first is the one that was served longest ago.
    parents: VecDeque<(SessionId, VecDeque<String>)>,
}

impl Queue {
    /// A child waits behind its siblings.
    pub fn push(&mut self, parent: &SessionId, child: String) {
        match self.parents.iter_mut().find(|(own, _)| own == parent) {
            Some((_, waiting)) => waiting.push_back(child),
            None => self.parents.push_back((parent.clone(), VecDeque::from([child]))),
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// Whether there is a child of a parent that may have one more.
    pub fn has_next(&self, may_start: impl Fn(&SessionId) -> bool) -> bool {
        self.parents.iter().any(|(parent, _)| may_start(parent))
    }

    /// The next child of a parent that may have one more.
    pub fn next(&mut self, may_start: impl Fn(&SessionId) -> bool) -> Option<String> {
        let place = self.parents.iter().position(|(parent, _)| may_start(parent))?;
        let (parent, mut waiting) = self.parents.remove(place)?;
        let child = waiting.pop_front();
        if !waiting.is_empty() {
            self.parents.push_back((parent, waiting));
        }
        child
    }

    /// A child does not wait any more.
    pub fn remove(&mut self, child: &str) {
        for (_, waiting) in &mut self.parents {
            waiting.retain(|own| own != child);
        }
        self.parents.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// How many of its siblings come first, and itself; 0 when it does not wait.
    pub fn place(&self, child: &str) -> usize {
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
    fn parents_take_turns_and_nobody_waits_behind_a_parent_at_its_limit() {
        let mut queue = Queue::default();
        for child in ["a1", "a2", "a3"] {
            queue.push(&id("a"), child.to_owned());
        }
        queue.push(&id("b"), "b1".to_owned());
        queue.push(&id("c"), "c1".to_owned());
        assert_eq!((queue.place("a3"), queue.place("b1"), queue.place("x")), (3, 1, 0));
        let order: Vec<String> = std::iter::from_fn(|| queue.next(|_| true)).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "a3"]);
        for child in ["a1", "b1", "b2"] {
            queue.push(&id(&child[..1]), child.to_owned());
        }
        let full = id("a");
        assert_eq!(queue.next(|parent| *parent != full).as_deref(), Some("b1"));
        queue.remove("b2");
        assert_eq!(queue.next(|parent| *parent != full), None);
        assert_eq!(queue.next(|_| true).as_deref(), Some("a1"));
    }
}
