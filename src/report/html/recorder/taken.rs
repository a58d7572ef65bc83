//! What the driver takes for itself: a record for each call that made it take memory, which ends and continues
//! with other bytes when these change.

use std::collections::BTreeMap;
use std::io::Write;

use vramtrace_format::{Cause, DeviceId, SiteId, Space, StackId, Stamped, Took};

use super::super::recorded::OwnerKind;
use super::super::records::Open;
use super::Recorder;
use crate::analysis::roles::Role;
use crate::replay::{Key, State};

type Call = (DeviceId, Cause, SiteId, StackId, u32);

/// The open records of each device.
pub(super) type Taken = BTreeMap<Call, Open>;

/// A key without an address.
const KEY: Key = Key { space: Space::Vmm, number: 0 };

impl<W: Write> Recorder<'_, W> {
    pub(super) fn took(&mut self, at: &Stamped, took: &Took) {
        let now = self.tick(at);
        let call = (took.device, took.cause, took.site, took.stack, took.name);
        let open = self.taken.remove(&call);
        let before = open.map_or(0, |open| open.share);
        let bytes = before.saturating_add_signed(took.delta);
        if let Some(open) = open.filter(|open| open.from < now) {
            self.records.write(KEY, open, Some(now));
        }
        if bytes > 0 {
            let open = self.open_taken(at, call, bytes);
            self.taken.insert(call, open);
        }
    }

    fn open_taken(&mut self, at: &Stamped, call: Call, bytes: u64) -> Open {
        let (device, cause, _, stack, _) = call;
        let owner = (stack, OwnerKind::Driver(cause), device);
        let open = self.record(at, at.thread, owner, bytes);
        Open { role: Role::of_cause(cause), ..open }
    }

    /// Ends all records. `end`: `None` at the end of the trace.
    pub(super) fn close_taken(&mut self, end: Option<u64>) {
        for open in std::mem::take(&mut self.taken).into_values() {
            self.records.write(KEY, open, end);
        }
    }

    /// After missing events: what a checkpoint lists.
    pub(super) fn resume_taken(&mut self, at: &Stamped, state: &State) {
        let end = Some(self.tick(at));
        self.close_taken(end);
        for (device, sums) in &state.devices {
            for (maker, bytes) in sums.driver_own.makers() {
                let call = (*device, maker.cause, maker.site, maker.stack, maker.name);
                let open = self.open_taken(at, call, bytes);
                self.taken.insert(call, open);
            }
        }
    }
}
