//! Strongly connected components: what imports each other, however far around.

use std::collections::{BTreeMap, BTreeSet};

/// Who imports whom.
pub type Graph<T> = BTreeMap<T, BTreeSet<T>>;

/// Every cycle, the largest first: the nodes that reach each other.
pub fn cycles<T: Ord + Clone>(graph: &Graph<T>) -> Vec<Vec<T>> {
    let mut search = Search { graph, index: BTreeMap::new(), stack: vec![], found: vec![] };
    for node in graph.keys() {
        if !search.index.contains_key(node) {
            search.visit(node);
        }
    }
    let mut found = search.found;
    found.retain(|component| component.len() > 1);
    found.sort_by_key(|component| std::cmp::Reverse(component.len()));
    found
}

/// Tarjan's search.
struct Search<'g, T> {
    graph: &'g Graph<T>,
    /// When a node was met; none of a component that is complete can be reached again as open.
    index: BTreeMap<&'g T, usize>,
    stack: Vec<&'g T>,
    found: Vec<Vec<T>>,
}

impl<'g, T: Ord + Clone> Search<'g, T> {
    /// The earliest open node that can be reached from here.
    fn visit(&mut self, node: &'g T) -> usize {
        let own = self.index.len();
        self.index.insert(node, own);
        let height = self.stack.len();
        self.stack.push(node);
        let mut earliest = own;
        for next in self.graph.get(node).into_iter().flatten() {
            match self.index.get(next) {
                None => earliest = earliest.min(self.visit(next)),
                Some(&met) if self.stack.contains(&next) => earliest = earliest.min(met),
                Some(_) => {}
            }
        }
        if earliest == own {
            let mut component: Vec<T> = self.stack.drain(height..).cloned().collect();
            component.sort();
            self.found.push(component);
        }
        earliest
    }
}
