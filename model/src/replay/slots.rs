//! What an observer keeps of each live allocation, by [`Live::slot`]: without a table of its own, whose entries lie
//! anywhere. Slots are taken again, the last one first, so that what is used lies close together.

use super::live::Live;

#[derive(Clone, Debug)]
pub struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots(Vec::new())
    }
}

impl<T> Slots<T> {
    #[inline]
    pub fn insert(&mut self, live: &Live, of: T) {
        let place = live.slot as usize;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place] = Some(of);
    }

    #[inline]
    pub fn get_mut(&mut self, live: &Live) -> Option<&mut T> {
        self.0.get_mut(live.slot as usize)?.as_mut()
    }

    /// Where the value of an allocation is. `None`: nowhere, and there is no value.
    #[inline]
    pub fn place(&mut self, live: &Live) -> Option<&mut Option<T>> {
        self.0.get_mut(live.slot as usize)
    }

    #[inline]
    pub fn remove(&mut self, live: &Live) -> Option<T> {
        self.0.get_mut(live.slot as usize)?.take()
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// Takes all, in no order.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
