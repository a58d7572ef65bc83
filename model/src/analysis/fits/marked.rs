//! The batches and lengths that the marks of a program name: `batch=6`, `batch=6 length=512`.

use std::collections::BTreeSet;

use super::recording::{Batches, Recording};
use super::varied::{Varied, VariedName};
use crate::trace::{Definitions, Trace};

/// The batches that names in a trace give, each once, in ascending order.
pub fn marked_batches(definitions: &Definitions) -> Vec<u64> {
    marked_values(definitions, &VariedName::default())
}

fn marked_values(definitions: &Definitions, number: &VariedName) -> Vec<u64> {
    let values = definitions.texts().filter_map(|name| number.in_mark(name));
    values.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// The names of what marks give for the length of samples.
const LENGTHS: [&str; 2] = ["length", "tokens"];

/// What differs between traces by their marks: the batch, the length where all of them name one and it differs, or both.
/// `None`: neither does.
pub fn marked_numbers<'d>(traces: impl Iterator<Item = &'d Definitions> + Clone) -> Option<Varied> {
    let differs = |number: &VariedName| {
        let of_traces = traces.clone().map(|one| marked_values(one, number));
        let of_traces: Vec<Vec<u64>> = of_traces.collect();
        let first = of_traces.iter().flatten().next();
        of_traces.iter().all(|values| !values.is_empty())
            && of_traces.iter().flatten().any(|value| Some(value) != first)
    };
    let batch = Some(VariedName::default()).filter(differs);
    let length = LENGTHS.iter().filter_map(|name| VariedName::new(name)).find(differs);
    match (batch, length) {
        (Some(batch), Some(length)) => Some(Varied::two(batch, length)),
        (one, other) => one.or(other).map(Varied::one),
    }
}

/// Maximum size in bytes of traces whose answer is computed without being asked for.
const ANSWERED: u64 = 24 << 20;

/// The recordings of traces whose marks name two batches or lengths. Empty where they name fewer, where nothing can be
/// compared, for ranks of a job, and where reading them takes long.
pub fn marked_recordings(traces: &[Trace]) -> Vec<Recording> {
    let bytes = traces.iter().map(Trace::data_bytes).fold(0, u64::saturating_add);
    if bytes > ANSWERED || traces.iter().any(|trace| trace.header().rank.is_some()) {
        return Vec::new();
    }
    let definitions: Vec<Definitions> = traces.iter().map(|trace| trace.definitions().0).collect();
    let Some(varied) = marked_numbers(definitions.iter()) else { return Vec::new() };
    let marked = vec![Batches::Marked; varied.names().count()];
    let read = |trace: &Trace| {
        Recording::read(&trace.path().display().to_string(), trace, None, &varied, &marked)
    };
    traces.iter().map(read).collect::<Result<_, _>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use vramtrace_format::Definition;

    use super::*;

    #[test]
    fn marks_say_which_numbers_differ() {
        let of = |traces: &[&[&str]]| {
            let traces: Vec<Definitions> = traces.iter().map(|names| named(names)).collect();
            let varied = marked_numbers(traces.iter())?;
            Some(varied.names().map(|name| name.as_str().to_string()).collect::<Vec<_>>().join(" "))
        };
        let of = |traces: &[&[&str]]| of(traces).unwrap_or_default();
        assert_eq!(of(&[&["batch=4"], &["batch=6"]]), "batch");
        assert_eq!(of(&[&["batch=4 length=256"], &["batch=6 length=256"]]), "batch");
        assert_eq!(of(&[&["batch=4 length=256"], &["batch=6 length=512"]]), "batch length");
        assert_eq!(of(&[&["batch=4 tokens=9", "batch=6 tokens=7"]]), "batch tokens");
        assert_eq!(of(&[&["batch=4 length=256"], &["batch=4 length=512"]]), "length");
        assert_eq!(of(&[&["length=256"], &["length=512"]]), "length");
        assert_eq!(of(&[&["batch=4 length=256"], &["batch=6"], &["batch=6 length=9"]]), "batch");
        assert_eq!(of(&[&["batch=4 length=256"]]), "", "one value");
        assert_eq!(of(&[&["load"]]), "");
        assert_eq!(of(&[]), "");
    }

    fn named(names: &[&str]) -> Definitions {
        let mut definitions = Definitions::default();
        for (id, text) in (1..).zip(names) {
            definitions.add(Definition::Text { id, text: text.to_string() });
        }
        definitions
    }

    #[test]
    fn ids_of_names_are_not_counted_up_to() {
        // Counting to the highest id, this test took hours.
        let mut definitions = named(&["batch=4"]);
        for id in (0..2_000).map(|n| u32::MAX - n) {
            definitions.add(Definition::Text { id, text: "batch=6".into() });
            assert_eq!(marked_batches(&definitions), [4, 6]);
            assert_eq!(definitions.free_texts().next(), Some(2));
        }
    }

    #[test]
    fn batches_of_marks() {
        assert_eq!(marked_batches(&named(&["batch=6", "load", "batch=4", "x batch=6"])), [4, 6]);
        assert!(marked_batches(&named(&["batch=0", "minibatch=3"])).is_empty());
    }
}
