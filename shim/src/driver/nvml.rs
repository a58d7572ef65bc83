//! The recorder's queries of NVML: this process's bytes on a device, and the device's memory.
//!
//! The library is opened by the real dlopen, and its functions are found without the hooks. It is
//! called only once a context exists; creating that takes a hundred times longer.

use crate::driver::cuda::{NvmlDevice, NvmlMemory, NvmlProcessInfo, NvmlProcessInfo_v1};
use crate::driver::nvml_thread::{self, PATIENCE, PATIENCE_AT_START, ask};
use crate::runtime::fallible::{TryPush, vec_of};
use core::ffi::{CStr, c_char, c_void};
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

type List<T> = unsafe extern "C-unwind" fn(NvmlDevice, *mut u32, *mut T) -> i32;

/// One of the lists of processes, in the version that the library has.
#[derive(Clone, Copy)]
enum Processes {
    /// `_v2` and `_v3`.
    Now(List<NvmlProcessInfo>),
    V1(List<NvmlProcessInfo_v1>),
}

/// Each query runs on a separate thread: see [`crate::driver::nvml_thread`].
pub struct Nvml(Functions);

#[derive(Clone, Copy)]
struct Functions {
    handle_by_uuid: unsafe extern "C-unwind" fn(*const c_char, *mut NvmlDevice) -> i32,
    uuid: Option<unsafe extern "C-unwind" fn(NvmlDevice, *mut c_char, u32) -> i32>,
    memory_info: Option<unsafe extern "C-unwind" fn(NvmlDevice, *mut NvmlMemory) -> i32>,
    /// Compute, graphics, MPS: a process is in one or more of them with the same figure.
    lists: [Option<Processes>; 3],
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

impl Nvml {
    /// `find` gives the real address of a name in the opened library, or null.
    pub fn open(find: impl Fn(&CStr) -> *mut c_void) -> Option<Nvml> {
        // SAFETY: the names' types are NVML's; a null stays `None`.
        unsafe {
            let init: unsafe extern "C-unwind" fn() -> i32 = function(find(c"nvmlInit_v2"))?;
            let handle_by_uuid = function(find(c"nvmlDeviceGetHandleByUUID"))?;
            let uuid = function(find(c"nvmlDeviceGetUUID"));
            let memory_info = function(find(c"nvmlDeviceGetMemoryInfo"));
            let list = |names: [&CStr; 3]| {
                function(find(names[0]))
                    .or_else(|| function(find(names[1])))
                    .map(Processes::Now)
                    .or_else(|| function(find(names[2])).map(Processes::V1))
            };
            let lists = [
                list([
                    c"nvmlDeviceGetComputeRunningProcesses_v3",
                    c"nvmlDeviceGetComputeRunningProcesses_v2",
                    c"nvmlDeviceGetComputeRunningProcesses",
                ]),
                list([
                    c"nvmlDeviceGetGraphicsRunningProcesses_v3",
                    c"nvmlDeviceGetGraphicsRunningProcesses_v2",
                    c"nvmlDeviceGetGraphicsRunningProcesses",
                ]),
                list([
                    c"nvmlDeviceGetMPSComputeRunningProcesses_v3",
                    c"nvmlDeviceGetMPSComputeRunningProcesses_v2",
                    c"nvmlDeviceGetMPSComputeRunningProcesses",
                ]),
            ];
            // SAFETY: NVML's own, without arguments.
            let begun = ask(PATIENCE_AT_START, move || init() == SUCCESS) == Some(true);
            begun.then_some(Nvml(Functions { handle_by_uuid, uuid, memory_info, lists }))
        }
    }

    /// `uuid` as NVML writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-...
    pub fn device(&self, uuid: &CStr) -> Option<NvmlDevice> {
        let (nvml, uuid) = (self.0, CString::from(uuid));
        let found = ask(PATIENCE, move || nvml.device(&uuid).map(|device| device as usize));
        Some(found?? as NvmlDevice)
    }

    /// The UUID text of a handle that the program got. In a forked child without the NVML thread the
    /// query runs on the program's thread, which has just had an answer from NVML.
    pub(crate) fn name(&self, device: NvmlDevice) -> Option<Vec<u8>> {
        match nvml_thread::is_there() {
            true => self.ask(device, Functions::name)?,
            false => self.0.name(device),
        }
    }

