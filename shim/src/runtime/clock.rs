//! Clocks, read through the vdso: no system call.

use super::each_call::EACH_CALL;
use super::elf;
use super::thread_slot;
use core::ffi::c_int;
use core::num::NonZeroUsize;
use once_cell::race::OnceNonZeroUsize;

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    real_clock()(clock, &mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

type Read = extern "C" fn(libc::clockid_t, &mut libc::timespec) -> c_int;

unsafe extern "C" {
    safe fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) -> c_int;
}

/// The function that the loader bound, which may be the program's or a preloaded library's. Under ThreadSanitizer the
/// C library's: that of gcc 11 and earlier has a function in front of it which reports a race where a second thread
/// uses one of this library's stacks.
fn real_clock() -> Read {
    static KNOWN: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let find = || {
        let beneath = elf::startup_functions([b"__tsan_init"])[0]
            .and_then(|_| elf::c_library_function(b"clock_gettime"));
        NonZeroUsize::new(beneath.unwrap_or(clock_gettime as *const () as usize)).ok_or(())
    };
    // Miri reads no tables of the loader.
    let known = if cfg!(miri) { Err(()) } else { KNOWN.get_or_try_init(find) };
    // SAFETY: the function of that name.
    known.map_or(clock_gettime, |at| unsafe { core::mem::transmute::<usize, Read>(at.get()) })
}

/// CLOCK_MONOTONIC, with an error of a few microseconds at most.
#[inline]
pub fn mono_ns() -> u64 {
    EACH_CALL.ticks.now(real_mono_ns)
}

/// Nanoseconds since `began_ns`, an earlier [`mono_ns`]; 0 where the clock was set back in between: the
/// counter's error differs from one reading to the next.
pub fn elapsed_ns(began_ns: u64) -> u64 {
    mono_ns().saturating_sub(began_ns)
}

/// Every later reading reads the real clock.
pub fn always_ask() {
    EACH_CALL.ticks.leave();
}

pub fn real_mono_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

pub fn unix_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// The time of events: nanoseconds since the process's state was made.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock {
    /// CLOCK_MONOTONIC at its start.
    pub start_ns: u64,
}

impl ProcessClock {
    pub fn start() -> ProcessClock {
        ProcessClock { start_ns: mono_ns() }
    }

    /// The time now. It is also stored for the thread: see [`thread_slot::last_ns`].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let now = mono_ns().saturating_sub(self.start_ns);
        thread_slot::set_last_ns(now);
        now
    }
}

/// `20261121-034512`, UTC.
pub fn compact_utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days to a date by eras of 400 years, years beginning in March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "19700101-000000"),
            (951_782_400, "20000229-000000"),
            (1_795_232_712, "20261121-034512"),
            (4_107_542_399, "21000228-235959"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(compact_utc(seconds * 1_000_000_000), text);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_counts_no_time() {
        assert_eq!(elapsed_ns(mono_ns() + 1_000_000_000), 0);
        assert!(elapsed_ns(mono_ns() - 1_000_000_000) >= 999_000_000);
    }

    #[test]
    fn clocks_run() {
        let before = real_mono_ns();
        assert!(real_mono_ns() >= before && before > 0);
        assert!(unix_ns() > 1_600_000_000_000_000_000);
    }
}
