//! `vramtrace export --format parquet`: a directory of tables.

use super::export::Args;
use crate::error::{Failure, Outcome};

#[cfg(not(feature = "parquet"))]
pub fn run(_args: &Args) -> Outcome {
    Err(Failure::new(
        "--format parquet: this vramtrace was built without the feature `parquet`: build it with \
         `cargo build --release --features parquet`, or give --format csv",
    ))
}

#[cfg(feature = "parquet")]
pub use with_parquet::run;

#[cfg(feature = "parquet")]
mod with_parquet {
    use std::path::Path;

    use vramtrace_reader::export::parquet::{self, Table, TablesWanted};
    use vramtrace_reader::trace::Trace;

    use super::{Args, Failure, Outcome};
    use crate::cli::{caveats, export};
    use crate::console::message;
    use crate::error::DONE;

    pub fn run(args: &Args) -> Outcome {
        let Some(to) = &args.output else {
            return Err(Failure::new(
                "--output is missing: give -o DIR, a directory that does not exist",
            ));
        };
        if to == Path::new("-") {
            return Err(Failure::new("-o -: parquet is a directory of files: give -o DIR"));
        }
        if args.force {
            return Err(Failure::new(
                "--force is not for parquet: a directory is not replaced; give one that does not exist",
            ));
        }
        let tables = args.tables.as_deref().map_or_else(|| Ok(Table::ALL.to_vec()), tables)?;
        let run = args.run.as_deref().map(run_name).transpose()?;
        let traces = args.processes.open()?.traces;
        let bar = export::progress_bar(&traces)?;
        let wanted = TablesWanted { tables, run };
        let written = parquet::export(&traces, &wanted, to, &|at, _| bar.set_position(at));
        bar.finish_and_clear();
        let rows = written.map_err(|error| Failure::new(format!("{}: {error}", to.display())))?;
        caveats::warn_damage(&traces);
        message(format_args!(
            "{}: {}",
            to.display(),
            words(&traces, &wanted.tables, |table| rows[table as usize])
        ));
        Ok(DONE)
    }

    /// `12 processes; rows: 10 events, 5 blocks`.
    fn words(traces: &[Trace], tables: &[Table], rows: impl Fn(Table) -> u64) -> String {
        let counts = tables.iter().map(|table| format!("{} {}", rows(*table), table.name()));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let processes = match traces.len() {
            1 => "1 process".to_string(),
            more => format!("{more} processes"),
        };
        format!("{processes}; rows: {counts}")
    }

    fn tables(list: &str) -> Result<Vec<Table>, Failure> {
        let table = |name: &str| {
            Table::ALL.into_iter().find(|table| table.name() == name).ok_or_else(|| {
                let names = Table::ALL.map(Table::name).join(", ");
                Failure::new(format!(
                    "--tables '{list}': there is no table '{name}': give some of {names}"
                ))
            })
        };
        let mut tables =
            list.split(',').map(|name| table(name.trim())).collect::<Result<Vec<_>, _>>()?;
        tables.sort_by_key(|table| *table as usize);
        tables.dedup();
        Ok(tables)
    }

    /// A name that is a part of a path, and the same in all tools.
    fn run_name(name: &str) -> Result<String, Failure> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
        match begins && name.chars().all(fits) && name.len() <= 100 {
            true => Ok(name.to_string()),
            false => Err(Failure::new(format!(
                "--run '{name}': give at most 100 letters, digits, '-', '_' and '.', a letter first"
            ))),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn tables_and_runs_by_name() {
            assert_eq!(tables("samples, events,samples").unwrap(), [Table::Events, Table::Samples]);
            let refused = tables("events,frames").unwrap_err();
            assert!(refused.message.contains("no table 'frames'"), "{}", refused.message);
            assert_eq!(run_name("a-1_b.c").unwrap(), "a-1_b.c");
            for bad in ["", "a/b", "..", "1", "-a", "a b", "a=b"] {
                assert!(run_name(bad).is_err(), "{bad}");
            }
        }
    }
}
