//! A group that no other test uses, and its page.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use vramtrace_format::group::{GROUP_WORDS, GroupPage};

/// Its name. The directory of its page is removed with it.
pub struct Group(pub String);

impl Group {
    pub fn new(what: &str) -> Group {
        Group(format!("test-{what}-{}", std::process::id()))
    }

    pub fn directory(&self) -> PathBuf {
        format!("/dev/shm/vramtrace-{}/group.{}", crate::user(), self.0).into()
    }

    /// The name of the only file there, by which the page is found.
    pub fn entry(&self) -> String {
        let mut files = std::fs::read_dir(self.directory()).unwrap();
        files.next().unwrap().unwrap().file_name().into_string().unwrap()
    }

    pub fn segment(&self) -> i32 {
        self.entry().split('.').nth(1).unwrap().parse().unwrap()
    }

    pub fn page(&self) -> GroupPage<'static> {
        // SAFETY: a segment of a group's size, attached until the test ends.
        let words = unsafe {
            let at = libc::shmat(self.segment(), std::ptr::null(), 0);
            assert_ne!(at as isize, -1);
            &*at.cast::<[AtomicU64; GROUP_WORDS]>()
        };
        GroupPage::look(words).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.directory());
    }
}
