//! Memory between processes: IPC handles, shareable descriptors, pools.
//!
//! A handle names a place in its owner's memory file, which the opener reaches through
//! `/proc/<pid>/fd`. Memory made exportable has a file of its own, with a description behind its
//! bytes; the descriptor alone is then enough. The owner is charged, the opener is not.

use crate::abi::*;
use crate::aperture::{FileRange, HOST, memory_file};
use crate::contexts;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Block, Locked, Memory, Owner};
use crate::pool;
use crate::shared::start_time;
use crate::shared_file::{DESCRIPTION, Description, describe, map_at};
use crate::system;
use crate::vmm::{self, Object};
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Mutex;

const MEMORY: u64 = 0x5349_4d49_5043_0001;

const POOL_POINTER: u64 = 0x5349_4d49_5043_0002;

const POSIX_FD: i32 = 1;

/// What is opened: for a second open of the same handle.
static OPENED: Mutex<Option<HashMap<[u64; 8], Pointer>>> = Mutex::new(None);

fn seal(kind: u64, memory: &Memory, range: FileRange, size: u64) -> Done<[u64; 8]> {
    let pid = std::process::id();
    Ok([
        kind,
        memory.index as u64 | (pid as u64) << 32,
        start_time(pid).ok_or(Error::OPERATING_SYSTEM)?,
        range.fd as u64,
        range.inode,
        range.offset,
        size,
        0,
    ])
}

/// The owner's file, if the owner lives and the descriptor still is that file.
fn open_file(seal: &[u64; 8]) -> Done<i32> {
    let pid = (seal[1] >> 32) as u32;
    if start_time(pid) != Some(seal[2]) {
        return Err(Error::INVALID_VALUE);
    }
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/fd/{}", seal[3]))
        .map_err(|_| Error::MAP_FAILED)?;
    if system::stat(file.as_raw_fd()).is_none_or(|stat| stat.st_ino != seal[4]) {
        return Err(Error::MAP_FAILED);
    }
    Ok(file.into_raw_fd())
}

/// Maps part of another process's memory and books it as imported.
fn import(memory: &Memory, fd: i32, offset: u64, size: u64, kind: Imported) -> Done<Pointer> {
    let start = offset / PAGE * PAGE;
    let span = (offset + size - start).next_multiple_of(PAGE);
    let mut locked = memory.lock();
    let base = locked.take_pages(span, PAGE)?;
    if let Err(error) = map_at(base, span, fd, start) {
        locked.give_pages(base, span);
        return Err(error);
    }
    let address = base + (offset - start);
    let (context, owner) = match kind {
        Imported::Opened(context) => (context, Owner::Imported { opens: 1, pool: false }),
        Imported::FromPool => (0, Owner::Imported { opens: 1, pool: true }),
    };
    locked.state.live.insert(address, Block { size, span, owner, context });
    Ok(address)
}

enum Imported {
    Opened(u32),
    FromPool,
}

pub(crate) fn get_handle(out: Out<Sealed>, pointer: Pointer) -> Done {
    contexts::current()?;
    out.check()?;
    let memory = driver().at(pointer).ok_or(Error::INVALID_VALUE)?;
    let (start, size) = {
        let locked = memory.lock();
        let (start, block) = locked.find(pointer).ok_or(Error::INVALID_VALUE)?;
        if memory.index == HOST || !matches!(block.owner, Owner::Slab(_) | Owner::Pages) {
            return Err(Error::INVALID_VALUE);
        }
        (start, block.size)
    };
    // Another process may write to it, unseen.
    memory.aperture.mark_dirty(start, size);
    let range = memory.aperture.file_range(start).ok_or(Error::NOT_SUPPORTED)?;
    let seal = seal(MEMORY, memory, range, size)?;
    out.put(Sealed(seal))
}

