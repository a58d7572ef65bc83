//! The header page: the first 4,096 bytes of a trace. It describes the process, the host, the start time and the format
//! version. It does not change during the run, except for the flags of `tail`.

use crate::error::Error;
use crate::record::word::Check;
use crate::shown::cut;

/// Length of the header page, in bytes.
pub const HEADER_BYTES: usize = 4096;
/// The first eight bytes of a trace. The first byte is not ASCII; the last one shows whether newlines were converted.
pub const MAGIC: [u8; 8] = *b"\x8Avtrace\n";
/// Major format version. A reader refuses files of a newer one.
pub const MAJOR: u16 = 1;
/// Minor format version. A newer one only adds records and fields, which older readers skip.
pub const MINOR: u16 = 1;

/// A decoded header page. A string longer than its field is cut at a character boundary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    pub major: u16,
    pub minor: u16,
    /// Random: identifies the run. The first 8 bytes are the file tag.
    pub uuid: [u8; 16],
    pub pid: u32,
    pub parent_pid: u32,
    /// Clock ticks since boot at which the process started (/proc/self/stat field 22): pids are reused.
    pub process_start_ticks: u64,
    /// CLOCK_REALTIME when `start_mono_ns` was read, in ns.
    pub start_unix_ns: u64,
    /// CLOCK_MONOTONIC at the start, in ns. Event times are relative to it.
    pub start_mono_ns: u64,
    pub host: String,
    pub executable: String,
    /// argv, as many bytes as fit in the page.
    pub command: Vec<String>,
    pub working_directory: String,
    /// From RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK, in this order.
    pub rank: Option<u32>,
    pub local_rank: Option<u32>,
    pub world_size: Option<u32>,
    pub driver_version: Option<u32>,
    /// Version of the recorder, for example "0.1.0".
    pub writer: String,
    /// Limit of the file's size in bytes (`VRAMTRACE_MAX`). `None`: no limit.
    pub max_bytes: Option<u64>,
    /// The run that the process is of: [`run_id`] of `VRAMTRACE_RUN`. `None`: it was not started by `vramtrace run`, or
    /// by an earlier version.
    pub run: Option<u64>,
    /// The newest records may be only in the tail file (see [`crate::tail`]).
    pub tail: Option<TailPlace>,
}

/// Where the tail file of a trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailPlace {
    /// Next to the trace.
    Beside,
    /// In a memory file system of the host: see [`crate::memory`].
    Memory,
}

/// Offset of the strings, and the greatest length of each, in bytes.
const STRINGS: usize = 128;
const WRITER_MAX: usize = 64;
const HOST_MAX: usize = 255;
const EXECUTABLE_MAX: usize = 1023;
const DIRECTORY_MAX: usize = 1023;

const HAS_RANK: u32 = 1;
const HAS_LOCAL_RANK: u32 = 1 << 1;
const HAS_WORLD_SIZE: u32 = 1 << 2;
const HAS_DRIVER: u32 = 1 << 3;
const HAS_MAX: u32 = 1 << 4;
const HAS_TAIL: u32 = 1 << 5;
/// Only with `HAS_TAIL`, so that an older reader reports that the tail is missing.
const TAIL_IN_MEMORY: u32 = 1 << 6;

impl Header {
    /// The first 8 bytes of the uuid. Each window stores it to identify its file.
    pub fn file_tag(&self) -> u64 {
        u64::from_le_bytes(self.uuid[..8].try_into().unwrap_or_default())
    }

    /// Encodes the page. Writes the format version of this crate; ignores the fields `major` and `minor`.
    pub fn to_page(&self) -> [u8; HEADER_BYTES] {
        let mut page = Page([0; HEADER_BYTES]);
        let flag = |bit, value: Option<u32>| if value.is_some() { bit } else { 0 };
        let flags = flag(HAS_RANK, self.rank)
            | flag(HAS_LOCAL_RANK, self.local_rank)
            | flag(HAS_WORLD_SIZE, self.world_size)
            | flag(HAS_DRIVER, self.driver_version)
            | if self.max_bytes.is_some() { HAS_MAX } else { 0 }
            | match self.tail {
                None => 0,
                Some(TailPlace::Beside) => HAS_TAIL,
                Some(TailPlace::Memory) => HAS_TAIL | TAIL_IN_MEMORY,
            };
        page.put(0, &MAGIC);
        page.put(8, &MAJOR.to_le_bytes());
        page.put(10, &MINOR.to_le_bytes());
        page.put(12, &flags.to_le_bytes());
        page.put(16, &self.uuid);
        page.put(32, &self.pid.to_le_bytes());
        page.put(36, &self.parent_pid.to_le_bytes());
        page.put(40, &self.process_start_ticks.to_le_bytes());
        page.put(48, &self.start_unix_ns.to_le_bytes());
        page.put(56, &self.start_mono_ns.to_le_bytes());
        page.put(64, &self.rank.unwrap_or(0).to_le_bytes());
        page.put(68, &self.local_rank.unwrap_or(0).to_le_bytes());
        page.put(72, &self.world_size.unwrap_or(0).to_le_bytes());
        page.put(76, &self.driver_version.unwrap_or(0).to_le_bytes());
        page.put(80, &self.max_bytes.unwrap_or(0).to_le_bytes());
        page.put(88, &self.run.unwrap_or(0).to_le_bytes());
        let mut at = STRINGS;
        page.put_text(&mut at, &self.writer, WRITER_MAX);
        page.put_text(&mut at, &self.host, HOST_MAX);
        page.put_text(&mut at, &self.executable, EXECUTABLE_MAX);
        page.put_text(&mut at, &self.working_directory, DIRECTORY_MAX);
        let count_at = at;
        at += 2;
        let mut count = 0u16;
        for argument in &self.command {
            if !page.put_text(&mut at, argument, HEADER_BYTES) {
                break;
            }
            count += 1;
        }
        page.put(count_at, &count.to_le_bytes());
        seal(&mut page.0);
        page.0
    }

