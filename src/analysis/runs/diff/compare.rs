//! The differences of two usages.
//!
//! Lines with the same file, function and number are compared. The others are compared by function, where it has lines
//! on both sides: an edit of the file changes the numbers of its lines, which is no growth.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::usage::{LineName, LineUse, PlaceUse, Usage};

/// Bytes before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "ChangeFacts")]
pub struct Change {
    pub before: u64,
    pub after: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ChangeFacts {
    before_bytes: u64,
    after_bytes: u64,
    change_bytes: i64,
}

impl From<Change> for ChangeFacts {
    fn from(of: Change) -> ChangeFacts {
        ChangeFacts { before_bytes: of.before, after_bytes: of.after, change_bytes: of.bytes() }
    }
}

impl Change {
    /// Growth in bytes; negative: it shrank. More than an i64 holds counts as its largest value.
    pub fn bytes(self) -> i64 {
        match self.after.checked_sub(self.before) {
            Some(more) => i64::try_from(more).unwrap_or(i64::MAX),
            None => i64::try_from(self.before - self.after).map_or(i64::MIN, |less| -less),
        }
    }

    fn add(&mut self, other: Change) {
        self.before = self.before.saturating_add(other.before);
        self.after = self.after.saturating_add(other.after);
    }

    fn add_before(&mut self, bytes: u64) {
        self.add(Change { before: bytes, after: 0 });
    }

    fn add_after(&mut self, bytes: u64) {
        self.add(Change { before: 0, after: bytes });
    }

    /// Growth divided by the bytes before; 0.05 is 5 % more.
    pub fn part(self) -> f64 {
        self.bytes() as f64 / self.before.max(1) as f64
    }
}

/// The change of one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineChange {
    /// The name after the change; where the line holds nothing then, the name before.
    #[serde(flatten)]
    pub name: LineName,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "ChangeFacts"))]
    pub bytes: Change,
}

/// The change of a role or of a library.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PartChange<'p> {
    name: &'p str,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "ChangeFacts"))]
    bytes: Change,
}

fn parts<S: Serializer>(all: &[(String, Change)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|(name, bytes)| PartChange { name, bytes: *bytes }))
}

/// The changes of one device of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Difference {
    pub name: String,
    #[cfg_attr(test, schemars(with = "ChangeFacts"))]
    pub in_use: Change,
    #[cfg_attr(test, schemars(with = "ChangeFacts"))]
    pub free_in_cache: Change,
    #[cfg_attr(test, schemars(with = "ChangeFacts"))]
    pub peak: Change,
    /// The largest change first.
    #[serde(serialize_with = "parts")]
    #[cfg_attr(test, schemars(with = "Vec<PartChange>"))]
    pub roles: Vec<(String, Change)>,
    #[serde(serialize_with = "parts")]
    #[cfg_attr(test, schemars(with = "Vec<PartChange>"))]
    pub libraries: Vec<(String, Change)>,
    /// The largest change first. Their sum is the change of `in_use`.
    pub lines: Vec<LineChange>,
}

impl Difference {
    /// The first figure that grew by more than `tolerance` (0.05 is 5 %), with its name.
    pub fn growth(&self, tolerance: f64) -> Option<(&'static str, Change)> {
        let figures = [("memory in use", self.in_use), ("the peak", self.peak)];
        figures.into_iter().find(|(_, change)| change.bytes() > 0 && change.part() > tolerance)
    }

    /// The line that grew most.
    pub fn grew_most(&self) -> Option<&LineChange> {
        let growing = self.lines.iter().filter(|line| line.bytes.bytes() > 0);
        growing.max_by_key(|line| line.bytes.bytes())
    }
}

/// The changes of each device. A device that only one usage has is compared with an empty one.
pub fn compare(before: &Usage, after: &Usage) -> Vec<Difference> {
    if before.has_driver_memory != after.has_driver_memory {
        return compare(&before.without_driver_memory(), &after.without_driver_memory());
    }
    let same = |one: &PlaceUse, other: &PlaceUse| {
        let process = one.rank.is_some() || one.process == other.process;
        one.rank == other.rank && process && one.device == other.device
    };
    let none = PlaceUse::default();
    let mut all: Vec<Difference> = after
        .places
        .iter()
        .map(|place| {
            let earlier = before.places.iter().find(|of| same(of, place));
            difference(earlier.unwrap_or(&none), place, place.name())
        })
        .collect();
    for gone in &before.places {
        if !after.places.iter().any(|place| same(place, gone)) {
            all.push(difference(gone, &none, gone.name()));
        }
    }
    all
}

