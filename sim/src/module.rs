//! Modules, libraries and kernels. Code is never run; a module takes a page of the device when
//! something in it is first launched, as lazy loading does, or its function is looked up; a first
//! launch takes the local memory and the heap that the kernel needs.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::image::Image;
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
    globals: HashMap<(u32, String), (Pointer, u64)>,
    /// Contexts in which it takes memory.
    loaded: Vec<u32>,
}

#[derive(Clone)]
struct Entry {
    module: usize,
    name: std::ffi::CString,
    shared: i32,
    local: u64,
    heap: bool,
}

#[derive(Default)]
struct Code {
    modules: HashMap<usize, Module>,
    entries: HashMap<usize, Entry>,
    links: HashMap<usize, Vec<u8>>,
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
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let module = Module {
        image,
        context,
        entries: HashMap::new(),
        globals: HashMap::new(),
        loaded: Vec::new(),
    };
    let handle = new_handle();
    with(|code| code.modules.insert(handle, module));
    out.set(handle as Handle);
    Ok(())
}

pub(crate) fn load_data(out: Out<Handle>, image: In<c_void>) -> Done {
    let context = contexts::current()?;
    add(out, Image::read(image)?, Some(context.id))
}

pub(crate) fn load_data_ex(
    out: Out<Handle>,
    image: In<c_void>,
    _count: u32,
    _options: Out<i32>,
    _values: Out<Handle>,
) -> Done {
    load_data(out, image)
}

