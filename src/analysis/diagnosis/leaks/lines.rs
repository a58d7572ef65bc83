//! Stacks that leak together: those of one line.

use std::collections::BTreeMap;

use vramtrace_format::StackId;

use super::growth::KeptReason;
use super::judge::{Case, Judge, JudgedLeak, LevelAndDevice, remove};
use crate::analysis::StackClassifier;

/// Who holds this many pieces is judged by itself; with fewer, only with others of its line ...
const ENOUGH: u64 = 12;
/// ... that hold several, or are this many.
const WAYS: u64 = 50;

impl Judge<'_> {
    /// Stacks that differ within frameworks only, or in how deep they recurse, are one leak.
    pub(super) fn together(&self, classifier: &StackClassifier, found: &mut Vec<JudgedLeak>) {
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, one) in found.iter().enumerate() {
            let roles = classifier.roles(one.leak.stack);
            if let Some(lead) = line(classifier, one.leak.stack, roles.lead) {
                let caller = line(classifier, one.leak.stack, roles.caller);
                groups.entry((one.at, lead, caller)).or_default().push(index);
            }
        }
        let mut gone = Vec::new();
        for ((at, ..), members) in groups.into_iter().filter(|(_, members)| members.len() > 1) {
            let mut sum = Case::default();
            members.iter().for_each(|index| sum.add(found[*index].case.clone()));
            if let Ok(leak) = self.case(at, &sum) {
                found.push(JudgedLeak { at, case: sum, leak });
                gone.extend(members);
            }
        }
        remove(found, gone);
    }

    /// A line that many stacks lead to may leak where none of them holds enough to show it. Lines
    /// with a leak of one stack are named by that.
    pub(super) fn lines(
        &self,
        classifier: &StackClassifier,
        found: &mut Vec<JudgedLeak>,
        others: &mut Vec<(LevelAndDevice, Case, KeptReason)>,
    ) {
        let lead = |stack: StackId| line(classifier, stack, classifier.roles(stack).lead);
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, (at, case, _)) in others.iter().enumerate() {
            if case.held.1.max(case.count) >= ENOUGH {
                continue;
            }
            if let Some(line) = lead(case.stack) {
                groups.entry((*at, line)).or_default().push(index);
            }
        }
        for one in found.iter() {
            if let Some(line) = lead(one.leak.stack) {
                groups.remove(&(one.at, line));
            }
        }
        let mut gone = Vec::new();
        for ((at, _), members) in groups.into_iter().filter(|(_, members)| members.len() > 1) {
            let mut sum = Case::default();
            members.iter().for_each(|index| sum.add(others[*index].1.clone()));
            // A wrapper, by which the parts of a program make what each of them needs once. What a
            // step makes by it and frees, again and again, is no more for that.
            if sum.highest_count < 2 * sum.stacks && sum.stacks < WAYS {
                continue;
            }
            if let Ok(leak) = self.case(at, &sum) {
                found.push(JudgedLeak { at, case: sum, leak });
                gone.extend(members);
            }
        }
        remove(others, gone);
    }
}

/// A frame's line, or its function, with the library that the stack belongs to.
fn line(
    classifier: &StackClassifier,
    stack: StackId,
    at: Option<usize>,
) -> Option<(String, Option<u32>, Option<String>)> {
    let frame = classifier.frame(stack, at)?;
    let name =
        if frame.file.is_empty() { frame.function.to_string() } else { frame.file.to_string() };
    let library = classifier.library_name(&classifier.roles(stack)).map(str::to_string);
    Some((name, frame.line, library))
}
