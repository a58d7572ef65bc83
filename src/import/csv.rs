//! `action,addr,size,stream`, one line an event in order; alloc sizes are requested bytes.

use super::Imported;
use crate::allocator::Log;

const HEADER: &str = "action,addr,size,stream";

pub(super) fn read(text: &str) -> Result<Imported, String> {
    let mut lines = text.lines().enumerate();
    match lines.next() {
        Some((_, first)) if first.trim() == HEADER => {}
        _ => return Err(format!("the first line must be {HEADER}")),
    }
    let mut log = Log::default();
    let mut streams: Vec<u64> = Vec::new();
    for (index, line) in lines {
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |what: &str| format!("line {}: {what}: \"{line}\"", index + 1);
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [action, address, size, stream] = fields[..] else {
            return Err(wrong("four fields are needed"));
        };
        let number = |text: &str, name: &str| {
            text.parse::<u64>().map_err(|_| wrong(&format!("{name} is not a whole number")))
        };
        let (address, size) = (number(address, "addr")?, number(size, "size")?);
        let stream = number(stream, "stream")?;
        match action {
            "alloc" => log.alloc(address, size, index_of(&mut streams, stream), 0),
            "free_completed" => {
                log.free(address);
            }
            "free_requested" | "segment_alloc" | "segment_free" | "segment_map"
            | "segment_unmap" | "snapshot" | "oom" => {}
            _ => {
                return Err(wrong(
                    "the action is none of alloc, free_requested, free_completed, segment_*, oom",
                ));
            }
        }
    }
    if log.is_empty() {
        return Err("holds no allocation".into());
    }
    Ok(Imported { devices: vec![(0, log)], ..Imported::default() })
}

/// Streams as small numbers, in order of first sight.
pub(super) fn index_of(streams: &mut Vec<u64>, stream: u64) -> u32 {
    let known = streams.iter().position(|s| *s == stream);
    known.unwrap_or_else(|| {
        streams.push(stream);
        streams.len() - 1
    }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Request;

    #[test]
    fn reads_requests_in_order() {
        let text = "action,addr,size,stream\nsegment_alloc,4096,2097152,9\nalloc,4096,100,9\nfree_requested,4096,100,9\nfree_completed,4096,100,9\nfree_completed,77,1,0\n";
        let log = &read(text).unwrap().devices[0].1;
        assert_eq!(
            log.requests().collect::<Vec<_>>(),
            [Request::Alloc { size: 100, stream: 0, pool: 0, slot: 0 }, Request::Free { slot: 0 }]
        );
    }

    #[test]
    fn errors_name_the_line() {
        for (line, part) in [
            ("alloc,1,2", "line 2: four fields"),
            ("alloc,x,2,0", "line 2: addr is not"),
            ("malloc,1,2,0", "line 2: the action"),
            ("", "holds no allocation"),
        ] {
            let error = read(&format!("{HEADER}\n{line}\n")).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
