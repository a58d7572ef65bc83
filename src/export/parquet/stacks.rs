//! The table `stacks`: the frames of each stack, and the line, function and library that stand for it.

use std::fs::File;
use std::io;

use super::table::{Column, TableFile};
use crate::export::requester::ByStack;
use crate::trace::Definitions;

const COLUMNS: [Column; 8] = [
    Column::small("stack").ascending(),
    Column::small("process"),
    Column::text("line").or_null(),
    Column::text("function").or_null(),
    Column::text("called_from").or_null(),
    Column::text("library").or_null(),
    Column::text("block_library").or_null(),
    Column::text("frames").or_null(),
];

pub(super) fn write(
    file: File,
    process: u32,
    definitions: &Definitions,
    who: &ByStack,
) -> io::Result<u64> {
    let mut ids: Vec<_> = definitions.stacks().ids().collect();
    ids.sort_unstable();
    let mut table = TableFile::new(file, &COLUMNS)?;
    for id in ids {
        let (driver, block) = (who.get(&(id, false)), who.get(&(id, true)));
        table.row(|row| {
            row.small(id.0);
            row.small(process);
            row.text(driver.map_or("", |who| &who.line));
            row.text(driver.map_or("", |who| &who.function));
            row.text(driver.map_or("", |who| &who.called_from));
            row.text(driver.map_or("", |who| &who.library));
            row.text(block.map_or("", |who| &who.library));
            row.text(driver.map_or("", |who| &who.stack));
        })?;
    }
    table.finish()
}
