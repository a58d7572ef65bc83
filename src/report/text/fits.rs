//! The text of `vramtrace fits`.

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, line, paint, section};
use crate::analysis::fits::{
    Answer, FitsVerdict, Question, RecordedRun, SettingAnswer, answer, describe, marked_recordings,
};
use crate::report::shell;
use crate::trace::Trace;
use crate::units::{clean, size};

/// The answer, first in one line.
pub fn text(answer: &Answer) -> String {
    let mut out = format!("{}\n", short(answer));
    for recorded in &answer.recorded {
        out.push_str(&line(2, PLAIN, &of_recording(recorded)));
    }
    if answer.other.is_none() {
        out.push_str(&section(settings(answer)));
    }
    for setting in &answer.settings {
        out.push_str(&unsafe_setting(&setting.setting, setting.forbidden.as_deref()));
    }
    out.push_str(&section(predictions(answer)));
    out.push('\n');
    out + &notes(&answer.caveats)
}

/// Why a setting of the allocator must not be used. Empty without a reason.
pub(super) fn unsafe_setting(name: &str, why: Option<&str>) -> String {
    why.map_or(String::new(), |why| line(2, WARN, &format!("unsafe  {name}: {}", clean(why))))
}

/// What a prediction leaves out.
pub(super) fn notes(caveats: &[String]) -> String {
    caveats.iter().map(|caveat| line(2, DIM, &format!("Note: {caveat}."))).collect()
}

/// The answer in one line.
pub fn short(answer: &Answer) -> String {
    let known = headline(answer).map(|text| line(0, BOLD, &text));
    known.unwrap_or("no card is known: give --card\n".into())
}

/// The command for traces whose marks name two batches or lengths, and its answer. `None`: they do not, or it would take long.
pub fn hint(traces: &[Trace]) -> Option<[String; 2]> {
    let recordings = marked_recordings(traces);
    let answer = answer(&recordings, &Question::usual(&recordings)).ok()?;
    let mut paths: Vec<_> = traces.iter().map(|trace| shell::path(trace.path())).collect();
    paths.sort_unstable();
    let answer = format!("{}; --card 24GiB: on another", headline(&answer)?);
    Some([format!("vramtrace fits {}", paths.join(" ")), answer])
}

fn of_recording(recorded: &RecordedRun) -> String {
    let values: Vec<String> = recorded.values.iter().map(|numbers| describe(numbers)).collect();
    format!(
        "{}: {}, reserved {} at its peak under {}",
        clean(&recorded.trace),
        values.join(", "),
        size(recorded.peak_reserved_bytes),
        clean(recorded.setting.as_deref().unwrap_or("default"))
    )
}

/// `batch 22 fits, 24 does not`: the best setting, that in force first.
pub(crate) fn headline(answer: &Answer) -> Option<String> {
    let card = answer.card.as_ref()?;
    let bytes = size(card.bytes);
    let named = card.name.as_ref().map(|name| format!("{} ({bytes})", clean(name)));
    let on = named.unwrap_or(bytes);
    let in_use = match card.in_use {
        0 => String::new(),
        bytes => format!(", {} of it in use", size(bytes)),
    };
    let setting = answer.settings.iter().find(|setting| setting.in_force);
    let setting = setting.or(answer.settings.first())?;
    let varied = &answer.varied;
    let at = answer.at.as_ref().map_or(String::new(), |at| format!(" at {} {}", at.name, at.value));
    if let Some((recorded, asked)) = answer.other {
        return Some(format!(
            "about {} at {varied} {}{}; recorded on {recorded:?}, never tried on {asked:?}",
            size(card.capacity()),
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

/// Values between which the answer is not known.
fn too_close(setting: &SettingAnswer) -> Option<String> {
    setting.too_close().map(|(from, to)| match from == to {
        true => from.to_string(),
        false => format!("{from} to {to}"),
    })
}

fn settings(answer: &Answer) -> String {
    let titles = ["setting", "fits", "too close to say", "does not fit"];
    let mut table = Table::titled(2, "lrrr", &titles);
    for setting in &answer.settings {
        let mark = if setting.in_force { " (in force)" } else { "" };
        let name = format!("{}{mark}", clean(&setting.setting));
        let fails = setting.fails.map_or_else(|| "-".into(), |fails| fails.to_string());
        let fits = if setting.fits == 0 { "none".into() } else { setting.fits.to_string() };
        table.row([name, fits, too_close(setting).unwrap_or_default(), fails]);
    }
    table.render()
}

fn predictions(answer: &Answer) -> String {
    let titles = [&answer.varied, "setting", "allocated", "reserved", "interval", "verdict"];
    let mut table = Table::titled(2, "rlrrrl", &titles);
    for predicted in &answer.predicted {
        let reserved = predicted.reserved;
        let verdict = predicted.verdict.map_or(String::new(), |verdict| {
            let style = match verdict {
                FitsVerdict::Fits => PLAIN,
                FitsVerdict::DoesNotFit => BAD,
                FitsVerdict::TooClose => WARN,
            };
            paint(style, verdict.into())
        });
        table.row([
            predicted.value.to_string(),
            clean(&predicted.setting),
            size(predicted.allocated.expected),
            size(reserved.expected),
            format!("{} to {}", size(reserved.low), size(reserved.high)),
            verdict,
        ]);
    }
    table.render()
}
