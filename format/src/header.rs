//! The header page: the first 4,096 bytes of a trace. It describes the process, the host, the start time and the format
//! version. It does not change during the run, except for the flags of `tail`.

use crate::error::Error;
use crate::record::word::Check;
use crate::scalar::Scalar;
use crate::shown::cut;

/// Length of the header page, in bytes.
pub const HEADER_BYTES: usize = 4096;
/// The first eight bytes of a trace. The first byte is not ASCII; the last one shows whether newlines were converted.
pub const MAGIC: [u8; 8] = *b"\x8Avtrace\n";
/// Major format version. A reader refuses files of another one.
pub const MAJOR: u16 = 2;
/// Minor format version. A newer one only adds records and fields, which older readers skip.
pub const MINOR: u16 = 0;

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
        let mut page = Page { bytes: [0; HEADER_BYTES], writes: true, text_at: STRINGS };
        page.bytes[..8].copy_from_slice(&MAGIC);
        page.exchange(&mut Header { major: MAJOR, minor: MINOR, ..self.clone() });
        seal(&mut page.bytes);
        page.bytes
    }

    /// Decodes a page. The flag is false if the check is wrong: the fields may then be wrong too. Another major version
    /// is an error only if the check is right.
    pub(crate) fn from_page(page: &[u8; HEADER_BYTES]) -> Result<(Header, bool), Error> {
        if page[..8] != MAGIC {
            return Err(Error::NotATrace);
        }
        let sound = page[CHECK_AT..CHECK_AT + 8] == page_check(page).to_le_bytes();
        let mut header = Header::default();
        Page { bytes: *page, writes: false, text_at: STRINGS }.exchange(&mut header);
        match header.major {
            newer if sound && newer > MAJOR => {
                Err(Error::NewerMajor { found: newer, known: MAJOR })
            }
            1 if sound => Err(Error::OlderMajor { minor: header.minor }),
            _ => Ok((header, sound)),
        }
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

/// A page that is written from a header, or read into one: each field has one description for both.
struct Page {
    bytes: [u8; HEADER_BYTES],
    writes: bool,
    /// Where the next string begins.
    text_at: usize,
}

impl Page {
    fn exchange(&mut self, header: &mut Header) {
        self.number(8, &mut header.major);
        self.number(10, &mut header.minor);
        let mut flags = match header.tail {
            None => 0,
            Some(TailPlace::Beside) => HAS_TAIL,
            Some(TailPlace::Memory) => HAS_TAIL | TAIL_IN_MEMORY,
        };
        if !self.writes {
            self.number(12, &mut flags);
        }
        self.copy(16, &mut header.uuid);
        self.number(32, &mut header.pid);
        self.number(36, &mut header.parent_pid);
        self.number(40, &mut header.process_start_ticks);
        self.number(48, &mut header.start_unix_ns);
        self.number(56, &mut header.start_mono_ns);
        self.optional(64, (&mut flags, HAS_RANK), &mut header.rank);
        self.optional(68, (&mut flags, HAS_LOCAL_RANK), &mut header.local_rank);
        self.optional(72, (&mut flags, HAS_WORLD_SIZE), &mut header.world_size);
        self.optional(76, (&mut flags, HAS_DRIVER), &mut header.driver_version);
        self.optional(80, (&mut flags, HAS_MAX), &mut header.max_bytes);
        let mut run = header.run.unwrap_or(0);
        self.number(88, &mut run);
        header.run = Some(run).filter(|run| *run != 0);
        self.number(12, &mut flags);
        header.tail = match flags & TAIL_IN_MEMORY {
            _ if flags & HAS_TAIL == 0 => None,
            0 => Some(TailPlace::Beside),
            _ => Some(TailPlace::Memory),
        };
        self.text(&mut header.writer, WRITER_MAX);
        self.text(&mut header.host, HOST_MAX);
        self.text(&mut header.executable, EXECUTABLE_MAX);
        self.text(&mut header.working_directory, DIRECTORY_MAX);
        self.command(&mut header.command);
    }

    /// The number of arguments, then the arguments that fit.
    fn command(&mut self, arguments: &mut Vec<String>) {
        let (count_at, mut count) = (self.text_at, 0u16);
        self.text_at += 2;
        if self.text_at > HEADER_BYTES {
            return;
        }
        if !self.writes {
            self.number(count_at, &mut count);
            arguments.resize(usize::from(count).min(HEADER_BYTES / 2), String::new());
        }
        let fitting =
            arguments.iter_mut().map_while(|it| self.text(it, HEADER_BYTES).then_some(())).count();
        arguments.truncate(fitting);
        if self.writes {
            self.number(count_at, &mut (fitting as u16));
        }
    }

    fn copy(&mut self, at: usize, bytes: &mut [u8]) {
        let place = &mut self.bytes[at..at + bytes.len()];
        if self.writes { place.copy_from_slice(bytes) } else { bytes.copy_from_slice(place) }
    }

    fn number<T: Scalar>(&mut self, at: usize, value: &mut T) {
        let mut word = value.to_bits().to_le_bytes();
        self.copy(at, &mut word[..T::BITS as usize / 8]);
        *value = T::from_bits(u64::from_le_bytes(word)).unwrap_or(*value);
    }

    /// A number that is there if its flag is set.
    fn optional<T: Scalar + Default>(
        &mut self,
        at: usize,
        (flags, flag): (&mut u32, u32),
        value: &mut Option<T>,
    ) {
        if self.writes && value.is_some() {
            *flags |= flag;
        }
        let mut number = value.unwrap_or_default();
        self.number(at, &mut number);
        *value = (*flags & flag != 0).then_some(number);
    }

    /// A string: length (u16), then bytes, cut to `most` bytes and to the page. False: not even its length fits.
    fn text(&mut self, text: &mut String, most: usize) -> bool {
        let from = self.text_at + 2;
        let Some(room) = HEADER_BYTES.checked_sub(from) else { return false };
        let mut length = cut(text, most.min(room)).len() as u16;
        self.number(self.text_at, &mut length);
        let bytes = from..HEADER_BYTES.min(from + usize::from(length));
        self.text_at = bytes.end;
        match self.writes {
            true => self.bytes[bytes.clone()].copy_from_slice(&text.as_bytes()[..bytes.len()]),
            false => *text = String::from_utf8_lossy(&self.bytes[bytes]).into_owned(),
        }
        true
    }
}
