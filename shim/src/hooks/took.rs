//! Calls that can make the driver take memory of its own: one reading of NVML's figure after each,
//! and what is more than before is booked for the call, with its site and stack.

use super::book::{look_at_reserves, site};
use super::context::meet_device;
use super::place::current_place;
use crate::contexts::Place;
use crate::entry::Api;
use crate::entry::cuda::CUresult;
use crate::observe::{Doing, Maker, Observer, Own, Showed, Taking};
use crate::process::Process;
use core::ffi::{CStr, c_char};
use vramtrace_format::{Cause, PoolId, StackId};

/// Longest name that is kept: names of C++ functions are long.
const LONGEST: usize = 4000;
/// Events are made by the thousand, and never showed on an H200: a reading after them comes at most
/// so often.
const SELDOM_NS: u64 = 100_000_000;

/// A call under way.
pub struct Watch(Option<Taking>);

impl Watch {
    pub fn none() -> Watch {
        Watch(None)
    }

    pub fn start(p: &'static Process, place: Place, doing: Doing) -> Watch {
        if !Observer::is_wanted(p) {
            return Watch(None);
        }
        let device = meet_device(p, place.device);
        Watch(device.and_then(|device| p.observe.begin(p, device, doing)))
    }

    /// After the call, also where it failed: what it took is taken.
    pub fn end(self, p: &'static Process, api: Api, place: Place, name: impl Fn() -> u32) {
        self.end_in_parts(p, api, place, name, |bytes| vec![(self.cause(), bytes)]);
    }

    fn cause(&self) -> Cause {
        self.0.as_ref().map_or(Cause::Other, |taking| taking.doing.cause())
    }

    /// As `end`: `parts` tells what so many bytes were for, where they are this call's alone.
    pub fn end_in_parts(
        &self,
        p: &'static Process,
        api: Api,
        place: Place,
        name: impl Fn() -> u32,
        parts: impl Fn(u64) -> Vec<(Cause, u64)>,
    ) {
        let Some(taking) = self.0.as_ref().filter(|taking| p.observe.may_read(p, taking)) else {
            return;
        };
        let device = taking.device.id;
        let mut told = |showed: Showed| {
            let site = site(p, api, None, place, PoolId(0), 0);
            let maker =
                |cause, stack, name| Maker { cause, context: place.context, site, stack, name };
            match showed {
                Showed::ByCall(bytes) => {
                    let (stack, name) = (crate::capture::stack(p), name());
                    for (cause, bytes) in parts(bytes) {
                        p.observe.book(p, device, maker(cause, stack, name), bytes);
                    }
                }
                Showed::BySome(cause, bytes) => {
                    p.observe.book(p, device, maker(cause, StackId(0), 0), bytes);
                }
                Showed::Less(_) | Showed::Nothing => {}
            }
        };
        let began_ns = p.recorder.now_ns();
        let own = Own { taking, told: &mut told };
        // While something is captured the driver is asked no more than it must be.
        let asks = !p.captures.any();
        let reserves = || {
            if asks {
                look_at_reserves(p, device);
            }
        };
        p.observe.read(p, taking.device, reserves, Some(own));
        p.observe.spent(p.recorder.now_ns().saturating_sub(began_ns));
    }
}

/// Makes such a call; `name` is the id of what it was for.
pub fn watched(
    p: &'static Process,
    api: Api,
    place: Place,
    doing: Doing,
    name: impl Fn() -> u32,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let watch = Watch::start(p, place, doing);
    let result = real();
    watch.end(p, api, place, name);
    result
}

/// As `watched`, for calls that come by the thousand: one without a reading is left to the next,
/// and nobody waits for it.
pub fn watched_seldom(
    p: &'static Process,
    api: Api,
    place: impl FnOnce() -> Place,
    doing: Doing,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if !Observer::is_wanted(p) {
        return real();
    }
    let place = place();
    let since = p.recorder.now_ns().saturating_sub(p.observe.read_ns(place.device));
    if since < SELDOM_NS {
        return real();
    }
    watched(p, api, place, doing, || 0, real)
}

/// A call that brings in, or lets go of, memory of others.
pub fn sharing(p: &'static Process, api: Api, real: impl FnOnce() -> CUresult) -> CUresult {
    watched(p, api, current_place(p), Doing::Sharing, nameless, real)
}

/// No name.
pub fn nameless() -> u32 {
    0
}

/// The number of a text that the program or the driver gave.
///
/// # Safety
/// Null, or a C string.
pub unsafe fn text(p: &'static Process, text: *const c_char) -> u32 {
    if text.is_null() {
        return 0;
    }
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    p.marks.id(p, &text[..end])
}
