//! The native stack of this thread, unwound in place.
//!
//! | step | where |
//! |---|---|
//! | the library that contains an address | [`crate::runtime::mapped_modules`] |
//! | the row of the unwind tables for an address | [`tables`] |
//! | that row as a rule of 16 bytes, computed once | [`rules`] |
//! | the steps of a stack that was walked before | [`walk_log`] |
//!
//! Libraries may be unloaded at any time, by calls that are not seen. The loader counts the objects that it ever
//! loaded, and those that are loaded now: where one of the counts has changed, or where they are not known, a walk
//! queries the loader for each library that it passes, by `_dl_find_object`, which takes no lock.
//! (`dl_iterate_phdr` takes one, which a thread that no longer exists may hold in a forked child.) If a library
//! differs from the known one in its addresses, its link map or some of its bytes, the walker discards all rules.

#[cfg(target_arch = "aarch64")]
mod row_aarch64;
#[cfg(target_arch = "x86_64")]
mod row_x86_64;
pub mod rules;
pub mod tables;
pub mod walk_log;

use crate::runtime::fallible::MakeRoom;
use crate::runtime::mapped_modules;
use crate::runtime::mapped_modules::{Loaded, Mark, Seen};
pub use rules::State;
use rules::{Rule, Rules, UnwindStep};
use std::ops::Range;
use tables::Tables;
use walk_log::{EXACT, OWN, Reads, Recorder, StackPrint, Step, WalkLog};

/// A return address, and the lowest stack address of the function to which it returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    pub address: usize,
    pub low: usize,
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Frames found, in the order from the innermost out.
    pub frames: usize,
    /// Outer frames are missing.
    pub cut: bool,
    /// The end of the last frame's stack.
    pub high: usize,
}

/// Rules for unwinding, and the libraries that they come from: each is added when the first
/// address in it is seen.
///
/// Libraries can be unloaded without notice. So a walk checks with the loader, once for each library that it passes
/// and that was not checked since one came or went, that it is still the known one; if not, all rules are
/// discarded. Libraries with a function on this thread's stack stay loaded until the walk has ended, and no others
/// are read.
pub struct Walker {
    rules: Rules,
    /// Sorted by address, without overlap.
    known: Vec<Known>,
    /// The number of the current walk.
    walk: u64,
    /// Libraries that this walk or a later one has checked are still the known ones, and the steps of these walks
    /// would be the same.
    since: u64,
    /// The loader's counts at the walk `since`.
    generation: Option<u64>,
    /// So many walks are kept in the log.
    to_keep: u32,
    ours: Range<usize>,
}

struct Known {
    loaded: Loaded,
    mark: Option<Mark>,
    tables: Option<Tables>,
    /// The last walk that found the library at its addresses.
    seen: u64,
}

impl Known {
    fn is_there(&self) -> bool {
        mapped_modules::holding(self.loaded.start) == Some(self.loaded)
            // SAFETY: a library is loaded at these addresses, so they can be read.
            && self.mark.is_none_or(|mark| unsafe { mark.is_there() })
    }
}

/// The range of code that belongs to no library.
const NOWHERE: Range<usize> = 0..0;

impl Default for Walker {
    fn default() -> Walker {
        let ours = mapped_modules::holding(Walker::default as *const () as usize);
        Walker {
            rules: Rules::default(),
            known: Vec::new(),
            walk: 0,
            since: 0,
            generation: None,
            to_keep: 0,
            ours: ours.map_or(NOWHERE, |ours| ours.start..ours.end),
        }
    }
}

impl Walker {
    /// Discards everything: each library will be looked up again.
    pub fn forget(&mut self) {
        self.rules.forget();
        self.known.clear();
        self.since = self.walk + 1;
    }

    /// Begins a walk: looks whether libraries came or went since the last one.
    #[inline(always)]
    fn begin(&mut self) {
        self.walk += 1;
        let now = mapped_modules::generation();
        if now.is_none() || now != self.generation {
            self.generation = now;
            self.since = self.walk;
        }
    }

    /// What [`Walker::walk`] with room for `most` frames would find, if this stack was walked before.
    #[inline]
    pub fn find(
        &mut self,
        from: State,
        high: usize,
        most: usize,
        log: &mut WalkLog,
    ) -> Option<StackPrint> {
        self.begin();
        log.find(from, high, most, self.since, &self.ours)
    }

    /// The stack that was walked last is one that came before, so it pays to keep walks. (To keep one costs half as much as a
    /// walk, and a stack that never comes again is not looked for.)
    pub fn came_before(&mut self) {
        self.to_keep = (self.to_keep + 2).min(64);
    }

    /// Whether a build with assertions compares the last result of [`Walker::find`] with a walk.
    pub fn is_check_due(&self) -> bool {
        self.walk.is_multiple_of(3)
    }

