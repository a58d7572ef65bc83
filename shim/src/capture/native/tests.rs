use super::*;
use crate::runtime::{hash_table, stack_bounds as bounds};

fn empty_log() -> &'static mut WalkLog {
    crate::runtime::loaded_objects::can_ask();
    let pages = hash_table::pages(size_of::<WalkLog>()).unwrap();
    // SAFETY: zero pages of that size, which are an empty log; they are not unmapped.
    unsafe { &mut *pages.cast() }
}

/// In a test everything is "our own library". All walks are kept.
fn walker() -> Walker {
    Walker { ours: NOWHERE, to_keep: u32::MAX, ..Walker::default() }
}

#[test]
fn frames_have_growing_stacks() {
    let mut walker = walker();
    let from = State::here();
    let high = bounds::high(from.sp).unwrap();
    let mut frames = [Frame::default(); 3];
    let walked = walker.walk(from, high, &mut frames, empty_log(), |_| ());
    assert_eq!((walked.frames, walked.cut), (3, true));
    assert!(frames.windows(2).all(|pair| pair[0].low < pair[1].low));
    assert!(walked.high > frames[2].low && walked.high < high);
}

/// A path of calls: shapes of functions, each with a number.
type Path = [(u8, usize)];

/// What the function at the end of each path does.
struct Visit<'a> {
    walker: &'a mut Walker,
    log: &'a mut WalkLog,
    most: usize,
    /// Ends of the path that were reached: a shape may call the rest more than once.
    ends: usize,
    /// Stacks that the log knew.
    found: usize,
    /// Stacks that it did not know after some walks: other stacks' entries took the place of theirs.
    lost: usize,
    /// A caller is not known.
    cut: bool,
}

impl Visit<'_> {
    /// Compares the log with walks, until the log has the stack.
    #[inline(never)]
    fn compare(&mut self) {
        let from = State::here();
        let high = bounds::high(from.sp).unwrap();
        let mut frames = [Frame::default(); 256];
        self.ends += 1;
        for walks in 0.. {
            let found = self.walker.find(from, high, self.most, self.log);
            let known: Vec<usize> = self.log.addresses().collect();
            let is_new = self.walker.since == self.walker.walk;
            let room = &mut frames[..self.most];
            let walked = self.walker.walk(from, high, room, self.log, |_| ());
            let addresses = || room[..walked.frames].iter().map(|frame| frame.address);
            if let Some(found) = found {
                assert_eq!(found, StackPrint::of(addresses(), walked.cut));
                assert!(known.into_iter().eq(addresses()));
                self.found += usize::from(walks == 0);
            }
            self.cut |= walked.cut;
            // A word outside of the stack is not kept.
            if found.is_some() || walked.cut && walked.high == high {
                break;
            }
            // Other tests open libraries.
            if walks >= 3 && !is_new {
                self.lost += 1;
                break;
            }
        }
    }

    #[inline(never)]
    fn go(&mut self, path: &Path) {
        let Some(((shape, number), rest)) = path.split_first() else { return self.compare() };
        let number = std::hint::black_box(*number);
        match shape % SHAPES {
            0 => self.plain(rest),
            1 => self.other_line(rest),
            2 => self.large(rest),
            3 => self.by_closure(&|visit| visit.go(rest)),
            4 => self.caught(rest),
            5 => self.through_the_c_library(rest),
            6 => self.by(with_room, rest, number % 9),
            7 => self.by(busy_frame_pointer, rest, number),
            8 => self.by(without_tables, rest, number),
            _ => {
                for _ in 0..number % 3 {
                    self.go(rest);
                }
                self.go(rest)
            }
        }
        std::hint::black_box(number);
    }

    #[inline(never)]
    fn plain(&mut self, rest: &Path) {
        self.go(rest);
        std::hint::black_box(1);
    }

    #[inline(never)]
    fn other_line(&mut self, rest: &Path) {
        self.go(rest);
        std::hint::black_box(2);
    }

    #[inline(never)]
    fn large(&mut self, rest: &Path) {
        let mut room = [7u8; 1000];
        std::hint::black_box(&mut room);
        self.go(rest);
        std::hint::black_box(&mut room);
    }

    #[inline(never)]
    fn by_closure(&mut self, call: &dyn Fn(&mut Self)) {
        call(self);
        std::hint::black_box(3);
    }

    /// The frames below were left by a panic.
    #[inline(never)]
    fn caught(&mut self, rest: &Path) {
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.go(rest);
            std::panic::resume_unwind(Box::new(5));
        }));
        assert!(left.is_err());
        self.go(rest);
    }

    #[inline(never)]
    fn through_the_c_library(&mut self, rest: &Path) {
        unsafe extern "C" fn compare(call: *const libc::c_void, _: *const libc::c_void) -> i32 {
            // SAFETY: the call that was given to `bsearch`.
            unsafe { (*(call.cast_mut().cast::<Call<'_, '_>>())).make() };
            0
        }
        let mut call = Call(self, rest);
        let call = (&raw mut call).cast();
        let one = 0u8;
        // SAFETY: `compare` takes the key for what it is, and does not read the array of one byte.
        unsafe { libc::bsearch(call, (&raw const one).cast(), 1, 1, Some(compare)) };
    }

    fn by(&mut self, function: Calls, rest: &Path, number: usize) {
        let mut call = Call(self, rest);
        // SAFETY: `make` gets the call for which it is given.
        unsafe { function(make, (&raw mut call).cast(), number) };
    }
}

const SHAPES: u8 = if cfg!(target_arch = "x86_64") { 10 } else { 6 };

