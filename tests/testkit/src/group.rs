//! A group that no other test uses, and its page.

use std::sync::atomic::AtomicU64;

use vramtrace_format::group::{GROUP_BYTES, GROUP_WORDS, GroupPage};

/// Its name.
pub struct Group(pub String);

impl Group {
    pub fn new(what: &str) -> Group {
        Group(format!("test-{what}-{}", std::process::id()))
    }

    /// Its page, found as members find it.
    pub fn page(&self) -> GroupPage<'static> {
        let pages = segments().into_iter().filter_map(|id| {
            // SAFETY: a segment of a group's length, attached until the test ends.
            let words = unsafe {
                let at = libc::shmat(id, std::ptr::null(), 0);
                (at as isize != -1).then(|| &*at.cast::<[AtomicU64; GROUP_WORDS]>())
            };
            GroupPage::look(words?).filter(|page| page.name() == self.0)
        });
        let mut pages: Vec<_> = pages.collect();
        assert_eq!(pages.len(), 1, "a group has one page");
        pages.remove(0)
    }
}

/// The segments of a group's length.
fn segments() -> Vec<i32> {
    const SHM_STAT: i32 = 13;
    const SHM_INFO: i32 = 14;
    let ask = |index, what| {
        // SAFETY: there is room for the answer to either.
        unsafe {
            let mut stat: libc::shmid_ds = std::mem::zeroed();
            (libc::shmctl(index, what, &mut stat), stat)
        }
    };
    let found = (0..=ask(0, SHM_INFO).0).map(|index| ask(index, SHM_STAT));
    found.filter(|(id, stat)| *id >= 0 && stat.shm_segsz == GROUP_BYTES).map(|(id, _)| id).collect()
}
