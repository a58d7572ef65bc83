//! `vramtrace tree`: who holds memory, from the outermost frame in.

use super::layout::{BOLD, DIM, paint};
use crate::analysis::tree::Node;
use crate::units::{clean, count, shorten, size};

#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Nodes that hold a smaller part of the device are summed up, 0 to 1.
    pub least: f64,
    /// Branches below each other.
    pub depth: usize,
    /// Characters of a line.
    pub width: usize,
}

/// The root's line, and its tree.
pub fn tree(root: &Node, heading: &str, how: TreeOptions) -> String {
    let mut out = format!("{}: {}\n", paint(BOLD, heading), size(root.held.bytes));
    let total = root.held.bytes.max(1);
    children(root, total, 0, how, &mut out);
    out
}

/// A frame that has all of its caller's bytes stands below it, no further to the right.
fn children(node: &Node, total: u64, depth: usize, how: TreeOptions, out: &mut String) {
    let share = |bytes: u64| bytes as f64 / total as f64;
    let (shown, small): (Vec<&Node>, Vec<&Node>) =
        node.children.iter().partition(|child| share(child.held.bytes) >= how.least);
    let branches = shown.len() + usize::from(!small.is_empty()) > 1;
    let depth = if branches { depth + 1 } else { depth };
    for child in shown {
        line(&child.name, child.held.bytes, share(child.held.bytes), depth, how, out);
        if depth < how.depth {
            children(child, total, depth, how, out);
        }
    }
    if !small.is_empty() {
        let bytes = small.iter().map(|child| child.held.bytes).fold(0, u64::saturating_add);
        let name = format!("({} smaller)", count(small.len() as u64));
        line(&name, bytes, share(bytes), depth, how, out);
    }
}

fn line(name: &str, bytes: u64, share: f64, depth: usize, how: TreeOptions, out: &mut String) {
    let figures = format!("{:>11} {:>5.1} %", size(bytes), share * 100.0);
    // Deep trees leave room for the names.
    let indent = "  ".repeat(depth.min(how.width.saturating_sub(60) / 2 + 8));
    let room = how.width.saturating_sub(figures.chars().count() + 1 + indent.len()).max(12);
    let name = shorten(&clean(name), room);
    let name = if name.starts_with('(') { paint(DIM, &name) } else { name };
    out.push_str(&format!("{figures} {indent}{name}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Held;

    fn node(name: &str, bytes: u64, children: Vec<Node>) -> Node {
        Node { name: name.into(), held: Held { bytes, count: 1, ..Held::default() }, children }
    }

    #[test]
    fn a_tree_turns_right_only_where_it_branches() {
        let leaf = |name: &str, bytes| node(name, bytes, Vec::new());
        let many = (0..3).map(|n| leaf(&format!("small{n}"), 1)).collect::<Vec<_>>();
        let mut under = vec![leaf("a.py:1 f", 60 << 20), leaf("b.py:2 g", 36 << 20)];
        under.extend(many);
        let bytes = (96 << 20) + 3;
        let root = node(
            "",
            bytes,
            vec![node("main.py:9 <module>", bytes, vec![node("main.py:5 train", bytes, under)])],
        );
        let how = TreeOptions { least: 0.01, depth: 9, width: 60 };
        let plain = anstream::adapter::strip_str(&tree(&root, "GPU 0", how)).to_string();
        assert_eq!(
            plain,
            "GPU 0: 96.00 MiB\n  \
             96.00 MiB 100.0 % main.py:9 <module>\n  \
             96.00 MiB 100.0 % main.py:5 train\n  \
             60.00 MiB  62.5 %   a.py:1 f\n  \
             36.00 MiB  37.5 %   b.py:2 g\n        \
             3 B   0.0 %   (3 smaller)\n"
        );
    }
}