pub(crate) fn open_handle(out: Out<Pointer>, handle: Sealed, flags: u32) -> Done {
    let context = contexts::current()?;
    let seal = handle.0;
    let index = (seal[1] & 0xffff_ffff) as usize;
    // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the only flag.
    if out.is_null() || flags > 1 || seal[0] != MEMORY || index >= driver().devices.count {
        return Err(Error::INVALID_VALUE);
    }
    if (seal[1] >> 32) as u32 == std::process::id() {
        return Err(Error::INVALID_CONTEXT);
    }
    let memory = driver().memory(index);
    let mut opened = OPENED.lock().unwrap();
    let opened = opened.get_or_insert_default();
    if let Some(&pointer) = opened.get(&seal)
        && let Some(Block { owner: Owner::Imported { opens, .. }, .. }) =
            memory.lock().state.live.get_mut(&pointer)
    {
        *opens += 1;
        out.set(pointer);
        return Ok(());
    }
    let fd = open_file(&seal)?;
    let mapped = import(memory, fd, seal[5], seal[6], Imported::Opened(context.id));
    system::close(fd);
    let pointer = mapped?;
    opened.insert(seal, pointer);
    out.put(pointer)
}

pub(crate) fn close_handle(pointer: Pointer) -> Done {
    contexts::current()?;
    let memory = driver().at(pointer).ok_or(Error::INVALID_VALUE)?;
    let mut opened = OPENED.lock().unwrap();
    let mut locked = memory.lock();
    match locked.state.live.get_mut(&pointer) {
        Some(Block { owner: Owner::Imported { opens, pool: false }, .. }) => {
            *opens -= 1;
            if *opens > 0 {
                return Ok(());
            }
        }
        _ => return Err(Error::INVALID_VALUE),
    }
    if let Some(block) = locked.state.live.remove(&pointer) {
        locked.release_block(pointer, block);
    }
    if let Some(opened) = opened.as_mut() {
        opened.retain(|_, &mut other| other != pointer);
    }
    Ok(())
}

// Shareable descriptors.

pub(crate) fn export(out: Out<c_void>, handle: u64, kind: i32, flags: u64) -> Done {
    if out.is_null() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if kind != POSIX_FD {
        return Err(Error::NOT_SUPPORTED);
    }
    let mut vmm = vmm::vmm();
    let object = vmm.named(handle)?;
    if object.prop.handle_types & POSIX_FD == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if object.fd.is_none()
        && let Some(multicast) = object.multicast
    {
        let (fd, _) = memory_file(c"vramtrace-sim-multicast", 4 * KIB).ok_or(Error::UNKNOWN)?;
        let description = Description {
            magic: DESCRIPTION,
            size: object.size,
            place: HOST as u64,
            multicast_devices: multicast.devices as u64,
            prop: object.prop,
        };
        describe(fd, 0, &description);
        object.fd = Some(fd);
    }
    let own = object.fd.ok_or(Error::NOT_SUPPORTED)?;
    let fd = system::duplicate(own, 3).ok_or(Error::OPERATING_SYSTEM)?;
    out.cast::<i32>().set(fd);
    Ok(())
}

pub(crate) fn import_shareable(out: Out<u64>, os_handle: Handle, kind: i32) -> Done {
    out.check()?;
    if kind != POSIX_FD {
        return Err(Error::NOT_SUPPORTED);
    }
    // For this kind the pointer IS the descriptor.
    let given = os_handle as usize as i32;
    let stat = system::stat(given).filter(|stat| stat.st_size >= 4 * KIB as i64);
    let at = stat.ok_or(Error::INVALID_VALUE)?.st_size - 4 * KIB as i64;
    let mut description = std::mem::MaybeUninit::<Description>::zeroed();
    let length = size_of::<Description>();
    // SAFETY: the buffer has that length.
    let read = unsafe { libc::pread(given, description.as_mut_ptr() as *mut c_void, length, at) };
    // SAFETY: numbers, all zero where nothing was read.
    let description = unsafe { description.assume_init() };
    let place = description.place as usize;
    let known = place == HOST || place < driver().devices.count;
    if read != length as isize || description.magic != DESCRIPTION || !known {
        return Err(Error::INVALID_VALUE);
    }
    let fd = system::duplicate(given, 700).ok_or(Error::OPERATING_SYSTEM)?;
    let size = description.size;
    let mut object = Object::new(size, description.prop, place, 0);
    object.fd = Some(fd);
    if description.multicast_devices != 0 {
        object.multicast = Some(MulticastProp {
            devices: description.multicast_devices as u32,
            size: size as usize,
            handle_types: description.prop.handle_types as u64,
            flags: 0,
        });
    } else {
        let memory = driver().memory(place);
        let pages = memory.lock().take_pages(size, PAGE);
        object.backing = pages.inspect_err(|_| system::close(fd))?;
        if let Err(error) = map_at(object.backing, size, fd, 0) {
            memory.aperture.restore(object.backing, size);
            memory.lock().give_pages(object.backing, size);
            system::close(fd);
            return Err(error);
        }
    }
    out.put(vmm::vmm().add(object))
}

