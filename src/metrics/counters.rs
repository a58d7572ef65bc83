//! Keeps counters from falling when one of several processes with the same labels ends: what it had counted stays for
//! as long as the others live.

use std::collections::{BTreeMap, HashMap};

use super::families::Kind;
use super::series::{Group, Name, Series};
use crate::live_processes::process::ProcessKey;

#[derive(Default)]
pub struct Counters {
    /// The counters of each process at the last look.
    last: HashMap<ProcessKey, (Group, Vec<(Name, f64)>)>,
    /// Of processes that have ended, by group.
    ended: BTreeMap<Group, Series>,
}

impl Counters {
    /// The series of all groups, with what their ended processes had counted.
    pub fn grouped(
        &mut self,
        processes: Vec<(ProcessKey, Group, Series)>,
    ) -> BTreeMap<Group, Series> {
        let mut now: HashMap<ProcessKey, (Group, Vec<(Name, f64)>)> = HashMap::new();
        let mut groups: BTreeMap<Group, Series> = BTreeMap::new();
        for (key, group, series) in processes {
            let counters = series.0.iter().filter(|(name, _)| is_counter(name));
            let counters = counters.map(|(name, value)| (name.clone(), *value)).collect();
            now.insert(key, (group.clone(), counters));
            groups.entry(group).or_default().merge(series);
        }
        for (key, (group, counters)) in std::mem::replace(&mut self.last, now) {
            // A process whose labels changed goes on under the new ones.
            if !self.last.contains_key(&key) {
                let ended = self.ended.entry(group).or_default();
                counters.into_iter().for_each(|(name, value)| ended.add(name, value));
            }
        }
        self.ended.retain(|group, _| groups.contains_key(group));
        for (group, ended) in &self.ended {
            groups.entry(group.clone()).or_default().merge(ended.clone());
        }
        groups
    }
}

fn is_counter(name: &Name) -> bool {
    name.family.about().kind == Kind::Counter
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::families::Family;

    #[test]
    fn a_counter_falls_only_with_its_last_process() {
        let mut counters = Counters::default();
        let process = |pid, refusals| {
            let key = ProcessKey { user: 0, pid, start_ticks: 7, pid_namespace: 1 };
            let mut series = Series::default();
            series.put(Family::Refusals, "GPU-1", "cap", refusals);
            series.put(Family::Used, "GPU-1", "", 100.0);
            (key, Group::default(), series)
        };
        let mut look = |processes| {
            let groups = counters.grouped(processes);
            groups
                .get(&Group::default())
                .map(|all| (all.total(Family::Refusals), all.total(Family::Used)))
        };
        assert_eq!(look(vec![process(1, 5.0), process(2, 3.0)]), Some((8.0, 200.0)));
        assert_eq!(look(vec![process(2, 4.0)]), Some((9.0, 100.0)));
        assert_eq!(look(vec![process(2, 4.0), process(3, 1.0)]), Some((10.0, 200.0)));
        assert_eq!(look(vec![process(3, 2.0)]), Some((11.0, 100.0)));
        assert_eq!(look(Vec::new()), None);
        assert_eq!(look(vec![process(4, 1.0)]), Some((1.0, 100.0)));
    }
}
