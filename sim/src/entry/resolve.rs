//! Look-ups of functions by name: cuGetProcAddress over all exports, its own among them. They need
//! the list of all others, so they stand above the table.

use crate::abi::{Handle, Name, Out};
use crate::entry::export::{Export, entries, export, table};
use crate::entry::table;
use crate::error::{Done, Error};
use std::collections::HashMap;
use std::sync::OnceLock;

#[rustfmt::skip]
table! {
    early 11030 cuGetProcAddress(name: Name, out: Out<Handle>, version: i32, flags: u64) = get_proc_address;
    early 12000 cuGetProcAddress_v2(name: Name, out: Out<Handle>, version: i32, flags: u64, status: Out<i32>) = get_proc_address_v2;
}

fn base(symbol: &str) -> &str {
    let symbol = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    match symbol.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => symbol,
    }
}

fn by_name() -> &'static HashMap<&'static str, Vec<Export>> {
    static MAP: OnceLock<HashMap<&'static str, Vec<Export>>> = OnceLock::new();
    MAP.get_or_init(|| {
        let mut all = Vec::new();
        table::add_exports(&mut all);
        add_exports(&mut all);
        let mut map: HashMap<&'static str, Vec<Export>> = HashMap::new();
        for export in all {
            map.entry(base(export.symbol)).or_default().push(export);
        }
        map
    })
}

const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

const FOUND: i32 = 0;
const UNKNOWN_NAME: i32 = 1;
const TOO_OLD: i32 = 2;

fn look_up(name: &str, version: i32, flags: u64) -> Result<usize, i32> {
    let variants = by_name().get(name).ok_or(UNKNOWN_NAME)?;
    let newest = |per_thread: bool| {
        variants
            .iter()
            .filter(|export| export.per_thread == per_thread && export.since <= version)
            .max_by_key(|export| export.since)
    };
    // Where there is a per-thread variant at all, an older plain one does not stand in for it.
    let found = match flags & PER_THREAD != 0 && variants.iter().any(|export| export.per_thread) {
        true => newest(true),
        false => newest(false),
    };
    found.map(|export| export.address).ok_or(TOO_OLD)
}

/// Outputs stay untouched only where the question itself is wrong; a name that is not there is an
/// answer: NULL and a status.
fn get_proc_address_v2(
    name: Name,
    out: Out<Handle>,
    version: i32,
    flags: u64,
    status: Out<i32>,
) -> Done {
    let wrong_flags = flags & !(LEGACY | PER_THREAD) != 0;
    if name.is_null() || out.is_null() || wrong_flags || version > crate::device::DRIVER_VERSION {
        return Err(Error::INVALID_VALUE);
    }
    let found = look_up(&name.text()?, version, flags);
    out.set(found.unwrap_or(0) as Handle);
    status.set(found.err().unwrap_or(FOUND));
    Ok(())
}

fn get_proc_address(name: Name, out: Out<Handle>, version: i32, flags: u64) -> Done {
    get_proc_address_v2(name, out, version, flags, Out::none())
}
