use super::*;

/// A node of the layout, as words.
#[repr(C, align(8))]
struct Made([usize; 40]);

impl Made {
    /// `edges`: pairs of a node and its count of owners, which outlive the node.
    fn node(
        number: u64,
        thread: u64,
        rank: usize,
        edges: &'static [[usize; 3]],
    ) -> &'static mut Made {
        let made = Box::leak(Box::new(Made([0; 40])));
        let at = made.at();
        made.put(SELF, at);
        made.put(SELF_OWNERS, made.owners());
        made.put(NUMBER, number as usize);
        made.put(RANK, rank);
        made.put(THREAD, thread as usize);
        let first = edges.as_ptr() as usize;
        made.put(EDGES, first);
        made.put(EDGES + 8, first + size_of_val(edges));
        made.put(EDGES + 16, first + size_of_val(edges));
        made
    }

    fn put(&mut self, offset: usize, value: usize) {
        self.0[offset / 8] = value;
    }

    fn at(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// The address of a count of owners: any address that is not read.
    fn owners(&self) -> usize {
        self.at() + 8 * 39
    }
}

const KNOWN: StackId = StackId(9);

fn known(thread: u64, number: u64) -> Option<StackId> {
    (thread == 1 && number == 5).then_some(KNOWN)
}

fn edges(next: &Made) -> &'static [[usize; 3]] {
    Box::leak(Box::new([[0; 3], [next.at(), next.owners(), 0]]))
}

#[test]
fn a_node_that_confirms_the_layout_gives_its_stack() {
    let layout = Layout::default();
    let leaf = Made::node(u64::MAX, 1, 0, &[]);
    // Without an edge, and with numbers that are not known: no evidence yet.
    assert_eq!(layout.read(leaf.at(), leaf.owners(), known), None);
    let other = Made::node(6, 1, 1, edges(leaf));
    assert_eq!(layout.read(other.at(), other.owners(), known), None);
    assert_eq!(layout.state.load(Ordering::Relaxed), UNTRIED);
    let node = Made::node(5, 1, 1, edges(leaf));
    assert_eq!(layout.read(node.at(), node.owners(), known), Some(KNOWN));
    assert_eq!(layout.state.load(Ordering::Relaxed), TRUSTED);
    assert_eq!(layout.read(other.at(), other.owners(), known), None);
    assert_eq!(layout.read(leaf.at(), leaf.owners(), known), None);
    let elsewhere = Made::node(5, 2, 1, edges(leaf));
    assert_eq!(layout.read(elsewhere.at(), elsewhere.owners(), known), None, "another thread's");
}

#[test]
fn a_node_that_contradicts_the_layout_turns_the_reading_off() {
    let leaf = Made::node(u64::MAX, 1, 3, &[]);
    type Change = fn(&mut Made);
    let cases: [(&str, Change); 8] = [
        ("another node's address", |node| node.put(SELF, 4096)),
        ("another count of owners", |node| node.put(SELF_OWNERS, 4096)),
        ("no bool", |node| node.put(HAS_PARENT, 2)),
        ("a mutex of another type", |node| node.put(MUTEX_TYPE, 1)),
        ("a vector whose end is before its begin", |node| node.put(EDGES + 8, 8)),
        ("a vector of odd size", |node| node.put(EDGES + 8, node.0[EDGES / 8] + 8)),
        ("a rank that is not above the next node's", |node| node.put(RANK, 3)),
        ("edges that cannot be read", |node| {
            (0..3).for_each(|word| node.put(EDGES + 8 * word, [4096, 4096 + 24, 4096 + 24][word]));
        }),
    ];
    for (name, change) in cases {
        let layout = Layout::default();
        let node = Made::node(5, 1, 4, edges(leaf));
        change(node);
        assert_eq!(layout.read(node.at(), node.owners(), known), None, "{name}");
        assert!(layout.is_off(), "{name}");
        let right = Made::node(5, 1, 4, edges(leaf));
        assert_eq!(layout.read(right.at(), right.owners(), known), None, "{name}: it stays off");
    }
}

#[test]
fn without_evidence_the_reading_is_turned_off() {
    let layout = Layout::default();
    let node = Made::node(5, 1, 1, &[]);
    for _ in 0..=TRIES {
        assert!(!layout.is_off());
        assert_eq!(layout.read(node.at(), node.owners(), known), None);
    }
    assert!(layout.is_off());
}
