//! What differs between the recordings: one number, as the batch, or two, as the batch and the length of samples.

use serde::Serialize;

/// The name of a number that differs: `batch`, or `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariedName(String);

impl Default for VariedName {
    fn default() -> VariedName {
        VariedName("batch".into())
    }
}

impl VariedName {
    /// `None`: not a name.
    pub fn new(name: &str) -> Option<VariedName> {
        let name = name.trim().to_ascii_lowercase();
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic());
        (is_name && name.chars().all(is_letter)).then_some(VariedName(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number that a mark gives it: `batch=6`.
    pub(super) fn in_mark(&self, mark: &str) -> Option<u64> {
        let lower = mark.to_ascii_lowercase();
        let key = format!("{}=", self.0);
        let is_word = |at: usize| !lower[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let (at, _) = lower.match_indices(&key).find(|(at, _)| is_word(*at))?;
        let digits = lower[at + key.len()..].trim_start();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok().filter(|value| *value > 0)
    }
}

/// The names of what differs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Varied {
    pub first: VariedName,
    /// `None`: one number differs.
    pub second: Option<VariedName>,
}

impl Varied {
    pub fn one(name: VariedName) -> Varied {
        Varied { first: name, second: None }
    }

    /// The batch is the first of two: the second one may count by its square.
    pub fn two(one: VariedName, other: VariedName) -> Varied {
        match other == VariedName::default() {
            true => Varied { first: other, second: Some(one) },
            false => Varied { first: one, second: Some(other) },
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &VariedName> {
        std::iter::once(&self.first).chain(&self.second)
    }

    pub fn name(&self, axis: Axis) -> &str {
        let second = self.second.as_ref().filter(|_| axis == Axis::Second);
        second.unwrap_or(&self.first).as_str()
    }

    /// Each number, with its name.
    pub fn numbers(&self, values: Values) -> Vec<Number> {
        let values = [values.first, values.second];
        let number = |(name, value): (&VariedName, u64)| Number { name: name.0.clone(), value };
        self.names().zip(values).map(number).collect()
    }
}

/// `batch 4 length 256`.
pub fn describe(numbers: &[Number]) -> String {
    let one = |number: &Number| format!("{} {}", number.name, number.value);
    numbers.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// A number that differs between the recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Number {
    pub name: String,
    pub value: u64,
}

/// One of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    First,
    Second,
}

impl Axis {
    pub fn other(self) -> Axis {
        match self {
            Axis::First => Axis::Second,
            Axis::Second => Axis::First,
        }
    }
}

/// The numbers of a step. `second` is 1 where one number alone differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Values {
    pub first: u64,
    pub second: u64,
}

impl Values {
    pub fn one(first: u64) -> Values {
        Values { first, second: 1 }
    }

    pub fn of(self, axis: Axis) -> u64 {
        match axis {
            Axis::First => self.first,
            Axis::Second => self.second,
        }
    }

    pub fn with(self, axis: Axis, value: u64) -> Values {
        match axis {
            Axis::First => Values { first: value, ..self },
            Axis::Second => Values { second: value, ..self },
        }
    }

    /// What the memory of a step mostly follows.
    pub(super) fn product(self) -> u64 {
        self.first.saturating_mul(self.second)
    }

    /// Neither number is larger.
    pub(super) fn within(self, other: Values) -> bool {
        self.first <= other.first && self.second <= other.second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_a_batch() {
        for (mark, batch) in [
            ("batch=6", Some(6)),
            ("train Batch=12 length=512", Some(12)),
            ("minibatch=2 batch=3", Some(3)),
            ("batch= 4", Some(4)),
            ("batch 4", None),
            ("batch=0", None),
            ("batch=x", None),
            ("forward", None),
        ] {
            assert_eq!(VariedName::default().in_mark(mark), batch, "{mark}");
        }
        assert_eq!(VariedName::new("length").unwrap().in_mark("batch=12 length=512"), Some(512));
        assert!(["4,6", "46", "", "a b"].into_iter().all(|name| VariedName::new(name).is_none()));
    }

    #[test]
    fn the_batch_is_the_first_of_two() {
        let name = |name| VariedName::new(name).unwrap();
        let both = [("batch", "length"), ("length", "batch")];
        for varied in both.map(|(one, other)| Varied::two(name(one), name(other))) {
            let values = Values { first: 4, second: 256 };
            assert_eq!(describe(&varied.numbers(values)), "batch 4 length 256");
        }
    }
}
