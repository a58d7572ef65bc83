//! The native stack of this thread, unwound in place.

pub mod modules;
pub mod rules;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{
    Error, ExplicitModuleSectionInfo, FrameAddress, Module, MustNotAllocateDuringUnwind, Unwinder,
};
use modules::{Headers, Loaded, Section};
use rules::{Rules, State};
use std::ops::Range;

type Policy = MustNotAllocateDuringUnwind;

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub ip: usize,
    pub sp: usize,
    pub bp: usize,
}

impl Registers {
    /// Of the function into which this is inlined; it must not return before the walk has ended.
    #[inline(always)]
    pub fn here() -> Registers {
        let (ip, sp, bp);
        // SAFETY: reads registers.
        unsafe {
            core::arch::asm!(
                "lea {ip}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nostack, nomem, preserves_flags),
            );
        }
        Registers { ip, sp, bp }
    }
}

/// A return address, and the lowest stack address of the function to which it returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    pub address: usize,
    pub low: usize,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Frames found, in the order from the innermost out.
    pub frames: usize,
    /// Outer frames are missing.
    pub cut: bool,
    /// The stack of the last frame ends here.
    pub high: usize,
}

/// Rules for unwinding, and the libraries that they come from: each is added when the first
/// address in it is met.
pub struct Walker {
    unwinder: UnwinderX86_64<Section, Policy>,
    cache: CacheX86_64<Policy>,
    rules: Rules,
    /// For finding out rules: with a made-up stack it may remember nonsense.
    trial: CacheX86_64<Policy>,
    /// In order of address.
    known: Vec<Range<usize>>,
    ours: Range<usize>,
}

impl Default for Walker {
    fn default() -> Self {
        Walker::new()
    }
}

impl Walker {
    pub fn new() -> Walker {
        let ours = modules::holding(Walker::new as *const () as usize);
        Walker {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new_in(),
            rules: Rules::default(),
            trial: CacheX86_64::new_in(),
            known: Vec::new(),
            ours: ours.map_or(0..0, |ours| ours.start..ours.end),
        }
    }

    /// Libraries may have gone: begins anew.
    pub fn forget(&mut self) {
        self.unwinder = UnwinderX86_64::new();
        self.rules.forget();
        self.known.clear();
    }

    /// Fills `frames` from the innermost frame outside our own library on. `high`: end of this
    /// thread's stack. `met` hears of each library that is met for the first time.
    #[inline]
    pub fn walk(
        &mut self,
        from: Registers,
        high: usize,
        frames: &mut [Frame],
        mut met: impl FnMut(&Loaded, &Headers),
    ) -> Walked {
        let low = from.sp as u64;
        let last = high as u64 - 8;
        let mut read = |address: u64| match (low..=last).contains(&address) {
            // SAFETY: between this function's caller's frame and the end of this thread's stack.
            true => Ok(unsafe { (address as *const u64).read_unaligned() }),
            false => Err(()),
        };
        let mut at = State { ip: from.ip as u64, sp: from.sp as u64, bp: from.bp as u64 };
        let mut address = FrameAddress::from_instruction_pointer(at.ip);
        let mut own = true;
        let mut found = 0;
        loop {
            let code = address.address_for_lookup();
            at = match self.rules.unwind(code, at, &mut read) {
                Some(caller) => caller,
                None => match self.unwind(address, at, &mut read, &mut met) {
                    Ok(Some(caller)) => caller,
                    Ok(None) => return Walked { frames: found, cut: false, high },
                    Err(()) => return Walked { frames: found, cut: true, high },
                },
            };
            let (caller, sp) = (at.ip as usize, at.sp as usize);
            own = own && self.ours.contains(&caller.wrapping_sub(1));
            if !own {
                if found == frames.len() {
                    return Walked { frames: found, cut: true, high: sp };
                }
                frames[found] = Frame { address: caller, low: sp };
                found += 1;
            }
            match FrameAddress::from_return_address(at.ip) {
                Some(next) => address = next,
                None => return Walked { frames: found, cut: false, high },
            }
        }
    }

    /// One frame out, the unwinder's way. `None`: there is no other.
    #[inline(never)]
    fn unwind(
        &mut self,
        address: FrameAddress,
        from: State,
        read: &mut impl FnMut(u64) -> Result<u64, ()>,
        met: &mut impl FnMut(&Loaded, &Headers),
    ) -> Result<Option<State>, ()> {
        let code = address.address_for_lookup();
        let is_known = !self.know(code as usize, met).is_empty();
        let to = match ask(&self.unwinder, &mut self.cache, address, from, &mut *read) {
            Ok(Some(to)) => to,
            Ok(None) | Err(Error::ReturnAddressIsNull) => return Ok(None),
            Err(_) => return Err(()),
        };
        // In code of which nothing is known, another library may come to be.
        if is_known {
            self.rules.learn(code, (from, to), read, |from, read| {
                ask(&self.unwinder, &mut self.trial, address, from, read).ok().flatten()
            });
        }
        Ok(Some(to))
    }

