//! Memory that is unmapped during a sleep: who owns its bytes then, and after it is mapped again.

use std::io::Write;

use vramtrace_format::Kind;

use super::super::recorded::OwnerKind;
use super::super::records::Open;
use super::Recorder;
use crate::replay::{Asleep, Key, Mapping};

impl<W: Write> Recorder<'_, W> {
    /// Ends a record and begins its continuation at the ordinal `now`. A record that began at `now` is
    /// returned as it is.
    pub(super) fn continue_record(&mut self, key: Key, open: Open, now: u64) -> Open {
        if open.from == now {
            return open;
        }
        self.end(key, open, Some(now));
        open.continued_from(now)
    }

    /// Adds a range that is unmapped during a sleep, with its owner.
    pub(super) fn put_asleep(&mut self, now: u64, asleep: &Asleep, segment: bool) {
        let device = asleep.owner.device;
        let owner = self.owner((asleep.owner.stack, OwnerKind::Allocated(Kind::Vmm), device));
        self.mapped.put_mapping(
            now,
            asleep.address,
            (asleep.size, 0),
            device,
            segment,
            Some(owner),
        );
    }

    /// A range is mapped again after a sleep: the bytes of the object belong to the owner that had the
    /// range before.
    pub(super) fn restore_owner(&mut self, now: u64, mapping: &Mapping) {
        let key = Key::object(mapping.object);
        let (Some(woken), Some(open)) = (mapping.woken, self.open.get(&key).copied()) else {
            return;
        };
        let (_, kind, device) = self.found.owners[open.owner as usize];
        let owner = self.owner((woken.owner.stack, kind, device));
        let open = self.continue_record(key, open, now);
        if mapping.size >= open.share {
            self.open.insert(key, Open { owner, ..open });
            return;
        }
        let rest = open.share - mapping.size;
        self.open.insert(key, Open { share: rest, ..open });
        let part = Open { owner, share: mapping.size, size: mapping.size, ..open };
        self.mapped.put_part(key, mapping.address, part);
    }

    /// Ends the mappings in `[start, end)`. Objects that were mapped there belong to their makers again.
    /// Returns whether one of the mappings was a framework's segment.
    pub(super) fn unmapped(&mut self, now: u64, start: u64, end: u64) -> bool {
        let gone = self.mapped.cut(&mut self.records, now, start, end);
        for object in gone.objects {
            let key = Key::object(object);
            if let Some(open) = self.open.get(&key).copied()
                && open.owner != open.maker
            {
                let open = self.continue_record(key, open, now);
                self.open.insert(key, Open { owner: open.maker, ..open });
            }
        }
        for (key, address, open) in self.mapped.parts_in(start, end) {
            let open = self.continue_record(key, open, now);
            self.mapped.put_part(key, address, Open { owner: open.maker, ..open });
        }
        gone.segment
    }
}
