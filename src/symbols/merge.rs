//! One stack of two languages from its parts.

use vramtrace_format::Join;

/// A frame by its index in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Native(usize),
    Python(usize),
}

/// What a native frame is to the one who reads a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameRole {
    #[default]
    Shown,
    /// Of the recorder itself.
    Recorder,
    /// Of the Python interpreter: its loop, and what leads from one Python frame to the next.
    Interpreter,
    /// Of the C library: what starts programs and threads.
    System,
}

/// All frames, innermost first. A join's Python frames stand before the native frame that runs
/// them. Those without a known place stand before the joined ones; where none is joined, before
/// the interpreter's first frame, or else behind all native ones.
pub fn order(native: &[FrameRole], python: usize, joins: &[Join]) -> Vec<Which> {
    let mut out = Vec::with_capacity(native.len() + python);
    // A damaged file may say anything: places only grow.
    let mut groups: Vec<(usize, usize)> = Vec::with_capacity(joins.len() + 1);
    for join in joins {
        let (last_from, last_at) = groups.last().copied().unwrap_or((0, 0));
        let from = (join.python as usize).clamp(last_from, python);
        let at = match join.native {
            Join::BEYOND => native.len(),
            at => (at as usize).clamp(last_at, native.len()),
        };
        groups.push((from, at));
    }
    match groups.first_mut() {
        // Python frames before the first join come with it.
        Some(first) => first.0 = 0,
        None if python > 0 => {
            let loops = native.iter().position(|role| *role == FrameRole::Interpreter);
            groups.push((0, loops.unwrap_or(native.len())));
        }
        None => {}
    }
    let mut next_native = 0;
    for (index, &(from, at)) in groups.iter().enumerate() {
        out.extend((next_native..at).map(Which::Native));
        next_native = next_native.max(at);
        let to = groups.get(index + 1).map_or(python, |next| next.0);
        out.extend((from..to).map(Which::Python));
    }
    out.extend((next_native..native.len()).map(Which::Native));
    out
}

/// The same without what tells nothing: the recorder's own frames, the interpreter's between and
/// around Python frames, and what the system put around the interpreter.
pub fn shown(native: &[FrameRole], python: usize, joins: &[Join]) -> Vec<Which> {
    let mut all = order(native, python, joins);
    let role = |which: &Which| match which {
        Which::Native(index) => native[*index],
        Which::Python(_) => FrameRole::Shown,
    };
    let hidden = |which: &Which| is_hidden(role(which), python > 0);
    if python > 0 {
        let is_outermost = |which: &Which| {
            matches!(which, Which::Python(_)) || role(which) != FrameRole::System && !hidden(which)
        };
        let keep = all.iter().rposition(is_outermost).map_or(0, |last| last + 1);
        all.truncate(keep);
    }
    all.retain(|which| !hidden(which));
    all
}

/// Is a native frame left out of a stack, wherever it stands? `python`: the stack has frames of it.
pub fn is_hidden(role: FrameRole, python: bool) -> bool {
    role == FrameRole::Recorder || python && role == FrameRole::Interpreter
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::FrameRole::{Interpreter, Recorder, Shown, System};
    use super::Which::{Native, Python};
    use super::*;

    fn join(python: u32, native: u32) -> Join {
        Join { python, native }
    }

    #[test]
    fn python_frames_stand_before_the_loop_that_runs_them() {
        // torch, loop (runs 0 and 1), a C function, loop (runs 2), main
        let roles = [Shown, Interpreter, Shown, Interpreter, Shown];
        let joins = [join(0, 1), join(2, 3)];
        let expected = [
            Native(0),
            Python(0),
            Python(1),
            Native(1),
            Native(2),
            Python(2),
            Native(3),
            Native(4),
        ];
        assert_eq!(order(&roles, 3, &joins), expected);
        let expected = [Native(0), Python(0), Python(1), Native(2), Python(2), Native(4)];
        assert_eq!(shown(&roles, 3, &joins), expected);
    }

    #[test]
    fn a_loop_that_was_cut_off_is_behind_all_native_frames() {
        let expected = [Native(0), Native(1), Python(0), Python(1)];
        assert_eq!(order(&[Shown, Shown], 2, &[join(0, Join::BEYOND)]), expected);
    }

    #[test]
    fn frames_without_a_place_keep_their_order() {
        // Before the first join: with it.
        let roles = [Shown, Interpreter, Interpreter];
        assert_eq!(
            order(&roles, 2, &[join(1, 2)]),
            [Native(0), Native(1), Python(0), Python(1), Native(2)]
        );
        // No join: where the interpreter begins.
        assert_eq!(order(&roles, 1, &[]), [Native(0), Python(0), Native(1), Native(2)]);
        // No interpreter: behind all.
        assert_eq!(order(&[Shown], 1, &[]), [Native(0), Python(0)]);
    }

    #[test]
    fn what_tells_nothing_is_left_out() {
        let roles = [Recorder, Shown, Interpreter, Interpreter, System, System];
        assert_eq!(shown(&roles, 1, &[join(0, 2)]), [Native(1), Python(0)]);
        // Without Python there is no interpreter to hide, and the system's frames stay.
        let roles = [Recorder, Shown, Interpreter, System];
        assert_eq!(shown(&roles, 0, &[]), [Native(1), Native(2), Native(3)]);
        // A program that holds Python inside shows its own frames around it.
        let roles = [Shown, Interpreter, Shown, System];
        assert_eq!(shown(&roles, 1, &[join(0, 1)]), [Native(0), Python(0), Native(2)]);
    }

    proptest! {
        /// Whatever the joins say: each frame once, each language in its order.
        #[test]
        fn no_frame_is_lost_or_doubled(
            native in 0..20usize,
            python in 0..20usize,
            joins in proptest::collection::vec((0..25u32, prop_oneof![0..25u32, Just(u32::MAX)]), 0..6),
        ) {
            let joins: Vec<Join> = joins.into_iter().map(|(p, n)| join(p, n)).collect();
            let all = order(&vec![Shown; native], python, &joins);
            let natives: Vec<usize> =
                all.iter().filter_map(|w| if let Native(i) = w { Some(*i) } else { None }).collect();
            let pythons: Vec<usize> =
                all.iter().filter_map(|w| if let Python(i) = w { Some(*i) } else { None }).collect();
            prop_assert_eq!(natives, (0..native).collect::<Vec<_>>());
            prop_assert_eq!(pythons, (0..python).collect::<Vec<_>>());
        }
    }
}
