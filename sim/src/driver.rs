//! The state of the driver in this process, made by cuInit.

use crate::aperture::{Aperture, HOST};
use crate::device::{self, Devices};
use crate::error::{Done, Error};
use crate::memory::Memory;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

pub(crate) struct Driver {
    pub devices: &'static Devices,
    memories: Vec<Memory>,
    pub host: Memory,
}

/// A page that the kernel empties in forked children: a child has no driver, as on a real system.
static LIFE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// May calls be made? Not before cuInit, and not in a child of a process that called it.
#[inline]
pub(crate) fn ready() -> Done {
    let life = LIFE.load(Acquire);
    // SAFETY: NULL, or the page that `init` mapped for good.
    if unsafe { life.as_ref() }.is_none_or(|life| life.load(Relaxed) == 0) {
        return Err(Error::NOT_INITIALIZED);
    }
    Ok(())
}

/// Only behind [`ready`].
#[inline]
pub(crate) fn driver() -> &'static Driver {
    DRIVER.get().expect("cuInit has run")
}

pub(crate) fn init(flags: u32) -> Done {
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if !LIFE.load(Acquire).is_null() {
        return ready();
    }
    let devices = device::devices().map_err(|_| Error::NO_DEVICE)?;
    if devices.visible.is_empty() {
        return Err(Error::NO_DEVICE);
    }
    static ONCE: OnceLock<Done> = OnceLock::new();
    *ONCE.get_or_init(|| {
        if !devices.shared.join() {
            eprintln!("vramtrace-sim: too many processes share the simulated devices");
            return Err(Error::OUT_OF_MEMORY);
        }
        let memory = |index, bytes| {
            Aperture::new(index, bytes)
                .map(|aperture| Memory::new(index, aperture, &devices.shared))
                .ok_or(Error::OUT_OF_MEMORY)
        };
        let driver = Driver {
            devices,
            memories: (0..devices.count)
                .map(|index| memory(index, devices.bytes))
                .collect::<Done<_>>()?,
            host: memory(HOST, 256 << 30)?,
        };
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED
            // SAFETY: the page that was just mapped.
            || unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0
        {
            return Err(Error::OPERATING_SYSTEM);
        }
        crate::fault::begin();
        let _ = DRIVER.set(driver);
        // SAFETY: the page that was just mapped; page starts suit every type.
        unsafe { (*(page as *const AtomicU32)).store(1, Release) };
        LIFE.store(page as *mut AtomicU32, Release);
        Ok(())
    })
}

impl Driver {
    #[inline]
    pub(crate) fn memory(&self, index: usize) -> &Memory {
        if index == HOST { &self.host } else { &self.memories[index] }
    }

    /// All memories, pinned host memory last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Memory> {
        self.memories.iter().chain([&self.host])
    }

    /// The memory whose aperture holds an address.
    #[inline]
    pub(crate) fn at(&self, address: u64) -> Option<&Memory> {
        self.all().find(|memory| memory.aperture.contains(address))
    }
}
