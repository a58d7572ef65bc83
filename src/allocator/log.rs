//! What a program asked of the allocator, in order, without the answers.

/// One request. Allocations are numbered from 0 in order; a free names the allocation's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Alloc {
        size: u64,
        stream: u32,
        pool: u16,
    },
    Free {
        allocation: u32,
    },
    /// torch.cuda.empty_cache()
    EmptyCache,
}

/// A recorded run, ready to be replayed under any setting.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub requests: Vec<Request>,
    allocations: u32,
    live: std::collections::HashMap<u64, u32>,
}

impl Log {
    pub fn alloc(&mut self, address: u64, size: u64, stream: u32, pool: u16) {
        self.live.insert(address, self.allocations);
        self.allocations += 1;
        self.requests.push(Request::Alloc { size, stream, pool });
    }

    /// Frees of addresses that the log has not seen allocated are left out.
    pub fn free(&mut self, address: u64) {
        if let Some(allocation) = self.live.remove(&address) {
            self.requests.push(Request::Free { allocation });
        }
    }

    pub fn empty_cache(&mut self) {
        self.requests.push(Request::EmptyCache);
    }

    pub fn allocations(&self) -> usize {
        self.allocations as usize
    }
}