fn difference(before: &PlaceUse, after: &PlaceUse, name: String) -> Difference {
    let change =
        |figure: fn(&PlaceUse) -> u64| Change { before: figure(before), after: figure(after) };
    let mut libraries: BTreeMap<String, Change> = BTreeMap::new();
    for line in &before.lines {
        libraries.entry(line.name.library.clone()).or_default().add_before(line.bytes);
    }
    for line in &after.lines {
        libraries.entry(line.name.library.clone()).or_default().add_after(line.bytes);
    }
    let mut roles: BTreeMap<String, Change> = BTreeMap::new();
    for (role, bytes) in &before.roles {
        roles.entry(role.clone()).or_default().before = *bytes;
    }
    for (role, bytes) in &after.roles {
        roles.entry(role.clone()).or_default().after = *bytes;
    }
    let sorted = |all: BTreeMap<String, Change>| {
        let mut all: Vec<(String, Change)> = all.into_iter().collect();
        all.sort_by_key(|(_, change)| Reverse(change.bytes().unsigned_abs()));
        all
    };
    Difference {
        name,
        peak: change(|place| place.peak_bytes),
        in_use: change(|place| place.in_use_bytes),
        free_in_cache: change(|place| place.free_in_cache_bytes),
        roles: sorted(roles),
        libraries: sorted(libraries),
        lines: lines(&before.lines, &after.lines),
    }
}

