//! The text of `vramtrace fits`.

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, paint};
use crate::analysis::fits::{
    Answer, Interval, Predicted, Question, RecordedRun, SettingAnswer, Verdict, answer, describe,
    marked_recordings,
};
use crate::trace::Trace;
use crate::units::{clean, gib, size};

/// The answer, first in one line.
pub fn text(answer: &Answer) -> String {
    let mut out = format!("{}\n", short(answer));
    for recorded in &answer.recorded {
        out.push_str(&format!("  {}\n", of_recording(recorded)));
    }
    if !answer.settings.is_empty() && answer.has_verdict() {
        out.push('\n');
        out.push_str(&settings(answer));
    }
    for setting in &answer.settings {
        if let Some(why) = &setting.forbidden {
            let text = format!("  unsafe  {}: {}", setting.setting, clean(why));
            out.push_str(&format!("{}\n", paint(WARN, &text)));
        }
    }
    if !answer.predicted.is_empty() {
        out.push('\n');
        out.push_str(&predictions(answer));
    }
    out.push('\n');
    for caveat in &answer.caveats {
        out.push_str(&paint(DIM, &format!("  Note: {caveat}.")));
        out.push('\n');
    }
    out
}

/// The answer in one line.
pub fn short(answer: &Answer) -> String {
    match headline(answer) {
        Some(line) => format!("{}\n", paint(BOLD, &line)),
        None => "no card is known: give --card\n".into(),
    }
}

/// The answer about traces whose marks name two batches or lengths. `None`: they do not, or it would take long.
pub fn line_of_marks(traces: &[Trace]) -> Option<String> {
    let recordings = marked_recordings(traces);
    let answer = answer(&recordings, &Question::usual(&recordings)).ok()?;
    headline(&answer)
}

fn of_recording(recorded: &RecordedRun) -> String {
    let values: Vec<String> = recorded.values.iter().map(|numbers| describe(numbers)).collect();
    format!(
        "{}: {}, reserved {} at its peak under {}",
        clean(&recorded.trace),
        values.join(", "),
        gib(recorded.peak_reserved_bytes),
        clean(recorded.setting.as_deref().unwrap_or("default"))
    )
}

/// `batch 22 fits, 24 does not`: the best setting, that in force first.
pub(crate) fn headline(answer: &Answer) -> Option<String> {
    let card = answer.card.as_ref()?;
    let on = match &card.name {
        Some(name) => format!("{} ({})", clean(name), gib(card.bytes)),
        None => gib(card.bytes),
    };
    let in_use = match card.in_use {
        0 => String::new(),
        bytes => format!(", {} of it in use", gib(bytes)),
    };
    let setting = answer.settings.iter().find(|setting| setting.in_force);
    let setting = setting.or(answer.settings.first())?;
    let varied = &answer.varied;
    let at = answer.at.as_ref().map_or(String::new(), |at| format!(" at {} {}", at.name, at.value));
    if let Some((recorded, asked)) = answer.other {
        return Some(format!(
            "about {} at {varied} {}{}; recorded on {recorded:?}, never tried on {asked:?}",
            gib(card.capacity()),
            setting.expected,
            at.replacen("at", "and", 1),
        ));
    }
    Some(format!("{} on {on}{in_use}", says(varied, &at, setting)))
}

fn says(varied: &str, at: &str, setting: &SettingAnswer) -> String {
    let fits = match setting.fits {
        0 => format!("no {varied}{at} is sure to fit"),
        fits => format!("{varied} {fits}{at} fits"),
    };
    let fails = match setting.fails {
        Some(fails) => format!("{fails} does not"),
        None => return format!("{fits}, the smallest that does not is unknown"),
    };
    match setting.too_close() {
        None => format!("{fits}, {fails}"),
        Some((from, to)) if from == to => format!("{fits}, {fails}; {from} is too close to say"),
        Some((from, to)) => format!("{fits}, {fails}; too close to say between {from} and {to}"),
    }
}

fn settings(answer: &Answer) -> String {
    let mut table = Table::new(2, "lrrr");
    table.head(&["setting", "fits", "too close to say", "does not fit"]);
    for setting in &answer.settings {
        let name = match setting.in_force {
            true => format!("{} (in force)", setting.setting),
            false => setting.setting.clone(),
        };
        let between = match setting.too_close() {
            None => String::new(),
            Some((from, to)) if from == to => from.to_string(),
            Some((from, to)) => format!("{from} to {to}"),
        };
        let fails = setting.fails.map_or_else(|| "-".into(), |fails| fails.to_string());
        let fits = if setting.fits == 0 { "none".into() } else { setting.fits.to_string() };
        table.row([clean(&name), fits, between, fails]);
    }
    table.render()
}

fn predictions(answer: &Answer) -> String {
    let mut table = Table::new(2, "rlrrrl");
    table.head(&[&answer.varied, "setting", "allocated", "reserved", "interval", "verdict"]);
    for predicted in &answer.predicted {
        let (verdict, style) = verdict(predicted);
        table.styled([
            (predicted.value.to_string(), PLAIN),
            (clean(&predicted.setting), PLAIN),
            (gib(predicted.allocated.expected), PLAIN),
            (gib(predicted.reserved.expected), PLAIN),
            (interval(predicted.reserved), PLAIN),
            (verdict.into(), style),
        ]);
    }
    table.render()
}

fn interval(interval: Interval) -> String {
    format!("{} to {}", size(interval.low), size(interval.high))
}

fn verdict(predicted: &Predicted) -> (&'static str, anstyle::Style) {
    let Some(verdict) = predicted.verdict else { return ("", PLAIN) };
    let style = match verdict {
        Verdict::Fits => PLAIN,
        Verdict::DoesNotFit => BAD,
        Verdict::TooClose => WARN,
    };
    (verdict.into(), style)
}
