//! Bounds the number of series: of a process, and of the node. What is over is summed as `other`, so that sums stay
//! right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::families::Family;
use super::series::{ALL_DEVICES, Group, Name, OTHER, Series};

/// Series of a group of processes with the same labels, and of the node.
pub const MOST_OF_GROUP: usize = 40;
pub const MOST_OF_NODE: usize = 2000;

/// Devices that keep series of their own where a process has more.
const DEVICES: usize = 8;
/// Libraries and roles that keep a series of their own, where not all have room.
const LABELS: usize = 3;

/// Metrics that a process with several devices has for each of them, as long as there is room: the first longest.
const OF_DEVICE: [Family; 3] = [Family::Used, Family::Cap, Family::Peak];

/// Folds the series of one group until there are at most [`MOST_OF_GROUP`].
pub fn of_group(series: Series) -> Series {
    let steps: [fn(Series) -> Series; 7] = [
        |series| {
            const LABELLED: [Family; 4] =
                [Family::Library, Family::Role, Family::Leaks, Family::OutOfMemory];
            series.renamed(|name| match LABELLED.contains(&name.family) {
                true => over_devices(name),
                false => name,
            })
        },
        largest_labels,
        |series| by_device(series, &OF_DEVICE),
        largest_devices,
        |series| by_device(series, &OF_DEVICE[..2]),
        |series| by_device(series, &OF_DEVICE[..1]),
        |series| by_device(series, &[]),
    ];
    steps.into_iter().fold(series, |series, step| match series.len() > MOST_OF_GROUP {
        true => step(series),
        false => series,
    })
}

fn over_devices(name: Name) -> Name {
    let device = if name.device.is_empty() { name.device } else { ALL_DEVICES.into() };
    Name { device, ..name }
}

/// Only these metrics name devices.
fn by_device(series: Series, families: &[Family]) -> Series {
    series.renamed(|name| match families.contains(&name.family) {
        true => name,
        false => over_devices(name),
    })
}

/// The largest libraries and roles keep their names.
fn largest_labels(series: Series) -> Series {
    let mut kept: BTreeSet<(Family, Arc<str>)> = BTreeSet::new();
    for family in [Family::Library, Family::Role] {
        kept.extend(largest(&series, family, LABELS, |name| &name.label).map(|it| (family, it)));
    }
    series.renamed(|name| match name.family {
        Family::Library | Family::Role if !kept.contains(&(name.family, name.label.clone())) => {
            Name { label: OTHER.into(), ..name }
        }
        _ => name,
    })
}

/// The devices with most use keep their names.
fn largest_devices(series: Series) -> Series {
    let kept: BTreeSet<Arc<str>> =
        largest(&series, Family::Used, DEVICES, |name| &name.device).collect();
    series.renamed(|name| match OF_DEVICE.contains(&name.family) && !kept.contains(&name.device) {
        true => Name { device: OTHER.into(), ..name },
        false => name,
    })
}

/// The values of a label with the largest sums of a metric.
fn largest(
    series: &Series,
    family: Family,
    most: usize,
    label: impl Fn(&Name) -> &Arc<str>,
) -> impl Iterator<Item = Arc<str>> {
    let mut sums: BTreeMap<Arc<str>, f64> = BTreeMap::new();
    for (name, value) in series.0.iter().filter(|(name, _)| name.family == family) {
        *sums.entry(label(name).clone()).or_default() += value;
    }
    let mut sums: Vec<(Arc<str>, f64)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sums.into_iter().take(most).map(|(label, _)| label)
}

