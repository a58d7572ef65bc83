//! One table of an export: a Parquet file. Rows are buffered by column, and written as row groups.

use std::fs::File;
use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type as SchemaType};
use rustc_hash::FxHashMap;

/// Rows of a row group.
const ROWS: usize = 1 << 18;
/// Texts that are handed to the encoder at a time.
const TEXTS: usize = 1 << 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Int,
    Small,
    Real,
    Bool,
    Text,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    name: &'static str,
    of: Of,
    null: bool,
    /// Its values ascend: the differences are written.
    ascends: bool,
}

impl Column {
    const fn new(name: &'static str, of: Of) -> Column {
        Column { name, of, null: false, ascends: false }
    }

    /// 64 bits.
    pub(super) const fn int(name: &'static str) -> Column {
        Column::new(name, Of::Int)
    }

    /// 32 bits.
    pub(super) const fn small(name: &'static str) -> Column {
        Column::new(name, Of::Small)
    }

    pub(super) const fn real(name: &'static str) -> Column {
        Column::new(name, Of::Real)
    }

    pub(super) const fn bool(name: &'static str) -> Column {
        Column::new(name, Of::Bool)
    }

    pub(super) const fn text(name: &'static str) -> Column {
        Column::new(name, Of::Text)
    }

    pub(super) const fn or_null(self) -> Column {
        Column { null: true, ..self }
    }

    pub(super) const fn ascending(self) -> Column {
        Column { ascends: true, ..self }
    }

    fn schema(&self) -> Result<SchemaType, ParquetError> {
        let physical = match self.of {
            Of::Int => PhysicalType::INT64,
            Of::Small => PhysicalType::INT32,
            Of::Real => PhysicalType::DOUBLE,
            Of::Bool => PhysicalType::BOOLEAN,
            Of::Text => PhysicalType::BYTE_ARRAY,
        };
        let repetition = if self.null { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        SchemaType::primitive_type_builder(self.name, physical)
            .with_repetition(repetition)
            .with_logical_type((self.of == Of::Text).then_some(LogicalType::String))
            .build()
    }
}

/// The texts of a column: each once, and their numbers.
#[derive(Default)]
struct Texts {
    numbers: Vec<u32>,
    known: FxHashMap<Box<str>, u32>,
    all: Vec<ByteArray>,
}

impl Texts {
    fn push(&mut self, text: &str) {
        let number = match self.known.get(text) {
            Some(number) => *number,
            None => {
                let number = self.all.len() as u32;
                self.known.insert(text.into(), number);
                self.all.push(ByteArray::from(text));
                number
            }
        };
        self.numbers.push(number);
    }
}

enum Values {
    Int(Vec<i64>),
    Small(Vec<i32>),
    Real(Vec<f64>),
    Bool(Vec<bool>),
    Text(Texts),
}

/// The rows of a column that are not written yet.
struct Buffer {
    values: Values,
    /// Of a column with nulls: for each row 1, or 0 for null.
    levels: Option<Vec<i16>>,
}

impl Buffer {
    fn of(column: &Column) -> Buffer {
        let values = match column.of {
            Of::Int => Values::Int(Vec::new()),
            Of::Small => Values::Small(Vec::new()),
            Of::Real => Values::Real(Vec::new()),
            Of::Bool => Values::Bool(Vec::new()),
            Of::Text => Values::Text(Texts::default()),
        };
        Buffer { values, levels: column.null.then(Vec::new) }
    }

    fn write(&mut self, column: &mut SerializedColumnWriter) -> Result<(), ParquetError> {
        let levels = self.levels.as_deref();
        match &mut self.values {
            Values::Int(values) => column.typed::<Int64Type>().write_batch(values, levels, None)?,
            Values::Small(values) => {
                column.typed::<Int32Type>().write_batch(values, levels, None)?
            }
            Values::Real(values) => {
                column.typed::<DoubleType>().write_batch(values, levels, None)?
            }
            Values::Bool(values) => column.typed::<BoolType>().write_batch(values, levels, None)?,
            Values::Text(texts) => write_texts(texts, levels, column)?,
        };
        match &mut self.values {
            Values::Int(values) => values.clear(),
            Values::Small(values) => values.clear(),
            Values::Real(values) => values.clear(),
            Values::Bool(values) => values.clear(),
            Values::Text(texts) => *texts = Texts::default(),
        }
        self.levels.iter_mut().for_each(Vec::clear);
        Ok(())
    }
}

fn write_texts(
    texts: &Texts,
    levels: Option<&[i16]>,
    column: &mut SerializedColumnWriter,
) -> Result<usize, ParquetError> {
    let column = column.typed::<ByteArrayType>();
    let text = |number: &u32| texts.all[*number as usize].clone();
    let Some(levels) = levels else {
        for part in texts.numbers.chunks(TEXTS) {
            let part: Vec<ByteArray> = part.iter().map(text).collect();
            column.write_batch(&part, None, None)?;
        }
        return Ok(texts.numbers.len());
    };
    let mut rest = &texts.numbers[..];
    for levels in levels.chunks(TEXTS) {
        let number = levels.iter().filter(|level| **level == 1).count();
        let (part, after) = rest.split_at(number.min(rest.len()));
        let part: Vec<ByteArray> = part.iter().map(text).collect();
        column.write_batch(&part, Some(levels), None)?;
        rest = after;
    }
    Ok(texts.numbers.len())
}

/// A row that is being filled, in the order of the columns.
pub(super) struct Row<'t> {
    rest: std::slice::IterMut<'t, Buffer>,
}

