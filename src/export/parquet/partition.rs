//! Where the files of a process lie: `TABLE/run=RUN/rank=RANK/part-N.parquet`.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::trace::Trace;

/// The place of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Partition {
    pub run: String,
    /// -1: the process has none.
    pub rank: i64,
    /// The number of the process in its run and rank, from 0.
    pub process: u32,
}

impl Partition {
    /// Directories below that of a table, and the file in them.
    pub(super) fn names(&self) -> [String; 3] {
        let Partition { run, rank, process } = self;
        [format!("run={run}"), format!("rank={rank}"), format!("part-{process}.parquet")]
    }
}

/// The places of all traces. `run`: the name of the run that all of them are of; else processes of one `vramtrace run`
/// are one run, and all that none started another: named by the start of its first process, and the run's number.
pub(super) fn partitions(traces: &[Trace], run: Option<&str>) -> Vec<Partition> {
    let mut starts: HashMap<Option<u64>, u64> = HashMap::new();
    for header in traces.iter().map(Trace::header) {
        let start = starts.entry(header.run).or_insert(u64::MAX);
        *start = header.start_unix_ns.min(*start);
    }
    let name = |id: Option<u64>| match (run, id) {
        (Some(run), _) => run.to_string(),
        (None, Some(id)) => format!("{}-{id:016x}", time(starts[&Some(id)])),
        (None, None) => time(starts[&None]),
    };
    let mut next: HashMap<(String, i64), u32> = HashMap::new();
    let of = |trace: &Trace| {
        let header = trace.header();
        let (run, rank) = (name(header.run), header.rank.map_or(-1, i64::from));
        let number = next.entry((run.clone(), rank)).or_default();
        *number += 1;
        Partition { run, rank, process: *number - 1 }
    };
    traces.iter().map(of).collect()
}

/// `20261124T163500Z`.
fn time(unix_ns: u64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;

    #[test]
    fn processes_of_a_run_lie_together() {
        let scratch = tempfile::tempdir().unwrap();
        let made = [(Some(7), Some(0), 20), (Some(7), Some(0), 10), (None, None, 5)];
        let traces: Vec<Trace> = made
            .into_iter()
            .enumerate()
            .map(|(index, (run, rank, start_s))| {
                let mut builder = TraceBuilder::new();
                builder.header.run = run;
                builder.header.rank = rank;
                builder.header.start_unix_ns = start_s * 1_000_000_000;
                let path = scratch.path().join(format!("{index}.vtrace"));
                std::fs::write(&path, builder.bytes()).unwrap();
                Trace::open(&path).unwrap()
            })
            .collect();
        let of = |run: &str, rank, process| Partition { run: run.into(), rank, process };
        let seventh = "19700101T000010Z-0000000000000007";
        let expected = [of(seventh, 0, 0), of(seventh, 0, 1), of("19700101T000005Z", -1, 0)];
        assert_eq!(partitions(&traces, None), expected);
        let named = [of("a", 0, 0), of("a", 0, 1), of("a", -1, 0)];
        assert_eq!(partitions(&traces, Some("a")), named);
        assert_eq!(named[2].names(), ["run=a", "rank=-1", "part-0.parquet"]);
    }
}