    /// The device's own memory, all processes together.
    pub(crate) fn memory(&self, device: NvmlDevice) -> Option<NvmlMemory> {
        self.ask(device, Functions::memory)?
    }

    /// All processes that have memory of the device, each once; its bytes where they are known.
    pub fn processes(&self, device: NvmlDevice) -> Vec<(u32, Option<u64>)> {
        self.ask(device, Functions::processes).unwrap_or_default()
    }

    /// The bytes that process `pid` has on the device.
    pub fn figure(&self, device: NvmlDevice, pid: u32) -> Figure {
        self.ask(device, move |nvml, device| nvml.figure(device, pid))
            .unwrap_or(Figure::Unavailable)
    }

    /// `None`: NVML did not answer.
    fn ask<T: Send + 'static>(
        &self,
        device: NvmlDevice,
        question: impl FnOnce(&Functions, NvmlDevice) -> T + Send + 'static,
    ) -> Option<T> {
        let (nvml, device) = (self.0, device as usize);
        ask(PATIENCE, move || question(&nvml, device as NvmlDevice))
    }
}

/// These run on the thread that may hang.
impl Functions {
    fn device(&self, uuid: &CStr) -> Option<NvmlDevice> {
        let mut device = null_mut();
        // SAFETY: a NUL-terminated name and room for the answer.
        let result = unsafe { (self.handle_by_uuid)(uuid.as_ptr(), &mut device) };
        (result == SUCCESS && !device.is_null()).then_some(device)
    }

    fn name(&self, device: NvmlDevice) -> Option<Vec<u8>> {
        let mut text = [0u8; 96];
        // SAFETY: room as stated; the library ends the text with NUL.
        let result = unsafe { self.uuid?(device, text.as_mut_ptr().cast(), text.len() as u32) };
        let end = text.iter().position(|byte| *byte == 0)?;
        #[allow(clippy::disallowed_methods)] // 96 bytes at most
        (result == SUCCESS).then(|| text[..end].to_vec())
    }

    fn memory(&self, device: NvmlDevice) -> Option<NvmlMemory> {
        let mut memory = NvmlMemory { total: 0, free: 0, used: 0 };
        // SAFETY: a handle of `device()` and room for the answer.
        (unsafe { self.memory_info?(device, &mut memory) } == SUCCESS).then_some(memory)
    }

    fn processes(&self, device: NvmlDevice) -> Vec<(u32, Option<u64>)> {
        let mut all: Vec<(u32, Option<u64>)> = Vec::new();
        let mut note = |pid: u32, used: u64| {
            let used = Some(used).filter(|used| *used != UNAVAILABLE);
            match all.iter_mut().find(|(known, _)| *known == pid) {
                Some((_, most)) => *most = used.max(*most),
                // Without host memory the entry is left out.
                None => drop(all.try_push((pid, used))),
            }
            None
        };
        for list in self.lists.into_iter().flatten() {
            // A list that is not available is empty.
            let _ = match list {
                Processes::Now(list) => {
                    find_process(list, device, |info| note(info.pid, info.used))
                }
                Processes::V1(list) => find_process(list, device, |info| note(info.pid, info.used)),
            };
        }
        all
    }

    fn figure(&self, device: NvmlDevice, pid: u32) -> Figure {
        let (mut was_listed, mut ill) = (false, false);
        for list in self.lists.into_iter().flatten() {
            let found = match list {
                Processes::Now(list) => {
                    find_process(list, device, |info| (info.pid == pid).then_some(info.used))
                }
                Processes::V1(list) => {
                    find_process(list, device, |info| (info.pid == pid).then_some(info.used))
                }
            };
            match found {
                Ok(Some(UNAVAILABLE)) => return Figure::Unavailable,
                Ok(Some(bytes)) => return Figure::Bytes(bytes),
                Ok(None) => was_listed = true,
                Err(code) => ill |= !HAS_NO_LIST.contains(&code),
            }
        }
        if was_listed && !ill { Figure::Absent } else { Figure::Unavailable }
    }
}

