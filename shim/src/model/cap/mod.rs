//! The cap of each device, and what counts against it.
//!
//! The count of a device is the sum of the physical bytes of its allocations, the bytes reserved for
//! calls in progress, the reserves of its pools and graphs, and the bytes that the driver took for
//! itself (context, kernels) as far as known. It is kept without a cap too: one may be set while the
//! process runs.
//!
//! * A request is reserved before the driver's call, by compare-and-swap on an upper bound
//!   ([`Budget`]), set to the real size after it, and released after the free has returned.
//! * Pools and graphs are charged for what they reserve, as read back from the driver, so that a
//!   request that a pool can serve from its reserve is never refused ([`Growth`]).
//! * What only NVML's figure shows is charged after the call that takes it. It may lift the count
//!   over the cap; then every request is refused until the count is below it again.
//! * A context that is not a device's first reserves what the first took ([`Making`]).
//! * Arrays of up to 1 MiB count with the pages that they share ([`ArrayPages`]).
//! * `vramtrace cap` stores an order for another cap in the live page. Each hook checks for one first
//!   (two loads), so a call that begins after the command has returned obeys it.
//! * Before a refusal the state is read again (`hooks/process/refresh.rs`): dead members of the group are
//!   removed, pools and graphs are read back, and NVML's figure is read unless the last reading is
//!   0.2 ms old at most, or ten times what a reading takes.
//!
//! Members of a group share a page with a count for each member and device (`group_share`).
//! `scripts/bench.sh limits`, `live` and `refusals` measure what all this costs a call.

mod array_pages;
mod budget;
mod counting;
mod group;
mod group_page;
mod group_share;
mod growth;
mod in_flight;
mod making;
mod managed;
mod most_in_use;
pub mod orders;
mod soft;

use crate::model::cap::group_share::GroupShare;
use array_pages::ArrayPages;
pub use array_pages::Sharing;
pub use budget::{Budget, Refusal, Reservation};
pub use counting::add_saturating;
use group::Group;
pub use making::{Making, Turn};
use managed::Managed;
use once_cell::race::OnceRef;
use orders::Orders;
pub use soft::Crossing;

pub use crate::model::cap::in_flight::InFlight;
pub use growth::{Change, Growth, Reading, Ticket};

use crate::config::CapRules;
use crate::model::devices::Device;
use crate::runtime::attention;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use vramtrace_format::capspec::{CapSpec, Rule, Target};
use vramtrace_format::live::LIVE_DEVICES;
use vramtrace_format::policy::Mode;
use vramtrace_format::{ContextId, DeviceId, Kind};

/// Queries the driver, without going through the hooks. `None` before the driver is initialised.
pub type Ask = fn(DeviceId) -> Option<Device>;

/// What each call reads comes first.
#[repr(C)]
pub struct Cap {
    /// The number of the last order that was applied.
    order: AtomicU64,
    devices: Box<[DeviceCap; DEVICES]>,
    /// The cap could not be parsed, or the group cannot be joined.
    bad: AtomicBool,
    /// A limit is set, or was set once: the driver's figures are read more often.
    set: AtomicBool,
    /// Where the number of the last order is stored.
    ordered: AtomicPtr<AtomicU64>,
    rules: CapRules,
    ask: Ask,
    group: Option<Group>,
    /// One thread at a time joins the group, and finds the limits of a device.
    joining: Lock<()>,
    pub orders: Orders<LIVE_DEVICES>,
}

const DEVICES: usize = 256;
/// Where there is no live page, there are no orders.
static NO_ORDER: AtomicU64 = AtomicU64::new(0);
/// No driver grants a request of this size: such a request does not enter a sum.
const ABSURD: u64 = 1 << 60;

#[derive(Default)]
struct DeviceCap {
    budget: Budget,
    /// Set once the device's rule was looked up.
    facts: OnceRef<'static, Device>,
    /// Whether a limit was set while running, which replaces the rule's.
    ordered: AtomicBool,
    /// Context and unattributed bytes, a part of the budget's count.
    outside: AtomicU64,
    managed: Managed,
    array_pages: ArrayPages,
    making: Making,
}

