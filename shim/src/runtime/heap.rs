//! The recorder's own heap. A hook may not call the program's malloc: a signal handler that allocates
//! device memory may have interrupted it with its locks held, and some programs have a malloc that
//! itself allocates device memory.
//!
//! Blocks of powers of two, cut from pages of the kernel's and kept in a list for each size; large ones
//! are separate pages. A list's lock is held for a few instructions, always inside a hook, and a hook
//! that interrupts another one on the same thread allocates nothing from here. The lists lie on a page
//! that a forked child sees empty: a lock that was held in the parent is free there, and blocks that
//! were free in the parent are lost to it.
//!
//! Where the kernel gives no pages, blocks come from a reserve ([`super::reserve`]). If it gives none for the lists, these
//! blocks are not used again.

use crate::runtime::fallible::may_fail;
use crate::runtime::faults::block_granted;
use crate::runtime::hash_table::{pages, unmap};
use crate::runtime::lock::{Guard, Lock};
use crate::runtime::reserve;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Sizes of 16 bytes, 32, and so on to 64 KiB.
const LEAST: usize = 16;
const CLASSES: usize = 13;
/// Blocks of up to 1/16 of this are cut from pieces of this many bytes, larger ones sixteen at a time.
const PIECE: usize = 64 << 10;
const PAGE: usize = 4096;

/// Zero bytes are an empty one.
#[derive(Clone, Copy)]
struct Blocks {
    free: *mut Free,
    /// What is left of the last piece.
    next: *mut u8,
    /// Bytes of it.
    left: usize,
}

struct Free {
    next: *mut Free,
}

struct Lists([Lock<Blocks>; CLASSES]);

// SAFETY: the pointers are to free memory that no thread uses.
unsafe impl Send for Blocks {}

const _: () = assert!(size_of::<Lists>() <= PAGE);

pub struct Heap(AtomicPtr<Lists>);

impl Heap {
    pub const fn empty() -> Heap {
        Heap(AtomicPtr::new(null_mut()))
    }

    #[inline]
    fn known(&self) -> Option<&'static Lists> {
        // SAFETY: null, or a page that is never freed; zero bytes are unlocked, empty lists.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn lists(&self) -> Option<&'static Lists> {
        self.known().or_else(|| self.make())
    }

    /// The blocks of a size. `None`: there is no page for lists.
    #[inline]
    fn list(&self, class: usize) -> Option<Guard<'static, Blocks>> {
        let lists = self.lists()?;
        lists.0[class].lock_unless_left().or_else(|| self.list_after(lists, class))
    }

    /// The same after a thread has left a list in the middle of a change: all lists are replaced. Their
    /// free blocks are lost.
    #[cold]
    fn list_after(&self, left: &Lists, class: usize) -> Option<Guard<'static, Blocks>> {
        self.replace((&raw const *left).cast_mut(), null_mut());
        self.lists()?.0[class].lock_unless_left()
    }

    /// Another thread may have replaced them.
    fn replace(&self, known: *mut Lists, by: *mut Lists) {
        let _ = self.0.compare_exchange(known, by, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The page of a thread that loses a race here is leaked.
    #[cold]
    fn make(&self) -> Option<&'static Lists> {
        let fresh = pages(PAGE).ok()?;
        // Before Linux 4.14 a child gets the lists as they are.
        // SAFETY: a page that was mapped here and is not shared yet.
        #[cfg(not(miri))]
        unsafe {
            libc::madvise(fresh.cast(), PAGE, libc::MADV_WIPEONFORK)
        };
        self.replace(null_mut(), fresh.cast());
        self.known()
    }
}

