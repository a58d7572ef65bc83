//! What the numbers of the columns stand for: owners, holders, libraries, frames.

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{Header, Kind};

use super::recorded::Owner;
use crate::analysis::{Layer, Level, Places, StackClassifier, autograd, is_dispatch};
use crate::symbols::{Frame, Symbols};

#[derive(Debug, Default, Serialize)]
pub struct Tables {
    /// Node of the innermost frame (0: none), kind, device, holder, library and 1 (0: not known).
    pub owners: Vec<(u32, u8, u8, u32, u32)>,
    /// What [`crate::analysis::GroupBy::Line`] tells apart.
    pub holders: Vec<HolderName>,
    pub libraries: Vec<String>,
    /// Function, file, line (0: not known), library and 1, folded.
    pub frames: Vec<(String, u32, u32, u32, bool)>,
    pub files: Vec<String>,
    /// Stacks as a tree from the outermost frame in: the node around it (0: none) and the frame.
    /// Node n stands at n - 1.
    pub nodes: Vec<(u32, u32)>,
}

#[derive(Debug, Serialize)]
pub struct HolderName {
    /// `modeling.py:212`; empty: not known.
    pub line: String,
    pub function: String,
    /// The program's own line that led there.
    pub caller: String,
    pub library: u32,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

/// Names that each text has once.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    known: FxHashMap<String, u32>,
}

impl Names {
    fn index(&mut self, text: &str) -> u32 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let next = self.all.len() as u32;
        self.all.push(text.to_string());
        self.known.insert(text.to_string(), next);
        next
    }
}

/// Functions that only call what they wrap, in whatever package.
const WRAPPERS: [&str; 7] =
    ["wrapper", "wrapped", "inner", "wrapped_fn", "decorate_context", "_fn", "wrapper_fn"];

pub fn tables(owners: &[Owner], symbols: &Symbols, header: &Header) -> Tables {
    let classifier = StackClassifier::new(symbols, header);
    let places = Places::of(header);
    let (mut libraries, mut files) = (Names::default(), Names::default());
    let mut tables = Tables::default();
    for frame in symbols.frames() {
        let library = frame.library_name().map_or(0, |name| libraries.index(name) + 1);
        tables.frames.push((
            autograd::display_name(&frame.function).into_owned(),
            files.index(&frame.file),
            frame.line.unwrap_or(0),
            library,
            is_folded(&places, frame),
        ));
    }
    let mut nodes: FxHashMap<(u32, u32), u32> = FxHashMap::default();
    let mut holders = FxHashMap::default();
    for (stack, kind, device) in owners {
        let level = if *kind == Kind::Block { Level::Tensor } else { Level::Driver };
        let mut node = 0;
        for frame in symbols.indexes(*stack).iter().rev() {
            let next = nodes.len() as u32 + 1;
            let known = *nodes.entry((node, *frame)).or_insert(next);
            if known == next {
                tables.nodes.push((node, *frame));
            }
            node = known;
        }
        let roles = classifier.roles_at(*stack, level);
        let library = classifier.library_name(&roles).map_or(0, |name| libraries.index(name) + 1);
        let next = holders.len() as u32;
        let holder = *holders.entry(classifier.holder_key(*stack, level)).or_insert(next);
        if holder == next {
            let lead = classifier.frame(*stack, roles.lead);
            let caller = classifier.frame(*stack, roles.caller);
            let empty = symbols.indexes(*stack).is_empty();
            tables.holders.push(HolderName {
                line: lead.and_then(Frame::place).unwrap_or_default(),
                function: lead.map(spoken).unwrap_or_default(),
                caller: caller.map(named).unwrap_or_default(),
                library,
                why: empty.then(|| symbols.why_empty(*stack)),
            });
        }
        tables.owners.push((node, *kind as u8, device.0, holder, library));
    }
    tables.libraries = libraries.all;
    tables.files = files.all;
    tables
}

fn spoken(frame: &Frame) -> String {
    autograd::display_name(&frame.function).into_owned()
}

fn named(frame: &Frame) -> String {
    format!("{} {}", frame.place().unwrap_or_default(), spoken(frame)).trim_start().to_string()
}

/// Frames that tell nothing about who wanted the memory: the page shows them on demand.
fn is_folded(places: &Places, frame: &Frame) -> bool {
    let layer = places.layer(frame);
    let name = frame.function.rsplit('.').next().unwrap_or_default();
    layer <= Layer::Framework
        || is_dispatch(frame)
        || (layer == Layer::Package && WRAPPERS.contains(&name))
}
