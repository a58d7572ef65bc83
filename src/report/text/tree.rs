//! The text of `vramtrace tree`: live memory as a call tree, from the outermost frame inwards.

use super::layout::{BOLD, DIM, paint};
use crate::analysis::tree::Node;
use crate::units::{clean, count, shorten, size};

/// How much of a tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// The share of all bytes, 0 to 1, below which nodes are summed up in one line.
    pub least: f64,
    /// Maximum number of levels of branches.
    pub depth: usize,
    /// Maximum length of a line in characters.
    pub width: usize,
}

/// A heading with the bytes of the root, and the tree below it.
pub fn tree(root: &Node, heading: &str, how: TreeOptions) -> String {
    let mut out = format!("{}: {}\n", paint(BOLD, heading), size(root.held.bytes));
    let total = root.held.bytes.max(1);
    let print = Print { total, how };
    print.children(root, 0, &mut out);
    out
}

/// Prints a tree. `total`: 100 % of the shares.
struct Print {
    total: u64,
    how: TreeOptions,
}

impl Print {
    /// Prints the children of a node. An only child with the same bytes as its parent holds the same
    /// memory: it gets the mark `└` in place of figures, and is not indented further.
    fn children(&self, node: &Node, depth: usize, out: &mut String) {
        let share = |bytes: u64| bytes as f64 / self.total as f64;
        let (shown, small): (Vec<&Node>, Vec<&Node>) =
            node.children.iter().partition(|child| share(child.held.bytes) >= self.how.least);
        let branches = shown.len() + usize::from(!small.is_empty()) > 1;
        let depth = if branches { depth + 1 } else { depth };
        for child in shown {
            let is_same = !branches && !node.name.is_empty() && child.held.bytes == node.held.bytes;
            self.line(&child.name, (!is_same).then_some(child.held.bytes), depth, out);
            if depth < self.how.depth {
                self.children(child, depth, out);
            }
        }
        if !small.is_empty() {
            let bytes = small.iter().map(|child| child.held.bytes).fold(0, u64::saturating_add);
            let name = format!("({} smaller)", count(small.len() as u64));
            self.line(&name, Some(bytes), depth, out);
        }
    }

    /// `bytes`: `None` if they are those of the line above.
    fn line(&self, name: &str, bytes: Option<u64>, depth: usize, out: &mut String) {
        let (figures, mark) = match bytes {
            Some(bytes) => {
                let share = bytes as f64 * 100.0 / self.total as f64;
                (format!("{:>11} {share:>5.1} %", size(bytes)), "")
            }
            None => (" ".repeat(19), "└ "),
        };
        // The indentation is limited, so that deep trees leave space for the names.
        let width = self.how.width;
        let indent = "  ".repeat(depth.min(width.saturating_sub(60) / 2 + 8));
        let taken = figures.chars().count() + 1 + indent.len() + mark.chars().count();
        let name = shorten(&clean(name), width.saturating_sub(taken).max(12));
        let name = if name.starts_with('(') { paint(DIM, &name) } else { name };
        out.push_str(&format!("{figures} {indent}{mark}{name}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Holding;

    fn node(name: &str, bytes: u64, children: Vec<Node>) -> Node {
        let held = Holding { bytes, count: 1, ..Holding::default() };
        Node { name: name.into(), held, children }
    }

    #[test]
    fn a_tree_turns_right_only_where_it_branches() {
        let leaf = |name: &str, bytes| node(name, bytes, Vec::new());
        let only = |name: &str, bytes, child| node(name, bytes, vec![leaf(child, bytes)]);
        let many = (0..3).map(|n| leaf(&format!("small{n}"), 1)).collect::<Vec<_>>();
        let mut under = vec![leaf("a.py:1 f", 60 << 20), only("b.py:2 g", 36 << 20, "c.py:3 h")];
        under.extend(many);
        let bytes = (96 << 20) + 3;
        let root = node(
            "",
            bytes,
            vec![node("main.py:9 <module>", bytes, vec![node("main.py:5 train", bytes, under)])],
        );
        let how = TreeOptions { least: 0.01, depth: 9, width: 60 };
        let plain = anstream::adapter::strip_str(&tree(&root, "GPU 0", how)).to_string();
        let lines: Vec<&str> = plain.lines().collect();
        assert_eq!(
            lines,
            [
                "GPU 0: 96.00 MiB",
                "  96.00 MiB 100.0 % main.py:9 <module>",
                "                    └ main.py:5 train",
                "  60.00 MiB  62.5 %   a.py:1 f",
                "  36.00 MiB  37.5 %   b.py:2 g",
                "                      └ c.py:3 h",
                "        3 B   0.0 %   (3 smaller)",
            ]
        );
    }
}
