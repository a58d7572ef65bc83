//! The call sites of a live page that hold the most memory, with the library that made each request.
//!
//! ```text
//! word 0  stack (low 32) | device (8) | a framework's block (1) << 40
//!      1  live bytes                  2  live allocations
//!      4  name of the library that made the request: 32 bytes of UTF-8, padded with zeros; all zeros: not known
//! ```

use super::live::LivePage;
use crate::ids::StackId;

/// Call sites of a page, the largest first.
pub const LIVE_SITES: usize = 64;
const COUNT: usize = 10;
const STORED: usize = 11;
const SITES_AT: usize = 1280;
const SITE_WORDS: usize = 8;
const LIBRARY_AT: usize = 4;
const LIBRARY_WORDS: usize = 4;

/// The bytes that one stack holds on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSite {
    /// CUDA ordinal, as the process saw it; 255: not known.
    pub ordinal: u8,
    /// True: blocks of a framework's cache. False: memory that the driver allocated.
    pub of_framework: bool,
    /// The id in the process's trace.
    pub stack: StackId,
    /// Live bytes.
    pub bytes: u64,
    /// Live allocations.
    pub count: u64,
    /// The library that made the request: `PyTorch`, `NCCL`. Empty: not known.
    pub library: String,
}

impl LivePage<'_> {
    /// Stores the first 64 call sites, as of `now_ns` (since start). False: another thread is updating the page, and
    /// nothing was stored.
    pub fn update_sites(&self, now_ns: u64, sites: &[LiveSite]) -> bool {
        self.store(|page| {
            let sites = &sites[..sites.len().min(LIVE_SITES)];
            for (index, site) in sites.iter().enumerate() {
                let at = SITES_AT + SITE_WORDS * index;
                let which = u64::from(site.stack.0)
                    | u64::from(site.ordinal) << 32
                    | u64::from(site.of_framework) << 40;
                page.set(at, which);
                page.set(at + 1, site.bytes);
                page.set(at + 2, site.count);
                page.put_text((at + LIBRARY_AT, LIBRARY_WORDS), &site.library);
            }
            page.set(COUNT, sites.len() as u64);
            page.set(STORED, now_ns);
        })
    }

    /// The time at which the call sites were stored (ns since start), and the call sites, largest first.
    pub fn sites(&self) -> (u64, Vec<LiveSite>) {
        self.read_consistent(|page| {
            let count = (page.get(COUNT) as usize).min(LIVE_SITES);
            (page.get(STORED), (0..count).map(|index| page.site(index)).collect())
        })
    }

    fn site(&self, index: usize) -> LiveSite {
        let at = SITES_AT + SITE_WORDS * index;
        let which = self.get(at);
        LiveSite {
            ordinal: (which >> 32) as u8,
            of_framework: which >> 40 & 1 == 1,
            stack: StackId(which as u32),
            bytes: self.get(at + 1),
            count: self.get(at + 2),
            library: self.text((at + LIBRARY_AT, LIBRARY_WORDS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::live::LiveProcess;
    use crate::pages::live::tests::words;

    #[test]
    fn call_sites_come_back_the_largest_64() {
        let words = words();
        let page = LivePage::begin(&words, &LiveProcess { pid: 7, ..LiveProcess::default() });
        assert_eq!(page.sites(), (0, Vec::new()));
        let site = |n: u32| LiveSite {
            ordinal: (n % 3) as u8,
            of_framework: n % 2 == 1,
            stack: StackId(u32::MAX - n),
            bytes: u64::MAX - u64::from(n),
            count: u64::from(n),
            library: ["PyTorch", "", "libnvshmem_host.so"][n as usize % 3].into(),
        };
        let all: Vec<LiveSite> = (0..100).map(site).collect();
        assert!(page.update_sites(55, &all));
        assert_eq!(page.sites(), (55, all[..LIVE_SITES].to_vec()));
        // Two bytes each: the last one would be cut in half.
        let long = LiveSite { library: format!("x{}", "é".repeat(40)), ..site(1) };
        assert!(page.update_sites(56, std::slice::from_ref(&long)));
        let (at, sites) = page.sites();
        assert_eq!((at, sites[0].library.clone()), (56, format!("x{}", "é".repeat(15))));
        assert!(page.devices().1.is_empty(), "the devices are apart");
    }
}
