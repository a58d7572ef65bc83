//! The table CUDA_GPU_MEMORY_USAGE_EVENTS of a report of Nsight Systems, as `nsys export --type parquetdir` writes it: the
//! driver's allocations and frees of all processes, without stacks.

use std::collections::BTreeMap;
use std::fs::File;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use super::error::ImportProblem;
use super::history::{Action, Form, History, is_place};

const COLUMNS: [&str; 7] =
    ["start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType"];
/// Kinds of memory that lie on a device for all their time: device, array, device static.
const ON_DEVICE: [i64; 3] = [2, 3, 5];

impl From<ParquetError> for ImportProblem {
    fn from(error: ParquetError) -> ImportProblem {
        ImportProblem::Snapshot(format!("not a sound Parquet file: {error}"))
    }
}

pub(super) fn read(file: File) -> Result<Vec<History>, ImportProblem> {
    let reader = SerializedFileReader::new(file)?;
    let schema = reader.metadata().file_metadata().schema();
    let mut fields = schema.get_fields().to_vec();
    fields.retain(|field| COLUMNS.contains(&field.name()));
    if fields.len() < COLUMNS.len() {
        return Err(ImportProblem::Unknown { looks: "a Parquet table without allocations" });
    }
    let wanted = Type::group_type_builder(schema.name()).with_fields(fields).build()?;
    let (mut rows, mut beside) = (Vec::new(), 0u64);
    for row in reader.get_row_iter(Some(wanted))? {
        let row = row?;
        let value = |column| row.get_column_iter().find(|(name, _)| *name == column);
        match of_device(COLUMNS.map(|column| value(column).and_then(|(_, field)| number(field)))) {
            Some(row) => rows.push(row),
            None => beside += 1,
        }
    }
    rows.sort_by_key(|(time_ns, ..)| *time_ns);
    let mut found: BTreeMap<u32, History> = BTreeMap::new();
    for (time_ns, pid, device, action, address, size) in rows {
        let new = || History { pid, ..History::new(Form::Nsys) };
        let history = found.entry(pid).or_insert_with(new);
        history.device(device).push(action, address, size, time_ns, 0);
    }
    let mut histories: Vec<History> = found.into_values().collect();
    let first = histories.first_mut().ok_or(ImportProblem::Empty)?;
    if beside > 0 {
        first.caveats.push(format!("{beside} rows are left out: host or managed memory"));
    }
    Ok(histories)
}

/// Time, process, device, what happened, address, bytes.
type Row = (u64, u32, u8, Action, u64, u64);

/// Of the values of [`COLUMNS`]. `None`: of no device, or not sound.
fn of_device(row: [Option<i64>; COLUMNS.len()]) -> Option<Row> {
    let [start, pid, device, address, size, kind, operation] = row;
    let (address, size) = (address? as u64, u64::try_from(size?).ok()?);
    let device = u8::try_from(device?).ok().filter(|ordinal| *ordinal < u8::MAX)?;
    // 0: an allocation; 1: a free.
    let action = if operation? == 0 { Action::Alloc } else { Action::FreeCompleted };
    let (time_ns, pid) = (u64::try_from(start?).ok()?, (pid? >> 24 & 0xff_ffff) as u32);
    let is_one = ON_DEVICE.contains(&kind?) && is_place(address, size);
    is_one.then_some((time_ns, pid, device, action, address, size))
}

/// A whole number of any width; unsigned ones of 64 bits as they stand.
fn number(field: &Field) -> Option<i64> {
    field.to_string().parse::<i128>().ok().map(|number| number as i64)
}

#[cfg(test)]
mod tests {
    use parquet::data_type::Int64Type;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::history::HistoryDevice;
    use super::*;

    /// As nsys writes them: two processes, of which one has memory of the host too.
    #[test]
    fn each_process_has_its_allocations() {
        let columns = COLUMNS.map(|name| format!("required int64 {name};")).concat();
        let schema = parse_message_type(&format!("message t {{ required int64 pc; {columns} }}"));
        let file = tempfile::tempfile().unwrap();
        let mut writer =
            SerializedFileWriter::new(&file, schema.unwrap().into(), Default::default()).unwrap();
        let pid = |pid: i64| 1 << 56 | pid << 24 | 7;
        let rows = [
            [0, 30, pid(12), 1, 4096, 512, 2, 1],
            [0, 10, pid(12), 1, 4096, 512, 2, 0],
            [0, 20, pid(12), 0, 8192, 512, 1, 0],
            [0, 20, pid(345), 0, 4096, 1024, 3, 0],
        ];
        let mut group = writer.next_row_group().unwrap();
        for at in 0..=COLUMNS.len() {
            let mut column = group.next_column().unwrap().unwrap();
            let values = rows.map(|row| row[at]);
            column.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        let histories = read(file).unwrap();
        let of = |history: &History| {
            let HistoryDevice { ordinal, entries, .. } = &history.devices[0];
            (
                history.pid,
                *ordinal,
                entries.iter().map(|entry| (entry.action, entry.time_ns)).collect::<Vec<_>>(),
            )
        };
        let freed =
            vec![(Action::Alloc, 10), (Action::FreeRequested, 30), (Action::FreeCompleted, 30)];
        let found: Vec<_> = histories.iter().map(of).collect();
        assert_eq!(found, [(12, 1, freed), (345, 0, vec![(Action::Alloc, 20)])]);
        assert!(histories[0].caveats[0].starts_with("1 rows are left out"));
    }
}