pub(crate) fn load_file(out: Out<Handle>, path: Name) -> Done {
    let context = contexts::current()?;
    let bytes = std::fs::read(path.text()?).map_err(|_| Error::FILE_NOT_FOUND)?;
    add(out, Image::from_bytes(&bytes), Some(context.id))
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

#[allow(clippy::too_many_arguments)]
pub(crate) fn library_load_file(
    out: Out<Handle>,
    path: Name,
    _options: Out<i32>,
    _values: Out<Handle>,
    _count: u32,
    _library_options: Out<i32>,
    _library_values: Out<Handle>,
    _library_count: u32,
) -> Done {
    let bytes = std::fs::read(path.text()?).map_err(|_| Error::FILE_NOT_FOUND)?;
    add(out, Image::from_bytes(&bytes), None)
}

fn remove(handle: Handle, library: bool) -> Done {
    let removed = with(|code| {
        let found = code.modules.get(&(handle as usize)).ok_or(Error::INVALID_HANDLE)?;
        if found.context.is_none() != library {
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
    for (pointer, _) in removed.globals.values() {
        if let Some(memory) = driver().at(*pointer) {
            let _ = memory.lock().free(*pointer);
        }
    }
    Ok(())
}

pub(crate) fn unload(handle: Handle) -> Done {
    contexts::current()?;
    remove(handle, false)
}

pub(crate) fn library_unload(handle: Handle) -> Done {
    remove(handle, true)
}

pub(crate) fn get_function(out: Out<Handle>, module: Handle, name: Name) -> Done {
    let name = name.text()?;
    if out.is_null() || name.is_empty() {
        return Err(Error::INVALID_VALUE);
    }
    let entry = with(|code| code.entry(module as usize, &name))?;
    out.set(entry as Handle);
    Ok(())
}

impl Code {
    fn entry(&mut self, module: usize, name: &str) -> Done<usize> {
        let found = self.modules.get_mut(&module).ok_or(Error::INVALID_HANDLE)?;
        if !found.image.has_kernel(name) {
            return Err(Error::NOT_FOUND);
        }
        if let Some(&entry) = found.entries.get(name) {
            return Ok(entry);
        }
        let entry = new_handle();
        found.entries.insert(name.to_owned(), entry);
        let (local, heap) = (found.image.local(name), found.image.uses_heap(name));
        let name = std::ffi::CString::new(name).map_err(|_| Error::INVALID_VALUE)?;
        self.entries.insert(entry, Entry { module, name, shared: 49_152, local, heap });
        Ok(entry)
    }
}

fn find(entry: Handle) -> Done<Entry> {
    with(|code| code.entries.get(&(entry as usize)).cloned()).ok_or(Error::INVALID_HANDLE)
}

pub(crate) fn count(out: Out<u32>, module: Handle) -> Done {
    let names =
        with(|code| code.modules.get(&(module as usize)).map(|found| found.image.kernels().len()));
    let names = names.ok_or(Error::INVALID_HANDLE)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(names as u32);
    Ok(())
}

pub(crate) fn enumerate(out: Out<Handle>, room: u32, module: Handle) -> Done {
    let entries = with(|code| {
        let found = code.modules.get(&(module as usize)).ok_or(Error::INVALID_HANDLE)?;
        let names: Vec<String> = found.image.kernels().to_vec();
        names
            .iter()
            .take(room as usize)
            .map(|name| code.entry(module as usize, name))
            .collect::<Done<Vec<_>>>()
    })?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    for (at, entry) in entries.into_iter().enumerate() {
        out.at(at).set(entry as Handle);
    }
    Ok(())
}

/// Memory for a global variable, made when it is first looked up.
pub(crate) fn get_global(out: Out<Pointer>, bytes: Out<usize>, module: Handle, name: Name) -> Done {
    let context = contexts::current()?;
    let name = name.text()?;
    let (pointer, size) = with(|code| {
        let found = code.modules.get_mut(&(module as usize)).ok_or(Error::INVALID_HANDLE)?;
        let key = (context.id, name);
        if let Some(&made) = found.globals.get(&key) {
            return Ok(made);
        }
        let size = found.image.global(&key.1).ok_or(Error::NOT_FOUND)?;
        let pointer = driver().memory(context.device).lock().allocate(size.max(1), context.id)?;
        found.globals.insert(key, (pointer, size));
        Ok((pointer, size))
    })?;
    out.set(pointer);
    bytes.set(size as usize);
    Ok(())
}

pub(crate) fn library_module(out: Out<Handle>, library: Handle) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let known = with(|code| code.modules.contains_key(&(library as usize)));
    out.set(library);
    if known { Ok(()) } else { Err(Error::INVALID_HANDLE) }
}

/// A library's kernel is its own function in every context; asking for it loads it.
pub(crate) fn kernel_function(out: Out<Handle>, kernel: Handle) -> Done {
    contexts::current()?;
    find(kernel)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    load(kernel)?;
    out.set(kernel);
    Ok(())
}

pub(crate) fn owner(out: Out<Handle>, entry: Handle) -> Done {
    let entry = find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(entry.module as Handle);
    Ok(())
}

pub(crate) fn entry_name(out: Out<Name>, entry: Handle) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let name = with(|code| code.entries.get(&(entry as usize)).map(|entry| entry.name.as_ptr()));
    out.cast().set(name.ok_or(Error::INVALID_HANDLE)?);
    Ok(())
}

/// No parameter is known, as in an image without that information.
pub(crate) fn param_info(entry: Handle, _at: usize, _: Out<usize>, _: Out<usize>) -> Done {
    find(entry)?;
    Err(Error::INVALID_VALUE)
}

pub(crate) fn param_count(entry: Handle, out: Out<usize>) -> Done {
    find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(0);
    Ok(())
}

pub(crate) fn attribute(out: Out<i32>, attribute: i32, entry: Handle) -> Done {
    let entry = find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let value = match attribute {
        0 => 1024,
        4 => 32,
        5 | 6 => 90,
        8 => entry.shared,
        9 => -1,
        3 => entry.local as i32,
        1 | 2 | 7 | 10..=17 => 0,
        _ => return Err(Error::INVALID_VALUE),
    };
    out.set(value);
    Ok(())
}

pub(crate) fn kernel_attribute(out: Out<i32>, which: i32, kernel: Handle, device: i32) -> Done {
    crate::device::by_ordinal(device)?;
    attribute(out, which, kernel)
}

pub(crate) fn set_attribute(entry: Handle, attribute: i32, value: i32) -> Done {
    with(|code| {
        let entry = code.entries.get_mut(&(entry as usize)).ok_or(Error::INVALID_HANDLE)?;
        match attribute {
            8 if !(0..=232_448).contains(&value) => return Err(Error::INVALID_VALUE),
            8 => entry.shared = value,
            9..=17 => {}
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    })
}

pub(crate) fn set_kernel_attribute(which: i32, value: i32, kernel: Handle, device: i32) -> Done {
    crate::device::by_ordinal(device)?;
    set_attribute(kernel, which, value)
}

pub(crate) fn set_cache_config(entry: Handle, _config: i32) -> Done {
    find(entry).map(|_| ())
}

pub(crate) fn set_kernel_cache_config(kernel: Handle, _config: i32, _device: i32) -> Done {
    find(kernel).map(|_| ())
}

pub(crate) fn is_loaded(out: Out<i32>, entry: Handle) -> Done {
    let context = contexts::current()?;
    let entry = find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let loaded = with(|code| {
        code.modules.get(&entry.module).is_some_and(|module| module.loaded.contains(&context.id))
    });
    out.set(loaded as i32);
    Ok(())
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

pub(crate) fn loading_mode(out: Out<i32>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // CU_MODULE_LAZY_LOADING
    out.set(2);
    Ok(())
}

fn launch_checked(entry: Handle, grid: [u32; 3], block: [u32; 3], stream: StreamArg) -> Done {
    let place = streams::place(stream)?;
    let threads = block.iter().map(|&side| side as u64).product::<u64>();
    if grid.contains(&0) || threads == 0 || threads > 1024 {
        return Err(Error::INVALID_VALUE);
    }
    load(entry)?;
    let needs = find(entry)?;
    place.context.need_local(needs.local)?;
    if needs.heap {
        place.context.need_heap()?;
    }
    match place.capture {
        Some(capture) => capture.add_kernel(),
        None => Ok(()),
    }
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

#[allow(clippy::too_many_arguments)]
pub(crate) fn launch_cooperative(
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

// Occupancy.

pub(crate) fn occupancy(out: Out<i32>, entry: Handle, block: i32, _dynamic: usize) -> Done {
    find(entry)?;
    if out.is_null() || !(1..=1024).contains(&block) {
        return Err(Error::INVALID_VALUE);
    }
    out.set((2048 / block).min(32));
    Ok(())
}

pub(crate) fn occupancy_flags(
    out: Out<i32>,
    entry: Handle,
    block: i32,
    dynamic: usize,
    _flags: u32,
) -> Done {
    occupancy(out, entry, block, dynamic)
}

pub(crate) fn best_block(
    grid: Out<i32>,
    block: Out<i32>,
    entry: Handle,
    _size_of: Out<c_void>,
    _dynamic: usize,
    limit: i32,
) -> Done {
    find(entry)?;
    if grid.is_null() || block.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let best = if limit > 0 { limit.min(1024) } else { 1024 };
    grid.set(132 * (2048 / best).min(32));
    block.set(best);
    Ok(())
}

pub(crate) fn best_block_flags(
    grid: Out<i32>,
    block: Out<i32>,
    entry: Handle,
    size_of: Out<c_void>,
    dynamic: usize,
    limit: i32,
    _flags: u32,
) -> Done {
    best_block(grid, block, entry, size_of, dynamic, limit)
}

pub(crate) fn dynamic_shared(out: Out<usize>, entry: Handle, _blocks: i32, _block: i32) -> Done {
    find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(49_152);
    Ok(())
}

pub(crate) fn clusters(out: Out<i32>, entry: Handle, _config: In<LaunchConfig>) -> Done {
    find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(8);
    Ok(())
}

// The linker: what is added comes out as one image.

pub(crate) fn link_create(
    _count: u32,
    _options: Out<i32>,
    _values: Out<Handle>,
    out: Out<Handle>,
) -> Done {
    contexts::current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let handle = new_handle();
    with(|code| code.links.insert(handle, Vec::new()));
    out.set(handle as Handle);
    Ok(())
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn link_add_data(
    link: Handle,
    _kind: i32,
    data: In<u8>,
    size: usize,
    _name: Name,
    _count: u32,
    _options: Out<i32>,
    _values: Out<Handle>,
) -> Done {
    if data.is_null() || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    link_add(link, &data.list(size)?)
}

fn link_add(link: Handle, data: &[u8]) -> Done {
    with(|code| {
        let all = code.links.get_mut(&(link as usize)).ok_or(Error::INVALID_HANDLE)?;
        // Texts follow each other; the end of one must not end the whole.
        while all.last() == Some(&0) {
            all.pop();
        }
        all.extend_from_slice(data);
        Ok(())
    })
}

pub(crate) fn link_add_file(
    link: Handle,
    _kind: i32,
    path: Name,
    _count: u32,
    _options: Out<i32>,
    _values: Out<Handle>,
) -> Done {
    let bytes = std::fs::read(path.text()?).map_err(|_| Error::FILE_NOT_FOUND)?;
    if bytes.is_empty() {
        return Err(Error::INVALID_VALUE);
    }
    link_add(link, &bytes)
}

pub(crate) fn link_complete(link: Handle, out: Out<Handle>, size: Out<usize>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    with(|code| {
        let all = code.links.get_mut(&(link as usize)).ok_or(Error::INVALID_HANDLE)?;
        size.set(all.len());
        all.push(0);
        out.set(all.as_mut_ptr() as *mut c_void);
        Ok(())
    })
}

pub(crate) fn link_destroy(link: Handle) -> Done {
    with(|code| code.links.remove(&(link as usize))).map(|_| ()).ok_or(Error::INVALID_HANDLE)
}

pub(crate) fn forget_context(context: u32) {
    with(|code| {
        code.modules.retain(|_, module| module.context != Some(context));
        for module in code.modules.values_mut() {
            module.loaded.retain(|&id| id != context);
            module.globals.retain(|(id, _), _| *id != context);
        }
        let Code { modules, entries, .. } = code;
        entries.retain(|_, entry| modules.contains_key(&entry.module));
    });
}
