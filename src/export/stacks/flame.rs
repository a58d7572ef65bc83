//! A flame graph: one SVG that needs nothing else.

use std::io::{self, Write};

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, from_lines};

use super::folded;
use super::samples::ProcessStacks;

pub fn write(processes: &[ProcessStacks], title: &str, out: &mut dyn Write) -> io::Result<()> {
    let lines = folded::lines(processes);
    let mut options = Options::default();
    options.title = title.to_string();
    options.count_name = "bytes".to_string();
    options.colors = Palette::Basic(BasicPalette::Mem);
    // The same file for the same trace.
    options.deterministic = true;
    from_lines(&mut options, lines.iter().map(String::as_str), &mut *out)?;
    out.flush()
}
