//! Compares two runs, or two moments of one run: the changes by role, by library and by line.
//!
//! The input is the [`DeviceUse`]s of each: the bytes at one moment, by lines with the names of file and function, which are
//! the same in other runs.
//! Memory in use is compared; the free part of a framework's segments is listed separately.
//!
//! Lines with the same file, function and number are compared. The others are compared by function, where it has lines
//! on both sides: an edit of the file changes the numbers of its lines, which is no growth.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use vramtrace_format::DeviceId;

use crate::analysis::roles::{HeldByRole, Role};
use crate::analysis::{GroupBy, Holder, NamedHoldings, Process, StackClassifier};
use crate::symbols::{Frame, base_name};

/// The usage of one device by one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUse {
    pub rank: Option<u32>,
    /// Index of a process without a rank, in the order in which these began.
    pub process: u32,
    pub device: Option<u8>,
    /// The peak of driver memory in the run.
    pub peak_bytes: u64,
    /// Held memory without the free part of a framework's cache.
    pub in_use_bytes: u64,
    pub free_in_cache_bytes: u64,
    /// Bytes by role. Empty where no blocks of a cache were recorded.
    pub roles: BTreeMap<String, u64>,
    /// Largest first. Their sum is `in_use_bytes`.
    pub lines: Vec<LineUse>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LineUse {
    pub name: LineName,
    pub bytes: u64,
}

/// The names that identify a line in any run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct LineName {
    pub library: String,
    /// The last part of the path. Empty: not known.
    pub file: String,
    pub line: Option<u32>,
    pub function: String,
    /// The program's line that called it, `train.py:41 main`. Empty: none.
    pub called_from: String,
    /// What the driver took the memory for: `graphs`, `modules`. Empty: it was allocated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver_memory: String,
}

impl LineName {
    /// `modeling.py:212 forward, called from train.py:41 main`.
    pub fn words(&self) -> String {
        let place = match (self.file.as_str(), self.line) {
            ("", _) => String::new(),
            (file, Some(line)) => format!("{file}:{line} "),
            (file, None) => format!("{file} "),
        };
        let caller = match self.called_from.as_str() {
            "" => String::new(),
            caller => format!(", called from {caller}"),
        };
        let kind = match self.driver_memory.as_str() {
            "" => String::new(),
            kind => format!("{}: ", kind.replace('_', " ")),
        };
        format!("{kind}{place}{}{caller}", self.function)
    }

    /// The same name without line numbers.
    fn without_lines(&self) -> LineName {
        let caller = self.called_from.split_once(' ').map_or("", |(_, function)| function);
        LineName { line: None, called_from: caller.to_string(), ..self.clone() }
    }
}

impl DeviceUse {
    /// The usage of each device of a process, from the holdings `who.live`. `process_index`: see
    /// [`DeviceUse::process`].
    pub fn of(
        process: &Process,
        who: &NamedHoldings,
        roles: Option<&HeldByRole>,
        process_index: u32,
    ) -> Vec<DeviceUse> {
        let classifier = StackClassifier::new(&who.symbols, &process.header);
        let holders = classifier.holders(&who.live, GroupBy::Line);
        let place = |device: &DeviceId| {
            let here = || holders.iter().filter(|holder| holder.device == *device);
            let bytes = |holder: &Holder| (!holder.stack.is_free_cache()).then_some(holder.bytes);
            let in_use = here().filter_map(bytes).fold(0, u64::saturating_add);
            let all = here().map(|holder| holder.bytes).fold(0, u64::saturating_add);
            let peak =
                process.state.devices.get(device).map_or(0, |state| state.peak.in_use.headline());
            let of_roles = roles.into_iter().flat_map(|roles| roles.of_device(*device));
            let of_roles = of_roles.filter(|(role, _)| *role != Role::FreeCache);
            DeviceUse {
                rank: process.header.rank,
                process: process_index,
                device: (*device != DeviceId::UNKNOWN).then_some(device.0),
                peak_bytes: peak,
                in_use_bytes: in_use,
                free_in_cache_bytes: all - in_use,
                roles: of_roles.map(|(role, held)| (role.name().to_string(), held.bytes)).collect(),
                lines: here().filter(|holder| !holder.stack.is_free_cache()).map(line).collect(),
            }
        };
        who.live.at_ns.keys().map(place).filter(|place| place.in_use_bytes > 0).collect()
    }

    /// `rank 3, GPU 0`.
    pub fn name(&self) -> String {
        let device = self.device.map_or("unknown device".into(), |device| format!("GPU {device}"));
        match (self.rank, self.process) {
            (Some(rank), _) => format!("rank {rank}, {device}"),
            (None, 0) => device,
            (None, index) => format!("process {}, {device}", index + 1),
        }
    }
}

