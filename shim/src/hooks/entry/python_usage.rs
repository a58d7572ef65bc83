//! This process's use of GPU memory now, as JSON for the Python package.
//!
//! ```json
//! {"pid": 1, "trace": "/run/a.vtrace", "devices": [{"ordinal": 0, "uuid": "GPU-...", "total": 1,
//!  "used": 1, "live": 1, "peak": 1, "watched_peak": 1, "cap": null, "allocations": 1, "frees": 1,
//!  "refused": 0, "cache": {"allocated": 1, "reserved": 1},
//!  "libraries": [{"name": "PyTorch", "bytes": 1, "count": 1}],
//!  "sites": [{"bytes": 1, "count": 1, "library": "PyTorch", "place": "train.py:7"}]}]}
//! ```
//!
//! `used` is what a cap counts and nvidia-smi shows, contexts included where they are known; `live` the
//! allocations. `cache` is what PyTorch reports. A name, a place or a figure that is not known is
//! null. Libraries and sites are those that hold memory now, largest first; free parts of PyTorch's
//! cache belong to none.
#![allow(clippy::disallowed_methods)] // an answer that the program asks for, given back with it

use crate::hooks::process::oom::held::{self, Row, Sums};
use crate::hooks::process::oom::names::{self, Library};
use crate::hooks::process::state::Process;
use crate::trace_writer::maintenance::ProcessView;
use std::fmt::Write;
use vramtrace_format::{Counters, DeviceId, uuid};

/// The most stacks of PyTorch's blocks that are listed.
const STACKS: usize = 4096;

pub fn as_json(process: Option<&'static Process>, sites: usize) -> String {
    let trace = process.and_then(|process| process.trace_writer.path());
    let trace = trace.map(|path| path.to_string_lossy().into_owned());
    let devices = process.into_iter().flat_map(|process| {
        // Allocations of the unknown device are in the trace only.
        let known = process.devices().into_iter().filter(|device| *device != DeviceId::UNKNOWN);
        known.map(move |device| of_device(process, device, sites))
    });
    let (pid, trace, devices) = (std::process::id(), text(trace.as_deref()), list(devices));
    format!("{{\"pid\":{pid},\"trace\":{trace},\"devices\":{devices}}}")
}

fn of_device(process: &'static Process, device: DeviceId, sites: usize) -> String {
    let counters = process.counters(device);
    let Counters { live, peak, counted, allocations, frees, .. } = counters;
    let known = process.devices.known(device);
    let uuid = known.map(|known| uuid::text(&known.uuid, known.mig));
    let number = |value: Option<u64>| value.map_or("null".into(), |value| value.to_string());
    let cache = process.torch_totals.of(device);
    let cache = cache.map_or("null".into(), |cache| {
        format!("{{\"allocated\":{},\"reserved\":{}}}", cache.allocated, cache.reserved)
    });
    let (libraries, sites) = held(process, device, sites);
    let libraries = libraries.iter().map(|(name, Row { bytes, count, .. })| {
        let name = text(name.as_deref());
        format!("{{\"name\":{name},\"bytes\":{bytes},\"count\":{count}}}")
    });
    let sites = sites.iter().map(|((place, library), Row { bytes, count, .. })| {
        let (library, place) = (text(library.as_deref()), text(place.as_deref()));
        format!("{{\"bytes\":{bytes},\"count\":{count},\"library\":{library},\"place\":{place}}}")
    });
    format!(
        "{{\"ordinal\":{},\"uuid\":{},\"total\":{},\"used\":{counted},\"live\":{live},\
         \"peak\":{peak},\"watched_peak\":{},\"cap\":{},\"allocations\":{allocations},\
         \"frees\":{frees},\"refused\":{},\"cache\":{cache},\"libraries\":{},\"sites\":{}}}",
        device.0,
        text(uuid.as_deref()),
        number(known.map(|known| known.total_bytes)),
        process.ledger.watched_peak(device),
        number(process.cap.limit(device)),
        counters.refused_by_cap.saturating_add(counters.refused_by_driver),
        list(libraries),
        list(sites),
    )
}

/// A JSON array.
fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

/// A name that may not be known.
type Name = Option<String>;

/// Sums by library of everything that is live, and the largest call sites: places with their libraries.
fn held(
    process: &'static Process,
    device: DeviceId,
    most: usize,
) -> (Sums<Name>, Sums<(Name, Name)>) {
    names::with_names(process, |names| {
        let named = held::look(process, device, STACKS).named(names);
        let title = |library: &Option<Library>| library.as_ref().map(|it| it.title.clone());
        let libraries = held::sums(named.iter().map(|(row, library)| (title(library), *row)));
        let wanted = if most == 0 { &[] } else { &named[..] };
        let placed =
            wanted.iter().map(|(row, library)| ((names.place(row.stack), title(library)), *row));
        let mut sites = held::sums(placed);
        sites.truncate(most);
        (libraries, sites)
    })
}

/// A JSON string, or null.
fn text(value: Option<&str>) -> String {
    let Some(value) = value else { return "null".into() };
    let mut out = String::from("\"");
    for character in value.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            control if control < ' ' => drop(write!(out, "\\u{:04x}", control as u32)),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_as_json() {
        assert_eq!(text(None), "null");
        assert_eq!(text(Some("a\"b\\c\nd/ä")), r#""a\"b\\c\u000ad/ä""#);
    }

    #[test]
    fn without_a_state_there_is_no_device() {
        let json = as_json(None, 5);
        assert!(json.starts_with("{\"pid\":") && json.ends_with("\"devices\":[]}"), "{json}");
    }
}
