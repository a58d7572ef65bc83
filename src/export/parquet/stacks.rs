//! The table `stacks`: the frames of each stack, and the line, function and library that stand for it.

use std::fs::File;
use std::io;

use vramtrace_format::StackId;

use super::table::{Columns, known};
use crate::export::requester::{ByStack, Requester};
use crate::trace::Definitions;

pub(super) fn write(
    file: File,
    process: u32,
    definitions: &Definitions,
    who: &ByStack,
) -> io::Result<u64> {
    let mut ids: Vec<_> = definitions.stacks().ids().collect();
    ids.sort_unstable();
    let text =
        |id: &StackId, block: bool, of: fn(&Requester) -> &str| known(of(who.get(&(*id, block))?));
    Columns::sorted()
        .column("stack", |id: &StackId| id.0)
        .column("process", move |_| process)
        .column("line", move |id| text(id, false, |who| &who.line))
        .column("function", move |id| text(id, false, |who| &who.function))
        .column("called_from", move |id| text(id, false, |who| &who.called_from))
        .column("library", move |id| text(id, false, |who| &who.library))
        .column("block_library", move |id| text(id, true, |who| &who.library))
        .column("frames", move |id| text(id, false, |who| &who.stack))
        .write(file, ids)
}