    /// Fills `frames`, beginning with the innermost frame outside this library. `high`: end of this
    /// thread's stack. `seen` is called for each library that is found for the first time.
    #[inline(never)]
    pub fn walk(
        &mut self,
        from: State,
        high: usize,
        frames: &mut [Frame],
        log: &mut WalkLog,
        mut seen: impl FnMut(Seen),
    ) -> Walked {
        let low = from.sp;
        let last = high - 8;
        let read = |address: usize| {
            // SAFETY: between this function's caller's frame and the end of this thread's stack.
            (low..=last)
                .contains(&address)
                .then(|| unsafe { (address as *const usize).read_unaligned() })
        };
        let mut at = from;
        // The rule is that of the call instruction, which may be the function's last: hence the address
        // less 1.
        let mut code = at.ip;
        let (mut own, mut flags) = (true, OWN | EXACT);
        let mut found = 0;
        let mut in_known = NOWHERE;
        self.begin();
        let is_kept = self.to_keep > 0 && self.generation.is_some();
        self.to_keep -= u32::from(is_kept);
        let mut recorder = Recorder::new(is_kept, self.walk, self.since);
        loop {
            if !in_known.contains(&code) {
                in_known = self.know(code, &mut seen);
            }
            let in_library = !in_known.is_empty();
            let rule = self.rules.get(code).unwrap_or_else(|| self.learn(code, in_library, at));
            let mut reads = Reads::default();
            let result = rule.step(at, &mut |address| {
                let word = read(address);
                reads.note(address, word);
                word
            });
            let result = match result {
                // A guessed caller of code in a library must be in a library; generated code may be
                // called by generated code.
                UnwindStep::Guessed(caller)
                    if in_library && mapped_modules::holding(caller.ip - 1).is_none() =>
                {
                    UnwindStep::Lost
                }
                other => other,
            };
            if recorder.is_on() {
                let (rule, reads) = (&rule, &reads);
                recorder.step(log, &Step { at, flags, rule, reads, result, in_library });
            }
            let exact = match result {
                UnwindStep::Caller(caller) | UnwindStep::Guessed(caller) => {
                    at = caller;
                    false
                }
                UnwindStep::Interrupted(state) => {
                    at = state;
                    true
                }
                UnwindStep::End => return Walked { frames: found, cut: false, high },
                UnwindStep::Lost => return Walked { frames: found, cut: true, high },
            };
            code = at.ip - usize::from(!exact);
            own = own && self.ours.contains(&code);
            flags = if own { OWN } else { 0 };
            if !own {
                if found == frames.len() {
                    recorder.close(log);
                    return Walked { frames: found, cut: true, high: at.sp };
                }
                frames[found] = Frame { address: at.ip, low: at.sp };
                found += 1;
            }
        }
    }

    /// The known range that contains an address; empty if there is none.
    #[inline]
    fn know(&mut self, code: usize, seen: &mut impl FnMut(Seen)) -> Range<usize> {
        let (walk, since) = (self.walk, self.since);
        if let Some(known) = self.holding(code) {
            if known.seen >= since || known.is_there() {
                known.seen = walk;
                return known.loaded.start..known.loaded.end;
            }
            self.forget();
        }
        self.register(code, seen)
    }

    #[inline]
    fn holding(&mut self, code: usize) -> Option<&mut Known> {
        let behind = self.known.partition_point(|known| known.loaded.start <= code);
        self.known[..behind].last_mut().filter(|known| code < known.loaded.end)
    }

    #[cold]
    fn register(&mut self, code: usize, seen: &mut impl FnMut(Seen)) -> Range<usize> {
        let Some(loaded) = mapped_modules::holding(code) else {
            seen(Seen::Made(code));
            return NOWHERE;
        };
        let range = loaded.start..loaded.end;
        let overlaps =
            |known: &Known| known.loaded.start < range.end && range.start < known.loaded.end;
        if self.known.iter().any(overlaps) {
            // It overlaps a library that is no longer loaded.
            self.forget();
        }
        // SAFETY: one of its functions is on this thread's stack, so it is loaded.
        let image = unsafe { loaded.image() };
        let tables = loaded.unwind_data(&image).and_then(Tables::of);
        if self.known.make_room().is_err() {
            return NOWHERE;
        }
        let at = self.known.partition_point(|known| known.loaded.start < range.start);
        let mark = image.mark();
        #[allow(clippy::disallowed_methods)] // there is room
        self.known.insert(at, Known { loaded, mark, tables, seen: self.walk });
        seen(Seen::Library(&loaded, &image));
        range
    }

    /// Computes the rule for an address that has none yet. A rule for code outside known libraries is
    /// not kept, since a library may be loaded there later.
    #[cold]
    fn learn(&mut self, code: usize, is_known: bool, _at: State) -> Rule {
        // The loader counts a library until after it was unmapped: the tables are read only if it is there.
        let known = self.holding(code).filter(|known| known.is_there());
        let is_known = is_known && known.is_some();
        let tables = known.and_then(|known| known.tables.as_ref());
        #[allow(unused_mut)]
        let mut rule = tables.map_or(Rule::FRAME_POINTER, |tables| tables.rule(code));
        // SAFETY: the frame before was not guessed: it will return to `ip`.
        #[cfg(target_arch = "aarch64")]
        if rule == Rule::FRAME_POINTER
            && !_at.is_vague
            && let Some(signal) = unsafe { row_aarch64::signal_return(_at.ip) }
        {
            rule = signal;
        }
        if is_known {
            self.rules.put(code, rule);
        }
        rule
    }
}

#[cfg(test)]
mod tests;
