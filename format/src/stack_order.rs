//! Merges the native and the Python frames of a stack into one list. Recorder and reader use the same order and hide
//! the same frames, so both name the same library for a stack.

use crate::layers::base_name;
use crate::record::definition::Join;

/// A frame, as an index in the list of native or of Python frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Native(usize),
    Python(usize),
}

/// Which part of the process a native frame belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameOrigin {
    /// Any other part.
    #[default]
    Shown,
    /// The recorder.
    Recorder,
    /// The Python interpreter: its evaluation loop, and the calls between two Python frames.
    Interpreter,
    /// The C library and the dynamic loader: functions that start programs and threads.
    System,
}

impl FrameOrigin {
    /// The origin of all frames of the library or executable at this path.
    pub fn of_library(path: &str) -> FrameOrigin {
        let name = base_name(path);
        let starts = |prefix: &str| name.strip_prefix(prefix);
        // `libpython3.11.so.1.0`, and the executables `python`, `python3`, `python3.11`.
        let version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
        if name == "libvramtrace.so" {
            FrameOrigin::Recorder
        } else if starts("libpython").is_some_and(|rest| rest.contains(".so"))
            || starts("python").is_some_and(version)
        {
            FrameOrigin::Interpreter
        } else if ["libc.so", "libc-2", "libpthread", "ld-linux", "ld-musl"]
            .iter()
            .any(|prefix| starts(prefix).is_some())
        {
            FrameOrigin::System
        } else {
            FrameOrigin::Shown
        }
    }
}

/// All frames, innermost first. `python`: number of Python frames. The Python frames of a join precede the native
/// frame that runs them. Python frames before the first join precede the joined ones. Without a join, all Python
/// frames precede the interpreter's first frame, or follow the native frames where there is none.
pub fn order(native: &[FrameOrigin], python: usize, joins: &[Join]) -> Vec<Which> {
    let mut out = Vec::with_capacity(native.len() + python);
    // A damaged file may hold any values: positions are limited to the frames, and never decrease.
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
        // Python frames before the first join belong to it.
        Some(first) => first.0 = 0,
        None if python > 0 => {
            let loops = native.iter().position(|origin| *origin == FrameOrigin::Interpreter);
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

/// The frames that a report shows, innermost first. Left out are the recorder's frames, the
/// interpreter's frames of a stack with Python frames, and the C library's frames around those.
pub fn shown(native: &[FrameOrigin], python: usize, joins: &[Join]) -> Vec<Which> {
    let mut all = order(native, python, joins);
    let origin = |which: &Which| match which {
        Which::Native(index) => native[*index],
        Which::Python(_) => FrameOrigin::Shown,
    };
    let hidden = |which: &Which| is_hidden(origin(which), python > 0);
    if python > 0 {
        let is_outermost = |which: &Which| {
            matches!(which, Which::Python(_))
                || origin(which) != FrameOrigin::System && !hidden(which)
        };
        let keep = all.iter().rposition(is_outermost).map_or(0, |last| last + 1);
        all.truncate(keep);
    }
    all.retain(|which| !hidden(which));
    all
}

/// Whether a native frame of this origin is never shown. `python`: the stack has Python frames.
pub fn is_hidden(origin: FrameOrigin, python: bool) -> bool {
    origin == FrameOrigin::Recorder || python && origin == FrameOrigin::Interpreter
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::FrameOrigin::{Interpreter, Recorder, Shown, System};
    use super::Which::{Native, Python};
    use super::*;

    fn join(python: u32, native: u32) -> Join {
        Join { python, native }
    }

    #[test]
    fn python_frames_precede_the_loop_that_runs_them() {
        // torch, loop (runs 0 and 1), a C function, loop (runs 2), main
        let origins = [Shown, Interpreter, Shown, Interpreter, Shown];
        let joins = [join(0, 1), join(2, 3)];
        let [first, second] = [
            [Native(0), Python(0), Python(1), Native(1)],
            [Native(2), Python(2), Native(3), Native(4)],
        ];
        assert_eq!(order(&origins, 3, &joins), [first, second].concat());
        let expected = [Native(0), Python(0), Python(1), Native(2), Python(2), Native(4)];
        assert_eq!(shown(&origins, 3, &joins), expected);
    }

    #[test]
    fn python_frames_of_a_loop_beyond_the_captured_frames_come_last() {
        let expected = [Native(0), Native(1), Python(0), Python(1)];
        assert_eq!(order(&[Shown, Shown], 2, &[join(0, Join::BEYOND)]), expected);
    }

    #[test]
    fn frames_without_a_place_keep_their_order() {
        // Before the first join: with it.
        let origins = [Shown, Interpreter, Interpreter];
        assert_eq!(
            order(&origins, 2, &[join(1, 2)]),
            [Native(0), Native(1), Python(0), Python(1), Native(2)]
        );
        // No join: where the interpreter begins.
        assert_eq!(order(&origins, 1, &[]), [Native(0), Python(0), Native(1), Native(2)]);
        // No interpreter: behind all.
        assert_eq!(order(&[Shown], 1, &[]), [Native(0), Python(0)]);
    }

    #[test]
    fn frames_of_recorder_and_interpreter_are_left_out() {
        let origins = [Recorder, Shown, Interpreter, Interpreter, System, System];
        assert_eq!(shown(&origins, 1, &[join(0, 2)]), [Native(1), Python(0)]);
        // Without Python there is no interpreter to hide, and the system's frames stay.
        let origins = [Recorder, Shown, Interpreter, System];
        assert_eq!(shown(&origins, 0, &[]), [Native(1), Native(2), Native(3)]);
        // A program that holds Python inside shows its own frames around it.
        let origins = [Shown, Interpreter, Shown, System];
        assert_eq!(shown(&origins, 1, &[join(0, 1)]), [Native(0), Python(0), Native(2)]);
    }

    proptest! {
        /// With any joins, each frame occurs once, and each language keeps its order.
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