/// Walks one list. `Err`: why the library did not give it.
fn find_process<T: Copy>(
    list: List<T>,
    device: NvmlDevice,
    mut wanted: impl FnMut(&T) -> Option<u64>,
) -> Result<Option<u64>, i32> {
    let mut few = [const { core::mem::MaybeUninit::<T>::uninit() }; FEW];
    let mut count = FEW as u32;
    // SAFETY: room for `count` elements; the library writes the number that it filled in.
    match unsafe { list(device, &mut count, few.as_mut_ptr().cast()) } {
        SUCCESS => {
            let filled = few.iter().take(count as usize);
            // SAFETY: the library filled the first `count`.
            Ok(filled.map(|info| unsafe { info.assume_init_ref() }).find_map(&mut wanted))
        }
        INSUFFICIENT_SIZE => {
            // More may have come since.
            let room = (count as usize).saturating_add(FEW).min(1 << 20);
            let Ok(mut many) = vec_of::<T>(room) else { return Err(INSUFFICIENT_SIZE) };
            let mut count = room as u32;
            // SAFETY: `many` has room for `count` elements; the library writes the number that it filled in.
            let result = unsafe { list(device, &mut count, many.as_mut_ptr()) };
            if result != SUCCESS {
                return Err(result);
            }
            // SAFETY: the library filled the first `count` of them.
            unsafe { many.set_len((count as usize).min(room)) };
            Ok(many.iter().find_map(wanted))
        }
        other => Err(other),
    }
}

/// The address as a function pointer; `None` if it is null.
///
/// # Safety
/// `address` is null or a function of type `F`.
unsafe fn function<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the same size, and not null.
    (!address.is_null()).then(|| unsafe { core::mem::transmute_copy(&address) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with `device` as the number of processes; process n holds n MiB, process 3 does
    /// not tell.
    unsafe extern "C-unwind" fn list(
        device: NvmlDevice,
        count: *mut u32,
        out: *mut NvmlProcessInfo,
    ) -> i32 {
        let processes = device as usize as u32;
        // SAFETY: the caller's room is what it says.
        unsafe {
            let room = core::mem::replace(&mut *count, processes);
            if room < processes {
                return INSUFFICIENT_SIZE;
            }
            for n in 0..processes {
                let used = if n == 3 { UNAVAILABLE } else { u64::from(n) << 20 };
                let info = NvmlProcessInfo { pid: n, used, gpu_instance: 0, compute_instance: 0 };
                out.add(n as usize).write(info);
            }
        }
        SUCCESS
    }

    unsafe extern "C-unwind" fn refuses(
        _: NvmlDevice,
        _: *mut u32,
        _: *mut NvmlProcessInfo_v1,
    ) -> i32 {
        3
    }

    unsafe extern "C-unwind" fn by_uuid(_: *const c_char, _: *mut NvmlDevice) -> i32 {
        3
    }

    fn nvml(lists: [Option<Processes>; 3]) -> Nvml {
        nvml_thread::open();
        Nvml(Functions { handle_by_uuid: by_uuid, uuid: None, memory_info: None, lists })
    }

    #[test]
    fn finds_our_process_in_short_and_long_lists() {
        let _alone = nvml_thread::tests::alone();
        let nvml = nvml([None, Some(Processes::V1(refuses)), Some(Processes::Now(list))]);
        for processes in [6, FEW, FEW + 1, 500] {
            let device = processes as NvmlDevice;
            assert_eq!(nvml.figure(device, 5), Figure::Bytes(5 << 20));
            assert_eq!(nvml.figure(device, 3), Figure::Unavailable);
            assert_eq!(nvml.figure(device, 501), Figure::Absent);
        }
    }

    #[test]
    fn each_process_once_with_what_is_known() {
        let _alone = nvml_thread::tests::alone();
        let nvml = nvml([Some(Processes::Now(list)), Some(Processes::Now(list)), None]);
        let all = nvml.processes(5 as NvmlDevice);
        let expected = [(0, Some(0)), (1, Some(1 << 20)), (2, Some(2 << 20)), (3, None)];
        assert_eq!(all[..4], expected);
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn no_list_is_not_an_empty_list() {
        let _alone = nvml_thread::tests::alone();
        assert_eq!(nvml([None; 3]).figure(null_mut(), 1), Figure::Unavailable);
        let refused = nvml([Some(Processes::V1(refuses)), None, None]);
        assert_eq!(refused.figure(null_mut(), 1), Figure::Unavailable);
        assert_eq!(refused.device(c"GPU-x"), None);
    }
}
