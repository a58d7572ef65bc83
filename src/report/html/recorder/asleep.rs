//! Memory that was unmapped and may come back: whose bytes they are meanwhile, and afterwards.

use std::io::Write;

use vramtrace_format::{Kind, Space};

use super::super::packer;
use super::super::records::Open;
use super::Recorder;
use crate::replay::{Asleep, Key, Mapping};

impl<W: Write> Recorder<'_, W> {
    /// Ends a record, if it is not of this moment, for another to go on.
    pub(super) fn go_on(&mut self, key: Key, open: Open, now: u64) -> Open {
        if open.from == now {
            return open;
        }
        self.end(key, open, Some(now));
        open.again(now)
    }

    pub(super) fn put_asleep(&mut self, now: u64, asleep: &Asleep, segment: bool) {
        let device = asleep.owner.device;
        let owner = self.owner((asleep.owner.stack, Kind::Vmm, device));
        self.mapped.put(now, asleep.address, (asleep.size, 0), device, segment, Some(owner));
    }

    /// Memory came back in an object: its bytes are those of the one who had them before.
    pub(super) fn give_back(&mut self, now: u64, mapping: &Mapping) {
        let key = Key { space: Space::Vmm, number: mapping.object };
        let (Some(woken), Some(open)) = (mapping.woken, self.memory.get(&key).copied()) else {
            return;
        };
        let (_, kind, device) = self.found.owners[open.owner as usize];
        let owner = self.owner((woken.owner.stack, kind, device));
        let open = self.go_on(key, open, now);
        if mapping.size >= open.share {
            self.memory.insert(key, Open { owner, ..open });
            return;
        }
        let rest = open.share - mapping.size;
        self.memory.insert(key, Open { share: rest, ..open });
        let lane = open.lane + packer::units(rest);
        let part = Open { owner, share: mapping.size, size: mapping.size, lane, ..open };
        self.mapped.put_part(key, mapping.address, part);
    }

    /// What was mapped in `[start, end)` is so no more: what had come back there is its maker's again.
    /// Was it a framework's segment?
    pub(super) fn unmapped(&mut self, now: u64, start: u64, end: u64) -> bool {
        let gone = self.mapped.cut(&mut self.records, now, start, end);
        for object in gone.objects {
            let key = Key { space: Space::Vmm, number: object };
            if let Some(open) = self.memory.get(&key).copied()
                && open.owner != open.maker
            {
                let open = self.go_on(key, open, now);
                self.memory.insert(key, Open { owner: open.maker, ..open });
            }
        }
        for (key, open) in self.mapped.parts_in(start, end) {
            let open = self.go_on(key, open, now);
            self.mapped.put_part(key, start, Open { owner: open.maker, ..open });
        }
        gone.segment
    }
}