fn line(holder: &Holder) -> LineUse {
    let words = |frame: &Frame| match frame.place() {
        Some(place) => format!("{place} {}", frame.function),
        None => frame.function.to_string(),
    };
    let Holder { stack, library, driver_memory, bytes, .. } = holder;
    let file = stack.lead().map(|frame| base_name(&frame.file).to_string());
    let name = LineName {
        library: library.clone().unwrap_or_default(),
        file: file.unwrap_or_default(),
        line: stack.lead().and_then(|frame| frame.line),
        function: match stack.function() {
            Some(name) => name.into_owned(),
            None => stack.why_no_frames().unwrap_or_default().to_string(),
        },
        called_from: stack.caller().map(words).unwrap_or_default(),
        driver_memory: driver_memory.map(|cause| cause.name().to_string()).unwrap_or_default(),
    };
    LineUse { name, bytes: *bytes }
}

// Bytes before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "ByteChangeFacts")]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema), schemars(with = "ByteChangeFacts"))]
pub struct ByteChange {
    pub before: u64,
    pub after: u64,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
struct ByteChangeFacts {
    before_bytes: u64,
    after_bytes: u64,
    change_bytes: i64,
}

impl From<ByteChange> for ByteChangeFacts {
    fn from(of: ByteChange) -> ByteChangeFacts {
        ByteChangeFacts { before_bytes: of.before, after_bytes: of.after, change_bytes: of.bytes() }
    }
}

impl ByteChange {
    /// Growth in bytes; negative: it shrank. More than an i64 holds counts as its largest value.
    pub fn bytes(self) -> i64 {
        match self.after.checked_sub(self.before) {
            Some(more) => i64::try_from(more).unwrap_or(i64::MAX),
            None => i64::try_from(self.before - self.after).map_or(i64::MIN, |less| -less),
        }
    }

    fn add(&mut self, other: ByteChange) {
        self.before = self.before.saturating_add(other.before);
        self.after = self.after.saturating_add(other.after);
    }

    /// Growth divided by the bytes before; 0.05 is 5 % more.
    pub fn part(self) -> f64 {
        self.bytes() as f64 / self.before.max(1) as f64
    }
}

/// The change of one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct LineChange {
    /// The name after the change; where the line holds nothing then, the name before.
    #[serde(flatten)]
    pub name: LineName,
    #[serde(flatten)]
    pub bytes: ByteChange,
}

/// The change of a role or of a library.
#[derive(Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
struct PartChange<'p> {
    name: &'p str,
    #[serde(flatten)]
    bytes: ByteChange,
}

fn parts<S: Serializer>(all: &[(String, ByteChange)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|(name, bytes)| PartChange { name, bytes: *bytes }))
}

/// The changes of one device of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Difference {
    pub name: String,
    pub in_use: ByteChange,
    pub free_in_cache: ByteChange,
    pub peak: ByteChange,
    /// The largest change first.
    #[serde(serialize_with = "parts")]
    #[cfg_attr(feature = "schemas", schemars(with = "Vec<PartChange>"))]
    pub roles: Vec<(String, ByteChange)>,
    #[serde(serialize_with = "parts")]
    #[cfg_attr(feature = "schemas", schemars(with = "Vec<PartChange>"))]
    pub libraries: Vec<(String, ByteChange)>,
    /// The largest change first. Their sum is the change of `in_use`.
    pub lines: Vec<LineChange>,
}

impl Difference {
    /// The first figure that grew by more than `tolerance` (0.05 is 5 %), with its name.
    pub fn growth(&self, tolerance: f64) -> Option<(&'static str, ByteChange)> {
        let figures = [("memory in use", self.in_use), ("the peak", self.peak)];
        figures.into_iter().find(|(_, change)| change.bytes() > 0 && change.part() > tolerance)
    }

    /// The line that grew most.
    pub fn grew_most(&self) -> Option<&LineChange> {
        let growing = self.lines.iter().filter(|line| line.bytes.bytes() > 0);
        growing.max_by_key(|line| line.bytes.bytes())
    }
}

/// The changes of each device. A device that only one usage has is compared with an empty one; if there is one on each side,
/// with that: ranks and machines number them differently.
pub fn compare(before: &[DeviceUse], after: &[DeviceUse]) -> Vec<Difference> {
    if let ([before], [after]) = (before, after) {
        return vec![difference(before, after, after.name())];
    }
    let same = |one: &DeviceUse, other: &DeviceUse| {
        let process = one.rank.is_some() || one.process == other.process;
        one.rank == other.rank && process && one.device == other.device
    };
    let none = DeviceUse::default();
    let kept = after.iter().map(|place| {
        let earlier = before.iter().find(|of| same(of, place));
        difference(earlier.unwrap_or(&none), place, place.name())
    });
    let gone = before.iter().filter(|gone| !after.iter().any(|place| same(place, gone)));
    kept.chain(gone.map(|gone| difference(gone, &none, gone.name()))).collect()
}

