//! The recorder's queries of NVML: this process's bytes on a device, and the device's memory.
//!
//! The library is opened by the real dlopen, and its functions are found without the hooks. It is
//! called only once a context exists; creating that takes a hundred times longer.

use crate::driver::cuda::{CUresult, NvmlDevice, NvmlMemory};
use crate::driver::functions::functions;
use crate::driver::nvml_thread::{Desk, PATIENCE, PATIENCE_AT_START};
use crate::runtime::elf::Object;
use crate::runtime::fallible::{TryPush, list_of};
use core::ffi::{CStr, c_char};
use core::ptr::null_mut;
use std::ffi::CString;

const SUCCESS: i32 = 0;
const INSUFFICIENT_SIZE: i32 = 7;
/// Results by which a list is not available: not supported, no permission, function not found. Any
/// other failure is an error of the GPU (lost, for example); then this process's absence from the lists
/// proves nothing.
const HAS_NO_LIST: [i32; 3] = [3, 4, 13];
/// NVML's value for "not available".
const UNAVAILABLE: u64 = u64::MAX;
/// Processes on a device before the list goes to the heap.
const FEW: usize = 32;

/// Fills in entries of a list of processes, which has them since R450.
type List = unsafe extern "C-unwind" fn(NvmlDevice, &mut u32, *mut Entry) -> i32;

/// The first word has the pid in its low half, the second the bytes.
type Entry = [u64; 3];

/// Each query runs on a separate thread: see [`crate::driver::nvml_thread`].
#[derive(Clone, Copy)]
pub struct Nvml {
    pub functions: &'static Functions,
    pub desk: &'static Desk,
}

functions! { Functions:
    init: "nvmlInit_v2" ();
    // Handles must be NVML's, and pointers lead to a text that ends, or to as much room as the number says.
    handle_by_uuid: "nvmlDeviceGetHandleByUUID" (uuid: *const c_char, device: &mut NvmlDevice) unsafe;
    uuid: "nvmlDeviceGetUUID" (device: NvmlDevice, text: *mut c_char, room: u32) unsafe;
    memory_info: "nvmlDeviceGetMemoryInfo" (device: NvmlDevice, memory: &mut NvmlMemory) unsafe;
    compute: "nvmlDeviceGetComputeRunningProcesses_v3" (device: NvmlDevice, room: &mut u32, out: *mut Entry) unsafe;
    graphics: "nvmlDeviceGetGraphicsRunningProcesses_v3" (device: NvmlDevice, room: &mut u32, out: *mut Entry) unsafe;
    mps: "nvmlDeviceGetMPSComputeRunningProcesses_v3" (device: NvmlDevice, room: &mut u32, out: *mut Entry) unsafe;
    compute_v2: "nvmlDeviceGetComputeRunningProcesses_v2" (device: NvmlDevice, room: &mut u32, out: *mut Entry) unsafe;
    graphics_v2: "nvmlDeviceGetGraphicsRunningProcesses_v2" (device: NvmlDevice, room: &mut u32, out: *mut Entry) unsafe;
    mps_v2: "nvmlDeviceGetMPSComputeRunningProcesses_v2" (device: NvmlDevice, room: &mut u32, out: *mut Entry) unsafe;
}

/// This process in the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Bytes(u64),
    /// Not listed: the process has no memory yet, or another pid in NVML's pid namespace.
    Absent,
    /// NVML gives no figure.
    Unavailable,
}

