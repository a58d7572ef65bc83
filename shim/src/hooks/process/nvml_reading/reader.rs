//! This process's handle of NVML, and the last reading of each device.

use crate::driver::cuda::{NvmlDevice, NvmlMemory};
use crate::driver::depth::inside;
use crate::driver::nvml::{Functions, Nvml};
use crate::driver::nvml_thread::Desk;
use crate::hooks::process::nvml_reading::exclusive::Exclusive;
use crate::model::attribution::driver_internal::{DriverActivity, DriverInternal};
use crate::model::devices::{Device, Devices};
use crate::runtime::elf::Object;
use crate::runtime::loader;
use crate::runtime::lock::Lock;
use crate::runtime::own_stack;
use crate::runtime::uncancelled::uncancelled;
use once_cell::race::OnceRef;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::DeviceId;

const DEVICES: usize = 64;

/// A forked child takes over what its parent opened: one of the parent's threads may have been
/// inside the loader, and then the child must not go there.
static OPENED: OnceRef<Functions> = OnceRef::new();

pub struct NvmlReader {
    /// Made in this process's cuInit.
    desk: OnceRef<'static, Desk>,
    /// When the next reading is due under a cap; 0 = now, with or without one.
    pub(super) next_ns: AtomicU64,
    pub(super) turn: AtomicU8,
    /// What the readings have taken whose time counts.
    pub(super) spent_ns: AtomicU64,
    pub(super) devices: [DeviceReadings; DEVICES],
}

#[derive(Default)]
pub struct DeviceReadings {
    /// NVML's handle.
    pub(super) handle: AtomicPtr<core::ffi::c_void>,
    /// Bytes of this process and of its contexts, as recorded last.
    pub(super) last: Lock<Option<(Option<u64>, u64)>>,
    /// Time and live bytes of the last reading.
    pub(super) read_ns: AtomicU64,
    pub(super) read_live: AtomicU64,
    /// How long the last reading took.
    pub(super) read_duration_ns: AtomicU64,
    /// Our pid was found in NVML's lists.
    pub(super) present: AtomicBool,
    pub(super) exclusive: Exclusive,
    /// What the driver holds for itself.
    pub(super) account: Lock<DriverInternal>,
    /// Calls under way that can make it take more, by [`DriverActivity`].
    pub(super) active: [AtomicU32; DriverActivity::COUNT],
}

impl Default for NvmlReader {
    fn default() -> Self {
        NvmlReader {
            desk: OnceRef::new(),
            next_ns: AtomicU64::new(0),
            turn: AtomicU8::new(0),
            spent_ns: AtomicU64::new(0),
            devices: std::array::from_fn(|_| DeviceReadings::default()),
        }
    }
}

impl NvmlReader {
    /// The device's free and total bytes, of all processes. Queries NVML only, and only if it is open.
    pub fn memory(&self, device: &Device) -> Option<NvmlMemory> {
        let (nvml, handle) = self.handle_of(device)?;
        nvml.memory(handle)
    }

    /// The other processes on a device, with their bytes where NVML gives them. Empty if NVML is not open, or this process
    /// is not in its lists: then it cannot be distinguished from the others.
    pub fn others_on(&self, device: &Device) -> Vec<(u32, Option<u64>)> {
        let Some((nvml, handle)) = self.handle_of(device) else { return Vec::new() };
        let mut all = nvml.processes(handle);
        let listed = all.len();
        all.retain(|(process, _)| *process != pid());
        if all.len() == listed {
            all.clear();
        }
        all
    }

    /// The device of an NVML handle of the program. In a forked child without a desk the query runs on the program's
    /// thread, which has just had an answer from NVML.
    pub fn device_of<'d>(&self, devices: &'d Devices, handle: NvmlDevice) -> Option<&'d Device> {
        let name = match self.nvml() {
            Some(nvml) => nvml.name(handle),
            None => inside(|| OPENED.get()?.name(handle)),
        }?;
        devices.by_nvml_name(&name)
    }

    /// NVML and its handle of a device. `None`: NVML is not open, or does not know the device.
    pub fn handle_of(&self, device: &Device) -> Option<(Nvml, NvmlDevice)> {
        let nvml = self.nvml()?;
        let watched = self.of(device.id)?;
        let known = watched.handle.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some((nvml, known));
        }
        let handle = uncancelled(|| nvml.device(&device.nvml_name()))?;
        watched.handle.store(handle, Ordering::Relaxed);
        Some((nvml, handle))
    }

    /// `None`: it is one of too many.
    pub(super) fn of(&self, device: DeviceId) -> Option<&DeviceReadings> {
        self.devices.get(device.0 as usize)
    }

    /// NVML, if it is open.
    fn nvml(&self) -> Option<Nvml> {
        Some(Nvml { functions: OPENED.get()?, desk: self.desk.get()? })
    }

    /// Opens NVML: at cuInit and nowhere else, since the loader takes its lock and calls malloc.
    /// Racing threads open it twice, which it counts; the copy of one is leaked.
    pub fn open(&self) {
        // Not on a stack with little room left: the loader needs more.
        if !own_stack::is_short_here() {
            uncancelled(|| inside(|| self.open_here()));
        }
    }

    fn open_here(&self) {
        let desk = || self.desk.get_or_init(Desk::open);
        if OPENED.get().is_some() {
            desk();
            return;
        }
        let library = loader::dlopen(c"libnvidia-ml.so.1", libc::RTLD_NOW | libc::RTLD_LOCAL);
        // SAFETY: NULL, or a handle of `dlopen` that is never closed.
        let Some(library) = (unsafe { Object::opened(library) }) else { return };
        if let Some(functions) = Functions::open(desk(), &library) {
            let _ = OPENED.set(Box::leak(Box::new(functions)));
        }
    }
}

pub(super) fn pid() -> u32 {
    std::process::id()
}
