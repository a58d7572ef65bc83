//! Rust: closures, panics that are caught, drops while one is under way, threads. The same output
//! as frames.h's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::hint::black_box;
use std::mem::transmute;
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int;
}

static CONTEXT: AtomicUsize = AtomicUsize::new(0);

fn driver_function(name: &CStr) -> *mut c_void {
    unsafe { dlsym(dlopen(c"libcuda.so.1".as_ptr(), 2), name.as_ptr()) }
}

fn begin() {
    unsafe {
        let init: extern "C" fn(u32) -> i32 = transmute(driver_function(c"cuInit"));
        let retain: extern "C" fn(*mut usize, i32) -> i32 =
            transmute(driver_function(c"cuDevicePrimaryCtxRetain"));
        let mut context = 0;
        assert_eq!((init(0), retain(&mut context, 0)), (0, 0));
        CONTEXT.store(context, Ordering::Relaxed);
    }
}

#[inline(never)]
fn take(label: &str) {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let size = 512 * (LAST.fetch_add(1, Ordering::Relaxed) + 1);
    let mut seen = [null_mut(); 512];
    let mut line = format!("{size} {label} ");
    let count = unsafe {
        let current: extern "C" fn(usize) -> i32 = transmute(driver_function(c"cuCtxSetCurrent"));
        let allocate: extern "C" fn(*mut u64, usize) -> i32 = transmute(driver_function(c"cuMemAlloc_v2"));
        assert_eq!(current(CONTEXT.load(Ordering::Relaxed)), 0);
        assert_eq!(allocate(&mut 0, size), 0);
        backtrace(seen.as_mut_ptr(), 512)
    };
    for (n, address) in seen[..count as usize].iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        write!(line, "{comma}{:x}", *address as usize).unwrap();
    }
    println!("{line}");
}

struct Guard(&'static str);

impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) {
        take(self.0);
        black_box(());
    }
}

#[inline(never)]
fn panics(depth: usize) -> usize {
    let _guard = Guard("drop");
    if depth == 0 {
        std::panic::resume_unwind(Box::new(7));
    }
    black_box(panics(depth - 1)) + 1
}

#[inline(never)]
fn apply<T>(what: &dyn Fn(T), with: T) {
    what(black_box(with));
    black_box(());
}

fn all() {
    take("start");
    for _ in 0..2 {
        assert!(catch_unwind(|| panics(3)).is_err());
        take("caught");
    }
    apply(&|_: f64| take("closure"), 1.5);
    apply(&|n: usize| drop(catch_unwind(|| panics(n))), 2);
    let mut numbers = vec![3, 1, 2, 5, 4];
    numbers.sort_by(|a, b| {
        take("sort");
        a.cmp(b)
    });
    black_box(numbers);
}

fn main() {
    begin();
    all();
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(all)).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
