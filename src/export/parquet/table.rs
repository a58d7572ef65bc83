//! One table of an export: a Parquet file. [`Columns`] say once of each column its name, its type and how a row gives its
//! value. Rows are kept until they fill a row group, which is written column by column.

use std::fs::File;
use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type as SchemaType};
use vramtrace_format::DeviceId;

/// Rows of a row group.
const ROWS: usize = 1 << 18;
/// Values that are handed to the encoder at a time.
const VALUES: usize = 1 << 13;

/// A type of Rust that is one of a column. `Option`: the column has nulls.
pub(super) trait Value: Sized {
    type Of: DataType;
    const NULL: bool = false;
    fn get(self) -> Option<<Self::Of as DataType>::T>;
}

/// Larger than 2^63: as that.
impl Value for u64 {
    type Of = Int64Type;
    fn get(self) -> Option<i64> {
        Some(i64::try_from(self).unwrap_or(i64::MAX))
    }
}

impl Value for u32 {
    type Of = Int32Type;
    fn get(self) -> Option<i32> {
        Some(i32::try_from(self).unwrap_or(i32::MAX))
    }
}

impl Value for f64 {
    type Of = DoubleType;
    fn get(self) -> Option<f64> {
        Some(self)
    }
}

impl Value for bool {
    type Of = BoolType;
    fn get(self) -> Option<bool> {
        Some(self)
    }
}

impl Value for ByteArray {
    type Of = ByteArrayType;
    fn get(self) -> Option<ByteArray> {
        Some(self)
    }
}

impl<V: Value> Value for Option<V> {
    type Of = V::Of;
    const NULL: bool = true;
    fn get(self) -> Option<<V::Of as DataType>::T> {
        self?.get()
    }
}

/// Null for a device that is not known.
impl Value for DeviceId {
    type Of = Int32Type;
    const NULL: bool = true;
    fn get(self) -> Option<i32> {
        (self != DeviceId::UNKNOWN).then_some(self.0.into())
    }
}

pub(super) fn text(text: &str) -> ByteArray {
    text.into()
}

/// A text that may be null: an empty one is.
pub(super) fn known(text: &str) -> Option<ByteArray> {
    (!text.is_empty()).then(|| text.into())
}

/// Writes the values of rows.
type Write<'a, R> = dyn Fn(&[R], &mut SerializedColumnWriter) -> Result<(), ParquetError> + 'a;

/// The columns of a table, whose rows are `R`.
pub(super) struct Columns<'a, R> {
    types: Vec<Result<SchemaType, ParquetError>>,
    write: Vec<Box<Write<'a, R>>>,
    /// The values of the first ascend: their differences are written.
    sorted: bool,
}

impl<'a, R> Columns<'a, R> {
    pub(super) fn new() -> Columns<'a, R> {
        Columns { types: Vec::new(), write: Vec::new(), sorted: false }
    }

    /// The values of the first column will ascend.
    pub(super) fn sorted() -> Columns<'a, R> {
        Columns { sorted: true, ..Columns::new() }
    }

    pub(super) fn column<V: Value>(mut self, name: &str, value: impl Fn(&R) -> V + 'a) -> Self {
        let physical = V::Of::get_physical_type();
        let text = physical == PhysicalType::BYTE_ARRAY;
        let repetition = if V::NULL { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let of = SchemaType::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(text.then_some(LogicalType::String));
        self.types.push(of.build());
        self.write.push(Box::new(move |rows, out| {
            for rows in rows.chunks(VALUES) {
                let all: Vec<_> = rows.iter().map(|row| value(row).get()).collect();
                let levels: Vec<i16> = all.iter().map(|value| i16::from(value.is_some())).collect();
                let values: Vec<_> = all.into_iter().flatten().collect();
                let levels = V::NULL.then_some(&levels[..]);
                out.typed::<V::Of>().write_batch(&values, levels, None)?;
            }
            Ok(())
        }));
        self
    }

    /// Writes a file of these rows. Returns their number.
    pub(super) fn write(self, file: File, rows: impl IntoIterator<Item = R>) -> io::Result<u64> {
        let mut table = self.begin(file)?;
        rows.into_iter().for_each(|row| table.push(row));
        table.finish()
    }

    pub(super) fn begin(self, file: File) -> io::Result<Table<'a, R>> {
        let types: Result<Vec<_>, _> = self.types.into_iter().map(|of| of.map(Arc::new)).collect();
        let file = types.and_then(|types| file_of(file, types, self.sorted)).map_err(failed)?;
        Ok(Table { file, columns: self.write, rows: Vec::new(), written: 0, failed: None })
    }
}

fn file_of(
    file: File,
    columns: Vec<Arc<SchemaType>>,
    sorted: bool,
) -> Result<SerializedFileWriter<File>, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROWS))
        .set_created_by(concat!("vramtrace ", env!("CARGO_PKG_VERSION")).into());
    let large = |of: &&Arc<SchemaType>| of.get_physical_type() == PhysicalType::INT64;
    for (index, column) in columns.iter().enumerate().filter(|(_, of)| large(of)) {
        // Where a dictionary grows too large, too.
        let path = ColumnPath::from(column.name());
        properties = properties
            .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
            .set_column_dictionary_enabled(path, !sorted || index > 0);
    }
    if sorted {
        let first = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
        properties = properties.set_sorting_columns(Some(vec![first]));
    }
    let schema = SchemaType::group_type_builder("vramtrace").with_fields(columns).build()?;
    SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties.build()))
}

/// A table that is being written.
pub(super) struct Table<'a, R> {
    file: SerializedFileWriter<File>,
    columns: Vec<Box<Write<'a, R>>>,
    /// Not written yet.
    rows: Vec<R>,
    written: u64,
    /// The first failure; nothing is written after it.
    failed: Option<ParquetError>,
}

impl<R> Table<'_, R> {
    pub(super) fn push(&mut self, row: R) {
        self.rows.push(row);
        if self.rows.len() == ROWS {
            self.write_rows();
        }
    }

    fn write_rows(&mut self) {
        if self.failed.is_none() && !self.rows.is_empty() {
            self.failed = self.write_group().err();
        }
        self.written += self.rows.len() as u64;
        self.rows.clear();
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for write in &self.columns {
            let Some(mut column) = group.next_column()? else { break };
            write(&self.rows, &mut column)?;
            column.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Writes the rest and the end of the file. Returns the number of rows.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.write_rows();
        self.failed.map_or(Ok(()), Err).map_err(failed)?;
        self.file.close().map(|_| self.written).map_err(failed)
    }
}

/// The error of the file below, where it is one.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => {
            cause.downcast::<io::Error>().map_or_else(io::Error::other, |error| *error)
        }
        error => io::Error::other(error),
    }
}