/// All groups with at most so many series together: those that use least are one group. Returns how many processes are
/// in it.
pub fn of_node(groups: BTreeMap<Group, Series>, most: usize) -> (BTreeMap<Group, Series>, f64) {
    let bounded = groups.into_iter().map(|(group, series)| (group, of_group(series)));
    let mut groups: Vec<(Group, Series)> = bounded.collect();
    let all: usize = groups.iter().map(|(_, series)| series.len()).sum();
    if all <= most {
        return (groups.into_iter().collect(), 0.0);
    }
    groups.sort_by(|(a, of_a), (b, of_b)| {
        of_b.total(Family::Used).total_cmp(&of_a.total(Family::Used)).then_with(|| a.cmp(b))
    });
    let room = most.saturating_sub(MOST_OF_GROUP);
    let (mut kept, mut rest, mut count) = (BTreeMap::new(), Series::default(), 0);
    for (group, series) in groups {
        count += series.len();
        // From the first that has no room on: a smaller one does not go before it.
        if count <= room {
            kept.insert(group, series);
        } else {
            rest.merge(series);
        }
    }
    let folded = rest.total(Family::Processes);
    // A process may have these labels.
    let other: &mut Series = kept.entry(Group::other()).or_default();
    other.merge(rest);
    *other = of_group(std::mem::take(other));
    (kept, folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(devices: usize, labels: usize, size: f64) -> Series {
        let mut series = Series::default();
        series.put(Family::Processes, "", "", 1.0);
        for device in 0..devices {
            let name = format!("GPU-{device}");
            for family in Family::ALL.iter().filter(|family| **family <= Family::IdleKnown) {
                // The values of some labels are few.
                let count = match family {
                    Family::Library | Family::Role => labels,
                    Family::OutOfMemory => labels.min(8),
                    Family::Leaks | Family::CapNotInForce => labels.min(3),
                    Family::Refusals => labels.min(2),
                    _ => 1,
                };
                for label in 0..count {
                    let value = size * (1.0 + device as f64 + label as f64);
                    let label = family.about().label.map(|_| format!("label {label}"));
                    series.put(*family, &name, &label.unwrap_or_default(), value);
                }
            }
        }
        series
    }

    #[test]
    fn one_process_has_at_most_40_series_and_its_sums_stay() {
        for (devices, labels) in [(1, 1), (1, 4), (1, 64), (2, 3), (8, 1), (8, 14), (16, 64)] {
            let series = process(devices, labels, 1.0);
            let bounded = of_group(series.clone());
            let count = bounded.len();
            assert!(count <= MOST_OF_GROUP, "{devices} devices, {labels} labels: {count}");
            for family in
                [Family::Used, Family::Cap, Family::Library, Family::Role, Family::Refusals]
            {
                assert_eq!(bounded.total(family), series.total(family), "{family:?}");
            }
            if devices <= 8 && labels <= 4 {
                let of_devices = bounded.0.keys().filter(|name| name.family == Family::Used);
                assert_eq!(of_devices.count(), devices);
            }
        }
        let few = process(1, 1, 1.0);
        assert_eq!(of_group(few.clone()), few);
    }

    #[test]
    fn a_node_has_at_most_2000_series_and_the_largest_processes_keep_theirs() {
        let group = |n: usize| Group { job: n.to_string(), ..Group::default() };
        let all: BTreeMap<Group, Series> =
            (0..300).map(|n| (group(n), process(1, 2, n as f64))).collect();
        let used = |groups: &BTreeMap<Group, Series>| -> f64 {
            groups.values().map(|series| series.total(Family::Used)).sum()
        };
        let (bounded, folded) = of_node(all.clone(), MOST_OF_NODE);
        let count: usize = bounded.values().map(Series::len).sum();
        assert!(count <= MOST_OF_NODE && count > MOST_OF_NODE - 3 * MOST_OF_GROUP, "{count}");
        assert_eq!(used(&bounded), used(&all));
        assert!(bounded.contains_key(&group(299)) && !bounded.contains_key(&group(0)));
        assert_eq!(folded as usize, 300 - (bounded.len() - 1));
        assert_eq!(bounded[&Group::other()].total(Family::Processes), folded);
        let few: BTreeMap<Group, Series> = (0..3).map(|n| (group(n), process(1, 1, 1.0))).collect();
        assert_eq!(of_node(few.clone(), MOST_OF_NODE), (few, 0.0));
    }
}
