//! Stacks that leak together: those of one line.

use std::collections::BTreeMap;

use vramtrace_format::StackId;

use super::judge::{Case, Innocent, Judge, JudgedLeak, remove};
use crate::analysis::StackClassifier;

/// Who holds this many pieces is judged by itself; with fewer, only with others of its line ...
const ENOUGH: u64 = 12;
/// ... that hold several, or are this many.
const WAYS: u64 = 50;

impl Judge<'_> {
    /// Stacks that differ within frameworks only, or in how deep they recurse, are one leak.
    pub(super) fn together(&self, classifier: &StackClassifier, found: &mut Vec<JudgedLeak>) {
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, JudgedLeak { case, .. }) in found.iter().enumerate() {
            let key_frames = classifier.key_frames(case.stack);
            if let Some(lead) = line(classifier, case.stack, key_frames.lead) {
                let caller = line(classifier, case.stack, key_frames.caller);
                groups.entry((case.at, lead, caller)).or_default().push(index);
            }
        }
        let mut gone = Vec::new();
        for members in groups.into_values().filter(|members| members.len() > 1) {
            if let Some(one) = self.as_one(members.iter().map(|at| &found[*at].case)) {
                found.push(one);
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
        others: &mut Vec<Innocent>,
    ) {
        let lead = |case: &Case| {
            let lead = classifier.key_frames(case.stack).lead;
            Some((case.at, line(classifier, case.stack, lead)?))
        };
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, Innocent { case, .. }) in others.iter().enumerate() {
            if case.held.count.max(case.sums.count) < ENOUGH
                && let Some(line) = lead(case)
            {
                groups.entry(line).or_default().push(index);
            }
        }
        for line in found.iter().filter_map(|one| lead(&one.case)) {
            groups.remove(&line);
        }
        let mut gone = Vec::new();
        for members in groups.into_values().filter(|members| members.len() > 1) {
            if let Some(one) = self.as_one(members.iter().map(|at| &others[*at].case))
                // A wrapper, by which the parts of a program make what each of them needs once. What a
                // step makes by it and frees, again and again, is no more for that.
                && (one.case.sums.highest_count >= 2 * one.case.stacks || one.case.stacks >= WAYS)
            {
                found.push(one);
                gone.extend(members);
            }
        }
        remove(others, gone);
    }

    /// The verdict on several cases as one, if it is that they leak.
    fn as_one<'c>(&self, cases: impl Iterator<Item = &'c Case>) -> Option<JudgedLeak> {
        let case = Case::sum(cases)?;
        let leak = self.case(&case).ok()?;
        Some(JudgedLeak { case, leak })
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
    let library = classifier.library_name(&classifier.key_frames(stack)).map(str::to_string);
    Some((name, frame.line, library))
}