impl Cap {
    #[allow(clippy::disallowed_methods)] // once, at the start
    pub fn new(mut rules: CapRules, ask: Ask) -> Cap {
        let only_warns = rules.mode == Mode::Warn;
        // Not constructed on the stack, which may be small.
        let budgets = (0..DEVICES).map(|_| Budget::new(only_warns));
        let devices: Box<[_]> =
            budgets.map(|budget| DeviceCap { budget, ..DeviceCap::default() }).collect();
        Cap {
            set: AtomicBool::new(
                rules.spec.is_some() || rules.soft.is_some() || rules.group.is_some(),
            ),
            bad: AtomicBool::new(rules.bad),
            group: rules.group.take().map(Group::new),
            joining: Lock::new(()),
            order: AtomicU64::new(0),
            ordered: AtomicPtr::new((&raw const NO_ORDER).cast_mut()),
            orders: Orders::default(),
            rules,
            ask,
            devices: devices.try_into().unwrap_or_else(|_| unreachable!("so many were made")),
        }
    }

    /// Memory calls and context creation must fail with CUDA_ERROR_INVALID_VALUE.
    #[inline]
    pub fn is_bad(&self) -> bool {
        self.bad.load(Relaxed)
    }

    /// Some device has a cap or a soft limit.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.set.load(Relaxed)
    }

    /// Whether a request that does not fit is reported and forwarded to the driver.
    #[inline]
    pub fn only_warns(&self) -> bool {
        self.rules.mode == Mode::Warn
    }

    #[inline]
    fn of(&self, device: DeviceId) -> &DeviceCap {
        &self.devices[device.0 as usize]
    }

    /// The device's count, with its limit if there is one.
    #[inline]
    pub fn budget(&self, device: DeviceId) -> &Budget {
        let cap = self.of(device);
        if cap.facts.get().is_none() && self.is_set() {
            self.resolve(device, cap);
        }
        &cap.budget
    }

    #[cold]
    fn resolve(&self, device: DeviceId, cap: &DeviceCap) {
        if device == DeviceId::UNKNOWN {
            return;
        }
        let Some(facts) = (self.ask)(device) else { return };
        let absent = |rule: &Rule| match rule.target {
            Target::Ordinal(n) => (self.ask)(DeviceId(n as u8)).is_none(),
            _ => false,
        };
        let _one = self.joining.lock();
        if cap.facts.get().is_some() {
            return;
        }
        if !cap.ordered.load(Relaxed) {
            let spec = self.rules.spec.as_ref();
            let limit =
                |spec: &CapSpec| spec.limit(device.0.into(), &facts.uuid, facts.total_bytes);
            let limit = spec.and_then(limit);
            cap.budget.set_limit(limit);
            if limit.is_none() && spec.is_some_and(|spec| spec.rules.iter().any(absent)) {
                log::line(format_args!(
                    "VRAMTRACE_CAP names a device that this process does not see; device {} has no cap",
                    device.0
                ));
            }
        }
        self.set_soft(cap, Some(&facts));
        if let Some(group) = &self.group {
            match self.join(group).then(|| group.share(device, &facts)).flatten() {
                Some(share) => cap.budget.share_with(share),
                // Nothing is granted: a cap that cannot be kept must not become none.
                None => cap.budget.set_limit(Some(0)),
            }
        }
        // Leaked: once for each device.
        let _ = cap.facts.set(Box::leak(Box::new(facts)));
    }

    fn set_soft(&self, cap: &DeviceCap, facts: Option<&Device>) {
        let total = facts.map(|facts| facts.total_bytes).filter(|total| *total > 0);
        let whole = cap.budget.limit().or(total);
        let soft = self.rules.soft.zip(whole).map(|(soft, whole)| soft.bytes(whole));
        cap.budget.set_soft(soft);
    }

    /// Under the lock. False: the group cannot be joined.
    fn join(&self, group: &Group) -> bool {
        let is_joined = group.join();
        if !is_joined {
            self.bad.store(true, Relaxed);
        }
        is_joined
    }

    /// Joins the group, if there is one to join, so that a group which cannot be joined fails the
    /// program's first call and not a later one.
    pub fn join_early(&self) {
        if let Some(group) = &self.group {
            let _one = self.joining.lock();
            self.join(group);
        }
    }

    /// Removes members of the group that are dead, which frees their share.
    pub fn reap(&self) {
        self.keep_group();
        self.group.as_ref().inspect(|group| group.reap());
    }

    /// Joins the group again, with what this process holds, if it was removed. Called before a refusal, and from time to
    /// time at the end of a call.
    pub fn keep_group(&self) {
        let Some(group) = &self.group else { return };
        if group.is_lost() {
            self.join_again(group);
        }
        self.devices.iter().for_each(|cap| cap.budget.align());
        // Its limit may have changed.
        attention::ask(attention::NEWS);
    }

    #[cold]
    fn join_again(&self, group: &Group) {
        let _one = self.joining.lock();
        if !group.join_again() {
            return;
        }
        for (ordinal, cap) in self.devices.iter().enumerate() {
            let facts = cap.facts.get().filter(|_| cap.budget.share().is_some());
            let share = facts.and_then(|facts| group.share(DeviceId(ordinal as u8), facts));
            share.into_iter().for_each(|share| cap.budget.share_with(share));
        }
    }

    /// After a refusal by the group: names the members of which it cannot be told whether they live, if they are others
    /// than the last time.
    pub fn name_unchecked(&self) {
        let Some(group) = &self.group else { return };
        let pids = group.unchecked();
        if !pids.is_empty() {
            log::line(format_args!(
                "VRAMTRACE_CAP_GROUP={}: from here it cannot be told whether these members still run: \
                 {pids:?}; what they hold counts; `vramtrace ps` removes those that have ended",
                group.spec.name
            ));
        }
    }

    /// Sets another limit for a device.
    pub fn set_limit(&self, device: DeviceId, limit: Option<u64>) {
        self.set.store(true, Relaxed);
        let (budget, cap) = (self.budget(device), self.of(device));
        cap.ordered.store(true, Relaxed);
        budget.set_limit(limit);
        self.set_soft(cap, cap.facts.get());
    }

    /// Orders have numbers, of which the last one is at `last`.
    pub fn obeys(&self, last: &'static AtomicU64) {
        self.ordered.store((&raw const *last).cast_mut(), Release);
    }

    /// The number of an order that was not applied yet.
    #[inline(always)]
    pub fn new_order(&self) -> Option<u64> {
        // SAFETY: there for good.
        let last = unsafe { &*self.ordered.load(Acquire) }.load(Acquire);
        (last != self.order.load(Relaxed)).then_some(last)
    }

    /// The orders up to this one are applied.
    pub fn applied(&self, order: u64) {
        self.order.store(order, Relaxed);
    }

    /// The device's budget, if a limit applies to it.
    #[inline]
    pub fn limited(&self, device: DeviceId) -> Option<&Budget> {
        let is_limited = |budget: &Budget| budget.limit().is_some() || budget.share().is_some();
        self.is_set().then(|| self.budget(device)).filter(|budget| is_limited(budget))
    }

    pub fn limit(&self, device: DeviceId) -> Option<u64> {
        self.budget(device).limit()
    }

    pub fn soft_limit(&self, device: DeviceId) -> Option<u64> {
        self.budget(device).soft.limit()
    }

    /// The limits that apply to the device, each with its count: the process's own, and the group's.
    pub fn limits(&self, device: DeviceId) -> impl Iterator<Item = (u64, u64)> {
        let budget = self.budget(device);
        let own = budget.limit().map(|limit| (limit, budget.counted()));
        let of_group = budget.share().and_then(|share| Some((share.limit()?, share.sum())));
        own.into_iter().chain(of_group)
    }

    /// Those that are enforced and that the program sees: none where the cap only warns.
    pub fn enforced(&self, device: DeviceId) -> impl Iterator<Item = (u64, u64)> {
        self.limits(device).filter(|_| !self.only_warns())
    }

    /// Whether every granted byte must be counted: a limit is enforced, the process's or a group's.
    pub fn must_count(&self, device: DeviceId) -> bool {
        self.limited(device).is_some() && !self.only_warns()
    }

    /// The group's limit for a device; the outer `None`: the process is in no group.
    pub fn group_limit(&self, device: DeviceId) -> Option<u64> {
        self.budget(device).share()?.limit()
    }

    /// What happened since the last call: soft limits that were crossed; `None`: another limit of the group.
    pub fn take_news(&self, mut report: impl FnMut(DeviceId, Option<Crossing>)) {
        attention::met(attention::NEWS);
        for (ordinal, DeviceCap { budget, .. }) in self.devices.iter().enumerate() {
            let device = DeviceId(ordinal as u8);
            if budget.share().is_some_and(GroupShare::take_change) {
                report(device, None);
            }
            let crossings = budget.soft.take(budget.counted());
            crossings.for_each(|crossing| report(device, Some(crossing)));
        }
    }

    /// Reserves `bytes` of `kind` before the driver's call.
    #[inline]
    pub fn reserve(
        &self,
        device: DeviceId,
        kind: Kind,
        bytes: u64,
    ) -> Result<Reservation<'_>, Refusal> {
        let Some(budget) = self.countable(device, bytes) else { return Ok(Reservation::none()) };
        budget.reserve(bytes, self.managed(device, kind))
    }

    /// As `reserve`, whatever the limit: where the cap only warns.
    pub fn reserve_anyway(&self, device: DeviceId, kind: Kind, bytes: u64) -> Reservation<'_> {
        let Some(budget) = self.countable(device, bytes) else { return Reservation::none() };
        budget.reserve_anyway(bytes, self.managed(device, kind))
    }

    #[inline]
    fn countable(&self, device: DeviceId, bytes: u64) -> Option<&Budget> {
        (bytes < ABSURD || self.limited(device).is_some()).then(|| self.budget(device))
    }

    #[inline]
    fn managed(&self, device: DeviceId, kind: Kind) -> Option<&Managed> {
        (kind == Kind::Managed).then(|| &self.of(device).managed)
    }

    /// The driver has freed these physical bytes of `kind`.
    #[inline]
    pub fn went(&self, device: DeviceId, kind: Kind, bytes: u64) {
        self.budget(device).give_back(bytes, self.managed(device, kind));
    }

    /// Before an array of up to 1 MiB is created: counts the page that it may begin, by `take`. One for which there is room in
    /// the pages is never refused.
    pub fn array_comes<E>(
        &self,
        device: DeviceId,
        of: Sharing,
        size: u64,
        take: impl FnOnce(&Budget, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let take = |bytes| if bytes > 0 { take(self.budget(device), bytes) } else { Ok(()) };
        self.of(device).array_pages.comes(of, size, take)
    }

    /// The driver has destroyed it, or has not created it.
    pub fn array_went(&self, device: DeviceId, of: Sharing, size: u64) {
        let give_back = |bytes: u64| self.grow(device, -(bytes as i64));
        self.of(device).array_pages.went(of, size, give_back);
    }

    /// The context has ended; the bytes of its arrays leave the count elsewhere.
    pub fn arrays_ended(&self, device: DeviceId, context: ContextId) {
        self.grow(device, -self.of(device).array_pages.ended(context));
    }

    /// Bytes of the pages that small arrays share which are no array's, a part of the budget's count.
    pub fn beside_arrays(&self, device: DeviceId) -> u64 {
        self.of(device).array_pages.rest()
    }

    /// How contexts are made on the device.
    pub fn making(&self, device: DeviceId) -> &Making {
        &self.of(device).making
    }

    /// Bytes counted for allocations and reserved for calls in progress: without the driver's own
    /// bytes, and without the rest of a step of managed memory.
    pub fn held(&self, device: DeviceId) -> u64 {
        let look = |beside: u64| {
            self.counted(device).saturating_sub(self.outside(device)).saturating_sub(beside)
        };
        self.of(device).managed.beside(look)
    }

    /// Physical bytes that changed outside a reservation.
    pub fn grow(&self, device: DeviceId, delta: i64) {
        self.budget(device).charge(delta);
    }

    /// Charges bytes that the driver took or freed for itself: contexts, kernels, unattributed bytes.
    pub fn charge(&self, device: DeviceId, delta: i64) {
        add_saturating(&self.of(device).outside, delta, Relaxed);
        // Also before the limit is known: it counts from the start.
        self.of(device).budget.charge(delta);
    }

    /// Context and unattributed bytes as charged so far.
    pub fn outside(&self, device: DeviceId) -> u64 {
        self.of(device).outside.load(Relaxed)
    }

    /// The whole count.
    pub fn counted(&self, device: DeviceId) -> u64 {
        self.budget(device).counted()
    }
}

#[cfg(test)]
mod tests;
