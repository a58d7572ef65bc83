//! The error for an unknown option: names the option, and the help of its command.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Replaces clap's tips for an unknown option by the help of the command. clap's tips are to pass the
/// option as a value after `--`, the same option of another command, and the nearest option of this one,
/// however different it is. Only a near option stays.
pub fn with_help_of_command(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (unknown, nearest) = (text(ContextKind::InvalidArg), text(ContextKind::SuggestedArg));
    let command = command_of(&text(ContextKind::Usage));
    if !is_near(&unknown, &nearest) {
        error.remove(ContextKind::SuggestedArg);
    }
    let tip = format!("'{command} --help' lists the options");
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// The words of a usage line before its arguments: `vramtrace report` of
/// `Usage: vramtrace report [OPTIONS] [PATH]...`.
fn command_of(usage: &str) -> String {
    let words = usage.trim_start_matches("Usage:").split_whitespace();
    let is_name = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let words: Vec<&str> = words.take_while(is_name).collect();
    if words.is_empty() { "vramtrace".into() } else { words.join(" ") }
}

/// Whether two options begin with the same two letters, and differ in length by two letters at most.
fn is_near(unknown: &str, known: &str) -> bool {
    let start = |option: &str| option.trim_start_matches('-').get(..2).map(str::to_string);
    start(unknown).is_some_and(|letters| start(known) == Some(letters))
        && unknown.len().abs_diff(known.len()) <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_words_before_the_arguments() {
        assert_eq!(command_of("Usage: vramtrace report [OPTIONS] [PATH]..."), "vramtrace report");
        assert_eq!(command_of("Usage: vramtrace cap --pid PID LIMIT"), "vramtrace cap");
        assert_eq!(command_of(""), "vramtrace");
    }

    #[test]
    fn a_typing_error_is_near_and_another_word_is_not() {
        assert!(is_near("--jsn", "--json") && is_near("--outt", "--out"));
        assert!(
            !is_near("--by-stack", "--by") && !is_near("--stack", "--at") && !is_near("-x", "")
        );
    }
}
