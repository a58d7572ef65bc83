//! Reads the rows of a CSV, with line numbers for messages.

use ::csv::{ReaderBuilder, StringRecord, Trim};

use super::error::ImportProblem;

/// One row, with the text that it is from.
pub(super) struct Row<'t> {
    text: &'t str,
    fields: StringRecord,
}

/// The rows below the first line, which must be `header`. Empty lines are left out.
pub(super) fn rows<'t>(
    text: &'t str,
    header: &'static str,
) -> Result<impl Iterator<Item = Result<Row<'t>, ImportProblem>>, ImportProblem> {
    let mut reader =
        ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let first = reader.headers()?;
    if !first.iter().eq(header.split(',')) {
        return Err(ImportProblem::Header(header));
    }
    let rows = reader.into_records().filter_map(move |record| match record {
        Ok(fields) if fields.len() == 1 && fields[0].is_empty() => None,
        Ok(fields) => Some(Ok(Row { text, fields })),
        Err(error) => Some(Err(error.into())),
    });
    Ok(rows)
}

impl Row<'_> {
    /// Its fields, where there are as many as `N`.
    pub(super) fn fields<const N: usize>(&self) -> Option<[&str; N]> {
        (self.fields.len() == N).then(|| std::array::from_fn(|index| &self.fields[index]))
    }

    pub(super) fn wrong(&self, what: impl Into<String>) -> ImportProblem {
        let text = self.fields.iter().collect::<Vec<_>>().join(",");
        ImportProblem::Row { line: self.line(), what: what.into(), text }
    }

    /// Line number from 1. The csv reader's position is before skipped empty lines, which are added here.
    fn line(&self) -> usize {
        let at = self.fields.position().map_or(0, |position| position.byte() as usize);
        let rest = self.text.get(at..).unwrap_or("");
        let empty = rest.len() - rest.trim_start_matches(['\n', '\r']).len();
        let before = self.text.get(..at + empty).unwrap_or("");
        1 + before.bytes().filter(|byte| *byte == b'\n').count()
    }
}
