//! Calls that can make the driver take memory for itself. Each is marked while it runs; a reading of
//! NVML's figure follows, and growth is attributed to the call.

use crate::hooks::process::nvml_reading::reader::{DeviceReadings, NvmlReader};
use crate::hooks::process::state::Process;
use crate::hooks::process::texts::say_once;
use crate::model::attribution::driver_internal::{ActivitySet, DriverInternal, Followed, MOST};
use crate::model::attribution::driver_internal::{Attribution, DriverActivity, Originator};
use crate::model::contexts::Contexts;
use crate::model::devices::Device;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::NoMemory;
use crate::runtime::log::Once;
use std::sync::atomic::Ordering;
use vramtrace_format::summary::keep_largest;
use vramtrace_format::{
    Cause, ContextId, DeviceId, Event, StackId, StateHolder, SummaryMoment, Took,
};

/// Without a cap all readings, and under a cap those after calls, may take this long in all and a fixed share of the
/// process's life: NVML is slow where many processes share a GPU. (A reading takes 0.2 to 0.8 ms on an H100, and at the start
/// most of the driver's memory comes.)
const ADVANCE_NS: u64 = 100_000_000;
const SHARE: u64 = 1000;
/// After the first calls of one originator in a row a reading follows at most in so many times the duration of one. The
/// next reading shows what they took together.
const SPACING: u64 = 200;
const FIRST_IN_A_ROW: u32 = 16;

/// Whether a call is measured even without NVML: contexts and limits are then charged by the device's
/// used bytes, or by a forecast.
fn always_read(doing: DriverActivity) -> bool {
    matches!(
        doing,
        DriverActivity::Context | DriverActivity::StackLimit | DriverActivity::OtherLimit
    )
}

/// A call that can make the driver take memory for itself, while it runs.
pub struct ActivityGuard {
    watched: &'static DeviceReadings,
    pub device: &'static Device,
    pub call: Followed,
}