/// The change of each line, largest first. Lines of one side alone are compared by function.
fn lines(before: &[LineUse], after: &[LineUse]) -> Vec<LineChange> {
    let mut exact: BTreeMap<LineName, Change> = BTreeMap::new();
    for line in before {
        exact.entry(line.name.clone()).or_default().add_before(line.bytes);
    }
    for line in after {
        exact.entry(line.name.clone()).or_default().add_after(line.bytes);
    }
    // On one side alone: by function, which may have lines on both sides.
    let mut moved: BTreeMap<LineName, Vec<LineChange>> = BTreeMap::new();
    let mut all = Vec::new();
    for (name, bytes) in exact {
        match bytes.before > 0 && bytes.after > 0 {
            true => all.push(LineChange { name, bytes }),
            false => {
                moved.entry(name.without_lines()).or_default().push(LineChange { name, bytes })
            }
        }
    }
    for mut lines in moved.into_values() {
        let on = |side: fn(Change) -> u64| lines.iter().any(|line| side(line.bytes) > 0);
        if !(on(|bytes| bytes.before) && on(|bytes| bytes.after)) {
            all.append(&mut lines);
            continue;
        }
        let mut sum = Change::default();
        lines.iter().for_each(|line| sum.add(line.bytes));
        // The name of the line that holds most of it now.
        let named = lines.into_iter().max_by_key(|line| line.bytes.after);
        all.extend(named.map(|LineChange { name, .. }| LineChange { name, bytes: sum }));
    }
    all.sort_by_key(|line| Reverse((line.bytes.bytes().unsigned_abs(), line.bytes.after)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(lines: &[(&str, u32, u64)]) -> Usage {
        let line = |(function, line, bytes): &(&str, u32, u64)| LineUse {
            name: LineName {
                library: "PyTorch".into(),
                file: "model.py".into(),
                line: Some(*line),
                function: (*function).into(),
                called_from: "train.py:9 main".into(),
                driver_memory: String::new(),
            },
            bytes: *bytes,
            count: 1,
        };
        let lines: Vec<LineUse> = lines.iter().map(line).collect();
        let in_use_bytes = lines.iter().map(|line| line.bytes).sum();
        let place = PlaceUse {
            device: Some(0),
            peak_bytes: in_use_bytes,
            in_use_bytes,
            lines,
            ..PlaceUse::default()
        };
        Usage { has_driver_memory: true, places: vec![place] }
    }

    #[test]
    fn the_line_that_grew_is_named_and_all_lines_add_up() {
        let before = usage(&[("forward", 10, 1000), ("attention", 20, 500), ("old", 30, 40)]);
        let after = usage(&[("forward", 10, 1000), ("attention", 20, 600), ("new", 31, 30)]);
        let all = compare(&before, &after);
        let [difference] = &all[..] else { panic!("one device") };
        assert_eq!(difference.in_use, Change { before: 1540, after: 1630 });
        let sum: i64 = difference.lines.iter().map(|line| line.bytes.bytes()).sum();
        assert_eq!(sum, difference.in_use.bytes());
        let grew = difference.grew_most().unwrap();
        assert_eq!(grew.name.words(), "model.py:20 attention, called from train.py:9 main");
        assert!(difference.growth(0.05).is_some_and(|(what, _)| what == "memory in use"));
        assert_eq!(difference.growth(0.06), None);
    }

    #[test]
    fn an_edit_that_moves_lines_is_no_growth() {
        let before = usage(&[("forward", 10, 1000), ("forward", 12, 300)]);
        let after = usage(&[("forward", 14, 1000), ("forward", 16, 300)]);
        let all = compare(&before, &after);
        let [difference] = &all[..] else { panic!("one device") };
        let changes: Vec<i64> = difference.lines.iter().map(|line| line.bytes.bytes()).collect();
        assert_eq!(changes, [0]);
        assert_eq!(difference.growth(0.0), None);
    }

    #[test]
    fn a_line_that_came_or_went_stands_by_itself() {
        let after = usage(&[("step", 43, 500), ("step", 44, 1000)]);
        for (before, after) in [(&Usage::default(), &after), (&after, &Usage::default())] {
            let all = compare(before, after);
            let lines = all[0].lines.iter().map(|line| (line.name.line, line.bytes.bytes().abs()));
            assert_eq!(lines.collect::<Vec<_>>(), [(Some(44), 1000), (Some(43), 500)]);
        }
        // Moved: the line that holds most names them.
        let moved = compare(&usage(&[("step", 40, 1500)]), &after);
        assert_eq!(moved[0].lines[0].name.line, Some(44));
        assert_eq!(moved[0].lines[0].bytes, Change { before: 1500, after: 1500 });
    }

    #[test]
    fn a_baseline_without_what_the_driver_took_is_compared_without_it() {
        let of = |driver_memory: &str, bytes| LineUse {
            name: LineName { driver_memory: driver_memory.into(), ..LineName::default() },
            bytes,
            count: 1,
        };
        let mut now = usage(&[("forward", 10, 1000)]);
        now.places[0].lines.extend([of("graphs", 300), of("modules", 20)]);
        now.places[0].in_use_bytes += 320;
        now.places[0].roles = [("graph memory", 350), ("context and modules", 20), ("input", 950)]
            .map(|(role, bytes)| (role.to_string(), bytes))
            .into();
        let old = Usage { has_driver_memory: false, ..usage(&[("forward", 10, 1000)]) };
        let all = compare(&old, &now);
        assert_eq!(all[0].in_use, Change { before: 1000, after: 1000 });
        assert_eq!(all[0].lines.len(), 1);
        let graphs = |(role, _): &&(String, Change)| role == "graph memory";
        assert_eq!(all[0].roles.iter().find(graphs).unwrap().1.after, 50);
        // Of one version: each kind is a line of its own.
        let all = compare(&usage(&[("forward", 10, 1000)]), &now);
        assert_eq!(all[0].in_use.bytes(), 320);
        assert_eq!(all[0].grew_most().unwrap().name.words(), "graphs: ");
    }

    #[test]
    fn changes_of_any_size() {
        let most = u64::MAX;
        for (before, after, bytes) in [
            (0, 1 << 63, i64::MAX),
            (0, most, i64::MAX),
            (most, 0, i64::MIN),
            (1 << 63, 0, i64::MIN),
            (most, most - 5, -5),
        ] {
            assert_eq!(Change { before, after }.bytes(), bytes);
        }
        let large = usage(&[("forward", 1, 1 << 63)]);
        let mut twice = large.clone();
        let line = twice.places[0].lines[0].clone();
        twice.places[0].lines.push(line);
        let all = compare(&large, &twice);
        assert_eq!(all[0].lines[0].bytes, Change { before: 1 << 63, after: most });
    }

    #[test]
    fn devices_of_one_side_alone_are_compared_with_nothing() {
        let (none, some) = (Usage::default(), usage(&[("forward", 1, 100)]));
        assert_eq!(compare(&none, &some)[0].in_use, Change { before: 0, after: 100 });
        assert_eq!(compare(&some, &none)[0].in_use, Change { before: 100, after: 0 });
        assert!(compare(&some, &none)[0].growth(0.0).is_none());
    }
}