fn difference(before: &DeviceUse, after: &DeviceUse, name: String) -> Difference {
    let change =
        |figure: fn(&DeviceUse) -> u64| ByteChange { before: figure(before), after: figure(after) };
    let sorted = |all: BTreeMap<String, ByteChange>| {
        let mut all: Vec<(String, ByteChange)> = all.into_iter().collect();
        all.sort_by_key(|(_, change)| Reverse(change.bytes().unsigned_abs()));
        all
    };
    let role = |(role, bytes): (&String, &u64)| (role.clone(), *bytes);
    let library = |line: &LineUse| (line.name.library.clone(), line.bytes);
    let roles = changes(before.roles.iter().map(role), after.roles.iter().map(role));
    let libraries = changes(before.lines.iter().map(library), after.lines.iter().map(library));
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

/// The change of each name.
fn changes<N: Ord>(
    before: impl Iterator<Item = (N, u64)>,
    after: impl Iterator<Item = (N, u64)>,
) -> BTreeMap<N, ByteChange> {
    let mut all: BTreeMap<N, ByteChange> = BTreeMap::new();
    for (name, bytes) in before {
        all.entry(name).or_default().add(ByteChange { before: bytes, after: 0 });
    }
    for (name, bytes) in after {
        all.entry(name).or_default().add(ByteChange { before: 0, after: bytes });
    }
    all
}

/// The change of each line, largest first. Lines of one side alone are compared by function.
fn lines(before: &[LineUse], after: &[LineUse]) -> Vec<LineChange> {
    let named = |line: &LineUse| (line.name.clone(), line.bytes);
    let exact = changes(before.iter().map(named), after.iter().map(named));
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
        let on = |side: fn(ByteChange) -> u64| lines.iter().any(|line| side(line.bytes) > 0);
        if !(on(|bytes| bytes.before) && on(|bytes| bytes.after)) {
            all.append(&mut lines);
            continue;
        }
        let mut sum = ByteChange::default();
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

    fn usage(lines: &[(&str, u32, u64)]) -> Vec<DeviceUse> {
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
        };
        let lines: Vec<LineUse> = lines.iter().map(line).collect();
        let in_use_bytes = lines.iter().map(|line| line.bytes).sum();
        let place = DeviceUse {
            device: Some(0),
            peak_bytes: in_use_bytes,
            in_use_bytes,
            lines,
            ..DeviceUse::default()
        };
        vec![place]
    }

    #[test]
    fn the_line_that_grew_is_named_and_all_lines_add_up() {
        let before = usage(&[("forward", 10, 1000), ("attention", 20, 500), ("old", 30, 40)]);
        let after = usage(&[("forward", 10, 1000), ("attention", 20, 600), ("new", 31, 30)]);
        let all = compare(&before, &after);
        let [difference] = &all[..] else { panic!("one device") };
        assert_eq!(difference.in_use, ByteChange { before: 1540, after: 1630 });
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
        for (before, after) in [(&vec![], &after), (&after, &vec![])] {
            let all = compare(before, after);
            let lines = all[0].lines.iter().map(|line| (line.name.line, line.bytes.bytes().abs()));
            assert_eq!(lines.collect::<Vec<_>>(), [(Some(44), 1000), (Some(43), 500)]);
        }
        // Moved: the line that holds most names them.
        let moved = compare(&usage(&[("step", 40, 1500)]), &after);
        assert_eq!(moved[0].lines[0].name.line, Some(44));
        assert_eq!(moved[0].lines[0].bytes, ByteChange { before: 1500, after: 1500 });
    }

    #[test]
    fn each_kind_of_what_the_driver_took_is_a_line() {
        let before = usage(&[("forward", 10, 1000)]);
        let mut now = before.clone();
        for (kind, bytes) in [("graphs", 300), ("modules", 20)] {
            let name = LineName { driver_memory: kind.into(), ..LineName::default() };
            now[0].lines.push(LineUse { name, bytes });
            now[0].in_use_bytes += bytes;
        }
        let all = compare(&before, &now);
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
            assert_eq!(ByteChange { before, after }.bytes(), bytes);
        }
        let large = usage(&[("forward", 1, 1 << 63)]);
        let mut twice = large.clone();
        let line = twice[0].lines[0].clone();
        twice[0].lines.push(line);
        let all = compare(&large, &twice);
        assert_eq!(all[0].lines[0].bytes, ByteChange { before: 1 << 63, after: most });
    }

    #[test]
    fn devices_of_one_side_alone_are_compared_with_nothing() {
        let (none, some) = (Vec::new(), usage(&[("forward", 1, 100)]));
        assert_eq!(compare(&none, &some)[0].in_use, ByteChange { before: 0, after: 100 });
        assert_eq!(compare(&some, &none)[0].in_use, ByteChange { before: 100, after: 0 });
        assert!(compare(&some, &none)[0].growth(0.0).is_none());
    }

    #[test]
    fn each_rank_is_compared_with_itself() {
        let of = |(rank, bytes)| {
            let device = usage(&[("forward", 1, bytes)]).remove(0);
            DeviceUse { rank: Some(rank), ..device }
        };
        let all = compare(&[(0, 100), (1, 200), (2, 50)].map(of), &[(1, 210), (0, 100)].map(of));
        let all: Vec<_> = all.iter().map(|one| (&*one.name, one.in_use.bytes())).collect();
        assert_eq!(all, [("rank 1, GPU 0", 10), ("rank 0, GPU 0", 0), ("rank 2, GPU 0", -50)]);
    }
}