    /// The known range that holds an address; empty where there is none.
    #[inline]
    fn know(&mut self, code: usize, met: &mut impl FnMut(&Loaded, &Headers)) -> Range<usize> {
        let behind = self.known.partition_point(|range| range.start <= code);
        match behind.checked_sub(1).map(|at| self.known[at].clone()) {
            Some(range) if range.contains(&code) => range,
            _ => self.learn(code, met),
        }
    }

    #[cold]
    fn learn(&mut self, code: usize, met: &mut impl FnMut(&Loaded, &Headers)) -> Range<usize> {
        let Some(loaded) = modules::holding(code) else { return 0..0 };
        let range = loaded.start..loaded.end;
        if self.known.iter().any(|known| known.start < range.end && range.start < known.end) {
            // Something of which we did not hear went away.
            self.forget();
        }
        // SAFETY: a function of it is on this thread's stack.
        let headers = unsafe { loaded.headers() };
        if let Some(data) = loaded.unwind_data(&headers) {
            let in_file = |at: usize| at.wrapping_sub(headers.base) as u64;
            let place =
                |part: &Section| Some(in_file(part.start)..in_file(part.start + part.length));
            let sections = ExplicitModuleSectionInfo {
                base_svma: in_file(loaded.start),
                eh_frame_hdr_svma: place(&data.index),
                eh_frame_svma: place(&data.frames),
                eh_frame_hdr: Some(data.index),
                eh_frame: Some(data.frames),
                text_svma: None,
                text: None,
                stubs_svma: None,
                stub_helper_svma: None,
                got_svma: None,
                unwind_info: None,
                debug_frame: None,
                text_segment_svma: None,
                text_segment: None,
            };
            let addresses = loaded.start as u64..loaded.end as u64;
            let module = Module::new(String::new(), addresses, loaded.start as u64, sections);
            self.unwinder.add_module(module);
        }
        let at = self.known.partition_point(|known| known.start < range.start);
        self.known.insert(at, range.clone());
        met(&loaded, &headers);
        range
    }
}

fn ask(
    unwinder: &UnwinderX86_64<Section, Policy>,
    cache: &mut CacheX86_64<Policy>,
    address: FrameAddress,
    from: State,
    mut read: impl FnMut(u64) -> Result<u64, ()>,
) -> Result<Option<State>, Error> {
    let mut registers = UnwindRegsX86_64::new(from.ip, from.sp, from.bp);
    let caller = unwinder.unwind_frame(address, &mut registers, cache, &mut read)?;
    Ok(caller.map(|ip| State { ip, sp: registers.sp(), bp: registers.bp() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::bounds;

    unsafe extern "C" {
        fn backtrace(buffer: *mut *mut libc::c_void, size: libc::c_int) -> libc::c_int;
    }

    #[inline(never)]
    fn both(depth: usize, walker: &mut Walker) -> (Vec<usize>, Vec<usize>, Walked) {
        if depth > 0 {
            return std::hint::black_box(both(depth - 1, walker));
        }
        // In a test everything is "our own library".
        walker.ours = 0..0;
        let mut theirs = [std::ptr::null_mut(); 256];
        let from = Registers::here();
        let high = bounds::high(from.sp).unwrap();
        let mut frames = [Frame::default(); 256];
        let walked = walker.walk(from, high, &mut frames, |_, _| ());
        let count = unsafe { backtrace(theirs.as_mut_ptr(), 256) } as usize;
        let ours = frames[..walked.frames].iter().map(|frame| frame.address).collect();
        // Its first is the address in this function.
        let theirs = theirs[1..count].iter().map(|address| *address as usize).collect();
        (ours, theirs, walked)
    }

    #[test]
    fn as_backtrace_says() {
        let mut walker = Walker::new();
        for depth in [0, 1, 7, 40] {
            let (ours, theirs, walked) = both(depth, &mut walker);
            assert!(!walked.cut);
            assert_eq!(ours, theirs, "depth {depth}");
        }
        walker.forget();
        let (ours, theirs, _) = both(3, &mut walker);
        assert_eq!(ours, theirs);
    }

    #[test]
    fn frames_have_growing_stacks() {
        let mut walker = Walker::new();
        walker.ours = 0..0;
        let from = Registers::here();
        let high = bounds::high(from.sp).unwrap();
        let mut frames = [Frame::default(); 3];
        let walked = walker.walk(from, high, &mut frames, |_, _| ());
        assert_eq!((walked.frames, walked.cut), (3, true));
        assert!(frames.windows(2).all(|pair| pair[0].low < pair[1].low));
        assert!(walked.high > frames[2].low && walked.high < high);
    }
}
