//! Modules, libraries and kernels. Code is never run; a module takes a page of the device when
//! something in it is first launched, as lazy loading does, or its function is looked up; a first
//! launch takes the local memory and the heap that the kernel needs.

use crate::abi::*;
use crate::contexts;
use crate::error::{Done, Error};
use crate::graphs::Work;
use crate::image::{Image, Needs};
use crate::memory::next_id;
use crate::streams;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

const CODE: u64 = PAGE;

struct Module {
    image: Image,
    /// A library belongs to no context.
    context: Option<u32>,
    entries: HashMap<String, usize>,
    /// Contexts in which it takes memory.
    loaded: Vec<u32>,
}

#[derive(Clone)]
struct Entry {
    module: usize,
    name: std::ffi::CString,
    needs: Needs,
}

#[derive(Default)]
struct Code {
    modules: HashMap<usize, Module>,
    entries: HashMap<usize, Entry>,
}

static CODE_STATE: Mutex<Option<Code>> = Mutex::new(None);

fn with<R>(work: impl FnOnce(&mut Code) -> R) -> R {
    let mut guard = CODE_STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(guard.get_or_insert_default())
}

fn new_handle() -> usize {
    0xc0de_0000_0000 + next_id() as usize * 16
}

fn add(out: Out<Handle>, image: Image, context: Option<u32>) -> Done {
    out.check()?;
    let module = Module { image, context, entries: HashMap::new(), loaded: Vec::new() };
    let handle = new_handle();
    with(|code| code.modules.insert(handle, module));
    out.put(handle as Handle)
}

pub(crate) fn load_data(out: Out<Handle>, image: In<c_void>) -> Done {
    let context = contexts::current()?;
    add(out, Image::read(image)?, Some(context.id))
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn library_load_data(
    out: Out<Handle>,
    image: In<c_void>,
    _options: Out<i32>,
    _values: Out<Handle>,
    _count: u32,
    _library_options: Out<i32>,
    _library_values: Out<Handle>,
    _library_count: u32,
) -> Done {
    add(out, Image::read(image)?, None)
}

pub(crate) fn unload(handle: Handle) -> Done {
    contexts::current()?;
    let removed = with(|code| {
        let found = code.modules.get(&(handle as usize)).ok_or(Error::INVALID_HANDLE)?;
        if found.context.is_none() {
            return Err(Error::INVALID_HANDLE);
        }
        code.entries.retain(|_, entry| entry.module != handle as usize);
        code.modules.remove(&(handle as usize)).ok_or(Error::INVALID_HANDLE)
    })?;
    for context in removed.loaded.iter().filter_map(|&id| contexts::by_id(id)) {
        if context.is_alive() {
            context.shrink(CODE);
        }
    }
    Ok(())
}

pub(crate) fn get_function(out: Out<Handle>, module: Handle, name: Name) -> Done {
    let name = name.text()?;
    if out.is_null() || name.is_empty() {
        return Err(Error::INVALID_VALUE);
    }
    let entry = with(|code| code.entry(module as usize, &name))?;
    out.put(entry as Handle)
}

impl Code {
    fn entry(&mut self, module: usize, name: &str) -> Done<usize> {
        let found = self.modules.get_mut(&module).ok_or(Error::INVALID_HANDLE)?;
        let needs = found.image.kernel(name).ok_or(Error::NOT_FOUND)?;
        if let Some(&entry) = found.entries.get(name) {
            return Ok(entry);
        }
        let entry = new_handle();
        found.entries.insert(name.to_owned(), entry);
        let name = std::ffi::CString::new(name).map_err(|_| Error::INVALID_VALUE)?;
        self.entries.insert(entry, Entry { module, name, needs });
        Ok(entry)
    }
}

fn find(entry: Handle) -> Done<Entry> {
    with(|code| code.entries.get(&(entry as usize)).cloned()).ok_or(Error::INVALID_HANDLE)
}

pub(crate) fn count(out: Out<u32>, module: Handle) -> Done {
    let names =
        with(|code| code.modules.get(&(module as usize)).map(|found| found.image.kernel_count()));
    let names = names.ok_or(Error::INVALID_HANDLE)?;
    out.put(names as u32)
}

/// A library's kernel is its own function in every context; asking for it loads it.
pub(crate) fn kernel_function(out: Out<Handle>, kernel: Handle) -> Done {
    contexts::current()?;
    find(kernel)?;
    out.check()?;
    load(kernel)?;
    out.put(kernel)
}

pub(crate) fn entry_name(out: Out<Name>, entry: Handle) -> Done {
    out.check()?;
    let name = with(|code| code.entries.get(&(entry as usize)).map(|entry| entry.name.as_ptr()));
    out.cast().set(name.ok_or(Error::INVALID_HANDLE)?);
    Ok(())
}

pub(crate) fn attribute(out: Out<i32>, attribute: i32, entry: Handle) -> Done {
    let entry = find(entry)?;
    out.check()?;
    let value = match attribute {
        0 => 1024,
        4 => 32,
        5 | 6 => 90,
        8 => 49_152,
        9 => -1,
        3 => entry.needs.local as i32,
        1 | 2 | 7 | 10..=17 => 0,
        _ => return Err(Error::INVALID_VALUE),
    };
    out.put(value)
}

pub(crate) fn kernel_attribute(out: Out<i32>, which: i32, kernel: Handle, device: i32) -> Done {
    crate::device::by_ordinal(device)?;
    attribute(out, which, kernel)
}

/// Takes the module's memory in this context, once.
pub(crate) fn load(entry: Handle) -> Done {
    let context = contexts::current()?;
    let entry = find(entry)?;
    let first = with(|code| {
        let loaded = &mut code.modules.get_mut(&entry.module).ok_or(Error::INVALID_HANDLE)?.loaded;
        let first = !loaded.contains(&context.id);
        if first {
            loaded.push(context.id);
        }
        Ok(first)
    })?;
    if !first {
        return Ok(());
    }
    context.grow(CODE).inspect_err(|_| {
        with(|code| {
            if let Some(module) = code.modules.get_mut(&entry.module) {
                module.loaded.retain(|&id| id != context.id);
            }
        })
    })
}

fn launch_checked(entry: Handle, grid: [u32; 3], block: [u32; 3], stream: StreamArg) -> Done {
    let place = streams::place(stream)?;
    let threads = block.iter().map(|&side| side as u64).product::<u64>();
    if grid.contains(&0) || threads == 0 || threads > 1024 {
        return Err(Error::INVALID_VALUE);
    }
    load(entry)?;
    let Entry { needs, .. } = find(entry)?;
    place.context.need_local(needs.local)?;
    if needs.heap {
        place.context.need_heap()?;
    }
    place.capture.map_or(Ok(()), |capture| capture.add(Work::Kernel).map(drop))
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn launch(
    entry: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: StreamArg,
    _params: Out<Handle>,
    _extra: Out<Handle>,
) -> Done {
    launch_checked(entry, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream)
}

/// In the per-thread variant the default stream of the configuration is the thread's.
pub(crate) fn launch_ex(
    config: In<LaunchConfig>,
    entry: Handle,
    _params: Out<Handle>,
    _extra: Out<Handle>,
) -> Done {
    let config = config.get()?;
    launch_checked(entry, config.grid, config.block, config.stream)
}

pub(crate) fn forget_context(context: u32) {
    with(|code| {
        let modules = &mut code.modules;
        modules.retain(|_, module| module.context != Some(context));
        modules.values_mut().for_each(|module| module.loaded.retain(|&id| id != context));
        code.entries.retain(|_, entry| modules.contains_key(&entry.module));
    });
}
