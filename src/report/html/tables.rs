//! The tables that the indices in the columns refer to: owners, holders, libraries, frames.

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use vramtrace_format::{DriverCause, Header, Kind};

use super::recorded::{OwnerKind, RecordOwner};
use crate::analysis::{Layer, Level, Places, StackClassifier, autograd, is_dispatch, wraps};
use crate::symbols::{Frame, Symbols};

/// All tables of a process.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tables {
    /// Node of the innermost frame (0: none), kind, device, holder, library + 1 (0: not known).
    pub owners: Vec<(u32, u8, u8, u32, u32)>,
    /// The groups that [`crate::analysis::GroupBy::Line`] makes.
    pub holders: Vec<HolderName>,
    pub libraries: Vec<String>,
    /// Function, file, line (0: not known), library + 1 (0: not known), [`Shown`].
    pub frames: Vec<(String, u32, u32, u32, Shown)>,
    pub files: Vec<String>,
    /// Stacks as a tree from the outermost frame inwards: parent node (0: none) and frame. Node n is at
    /// index n - 1.
    pub nodes: Vec<(u32, u32)>,
}

/// What identifies a holder to the reader.
#[derive(Debug, Serialize)]
pub(super) struct HolderName {
    /// `modeling.py:212`; empty: not known.
    pub line: String,
    pub function: String,
    /// The program's line that called it.
    pub caller: String,
    /// Library + 1; 0: not known.
    pub library: u32,
    /// What the driver took the memory for: graphs, modules. `None`: it was allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_memory: Option<&'static str>,
    /// Why the stack has no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

/// Distinct values, each with an index.
type Distinct<T> = IndexSet<T, FxBuildHasher>;

/// The index of a text, which is added if it is new.
fn index(all: &mut Distinct<String>, text: &str) -> u32 {
    let known = all.get_index_of(text);
    known.unwrap_or_else(|| all.insert_full(text.to_string()).0) as u32
}

/// Builds the tables for these owners.
pub(super) fn tables(owners: &Distinct<RecordOwner>, symbols: &Symbols, header: &Header) -> Tables {
    let classifier = StackClassifier::new(symbols, header);
    let places = Places::of_trace(header, symbols);
    let (mut libraries, mut files) = (Distinct::default(), Distinct::default());
    let mut tables = Tables::default();
    for frame in symbols.frames() {
        let library = frame.library_name().map_or(0, |name| index(&mut libraries, name) + 1);
        tables.frames.push((
            autograd::display_name(&frame.function).into_owned(),
            index(&mut files, &frame.file),
            frame.line.unwrap_or(0),
            library,
            shown(&places, frame),
        ));
    }
    let mut nodes: Distinct<(u32, u32)> = Distinct::default();
    let mut holders = Distinct::default();
    for (stack, kind, device) in owners {
        let of_cache = *kind == OwnerKind::Allocated(Kind::Block);
        let level = if of_cache { Level::Tensor } else { Level::Driver };
        let mut node = 0;
        for frame in symbols.indexes(*stack).iter().rev() {
            node = nodes.insert_full((node, *frame)).0 as u32 + 1;
        }
        let key_frames = classifier.key_frames_at(*stack, level);
        let library =
            classifier.library_name(&key_frames).map_or(0, |name| index(&mut libraries, name) + 1);
        let key = (kind.cause(), classifier.holder_key(*stack, level));
        let (holder, is_new) = holders.insert_full(key);
        if is_new {
            let named = classifier.named(*stack);
            tables.holders.push(HolderName {
                line: named.lead().and_then(Frame::place).unwrap_or_default(),
                function: named.function().unwrap_or_default().into_owned(),
                caller: named.caller().map(place_and_function).unwrap_or_default(),
                library,
                driver_memory: kind.cause().map(DriverCause::words),
                why: named.why_no_frames(),
            });
        }
        tables.owners.push((node, kind.number(), device.0, holder as u32, library));
    }
    tables.libraries = libraries.into_iter().collect();
    tables.files = files.into_iter().collect();
    tables.nodes = nodes.into_iter().collect();
    tables
}

/// `train.py:41 main`.
fn place_and_function(frame: &Frame) -> String {
    let function = autograd::holder_name(&frame.function);
    format!("{} {function}", frame.place().unwrap_or_default()).trim_start().to_string()
}

/// How the page shows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "u8")]
pub enum Shown {
    /// Always.
    Always = 0,
    /// On demand: it says nothing about who requested the memory.
    OnDemand = 1,
    /// Always, as a frame of the program's own code.
    Own = 2,
}

impl From<Shown> for u8 {
    fn from(shown: Shown) -> u8 {
        shown as u8
    }
}

fn shown(places: &Places, frame: &Frame) -> Shown {
    let layer = places.layer(frame);
    let hands_on = is_dispatch(frame) || wraps(frame, layer);
    match layer {
        Layer::Own => Shown::Own,
        layer if layer <= Layer::Framework || hands_on => Shown::OnDemand,
        _ => Shown::Always,
    }
}