    /// Decodes a page. The flag is false if the check is wrong: the fields may then be wrong too. A newer major version
    /// is an error only if the check is right.
    pub(crate) fn from_page(page: &[u8; HEADER_BYTES]) -> Result<(Header, bool), Error> {
        let page = Page(*page);
        let found: [u8; 8] = page.bytes_at(0);
        let sound = u64::from_le_bytes(page.bytes_at(CHECK_AT)) == page_check(&page.0);
        let major = u16::from_le_bytes(page.bytes_at(8));
        if sound && found == MAGIC && major > MAJOR {
            return Err(Error::NewerMajor { found: major, known: MAJOR });
        }
        if found != MAGIC {
            return Err(Error::NotATrace);
        }
        let flags = u32::from_le_bytes(page.bytes_at(12));
        let u32_at = |at| u32::from_le_bytes(page.bytes_at(at));
        let u64_at = |at| u64::from_le_bytes(page.bytes_at(at));
        let optional = |bit, at| (flags & bit != 0).then(|| u32_at(at));
        let mut at = STRINGS;
        let header = Header {
            major,
            minor: u16::from_le_bytes(page.bytes_at(10)),
            uuid: page.bytes_at(16),
            pid: u32_at(32),
            parent_pid: u32_at(36),
            process_start_ticks: u64_at(40),
            start_unix_ns: u64_at(48),
            start_mono_ns: u64_at(56),
            rank: optional(HAS_RANK, 64),
            local_rank: optional(HAS_LOCAL_RANK, 68),
            world_size: optional(HAS_WORLD_SIZE, 72),
            driver_version: optional(HAS_DRIVER, 76),
            max_bytes: (flags & HAS_MAX != 0).then(|| u64_at(80)),
            run: Some(u64_at(88)).filter(|run| *run != 0),
            tail: match flags & TAIL_IN_MEMORY {
                _ if flags & HAS_TAIL == 0 => None,
                0 => Some(TailPlace::Beside),
                _ => Some(TailPlace::Memory),
            },
            writer: page.read_text(&mut at),
            host: page.read_text(&mut at),
            executable: page.read_text(&mut at),
            working_directory: page.read_text(&mut at),
            command: page.read_command(at),
        };
        Ok((header, sound))
    }
}

/// The number of a run by its identifier: FNV-1a, and 1 in place of 0.
pub fn run_id(identifier: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    identifier.iter().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

const CHECK_AT: usize = 120;

/// Computes the check of a page and stores it in the page.
pub fn seal(page: &mut [u8; HEADER_BYTES]) {
    let check = page_check(page);
    page[CHECK_AT..CHECK_AT + 8].copy_from_slice(&check.to_le_bytes());
}

/// The check over the whole page, with the check field as 0. It must stay the same in all major versions.
fn page_check(page: &[u8; HEADER_BYTES]) -> u64 {
    let words = page.chunks_exact(8).enumerate().map(|(i, bytes)| {
        if i * 8 == CHECK_AT { 0 } else { bytes.iter().rev().fold(0, |w, b| w << 8 | *b as u64) }
    });
    words.fold(Check::new(), Check::word).sum64()
}

struct Page([u8; HEADER_BYTES]);

impl Page {
    /// Copies bytes to this offset of the page.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The `N` bytes at this offset of the page.
    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().unwrap_or([0; N])
    }

    /// Writes a string at `at`, cut to `most` bytes and to the page: length (u16), then bytes. Advances `at`. False:
    /// the length does not fit; nothing was written.
    fn put_text(&mut self, at: &mut usize, text: &str, most: usize) -> bool {
        let Some(room) = HEADER_BYTES.checked_sub(*at + 2) else { return false };
        let text = cut(text, most.min(room));
        self.put(*at, &(text.len() as u16).to_le_bytes());
        self.put(*at + 2, text.as_bytes());
        *at += 2 + text.len();
        true
    }

    /// Reads a string at `at`, and advances `at`. A length beyond the page is limited to it.
    fn read_text(&self, at: &mut usize) -> String {
        if *at + 2 > HEADER_BYTES {
            return String::new();
        }
        let len = u16::from_le_bytes(self.bytes_at(*at)) as usize;
        let end = HEADER_BYTES.min(*at + 2 + len);
        let text = String::from_utf8_lossy(&self.0[*at + 2..end]).into_owned();
        *at = end;
        text
    }

    /// Reads the arguments: their number (u16), then the strings.
    fn read_command(&self, mut at: usize) -> Vec<String> {
        if at + 2 > HEADER_BYTES {
            return Vec::new();
        }
        let count = u16::from_le_bytes(self.bytes_at(at));
        at += 2;
        (0..count)
            .map_while(|_| (at + 2 <= HEADER_BYTES).then(|| self.read_text(&mut at)))
            .collect()
    }
}