impl Row<'_> {
    /// The values of the next column; for a null `None`, after it was noted.
    fn next(&mut self, there: bool) -> Option<&mut Values> {
        let buffer = self.rest.next()?;
        debug_assert!(there || buffer.levels.is_some(), "null in a column without nulls");
        if let Some(levels) = &mut buffer.levels {
            levels.push(i16::from(there));
        }
        there.then_some(&mut buffer.values)
    }

    /// Larger than 2^63: as that.
    pub(super) fn int(&mut self, value: impl Into<Option<u64>>) {
        let value = value.into();
        match self.next(value.is_some()) {
            Some(Values::Int(all)) => {
                all.extend(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)));
            }
            None => {}
            Some(_) => debug_assert!(false, "not a column of 64 bits"),
        }
    }

    pub(super) fn small(&mut self, value: impl Into<Option<u32>>) {
        let value = value.into();
        match self.next(value.is_some()) {
            Some(Values::Small(all)) => {
                all.extend(value.map(|value| i32::try_from(value).unwrap_or(i32::MAX)));
            }
            None => {}
            Some(_) => debug_assert!(false, "not a column of 32 bits"),
        }
    }

    pub(super) fn real(&mut self, value: f64) {
        match self.next(true) {
            Some(Values::Real(all)) => all.push(value),
            _ => debug_assert!(false, "not a column of real numbers"),
        }
    }

    pub(super) fn real_or_null(&mut self, value: Option<f64>) {
        match self.next(value.is_some()) {
            Some(Values::Real(all)) => all.extend(value),
            None => {}
            Some(_) => debug_assert!(false, "not a column of real numbers"),
        }
    }

    pub(super) fn bool(&mut self, value: bool) {
        match self.next(true) {
            Some(Values::Bool(all)) => all.push(value),
            _ => debug_assert!(false, "not a column of truth values"),
        }
    }

    /// An empty text is null where the column has nulls.
    pub(super) fn text(&mut self, text: &str) {
        let null =
            text.is_empty() && self.rest.as_slice().first().is_some_and(|it| it.levels.is_some());
        match self.next(!null) {
            Some(Values::Text(all)) => all.push(text),
            None => {}
            Some(_) => debug_assert!(false, "not a column of texts"),
        }
    }
}

/// A table that is being written.
pub(super) struct TableFile {
    file: SerializedFileWriter<File>,
    columns: Vec<Buffer>,
    buffered: usize,
    rows: u64,
}

impl TableFile {
    /// Its first column ascends if it says so: the file is then marked as sorted by it.
    pub(super) fn new(file: File, columns: &[Column]) -> io::Result<TableFile> {
        let fields: Result<Vec<_>, _> =
            columns.iter().map(|column| column.schema().map(Arc::new)).collect();
        let schema = fields
            .and_then(|fields| {
                SchemaType::group_type_builder("vramtrace").with_fields(fields).build()
            })
            .map_err(failed)?;
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_max_row_group_row_count(Some(ROWS))
            .set_created_by(concat!("vramtrace ", env!("CARGO_PKG_VERSION")).into());
        for column in columns.iter().filter(|column| column.of == Of::Int) {
            // Where a dictionary grows too large, too.
            let path = ColumnPath::from(column.name);
            properties = properties
                .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
                .set_column_dictionary_enabled(path, !column.ascends);
        }
        if columns.first().is_some_and(|column| column.ascends) {
            let first = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
            properties = properties.set_sorting_columns(Some(vec![first]));
        }
        let properties = Arc::new(properties.build());
        let file = SerializedFileWriter::new(file, Arc::new(schema), properties).map_err(failed)?;
        let columns = columns.iter().map(Buffer::of).collect();
        Ok(TableFile { file, columns, buffered: 0, rows: 0 })
    }

    pub(super) fn row(&mut self, fill: impl FnOnce(&mut Row)) -> io::Result<()> {
        let mut row = Row { rest: self.columns.iter_mut() };
        fill(&mut row);
        debug_assert!(row.rest.len() == 0, "{} columns are missing", row.rest.len());
        self.rows += 1;
        self.buffered += 1;
        if self.buffered == ROWS {
            self.write_rows().map_err(failed)?;
        }
        Ok(())
    }

    fn write_rows(&mut self) -> Result<(), ParquetError> {
        if self.buffered == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for buffer in &mut self.columns {
            let Some(mut column) = group.next_column()? else { break };
            buffer.write(&mut column)?;
            column.close()?;
        }
        group.close()?;
        self.buffered = 0;
        Ok(())
    }

    /// Writes the rest and the end of the file. Returns the number of rows.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.write_rows().map_err(failed)?;
        self.file.close().map_err(failed)?;
        Ok(self.rows)
    }
}

/// The error of the file below, where it is one.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(cause) => io::Error::other(cause),
        },
        error => io::Error::other(error),
    }
}
