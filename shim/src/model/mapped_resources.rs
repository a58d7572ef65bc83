//! Graphics resources that are mapped, and the address at which each shows its memory.

use crate::runtime::fixed_hash::HashMap;
use crate::runtime::lock::Lock;

#[derive(Default)]
pub struct MappedResources(Lock<HashMap<u64, u64>>);

impl MappedResources {
    pub fn insert(&self, resource: u64, address: u64) {
        self.0.lock().insert(resource, address);
    }

    /// Takes out those that are there, as (resource, address).
    pub fn remove_all(&self, resources: &[u64]) -> Vec<(u64, u64)> {
        let mut mapped = self.0.lock();
        resources.iter().filter_map(|r| Some((*r, mapped.remove(r)?))).collect()
    }

    pub fn put_back(&self, taken: Vec<(u64, u64)>) {
        self.0.lock().extend(taken);
    }
}
