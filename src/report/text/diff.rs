//! The text of `vramtrace diff`.

use super::layout::{BAD, BOLD, DIM, Table, line, paint, section};
use crate::analysis::diff::{ByteChange, Difference, LineChange};
use crate::units::{clean, count, size};

/// `+12.00 MiB`, `-3.00 KiB`, `0 B`.
pub fn signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// `+5.0 %`; `new` if there was nothing before, `gone` if there is nothing after. Empty if both are 0.
pub fn percent(change: ByteChange) -> String {
    match change.before {
        0 if change.after > 0 => "new".to_string(),
        0 => String::new(),
        _ if change.after == 0 => "gone".to_string(),
        _ => format!("{:+.1} %", change.part() * 100.0),
    }
}

/// The lines of code whose bytes changed, `top` at most, and what the others changed by.
fn changed_lines(of: &Difference, top: usize) -> (Vec<&LineChange>, Option<String>) {
    let changed = of.lines.iter().filter(|line| line.bytes.bytes() != 0);
    let mut shown: Vec<&LineChange> = changed.collect();
    let rest = shown.split_off(top.min(shown.len()));
    let bytes = rest.iter().map(|line| line.bytes.bytes()).fold(0, i64::saturating_add);
    let more = || format!("and {} more, {} together", count(rest.len() as u64), signed(bytes));
    (shown, (!rest.is_empty()).then(more))
}

/// The comparison as text. `names`: the names of the two runs. `top`: maximum number of rows of each table.
pub fn text(differences: &[Difference], names: [&str; 2], top: usize) -> String {
    let mut out = format!("before  {}\nafter   {}\n", clean(names[0]), clean(names[1]));
    for of in differences {
        out.push_str(&section(line(0, BOLD, &of.name)));
        let sums = [
            ("in use", of.in_use),
            ("free in cache", of.free_in_cache),
            ("peak of the run", of.peak),
        ];
        let none = String::new;
        out.push_str(&table("", sums.into_iter().map(|(name, by)| (name, by, none()))));
        for (title, parts) in [("by role", &of.roles), ("by library", &of.libraries)] {
            let changed = parts.iter().filter(|(_, by)| by.bytes() != 0).take(top);
            let rows = changed.map(|(name, by)| match name.is_empty() {
                true => ("?", *by, none()),
                false => (name.as_str(), *by, none()),
            });
            out.push_str(&section(table(title, rows)));
        }
        let (lines, more) = changed_lines(of, top);
        let rows = lines.iter().map(|line| ("", line.bytes, line.name.words()));
        out.push_str(&section(table("by line", rows)));
        let same = || lines.is_empty().then(|| "every line holds what it held".to_string());
        more.or_else(same).iter().for_each(|more| out.push_str(&line(4, DIM, more)));
    }
    out
}

/// Rows of a name, a change and a text. Empty without rows.
fn table<'n>(title: &str, rows: impl Iterator<Item = (&'n str, ByteChange, String)>) -> String {
    let mut table = Table::titled(4, "lrrrrl", &[title, "before", "after", "change", "", ""]);
    for (name, change, last) in rows {
        let by = signed(change.bytes());
        let by = if change.bytes() > 0 { paint(BAD, &by) } else { by };
        let (before, after) = (size(change.before), size(change.after));
        table.row([clean(name), before, after, by, percent(change), clean(&last)]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::diff::LineName;

    #[test]
    fn figures_have_a_sign_and_a_unit() {
        assert_eq!([signed(0), signed(1 << 20), signed(-1536)], ["0 B", "+1.00 MiB", "-1.50 KiB"]);
        let part = |before, after| percent(ByteChange { before, after });
        assert_eq!([part(100, 105), part(0, 5), part(5, 0)], ["+5.0 %", "new", "gone"]);
    }

    #[test]
    fn the_sum_of_lines_left_out_does_not_overflow() {
        let bytes = ByteChange { before: 0, after: i64::MAX as u64 };
        let line = LineChange { name: LineName::default(), bytes };
        let difference = difference(vec![line.clone(), line.clone(), line]);
        let more = changed_lines(&difference, 0).1.unwrap();
        assert_eq!(more, format!("and 3 more, {} together", signed(i64::MAX)));
    }

    fn difference(lines: Vec<LineChange>) -> Difference {
        let bytes = ByteChange { before: 100, after: 200 };
        Difference {
            name: "GPU 0".into(),
            peak: bytes,
            in_use: bytes,
            free_in_cache: ByteChange::default(),
            roles: vec![("weights".into(), bytes)],
            libraries: Vec::new(),
            lines,
        }
    }
}
