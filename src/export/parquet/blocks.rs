//! The table `blocks`: a row for each allocation, in the order in which they ended.

use std::fs::File;
use std::io;

use super::numbered;
use super::table::{Columns, Table, text};
use crate::export::TracedProcess;
use crate::export::sink::{Element, Sink, Slice, SliceEnd};

/// A slice of a timeline, and when and how it ended.
type BlockRow = (u64, SliceEnd, Slice);

pub(super) struct Blocks(Table<'static, BlockRow>);

impl Blocks {
    pub(super) fn begin(file: File, process: u32) -> io::Result<Blocks> {
        let columns = Columns::<BlockRow>::sorted()
            .column("end_ns", |(end_ns, ..)| *end_ns)
            .column("begin_ns", |(.., of)| of.begin_ns)
            .column("end", |(_, how, _)| text(how.name()))
            .column("allocated_ns", |(.., of)| of.allocated_ns.min(of.begin_ns))
            .column("process", move |_| process)
            .column("device", |(.., of)| of.device)
            .column("kind", |(.., of)| text(of.live.kind.name()))
            .column("bytes", |(.., of)| of.live.size)
            .column("physical_bytes", |(.., of)| of.physical())
            .column("address", |(.., of)| of.key.number)
            .column("stack", |(.., of)| numbered(of.owner.0))
            .column("role", |(.., of)| of.role.map(|role| text(role.name())))
            .column("api", |(.., of)| text(&of.api))
            .column("tid", |(.., of)| numbered(of.tid))
            .column("stream", |(.., of)| of.stream)
            .column("context", |(.., of)| numbered(of.live.context.0.into()))
            .column("pool", |(.., of)| numbered(of.live.pool.0.into()))
            .column("weight", |(.., of)| of.live.weight)
            .column("brought_back_by", |(.., of)| numbered(of.woken_by?.0));
        Ok(Blocks(columns.begin(file)?))
    }
}

impl Sink for Blocks {
    fn process(&mut self, _process: &TracedProcess) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, at_ns: u64, element: &Element) -> io::Result<()> {
        if let Element::End(slice, how) = element {
            self.0.push((at_ns, *how, (*slice).clone()));
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        self.0.finish().map(drop)
    }
}
