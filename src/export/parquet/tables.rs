//! The tables of an export of tables (Parquet), and which of them are wanted.

/// A table. docs/parquet.md names its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Events,
    Blocks,
    Stacks,
    Samples,
    Holders,
    Summary,
}

impl Table {
    pub const ALL: [Table; 6] = [
        Table::Events,
        Table::Blocks,
        Table::Stacks,
        Table::Samples,
        Table::Holders,
        Table::Summary,
    ];

    /// The name of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Table::Events => "events",
            Table::Blocks => "blocks",
            Table::Stacks => "stacks",
            Table::Samples => "samples",
            Table::Holders => "holders",
            Table::Summary => "summary",
        }
    }
}

/// What is written.
#[derive(Clone, Debug)]
pub struct TablesWanted {
    pub tables: Vec<Table>,
    /// The name of the run of all traces. `None`: one for each `vramtrace run`.
    pub run: Option<String>,
}

impl TablesWanted {
    pub(super) fn has(&self, table: Table) -> bool {
        self.tables.contains(&table)
    }
}

/// Numbers of rows that were written, by table.
pub type Rows = [u64; Table::ALL.len()];
