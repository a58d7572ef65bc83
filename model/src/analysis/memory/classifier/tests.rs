//! Tests of the classifier of stacks: lines, backward passes and the forward lines that they belong to.

use vramtrace_format::{Definition, DeviceId, Header, NativeName, StackId};

use crate::analysis::{GroupBy, Holding, Holdings, Owner, StackClassifier};
use crate::symbols::Symbols;
use crate::testing::TraceBuilder;
use crate::trace::Definitions;

const NODE: &str = "torch::autograd::generated::LogSoftmaxBackward0::apply";
const ENGINE: &str = "torch::autograd::Engine::evaluate_function";

/// Stacks 1 to 4 are of the forward pass: two calls of `loss` at one line, by two lines of `train.py`; a line of
/// PyTorch alone. The others are of the backward pass.
fn program() -> (Definitions, Header) {
    let mut t = TraceBuilder::new();
    t.code(1, "log_softmax", "/v/site-packages/torch/nn/functional.py", 2245);
    t.code(2, "loss", "/v/site-packages/transformers/loss_utils.py", 40);
    t.code(3, "step", "/home/me/train.py", 23);
    t.code(4, "evaluate", "/home/me/train.py", 31);
    let library = 0x1000;
    t.module("/v/site-packages/torch/lib/libtorch_cpu.so", library);
    for (id, text, address) in [(1, NODE, 0x10), (2, ENGINE, 0x20)] {
        t.define(Definition::Text { id, text: text.into() });
        let names = vec![NativeName { function: id, file: 0, line: 0 }];
        t.define(Definition::Names { module: library as u32, address, names });
    }
    t.stack(1, &[], &[1, 2, 3], &[]);
    t.stack(2, &[], &[1, 2, 4], &[]);
    t.stack(3, &[], &[1], &[]);
    for (id, native, forward) in [
        (10, &[0x1010, 0x1020][..], Some(1)),
        (11, &[0x1010, 0x1020], Some(1)),
        (12, &[0x1010, 0x1020], Some(2)),
        (13, &[0x1010, 0x1020], None),
        (14, &[0x1020], Some(1)),
        (15, &[0x1010], Some(3)),
        // Its definition is missing.
        (16, &[0x1010], Some(99)),
    ] {
        t.stack(id, native, &[], &[]);
        if let Some(forward) = forward {
            let (stack, forward) = (StackId(id), StackId(forward));
            t.define(Definition::Forward { stack, forward });
        }
    }
    (Definitions::of_builder(&t), t.header)
}

#[test]
fn a_node_has_the_line_of_its_forward_operation() {
    let (definitions, header) = program();
    // The forward stacks are named without being asked for.
    let symbols = Symbols::of(&definitions, &header, (10..17).map(StackId));
    let classifier = StackClassifier::new(&symbols, &header);
    let name = |id| classifier.named(StackId(id)).function().unwrap().into_owned();
    for (id, expected) in [
        (10, "LogSoftmaxBackward0 of loss_utils.py:40 < train.py:23"),
        (12, "LogSoftmaxBackward0 of loss_utils.py:40 < train.py:31"),
        (13, "LogSoftmaxBackward0 (backward)"),
        (14, "autograd thread of loss_utils.py:40 < train.py:23"),
        (15, "LogSoftmaxBackward0 of functional.py:2245"),
        (16, "LogSoftmaxBackward0 (backward)"),
    ] {
        assert_eq!(name(id), expected, "{id}");
    }
}

#[test]
fn blocks_of_different_forward_lines_are_different_holders() {
    let (definitions, header) = program();
    let symbols = Symbols::of(&definitions, &header, (10..14).map(StackId));
    let classifier = StackClassifier::new(&symbols, &header);
    let held = |bytes| Holding { bytes, count: 1, ..Holding::default() };
    let blocks = [(10, 1000), (11, 100), (12, 10), (13, 1)];
    let blocks = blocks.map(|(id, bytes)| (Owner::of_cache(DeviceId(0), StackId(id)), held(bytes)));
    let holdings = Holdings { held: blocks.into_iter().collect(), ..Holdings::default() };
    let bytes = |by| {
        let holders = classifier.holders(&holdings, by);
        holders.iter().map(|holder| holder.bytes).collect::<Vec<_>>()
    };
    for by in [GroupBy::Line, GroupBy::Function, GroupBy::Stack] {
        assert_eq!(bytes(by), [1100, 10, 1], "{by:?}");
    }
    assert_eq!(bytes(GroupBy::Library), [1111]);
}