/// `None`: it gets separate pages.
#[inline]
fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(LEAST);
    let class = (size.next_power_of_two() / LEAST).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn in_pages(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

impl Blocks {
    #[inline]
    fn take(&mut self, size: usize, granted: bool) -> *mut u8 {
        if !self.free.is_null() {
            let block = self.free;
            // SAFETY: it was put there by `give`.
            self.free = unsafe { (*block).next };
            return block.cast();
        }
        if !granted {
            return reserve::take(size);
        }
        if self.left == 0 {
            let piece = PIECE.max(16 * size);
            let Ok(fresh) = pages(piece) else { return reserve::take(size) };
            (self.next, self.left) = (fresh, piece);
        }
        let block = self.next;
        self.next = block.wrapping_add(size);
        self.left -= size;
        block
    }

    #[inline]
    fn give(&mut self, block: *mut u8) {
        let block: *mut Free = block.cast();
        // SAFETY: the caller has freed this block; it is large enough for the link.
        unsafe { block.write(Free { next: self.free }) };
        self.free = block;
    }
}

// SAFETY: blocks have at least the requested size and alignment: those of a size lie at multiples of it
// from the start of a page, and no alignment above a page's is requested.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let granted = block_granted();
        if layout.align() > PAGE || !granted && may_fail() {
            return null_mut();
        }
        match class(layout) {
            None => {
                let bytes = in_pages(layout.size());
                let fresh = if granted { pages(bytes).ok() } else { None };
                fresh.unwrap_or_else(|| reserve::take(bytes))
            }
            Some(class) => match self.list(class) {
                Some(mut blocks) => blocks.take(LEAST << class, granted),
                None => reserve::take(LEAST << class),
            },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            None if reserve::has(block) => {}
            None => unmap(block, in_pages(layout.size())),
            Some(class) => {
                if let Some(mut blocks) = self.list(class) {
                    blocks.give(block);
                }
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`, which is that of the function
        // called.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && class(layout).is_some() {
            // SAFETY: the block has `layout.size()` bytes. Fresh pages, and those of the reserve, are
            // zero already.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        let fits = match (class(layout), class(wanted)) {
            (None, None) => in_pages(layout.size()) == in_pages(size),
            (old, new) => old == new,
        };
        if fits {
            return block;
        }
        // SAFETY: a size that is not zero, as the caller's contract says.
        let fresh = unsafe { self.alloc(wanted) };
        if !fresh.is_null() {
            // SAFETY: both blocks are at least as large as that, and are not the same.
            unsafe { fresh.copy_from_nonoverlapping(block, layout.size().min(size)) };
            // SAFETY: the caller's block, which it uses no more.
            unsafe { self.dealloc(block, layout) };
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// A block of a heap, freed with it.
    struct Block<'h> {
        heap: &'h Heap,
        at: *mut u8,
        layout: Layout,
    }

    impl Block<'_> {
        fn new(heap: &Heap, layout: Layout) -> Block<'_> {
            // SAFETY: the layout has a size.
            let at = unsafe { heap.alloc_zeroed(layout) };
            assert!(!at.is_null());
            Block { heap, at, layout }
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: as large as its layout says, and borrowed as this block is. Its bytes are set: it
            // began as zeros, and what it grew by is fresh pages or was in use before.
            unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
        }

        fn resize(&mut self, size: usize) {
            // SAFETY: a block of this heap and layout; the old address is not used again.
            self.at = unsafe { self.heap.realloc(self.at, self.layout, size) };
            assert!(!self.at.is_null());
            self.layout = layout(size, self.layout.align());
        }
    }

    impl Drop for Block<'_> {
        fn drop(&mut self) {
            // SAFETY: a block of this heap and layout, freed once.
            unsafe { self.heap.dealloc(self.at, self.layout) };
        }
    }

    #[test]
    fn blocks_are_apart_aligned_and_used_again() {
        let heap = Heap::empty();
        let mut taken = Vec::new();
        // Miri takes minutes for 400.
        let count = if cfg!(miri) { 40 } else { 400 };
        for n in 0..count {
            let mut block = Block::new(&heap, layout(1 + n * 37 % 5000, 1 << (n % 8)));
            assert!((block.at as usize).is_multiple_of(block.layout.align()));
            block.bytes().fill(n as u8);
            taken.push((block, n as u8));
        }
        let (last, layout) = (taken[count - 1].0.at, taken[count - 1].0.layout);
        for (mut block, n) in taken {
            assert!(block.bytes().iter().all(|byte| *byte == n));
        }
        // SAFETY: the layout has a size.
        let mut again = Block { heap: &heap, at: unsafe { heap.alloc_zeroed(layout) }, layout };
        assert_eq!(again.at, last);
        assert!(again.bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_list_that_a_thread_has_left_is_replaced() {
        let heap = Heap::empty();
        let mut block = Block::new(&heap, layout(100, 8));
        std::mem::forget(heap.list(class(block.layout).unwrap()));
        let mut other = Block::new(&heap, layout(100, 8));
        block.bytes().fill(1);
        other.bytes().fill(2);
        assert!(block.bytes().iter().all(|byte| *byte == 1));
        drop(block);
        drop(other);
    }

    #[test]
    fn what_grows_keeps_its_content() {
        let heap = Heap::empty();
        let mut block = Block::new(&heap, layout(3, 8));
        block.bytes().copy_from_slice(b"abc");
        let most = if cfg!(miri) { 256 << 10 } else { 4 << 20 };
        while block.layout.size() < most {
            block.resize(block.layout.size() * 3);
        }
        assert_eq!(&block.bytes()[..3], b"abc");
        block.resize(3);
        assert_eq!(block.bytes(), b"abc");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no fork")]
    fn a_lock_that_the_parent_holds_is_free_in_a_child() {
        let heap = Heap::empty();
        // SAFETY: the layout has a size.
        let block = unsafe { heap.alloc(layout(100, 8)) };
        let held = heap.lists().unwrap().0[class(layout(100, 8)).unwrap()].lock();
        let ended = testkit::in_child(|| {
            // SAFETY: `alarm` only sets a timer; the block is of this heap and layout, and freed once.
            unsafe {
                libc::alarm(10);
                let again = heap.alloc(layout(100, 8));
                heap.dealloc(block, layout(100, 8));
                !again.is_null() && again != block
            }
        });
        assert_eq!(ended, Ok(true));
        drop(held);
    }
}