// Pools.

impl Locked<'_> {
    fn exportable(&self, id: crate::pool_state::PoolId) -> Done {
        let pool = self.state.pools.get(&id).ok_or(Error::INVALID_VALUE)?;
        if pool.handle_types & POSIX_FD == 0 { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }
}

/// A pool's descriptor is the memory file that its blocks are in.
pub(crate) fn export_pool(out: Out<c_void>, pool: Handle, kind: i32, flags: u64) -> Done {
    let (memory, id) = pool::decode(pool)?;
    if out.is_null() || flags != 0 || kind != POSIX_FD {
        return Err(Error::INVALID_VALUE);
    }
    memory.lock().exportable(id)?;
    let range = memory.aperture.file_range(memory.aperture.base).ok_or(Error::NOT_SUPPORTED)?;
    let fd = system::duplicate(range.fd, 3).ok_or(Error::OPERATING_SYSTEM)?;
    out.cast::<i32>().set(fd);
    Ok(())
}

pub(crate) fn import_pool(out: Out<Handle>, os_handle: Handle, kind: i32, flags: u64) -> Done {
    if out.is_null() || flags != 0 || kind != POSIX_FD {
        return Err(Error::INVALID_VALUE);
    }
    let fd = system::duplicate(os_handle as usize as i32, 700).ok_or(Error::INVALID_VALUE)?;
    let index = contexts::current().map_or(driver().devices.visible[0], |context| context.device);
    let pool = pool::create_from(&PoolProps::of_device(device::ordinal(index)))?;
    out.set(pool);
    let (memory, id) = pool::decode(pool)?;
    if let Some(pool) = memory.lock().state.pools.get_mut(&id) {
        pool.imported = Some(fd);
    }
    Ok(())
}

pub(crate) fn export_pointer(out: Out<Sealed>, pointer: Pointer) -> Done {
    out.check()?;
    let memory = driver().at(pointer).ok_or(Error::INVALID_VALUE)?;
    let (start, size) = {
        let locked = memory.lock();
        let (start, block) = locked.find(pointer).ok_or(Error::INVALID_VALUE)?;
        let Owner::Pool(id) = block.owner else { return Err(Error::INVALID_VALUE) };
        locked.exportable(id)?;
        (start, block.size)
    };
    memory.aperture.mark_dirty(start, size);
    let range = memory.aperture.file_range(start).ok_or(Error::NOT_SUPPORTED)?;
    let seal = seal(POOL_POINTER, memory, range, size)?;
    out.put(Sealed(seal))
}

pub(crate) fn import_pointer(out: Out<Pointer>, pool: Handle, data: Out<Sealed>) -> Done {
    if out.is_null() || data.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let (memory, id) = pool::decode(pool)?;
    let seal = data.get()?.0;
    let fd = memory.lock().state.pools.get(&id).and_then(|pool| pool.imported);
    let fd = fd.ok_or(Error::INVALID_VALUE)?;
    let same = system::stat(fd).is_some_and(|stat| stat.st_ino == seal[4]);
    if seal[0] != POOL_POINTER || !same {
        return Err(Error::INVALID_VALUE);
    }
    let pointer = import(memory, fd, seal[5], seal[6], Imported::FromPool)?;
    out.put(pointer)
}
