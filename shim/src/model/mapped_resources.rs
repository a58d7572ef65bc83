//! Graphics resources that are mapped, and the address of each one's memory.

use crate::runtime::fallible::list_of;
use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;

#[derive(Default)]
pub struct MappedResources(Lock<Map<u64, u64>>);

impl MappedResources {
    pub fn insert(&self, resource: u64, address: u64) {
        // Without host memory the mapped memory stays in the ledger until the process ends.
        let _ = self.0.lock().insert(resource, address);
    }

    /// Removes and returns those that are known, as (resource, address). Empty without host memory for
    /// the list.
    pub fn remove_all(&self, resources: &[u64]) -> Vec<(u64, u64)> {
        let mut mapped = self.0.lock();
        let there = resources.iter().filter_map(|r| Some((*r, *mapped.get(r)?)));
        let Ok(taken) = list_of(resources.len(), there) else { return Vec::new() };
        for (resource, _) in &taken {
            mapped.remove(resource);
        }
        taken
    }

    pub fn put_back(&self, taken: Vec<(u64, u64)>) {
        let mut mapped = self.0.lock();
        for (resource, address) in taken {
            let _ = mapped.insert(resource, address);
        }
    }
}
