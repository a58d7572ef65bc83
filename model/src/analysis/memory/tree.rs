//! Held memory as a tree of frames, outermost first. The bytes of a node include those of its children.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{DeviceId, DriverCause, StackId};

use super::holdings::{Holding, Holdings};
use super::moment::Level;
use crate::analysis::{StackClassifier, autograd};
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME};

/// One frame, role or library.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Node {
    pub name: String,
    #[serde(flatten)]
    pub held: Holding,
    /// Largest first.
    pub children: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum NodeKey {
    Frame(u32),
    Text(String),
}

#[derive(Debug, Default)]
struct NodeBuilder {
    held: Holding,
    children: FxHashMap<NodeKey, NodeBuilder>,
}

/// A tree of one device, under construction.
pub struct Tree<'c, 's> {
    classifier: &'c StackClassifier<'s>,
    fold: bool,
    root: NodeBuilder,
}

impl<'c, 's> Tree<'c, 's> {
    /// An empty tree. `fold`: leave out frames that only pass a call on.
    pub fn new(classifier: &'c StackClassifier<'s>, fold: bool) -> Tree<'c, 's> {
        Tree { classifier, fold, root: NodeBuilder::default() }
    }

    /// Adds the holdings of a device, where wanted below their libraries.
    pub fn add_holdings(&mut self, holdings: &Holdings, device: DeviceId, by_library: bool) {
        for (of, held) in holdings.held.iter().filter(|(of, _)| of.device == device) {
            let level = if of.of_cache { Level::Tensor } else { Level::Driver };
            let library = by_library.then(|| {
                let key_frames = self.classifier.key_frames_at(of.stack, level);
                self.classifier.library_name(&key_frames).unwrap_or("?").to_string()
            });
            self.add_below(library, of.stack, *held, of.cause.map(taken_by_driver));
        }
    }

    /// Adds memory below its frames, and these below a node of this name.
    pub(in crate::analysis) fn add(
        &mut self,
        above: Option<String>,
        stack: StackId,
        held: Holding,
    ) {
        self.add_below(above, stack, held, None);
    }

    /// The same, in a node of the name `leaf` below the innermost frame.
    fn add_below(
        &mut self,
        above: Option<String>,
        stack: StackId,
        held: Holding,
        leaf: Option<String>,
    ) {
        let frames = self.classifier.shown_frames(stack, self.fold);
        let none = match (stack, frames.is_empty()) {
            (FREE_CACHE, _) => Some(FREE_CACHE_NAME),
            (_, true) => Some(self.classifier.symbols.why_empty(stack)),
            (_, false) => None,
        };
        let path = match none {
            Some(name) => vec![NodeKey::Text(name.to_string())],
            None => frames.into_iter().rev().map(NodeKey::Frame).collect(),
        };
        let mut node = &mut self.root;
        node.held.add(held);
        let leaf = leaf.map(NodeKey::Text);
        for key in above.map(NodeKey::Text).into_iter().chain(path).chain(leaf) {
            node = node.children.entry(key).or_default();
            node.held.add(held);
        }
    }

    /// The tree, with `name` as the name of its root.
    pub fn finish(self, name: &str) -> Node {
        let Tree { classifier, root, .. } = self;
        build(classifier, name.to_string(), root)
    }
}

/// The leaf of memory that the driver took.
pub fn taken_by_driver(cause: DriverCause) -> String {
    format!("{}, taken by the driver", cause.words())
}

fn build(classifier: &StackClassifier, name: String, node: NodeBuilder) -> Node {
    let named = |key: &NodeKey| match key {
        NodeKey::Text(text) => text.clone(),
        NodeKey::Frame(index) => {
            let frame = &classifier.symbols.frames()[*index as usize];
            let function = autograd::display_name(&frame.function);
            match frame.place() {
                Some(place) => format!("{place} {function}"),
                None => function.into_owned(),
            }
        }
    };
    let mut children: Vec<Node> = node
        .children
        .into_iter()
        .map(|(key, child)| build(classifier, named(&key), child))
        .collect();
    children
        .sort_by(|a, b| (Reverse(a.held.bytes), &a.name).cmp(&(Reverse(b.held.bytes), &b.name)));
    Node { name, held: node.held, children }
}