/// The call after which a reading is made. `on_growth` attributes the growth: it may capture the stack
/// and call the driver.
pub struct AttributedReading<'a> {
    pub taking: &'a ActivityGuard,
    pub on_growth: &'a mut dyn FnMut(Attribution),
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.watched.active[self.call.doing as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl ActivityGuard {
    /// Other such calls that run at the same time.
    fn others(&self) -> ActivitySet {
        self.watched.calls_in_progress(Some(self.call.doing))
    }
}

impl DeviceReadings {
    /// Since the last reading, if there was one.
    pub(super) fn age_ns(&self, now_ns: u64) -> u64 {
        match self.read_ns.load(Ordering::Relaxed) {
            0 => u64::MAX,
            read_ns => now_ns.saturating_sub(read_ns),
        }
    }

    /// Whether the last reading is younger than `times` its duration.
    pub(super) fn was_read_within(&self, times: u64, now_ns: u64) -> bool {
        let duration_ns = self.read_duration_ns.load(Ordering::Relaxed);
        self.age_ns(now_ns) < duration_ns.saturating_mul(times)
    }

    /// Whether calls wait for a reading.
    pub(super) fn is_awaited(&self, now_ns: u64) -> bool {
        !self.was_read_within(SPACING, now_ns) && self.account.lock().waits()
    }

    /// The kinds of the calls in progress; one call of the kind `except` is not counted.
    fn calls_in_progress(&self, except: Option<DriverActivity>) -> ActivitySet {
        DriverActivity::ALL.into_iter().fold(ActivitySet::default(), |calls, doing| {
            let own = u32::from(except == Some(doing));
            match self.active[doing as usize].load(Ordering::Relaxed) > own {
                true => calls.with(doing),
                false => calls,
            }
        })
    }
}

impl NvmlReader {
    /// Before a call that can make the driver take memory for itself. `None`: no one uses the figure,
    /// or NVML cannot give it.
    pub fn begin(
        &'static self,
        p: &'static Process,
        device: &'static Device,
        call: Followed,
    ) -> Option<ActivityGuard> {
        if !NvmlReader::is_wanted(p) {
            return None;
        }
        let watched = self.of(device.id)?;
        let doing = call.doing;
        if !always_read(doing) && !watched.present.load(Ordering::Relaxed) {
            return None;
        }
        if watched.account.lock().waits_for_other(call) && self.is_within_budget(p) {
            self.read_within_budget(p, device, false, None);
        }
        watched.active[doing as usize].fetch_add(1, Ordering::Relaxed);
        Some(ActivityGuard { watched, device, call })
    }

    /// Whether a reading follows a call. If not, the next reading includes what the call took.
    pub fn may_read(&self, p: &Process, taking: &ActivityGuard) -> bool {
        if always_read(taking.call.doing) {
            return true;
        }
        let in_a_row = taking.watched.account.lock().in_a_row(taking.call);
        let is_soon = in_a_row > FIRST_IN_A_ROW
            && !p.cap.is_set()
            && taking.watched.was_read_within(SPACING, p.clock.now_ns());
        if !is_soon && self.is_within_budget(p) {
            return true;
        }
        taking.watched.account.lock().wait(taking.call);
        false
    }

    pub(super) fn is_within_budget(&self, p: &Process) -> bool {
        let allowed_ns = ADVANCE_NS.saturating_add(p.clock.now_ns() / SHARE);
        self.spent_ns.load(Ordering::Relaxed) <= allowed_ns
    }

    /// A reading whose time counts.
    pub fn read_within_budget(
        &self,
        p: &'static Process,
        device: &Device,
        reserves: bool,
        own: Option<AttributedReading<'_>>,
    ) {
        self.read(p, device, reserves, own);
        if let Some(watched) = self.of(device.id) {
            let cost_ns = watched.read_duration_ns.load(Ordering::Relaxed);
            self.spent_ns.fetch_add(cost_ns, Ordering::Relaxed);
        }
    }

    /// Notes a call whose effect may appear only at the next reading of this device, for example on a
    /// peer device.
    pub fn wait_for(&self, device: DeviceId, call: Followed) {
        if let Some(watched) = self.of(device) {
            watched.account.lock().wait(call);
        }
    }

    /// Attributes the growth that a reading showed, after it was charged. Returns whether an event was
    /// recorded.
    pub fn name(
        &self,
        p: &Process,
        device: &Device,
        watched: &DeviceReadings,
        exact: bool,
        own: Option<AttributedReading<'_>>,
    ) -> bool {
        let call = own.as_ref().map(|own| own.taking.call);
        let showed = {
            let mut account = watched.account.lock();
            let others = own.as_ref().map(|own| own.taking.others());
            let others = others.unwrap_or_else(|| watched.calls_in_progress(None));
            // Without the bytes that contexts took when they were created.
            let contexts = p.contexts.bytes_on(device.id);
            let hidden = p.cap.outside(device.id).saturating_sub(contexts);
            account.settle(hidden, call, others, exact)
        };
        match (showed, own) {
            (Attribution::Nothing, _) => return false,
            (Attribution::Less(bytes), _) => {
                watched.change(p, device.id, |account, report| {
                    account.give_back(bytes, call, report);
                });
            }
            (Attribution::ByOriginator(maker, bytes), _) => self.book(p, device.id, maker, bytes),
            (_, Some(own)) => (own.on_growth)(showed),
            (Attribution::BySome(cause, bytes), None) => {
                self.book(p, device.id, Originator::unnamed(cause), bytes);
            }
            (Attribution::ByCall(_), None) => {}
        }
        true
    }

    /// Adds what was taken to the device's account, and records it.
    pub fn book(&self, p: &Process, device: DeviceId, maker: Originator, bytes: u64) {
        let Some(watched) = self.of(device).filter(|_| bytes > 0) else {
            return;
        };
        let mut account = watched.account.lock();
        account.keep_peak(p.ledger.epoch(device));
        let maker = account.add(maker, bytes);
        record(p, device, &maker, bytes.min(i64::MAX as u64) as i64);
        let has_overflowed = account.has_overflowed();
        drop(account);
        if has_overflowed {
            say_once(&p.trace_writer, Once::DriverInternal, || {
                format!(
                    "more than {MOST} calls that made the driver take memory: the trace has the cause of \
                     further ones, not their function and stack"
                )
            });
        }
    }

    /// A context has ended: removes the bytes that the driver took in it.
    pub fn context_ended(&self, p: &Process, device: DeviceId, context: ContextId) {
        if let Some(watched) = self.of(device) {
            watched.change(p, device, |account, report| account.context_ended(context, report));
        }
    }

    /// Calls `report` with the bytes that the driver holds for itself, for each call that made it take
    /// them. The device's lock is held, so that no change is recorded in between.
    pub fn each_taken(&self, mut report: impl FnMut(Took)) {
        for (ordinal, watched) in self.devices.iter().enumerate() {
            let account = watched.account.lock();
            for (maker, bytes) in account.makers() {
                report(taken(DeviceId(ordinal as u8), maker, *bytes as i64));
            }
        }
    }

    /// For the summary at the end: what the driver held for itself on the device, contexts among it, at its highest peak,
    /// whose number is `epoch`, and now. Appended to `all`. Without host memory for it: an error.
    pub fn sum_up(
        &self,
        contexts: &Contexts,
        device: DeviceId,
        epoch: u32,
        all: &mut Vec<StateHolder>,
    ) -> Result<(), NoMemory> {
        let Some(watched) = self.of(device) else { return Ok(()) };
        let account = watched.account.lock();
        for moment in [SummaryMoment::Peak, SummaryMoment::End] {
            let makers = match moment {
                SummaryMoment::Peak => account.makers_at_peak(epoch).ok_or(NoMemory)?,
                SummaryMoment::End => account.makers(),
            };
            let mut sums: Map<(Cause, StackId), [u64; 2]> = Map::default();
            let mut add = |cause, stack, bytes| {
                let [held, count] = sums.get_or_insert((cause, stack), [0; 2])?;
                (*held, *count) = (held.saturating_add(bytes), *count + 1);
                Ok(())
            };
            makers.iter().try_for_each(|(maker, bytes)| add(maker.cause, maker.stack, *bytes))?;
            contexts.on(device, |of| add(Cause::Context, of.stack, of.bytes))?;
            let of = |(&(cause, stack), &[bytes, count]): (&(Cause, StackId), &[u64; 2])| {
                let (of_framework, cause) = (false, Some(cause));
                StateHolder { device, moment, of_framework, cause, stack, bytes, count }
            };
            let mut here = list_of(sums.len(), sums.iter().map(of))?;
            keep_largest(&mut here);
            here.into_iter().try_for_each(|of| all.try_push(of))?;
        }
        Ok(())
    }
}

impl DeviceReadings {
    /// Subtracts bytes that the driver freed, and records that.
    fn change(
        &self,
        p: &Process,
        device: DeviceId,
        change: impl FnOnce(&mut DriverInternal, &mut dyn FnMut(&Originator, u64)),
    ) {
        let mut account = self.account.lock();
        account.keep_peak(p.ledger.epoch(device));
        change(&mut account, &mut |maker, bytes| record(p, device, maker, -(bytes as i64)));
    }
}

fn taken(device: DeviceId, maker: &Originator, delta: i64) -> Took {
    let Originator { cause, site, stack, name, .. } = *maker;
    Took { device, cause, delta, site, stack, name }
}

/// The caller holds the account's lock, so that the file has the changes of a device in their order.
fn record(p: &Process, device: DeviceId, maker: &Originator, delta: i64) {
    p.trace_writer.record(&Event::Took(taken(device, maker, delta)));
}
