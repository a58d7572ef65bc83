//! Values by device, in the order of the devices. A trace has few devices and most have one, so that looking one up is
//! a comparison: a replay does it several times for each event.

use std::iter::Zip;
use std::ops::Index;
use std::slice::{Iter, IterMut};

use vramtrace_format::DeviceId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByDevice<T> {
    /// In ascending order.
    ids: Vec<DeviceId>,
    /// The value of the device at the same place of `ids`.
    of: Vec<T>,
}

impl<T> Default for ByDevice<T> {
    fn default() -> ByDevice<T> {
        ByDevice { ids: Vec::new(), of: Vec::new() }
    }
}

impl<T> ByDevice<T> {
    /// The place of a device, or where it belongs.
    #[inline]
    fn place(&self, device: DeviceId) -> Result<usize, usize> {
        match self.ids.first() {
            Some(first) if *first == device => Ok(0),
            _ => self.ids.binary_search(&device),
        }
    }

    #[inline]
    pub fn get(&self, device: &DeviceId) -> Option<&T> {
        self.of.get(self.place(*device).ok()?)
    }

    #[inline]
    pub fn get_mut(&mut self, device: &DeviceId) -> Option<&mut T> {
        let place = self.place(*device).ok()?;
        self.of.get_mut(place)
    }

    /// The value of a device; `fresh` makes it if there is none.
    #[inline]
    pub fn get_or_insert_with(&mut self, device: DeviceId, fresh: impl FnOnce() -> T) -> &mut T {
        let place = match self.place(device) {
            Ok(place) => place,
            Err(place) => {
                self.insert_at(place, device, fresh());
                place
            }
        };
        &mut self.of[place]
    }

    #[cold]
    fn insert_at(&mut self, place: usize, device: DeviceId, of: T) {
        self.ids.insert(place, device);
        self.of.insert(place, of);
    }

    pub fn contains_key(&self, device: &DeviceId) -> bool {
        self.place(*device).is_ok()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn keys(&self) -> Iter<'_, DeviceId> {
        self.ids.iter()
    }

    pub fn values(&self) -> Iter<'_, T> {
        self.of.iter()
    }

    pub fn values_mut(&mut self) -> IterMut<'_, T> {
        self.of.iter_mut()
    }

    pub fn iter(&self) -> Zip<Iter<'_, DeviceId>, Iter<'_, T>> {
        self.ids.iter().zip(&self.of)
    }

    /// Keeps some devices.
    pub fn retain(&mut self, mut wanted: impl FnMut(&DeviceId, &T) -> bool) {
        let all = std::mem::take(self);
        *self = all.into_iter().filter(|(device, of)| wanted(device, of)).collect();
    }
}

impl<T: Default> ByDevice<T> {
    /// The value of a device, which gets the default one if there is none.
    #[inline]
    pub fn of(&mut self, device: DeviceId) -> &mut T {
        self.get_or_insert_with(device, T::default)
    }
}

impl<T> Index<&DeviceId> for ByDevice<T> {
    type Output = T;

    #[inline]
    fn index(&self, device: &DeviceId) -> &T {
        self.get(device).expect("a device that is there")
    }
}

impl<T> FromIterator<(DeviceId, T)> for ByDevice<T> {
    /// Of several values of a device the last one.
    fn from_iter<I: IntoIterator<Item = (DeviceId, T)>>(all: I) -> ByDevice<T> {
        let mut by_device = ByDevice::default();
        for (device, of) in all {
            match by_device.place(device) {
                Ok(place) => by_device.of[place] = of,
                Err(place) => by_device.insert_at(place, device, of),
            }
        }
        by_device
    }
}

impl<T> IntoIterator for ByDevice<T> {
    type Item = (DeviceId, T);
    type IntoIter = Zip<std::vec::IntoIter<DeviceId>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.ids.into_iter().zip(self.of)
    }
}

impl<'a, T> IntoIterator for &'a ByDevice<T> {
    type Item = (&'a DeviceId, &'a T);
    type IntoIter = Zip<Iter<'a, DeviceId>, Iter<'a, T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_in_the_order_of_devices(all in proptest::collection::vec((0..6u8, 0..9u32), 0..20)) {
            let mut by_device = ByDevice::<u32>::default();
            let mut expected = BTreeMap::<DeviceId, u32>::new();
            for (device, by) in &all {
                let device = DeviceId(*device);
                *by_device.of(device) += by;
                *expected.entry(device).or_default() += by;
                prop_assert_eq!(by_device.get(&device), expected.get(&device));
            }
            let collected: ByDevice<u32> = expected.clone().into_iter().collect();
            prop_assert_eq!(&collected, &by_device);
            for device in (0..7).map(DeviceId) {
                prop_assert_eq!(by_device.get(&device), expected.get(&device));
                prop_assert_eq!(by_device.contains_key(&device), expected.contains_key(&device));
            }
            by_device.retain(|device, sum| device.0 % 2 == 0 || *sum > 9);
            expected.retain(|device, sum| device.0 % 2 == 0 || *sum > 9);
            prop_assert!(by_device.iter().eq(expected.iter()));
            prop_assert_eq!(by_device.is_empty(), expected.is_empty());
            prop_assert_eq!(by_device.len(), expected.len());
        }
    }
}
