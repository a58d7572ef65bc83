//! The definitions of an imported trace: settings, code and stacks at its beginning, sites when they are first used.

use std::io;

use vramtrace_format::{
    ContextId, Definition, DeviceId, Kind, PoolId, PoolOrigin, PythonFrame, SiteId, StackFlags,
    StackId,
};

use super::Converter;
use crate::trace::{IMPORT, IMPORT_TIMES, NO_TIMES, ONE_MOMENT};

/// The calls that allocate memory of each kind. Sites name them by their places here, from 1.
const APIS: [(Kind, &str); 4] = [
    (Kind::Device, "segment_alloc"),
    (Kind::Vmm, "segment_map"),
    (Kind::Block, "alloc"),
    (Kind::Array, "allocate"),
];

/// A Python without a line table: every instruction is in the first line.
const OLD_PYTHON: u8 = 9;

impl Converter<'_, '_> {
    pub(super) fn define(&mut self) -> io::Result<()> {
        let history = self.history;
        let setting = |name: &str, value: &str| Definition::Setting {
            name: name.into(),
            value: value.into(),
        };
        self.trace.define(&setting(IMPORT, history.form.name()))?;
        if !history.has_times {
            let moment = history.devices.iter().all(|device| device.entries.is_empty());
            let times = if moment { ONE_MOMENT } else { NO_TIMES };
            self.trace.define(&setting(IMPORT_TIMES, times))?;
        }
        if let Some(conf) = &history.conf {
            self.trace.define(&setting("PYTORCH_CUDA_ALLOC_CONF", conf))?;
        }
        for caveat in &history.caveats {
            self.trace.define(&Definition::Note { text: caveat.clone() })?;
        }
        for (id, (kind, name)) in (1..).zip(APIS) {
            let other = history.form.other_allocator().filter(|_| kind == Kind::Array);
            self.trace.define(&Definition::Api { id, name: other.unwrap_or(name).into() })?;
        }
        for (index, (first, second)) in history.pools.iter().enumerate().skip(1) {
            self.trace.define(&Definition::Pool {
                id: PoolId(index as u16),
                device: DeviceId::UNKNOWN,
                // Two small counters.
                handle: (*first as u64) << 32 | *second as u64 & 0xffff_ffff,
                origin: PoolOrigin::Created,
            })?;
        }
        for (id, frame) in (0..).zip(history.stacks.frames()) {
            let is_python = frame.file.ends_with(".py") || frame.file.starts_with('<');
            self.trace.define(&Definition::Code {
                id,
                minor: if is_python { OLD_PYTHON } else { Definition::NAMED_NATIVE },
                name: frame.function.to_string(),
                file: frame.file.to_string(),
                first_line: i32::try_from(frame.line).unwrap_or(i32::MAX),
                line_table: Vec::new(),
            })?;
        }
        for (id, frames) in history.stacks.all().filter(|_| self.has_stacks) {
            let mut flags = StackFlags::NATIVE_OFF;
            if frames.is_empty() {
                flags.add(StackFlags::NO_PYTHON_THREAD);
            }
            let frame = |code: &u32| PythonFrame { code: *code, last_instruction: 0 };
            self.trace.define(&Definition::Stack {
                id,
                flags,
                native: Vec::new(),
                python: frames.iter().map(frame).collect(),
                joins: Vec::new(),
            })?;
        }
        Ok(())
    }

    pub(super) fn stack(&self, id: StackId) -> StackId {
        if self.has_stacks { id } else { StackId(0) }
    }

    pub(super) fn site(
        &mut self,
        kind: Kind,
        device: DeviceId,
        stream: u64,
        pool: u16,
    ) -> io::Result<SiteId> {
        let next = SiteId(self.sites.len() as u32 + 1);
        let site = *self.sites.entry((kind, device, stream, pool)).or_insert(next);
        if site == next {
            let api = APIS.iter().position(|(of, _)| *of == kind).unwrap_or(0);
            self.trace.define(&Definition::Site {
                id: site,
                api: api as u16 + 1,
                kind: Some(kind),
                device,
                context: ContextId(0),
                pool: PoolId(pool),
                stream,
            })?;
        }
        Ok(site)
    }
}
