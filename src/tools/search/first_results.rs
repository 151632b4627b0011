//! [`FirstResults`]: the first results in the order of their paths, while they arrive in any order.

/// A result: its path, how many results it counts for, and its value.
#[derive(Debug)]
pub struct PathResult<T> {
    pub path: Box<[u8]>,
    pub count: usize,
    pub value: T,
}

/// Keeps the first `wanted` results by path, and whether there are more.
///
/// Memory depends on `wanted`, not on the size of the tree: when twice as many are held, the last
/// ones are dropped, and from then on no result after the last kept path is needed.
#[derive(Debug)]
pub struct FirstResults<T> {
    wanted: usize,
    held: Vec<PathResult<T>>,
    held_count: usize,
    /// No path after this one can be among the first.
    last_path: Option<Box<[u8]>>,
    /// How many results were pushed in all.
    pub total: usize,
}

impl<T> FirstResults<T> {
    /// Keeps the first `wanted` results, and one more.
    pub fn new(wanted: usize) -> Self {
        Self { wanted, held: Vec::new(), held_count: 0, last_path: None, total: 0 }
    }

    /// Whether a result at this path could not be among the first.
    pub fn is_past_last(&self, path: &[u8]) -> bool {
        self.last_path.as_deref().is_some_and(|last| path > last)
    }

    /// Adds a result.
    pub fn push(&mut self, path: &[u8], count: usize, value: T) {
        self.total += count;
        if self.is_past_last(path) {
            return;
        }
        self.held.push(PathResult { path: path.into(), count, value });
        self.held_count += count;
        if self.held_count > 2 * (self.wanted + 1) {
            self.shrink();
        }
    }

    fn shrink(&mut self) {
        self.held.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let mut count = 0;
        let enough = self.held.iter().position(|first| {
            count += first.count;
            count > self.wanted
        });
        if let Some(enough) = enough {
            self.held.truncate(enough + 1);
            self.held_count = count;
            self.last_path = self.held.last().map(|first| first.path.clone());
        }
    }

    /// Merges the results of all threads, in order.
    pub fn merge(all: impl IntoIterator<Item = Self>) -> Vec<PathResult<T>> {
        let mut held: Vec<PathResult<T>> = all.into_iter().flat_map(|firsts| firsts.held).collect();
        held.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_are_the_first_however_they_come(
            items in prop::collection::vec(("[a-c/]{1,4}", 1_usize..4), 0..60),
            wanted in 1_usize..12,
            threads in 1_usize..4,
        ) {
            let mut all: Vec<FirstResults<()>> = (0..threads).map(|_| FirstResults::new(wanted)).collect();
            for (place, (path, count)) in items.iter().enumerate() {
                all[place % threads].push(path.as_bytes(), *count, ());
            }
            let total: usize = all.iter().map(|firsts| firsts.total).sum();
            prop_assert_eq!(total, items.iter().map(|(_, count)| count).sum::<usize>());
            let first = |paths: Vec<&[u8]>| paths.into_iter().take(wanted).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let merged = FirstResults::merge(all);
            let one_each = |path, count| std::iter::repeat_n(path, count);
            let kept = first(merged.iter().flat_map(|f| one_each(&*f.path, f.count)).collect());
            let mut sorted = items.clone();
            sorted.sort();
            let expected = first(sorted.iter().flat_map(|(p, c)| one_each(p.as_bytes(), *c)).collect());
            prop_assert_eq!(kept, expected);
            let held: usize = merged.iter().map(|f| f.count).sum();
            prop_assert_eq!(held > wanted, total > wanted);
        }
    }
}
