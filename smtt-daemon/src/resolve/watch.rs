//! Whether what is looked at on the Java heap is still where it was told to be.

use std::collections::HashSet;

use super::sample::Run;
use crate::aggregate::{Mark, Seen, Targets};
use crate::control::Shared;

/// Follows the collections of one executor during one look.
pub struct Watch<'look> {
    shared: &'look Shared,
    executor: u64,
    targets: &'look Targets,
    /// The collection after which the addresses are right; `None` where collections are not counted.
    after: Option<u64>,
    /// Whether nothing has moved when the slice began.
    open: bool,
    /// Of each owner, whether it is still where it was when the look began.
    valid: Vec<bool>,
    /// What had been seen, before this slice, of owners on the heap that it looked at.
    before: Vec<(usize, Seen)>,
}

impl<'look> Watch<'look> {
    /// Before the first slice of a look.
    pub fn new(shared: &'look Shared, executor: u64, targets: &'look Targets) -> Self {
        Self {
            shared,
            executor,
            targets,
            after: targets.collection,
            open: true,
            valid: vec![true; targets.owners.len()],
            before: Vec::new(),
        }
    }

    fn collected(&self, after: u64) -> bool {
        self.shared.collections_begun(self.executor) != Some(after)
    }

    /// Before a slice.
    pub fn begin(&mut self) {
        self.before.clear();
        let Some(after) = self.after else {
            return;
        };
        self.open = !self.collected(after);
        if self.open {
            return;
        }
        // Whatever is where it was after the new addresses were told can still be looked at.
        let state = self.shared.state();
        let Some(now) = state.current_collection(self.executor) else {
            return;
        };
        let targets = state.targets(self.executor);
        drop(state);
        let marks: HashSet<Mark> = targets.owners.into_iter().collect();
        for (valid, mark) in self.valid.iter_mut().zip(&self.targets.owners) {
            *valid &= marks.contains(mark);
        }
        self.after = Some(now);
        self.open = !self.collected(now);
    }

    /// Whether a run may be looked at; remembers what had been seen of its owner.
    pub fn admits(&mut self, run: Run, seen: &[Seen]) -> bool {
        let Some(range) = self.targets.ranges.get(run.range) else {
            return false;
        };
        if self.after.is_none() || !self.targets.on_heap[range.owner] {
            return true;
        }
        if !self.open || !self.valid[range.owner] {
            return false;
        }
        if self.before.iter().all(|(owner, _)| *owner != range.owner) {
            self.before.push((range.owner, seen[range.owner].clone()));
        }
        true
    }

    /// After a slice: takes back what was seen of the heap if a collection came in between; whether none did.
    pub fn end(&mut self, seen: &mut [Seen]) -> bool {
        let Some(after) = self.after.filter(|_| !self.before.is_empty()) else {
            return true;
        };
        if !self.collected(after) {
            return true;
        }
        for (owner, before) in self.before.drain(..) {
            seen[owner] = before;
        }
        false
    }
}
