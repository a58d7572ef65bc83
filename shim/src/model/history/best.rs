//! The values with the highest ranks.

use crate::runtime::fallible::MakeRoom;

/// Highest first; of equal ones the first that came.
#[derive(Debug)]
pub(super) struct Best<T>(Vec<(u64, T)>);

impl<T> Default for Best<T> {
    fn default() -> Best<T> {
        Best(Vec::new())
    }
}

impl<T> Best<T> {
    /// Offers a value; a rank of 0 is none. `most`: values that are kept.
    pub(super) fn offer(&mut self, rank: u64, value: T, most: usize) {
        let is_full = self.0.len() >= most;
        if rank == 0 || is_full && self.0.last().is_some_and(|(least, _)| rank <= *least) {
            return;
        }
        self.0.truncate(most - 1);
        if self.0.make_room().is_ok() {
            let at = self.0.partition_point(|(other, _)| *other >= rank);
            #[allow(clippy::disallowed_methods)] // there is room
            self.0.insert(at, (rank, value));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
