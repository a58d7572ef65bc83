//! What a run left, in a few lines on stderr.

use super::Ended;
use crate::cli::say;

pub fn print(ended: &Ended) {
    if ended.output.is_off() {
        return;
    }
    let traces = ended.output.traces();
    let Some(shown) = ended.output.shown().filter(|_| !traces.is_empty()) else {
        if !ended.seen.still_running {
            ended.output.remove_if_empty();
        }
        say("no process took GPU memory: there is no trace");
        return;
    };
    say(format_args!("{} in {}", count(traces.len(), "trace"), shown.display()));
    if let Some(cap) = ended.cap.as_ref().filter(|_| traces.len() > 1) {
        say(format_args!("the cap of {cap} held for each process by itself, not for all together"));
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