impl Figure {
    pub fn bytes(self) -> Option<u64> {
        match self {
            Figure::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl Functions {
    /// Those of the opened library, once it is initialized.
    pub fn open(desk: &'static Desk, library: &Object) -> Option<Functions> {
        let functions = Functions::of(library);
        let init = functions.init?;
        let begun = desk.ask(PATIENCE_AT_START, move || init() == SUCCESS) == Some(true);
        begun.then_some(functions)
    }

    /// Compute, graphics, MPS: a process is in one or more of them with the same figure.
    fn lists(&self) -> impl Iterator<Item = List> {
        let newer = [self.compute, self.graphics, self.mps];
        let older = [self.compute_v2, self.graphics_v2, self.mps_v2];
        newer.into_iter().zip(older).filter_map(|(newer, older)| newer.or(older))
    }

    /// The UUID text of a handle that the program got.
    pub(crate) fn name(&self, device: NvmlDevice) -> Option<Vec<u8>> {
        let mut text = [0u8; 96];
        // SAFETY: room as stated; the library ends the text with NUL.
        let result = unsafe { self.uuid?(device, text.as_mut_ptr().cast(), text.len() as u32) };
        let end = text.iter().position(|byte| *byte == 0)?;
        #[allow(clippy::disallowed_methods)] // 96 bytes at most
        (result == SUCCESS).then(|| text[..end].to_vec())
    }
}

impl Nvml {
    /// `None`: NVML did not answer.
    fn ask<T: Send + 'static>(
        &self,
        device: NvmlDevice,
        question: impl FnOnce(&Functions, NvmlDevice) -> T + Send + 'static,
    ) -> Option<T> {
        let (functions, device) = (self.functions, device as usize);
        self.desk.ask(PATIENCE, move || question(functions, device as NvmlDevice))
    }

    /// `uuid` as NVML writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-...
    pub fn device(&self, uuid: &CStr) -> Option<NvmlDevice> {
        let uuid = CString::from(uuid);
        let found = self.ask(null_mut(), move |nvml, mut device| {
            // SAFETY: a NUL-terminated name and room for the answer.
            let result = unsafe { nvml.handle_by_uuid?(uuid.as_ptr(), &mut device) };
            (result == SUCCESS && !device.is_null()).then_some(device as usize)
        });
        Some(found?? as NvmlDevice)
    }

    /// See [`Functions::name`].
    pub(crate) fn name(&self, device: NvmlDevice) -> Option<Vec<u8>> {
        self.ask(device, Functions::name)?
    }

    /// The device's own memory, all processes together.
    pub(crate) fn memory(&self, device: NvmlDevice) -> Option<NvmlMemory> {
        self.ask(device, |nvml, device| {
            let mut memory = NvmlMemory { total: 0, free: 0, used: 0 };
            // SAFETY: a handle of `device()` and room for the answer.
            (unsafe { nvml.memory_info?(device, &mut memory) } == SUCCESS).then_some(memory)
        })?
    }

    /// All processes that have memory of the device, each once; its bytes where they are known.
    pub fn processes(&self, device: NvmlDevice) -> Vec<(u32, Option<u64>)> {
        let all = self.ask(device, |nvml, device| {
            let mut all: Vec<(u32, Option<u64>)> = Vec::new();
            let mut note =
                |pid: u32, used: Option<u64>| match all.iter_mut().find(|(known, _)| *known == pid)
                {
                    Some((_, most)) => *most = used.max(*most),
                    // Without host memory the entry is left out.
                    None => drop(all.try_push((pid, used))),
                };
            for list in nvml.lists() {
                // A list that is not available is empty.
                let _ = each(list, device, &mut note);
            }
            all
        });
        all.unwrap_or_default()
    }

    /// The bytes that process `pid` has on the device.
    pub fn figure(&self, device: NvmlDevice, pid: u32) -> Figure {
        let figure = self.ask(device, move |nvml, device| {
            let (mut was_listed, mut ill) = (false, false);
            for list in nvml.lists() {
                let mut found = None;
                let listed =
                    each(list, device, |one, used| found = found.or((one == pid).then_some(used)));
                match (listed, found) {
                    (Ok(()), Some(used)) => return used.map_or(Figure::Unavailable, Figure::Bytes),
                    (Ok(()), None) => was_listed = true,
                    (Err(code), _) => ill |= !HAS_NO_LIST.contains(&code),
                }
            }
            if was_listed && !ill { Figure::Absent } else { Figure::Unavailable }
        });
        figure.unwrap_or(Figure::Unavailable)
    }
}

/// Calls `note` with pid and bytes of each process of a list, on the thread that may hang. `Err`: why the library did not give
/// the list.
fn each(list: List, device: NvmlDevice, mut note: impl FnMut(u32, Option<u64>)) -> Result<(), i32> {
    let (mut few, mut many) = ([Entry::default(); FEW], Vec::new());
    loop {
        let is_first = many.is_empty();
        let entries = if is_first { &mut few[..] } else { &mut many[..] };
        let mut count = entries.len() as u32;
        // SAFETY: room for `count` entries; the library writes the number that it filled in.
        let result = unsafe { list(device, &mut count, entries.as_mut_ptr()) };
        let count = count as usize;
        if result == INSUFFICIENT_SIZE && is_first {
            // More may have come since.
            let room = count.saturating_add(FEW).min(1 << 20);
            let empty = core::iter::repeat_n(Entry::default(), room);
            many = list_of(room, empty).map_err(|_| result)?;
            continue;
        }
        if result != SUCCESS {
            return Err(result);
        }
        for [pid, used, _] in entries.iter().take(count) {
            note(*pid as u32, Some(*used).filter(|used| *used != UNAVAILABLE));
        }
        return Ok(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with `device` as the number of processes; process n holds n MiB, process 3 does
    /// not tell.
    unsafe extern "C-unwind" fn list(device: NvmlDevice, count: &mut u32, out: *mut Entry) -> i32 {
        let processes = device as usize as u32;
        let room = core::mem::replace(count, processes);
        if room < processes {
            return INSUFFICIENT_SIZE;
        }
        for n in 0..processes {
            let used = if n == 3 { UNAVAILABLE } else { u64::from(n) << 20 };
            // The rest of the first word is not set.
            let entry = [u64::from(n) | 7 << 32, used, 0];
            // SAFETY: the caller's room is what it says.
            unsafe { out.add(n as usize).write(entry) };
        }
        SUCCESS
    }

    unsafe extern "C-unwind" fn refuses(_: NvmlDevice, _: &mut u32, _: *mut Entry) -> i32 {
        3
    }

    const NOW: Option<List> = Some(list);
    const REFUSES: Option<List> = Some(refuses);

    fn nvml([compute, graphics, mps_v2]: [Option<List>; 3]) -> Nvml {
        let functions = Functions { compute, graphics, mps_v2, ..Functions::NONE };
        Nvml { functions: Box::leak(Box::new(functions)), desk: Desk::open() }
    }

    #[test]
    fn finds_our_process_in_short_and_long_lists() {
        let nvml = nvml([None, REFUSES, NOW]);
        for processes in [6, FEW, FEW + 1, 500] {
            let device = processes as NvmlDevice;
            assert_eq!(nvml.figure(device, 5), Figure::Bytes(5 << 20));
            assert_eq!(nvml.figure(device, 3), Figure::Unavailable);
            assert_eq!(nvml.figure(device, 501), Figure::Absent);
        }
    }

    #[test]
    fn each_process_once_with_what_is_known() {
        let nvml = nvml([NOW, NOW, None]);
        let all = nvml.processes(5 as NvmlDevice);
        let expected = [(0, Some(0)), (1, Some(1 << 20)), (2, Some(2 << 20)), (3, None)];
        assert_eq!(all[..4], expected);
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn no_list_is_not_an_empty_list() {
        assert_eq!(nvml([None; 3]).figure(null_mut(), 1), Figure::Unavailable);
        let refused = nvml([REFUSES, None, None]);
        assert_eq!(refused.figure(null_mut(), 1), Figure::Unavailable);
        assert_eq!(refused.device(c"GPU-x"), None);
    }
}
