//! Which traces of a directory are of one run: `vramtrace run` may record several times into one directory.

use std::path::Path;

use super::Trace;

/// Traces that one `vramtrace run` recorded, or a process that none started, and when.
struct Launch {
    traces: Vec<Trace>,
    first_ns: u64,
    last_ns: u64,
}

impl Launch {
    fn of(trace: Trace, last_ns: u64) -> Launch {
        let first_ns = trace.header().start_unix_ns;
        Launch { traces: vec![trace], first_ns, last_ns: last_ns.max(first_ns) }
    }

    fn run(&self) -> Option<u64> {
        self.traces.iter().find_map(|trace| trace.header().run)
    }

    fn join(&mut self, other: Launch) {
        self.traces.extend(other.traces);
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
    }

    /// Whether both are parts of one job: they ran at one time, as on several hosts, or they have other ranks of as
    /// many.
    fn is_with(&self, other: &Launch) -> bool {
        let together = self.first_ns <= other.last_ns && other.first_ns <= self.last_ns;
        together || self.completes(other)
    }

    fn completes(&self, other: &Launch) -> bool {
        let ranks = |launch: &Launch| -> Option<Vec<(u32, u32)>> {
            let header = |trace: &Trace| Some((trace.header().world_size?, trace.header().rank?));
            launch.traces.iter().map(header).collect()
        };
        let (Some(these), Some(those)) = (ranks(self), ranks(other)) else { return false };
        let size = these[0].0;
        these.iter().chain(&those).all(|(of, _)| *of == size && size > 1)
            && !these.iter().any(|one| those.contains(one))
    }
}

/// The traces of the newest run, and how many runs are left out. Where no trace is known to be of a run, all are.
/// `last_written_ns` gives the time of a file's last change.
pub(super) fn newest_run(
    traces: Vec<Trace>,
    last_written_ns: impl Fn(&Path) -> u64,
) -> (Vec<Trace>, usize) {
    if traces.iter().all(|trace| trace.header().run.is_none()) {
        return (traces, 0);
    }
    let mut launches: Vec<Launch> = Vec::new();
    for trace in traces {
        let run = trace.header().run;
        let last_ns = last_written_ns(trace.path());
        let launch = Launch::of(trace, last_ns);
        match launches.iter_mut().find(|known| run.is_some() && known.run() == run) {
            Some(known) => known.join(launch),
            None => launches.push(launch),
        }
    }
    launches.sort_by_key(|launch| launch.first_ns);
    let mut runs: Vec<Launch> = Vec::new();
    for launch in launches {
        match runs.iter_mut().find(|run| run.is_with(&launch)) {
            Some(run) => run.join(launch),
            None => runs.push(launch),
        }
    }
    runs.sort_by_key(|run| run.first_ns);
    let newest = runs.pop().map_or(Vec::new(), |run| run.traces);
    (newest, runs.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use testkit::trace_builder::training;

    /// Run, start and last change of the file, rank of two.
    type Made = (Option<u64>, u64, u64, Option<u32>);

    /// Which of these are of the newest run, and how many runs there are before.
    fn newest(all: &[Made]) -> (Vec<usize>, usize) {
        let directory = tempfile::tempdir().unwrap();
        let mut last = HashMap::new();
        let mut traces = Vec::new();
        for (index, (run, start_ns, last_ns, rank)) in all.iter().enumerate() {
            let mut builder = training();
            builder.header.run = *run;
            builder.header.start_unix_ns = *start_ns;
            builder.header.pid = index as u32;
            builder.header.rank = *rank;
            builder.header.world_size = rank.map(|_| 2);
            let path = directory.path().join(format!("{index}.vtrace"));
            builder.write(&path);
            traces.push(crate::trace::open(&path).unwrap());
            last.insert(path, *last_ns);
        }
        let (newest, others) = newest_run(traces, |path| last[path]);
        let mut pids: Vec<usize> = newest.iter().map(|trace| trace.header().pid as usize).collect();
        pids.sort_unstable();
        (pids, others)
    }

    #[test]
    fn processes_are_of_the_run_that_started_them() {
        let (one, two) = (Some(1), Some(2));
        // A run may start one process after the other; the next run begins when it has ended.
        let sequence = [(one, 10, 19, None), (one, 30, 40, None), (two, 50, 60, None)];
        assert_eq!(newest(&sequence), (vec![2], 1));
        assert_eq!(newest(&sequence[..2]), (vec![0, 1], 0));
        // A launcher for each host.
        assert_eq!(newest(&[(one, 10, 40, None), (two, 15, 45, None)]), (vec![0, 1], 0));
        let ranks = [(one, 10, 11, Some(0)), (two, 20, 21, Some(1)), (Some(3), 30, 31, Some(0))];
        assert_eq!(newest(&ranks[..2]), (vec![0, 1], 0));
        assert_eq!(newest(&ranks), (vec![2], 1));
        // Nothing tells that these are of several runs.
        assert_eq!(newest(&[(None, 10, 11, None), (None, 20, 21, None)]), (vec![0, 1], 0));
        assert_eq!(newest(&[(None, 10, 11, None), (one, 20, 21, None)]), (vec![1], 1));
    }
}