struct Call<'a, 'b>(&'a mut Visit<'b>, &'a Path);

impl Call<'_, '_> {
    fn make(&mut self) {
        self.0.go(self.1);
    }
}

unsafe extern "C" fn make(call: *mut libc::c_void) {
    // SAFETY: `Visit::by` gives its call.
    unsafe { (*call.cast::<Call<'_, '_>>()).make() };
}

/// Calls the function with the pointer.
type Calls =
    unsafe extern "C" fn(unsafe extern "C" fn(*mut libc::c_void), *mut libc::c_void, usize);

/// As `alloca` does: the frame has room for so many times 16 bytes.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn with_room(
    call: unsafe extern "C" fn(*mut libc::c_void),
    data: *mut libc::c_void,
    number: usize,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "shl rdx, 4",
        "sub rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// The number is in the frame pointer, which the next function may save.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn busy_frame_pointer(
    call: unsafe extern "C" fn(*mut libc::c_void),
    data: *mut libc::c_void,
    number: usize,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
    )
}

/// Its caller is guessed.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn without_tables(
    call: unsafe extern "C" fn(*mut libc::c_void),
    data: *mut libc::c_void,
    number: usize,
) {
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "pop rbp",
        "ret",
    )
}

#[cfg(not(target_arch = "x86_64"))]
use {make_plain as with_room, make_plain as busy_frame_pointer, make_plain as without_tables};

#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn make_plain(
    call: unsafe extern "C" fn(*mut libc::c_void),
    data: *mut libc::c_void,
    _: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { call(data) }
}

/// Paths of a program, one after the other; entries of earlier ones stay in the log.
struct Program {
    walker: Walker,
    log: &'static mut WalkLog,
    paths: Vec<Vec<(u8, usize)>>,
    ends: usize,
    found: usize,
    lost: usize,
    cut: usize,
}

impl Program {
    fn run(&mut self, path: Vec<(u8, usize)>, most: usize) {
        let (walker, log) = (&mut self.walker, &mut *self.log);
        let mut visit = Visit { walker, log, most, ends: 0, found: 0, lost: 0, cut: false };
        visit.go(&path);
        self.ends += visit.ends;
        self.found += visit.found;
        self.lost += usize::from(visit.lost > 0);
        self.cut += usize::from(visit.cut);
        self.paths.push(path);
    }
}

#[test]
#[cfg_attr(sanitized, ignore = "AddressSanitizer's frames are not those of the program")]
fn a_known_stack_is_that_of_a_walk() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    let (walker, log) = (walker(), empty_log());
    let program = Program { walker, log, paths: Vec::new(), ends: 0, found: 0, lost: 0, cut: 0 };
    let program = std::cell::RefCell::new(program);
    let path = proptest::collection::vec((0..SHAPES, any::<usize>()), 0..14);
    let config = Config { failure_persistence: None, ..Config::with_cases(300) };
    let tried = TestRunner::new(config).run(
        &(path, 1usize..200, any::<prop::sample::Index>()),
        |(path, most, index)| {
            let mut program = program.borrow_mut();
            program.run(path, most);
            // An earlier one, as it was and with another beginning.
            let mut path = program.paths[index.index(program.paths.len())].clone();
            program.run(path.clone(), most);
            if let Some((shape, number)) = path.first_mut() {
                (*shape, *number) = ((*shape + 1) % SHAPES, number.wrapping_add(1));
            }
            program.run(path, most);
            Ok(())
        },
    );
    tried.unwrap();
    let Program { paths, ends, found, lost, cut, .. } = program.into_inner();
    let all = paths.len();
    // Nearly half of them, whatever paths were drawn.
    assert!(found * 3 > ends, "{found} of {ends} were known");
    assert!(lost * 20 < all, "of {all} paths {lost} were walked in vain");
    assert!(cut > 20 && cut < all, "{cut} of {all} were cut");
}

#[test]
fn the_log_holds_while_no_library_comes_or_goes() {
    let (mut walker, log) = (walker(), empty_log());
    let from = State::here();
    let high = bounds::high(from.sp).unwrap();
    let mut frames = [Frame::default(); 100];
    // Again where another test opens a library meanwhile.
    let mut known = |walker: &mut Walker, log: &mut WalkLog| {
        loop {
            walker.walk(from, high, &mut frames, log, |_| ());
            if let Some(known) = walker.find(from, high, 100, log) {
                return known;
            }
        }
    };
    assert_eq!(walker.find(from, high, 100, log), None);
    let first = known(&mut walker, log);
    assert_eq!(walker.find(from, from.sp + 64, 100, log), None, "the stack has another end");
    // SAFETY: a library of the system without initialisers of note.
    let library = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    assert_eq!(walker.find(from, high, 100, log), None, "a library was loaded");
    assert_eq!(known(&mut walker, log), first);
    // SAFETY: opened above.
    unsafe { libc::dlclose(library) };
    assert_eq!(walker.find(from, high, 100, log), None, "it was unloaded");
    assert_eq!(known(&mut walker, log), first);
    walker.forget();
    assert_eq!(walker.find(from, high, 100, log), None, "everything is forgotten");
}

#[test]
fn stacks_that_do_not_come_again_are_not_kept() {
    let log = empty_log();
    let mut walker = Walker { to_keep: 0, ..walker() };
    let from = State::here();
    let high = bounds::high(from.sp).unwrap();
    let mut frames = [Frame::default(); 100];
    let mut is_known = |walker: &mut Walker, log: &mut WalkLog| {
        walker.walk(from, high, &mut frames, log, |_| ());
        walker.find(from, high, 100, log).is_some()
    };
    assert!(!is_known(&mut walker, log) && !is_known(&mut walker, log));
    // Again where another test opens a library meanwhile, which takes longer than many walks.
    let kept = (0..10_000).any(|_| {
        walker.came_before();
        let is_kept = is_known(&mut walker, log);
        if !is_kept {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        is_kept
    });
    assert!(kept);
}
