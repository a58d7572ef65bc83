//! Modules, libraries and kernels. Code is never run; a module takes a page of the device when
//! something in it is first launched, as lazy loading does, or its function is asked for; a first
//! launch takes the local memory and the heap that the kernel needs.

use crate::abi::*;
use crate::context;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::image::Image;
use crate::memory::next_id;
use crate::stream;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
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

unsafe fn text(name: Name) -> Done<String> {
    if name.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

fn add(out: *mut Handle, image: Image, context: Option<u32>) -> Done {
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
    unsafe { *out = handle as Handle };
    Ok(())
}

pub unsafe fn load_data(out: *mut Handle, image: *const c_void) -> Done {
    let context = context::current()?;
    add(out, unsafe { Image::read(image)? }, Some(context.id))
}

pub unsafe fn load_data_ex(
    out: *mut Handle,
    image: *const c_void,
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
) -> Done {
    unsafe { load_data(out, image) }
}

pub unsafe fn load_file(out: *mut Handle, path: Name) -> Done {
    let context = context::current()?;
    let bytes = std::fs::read(unsafe { text(path)? }).map_err(|_| Error::FILE_NOT_FOUND)?;
    add(out, Image::from_bytes(&bytes), Some(context.id))
}

#[allow(clippy::too_many_arguments)]
pub unsafe fn library_load_data(
    out: *mut Handle,
    image: *const c_void,
    _options: *mut i32,
    _values: *mut *mut c_void,
    _count: u32,
    _library_options: *mut i32,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> Done {
    add(out, unsafe { Image::read(image)? }, None)
}

#[allow(clippy::too_many_arguments)]
pub unsafe fn library_load_file(
    out: *mut Handle,
    path: Name,
    _options: *mut i32,
    _values: *mut *mut c_void,
    _count: u32,
    _library_options: *mut i32,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> Done {
    let bytes = std::fs::read(unsafe { text(path)? }).map_err(|_| Error::FILE_NOT_FOUND)?;
    add(out, Image::from_bytes(&bytes), None)
}

fn remove(handle: Handle, library: bool) -> Done {
    let gone = with(|code| {
        let found = code.modules.get(&(handle as usize)).ok_or(Error::INVALID_HANDLE)?;
        if found.context.is_none() != library {
            return Err(Error::INVALID_HANDLE);
        }
        code.entries.retain(|_, entry| entry.module != handle as usize);
        code.modules.remove(&(handle as usize)).ok_or(Error::INVALID_HANDLE)
    })?;
    for context in gone.loaded.iter().filter_map(|&id| context::by_id(id)) {
        if context.is_alive() {
            context.shrink(CODE);
        }
    }
    for (pointer, _) in gone.globals.values() {
        if let Some(memory) = driver().at(*pointer) {
            let _ = memory.lock().free(*pointer);
        }
    }
    Ok(())
}

pub unsafe fn unload(handle: Handle) -> Done {
    context::current()?;
    remove(handle, false)
}

pub unsafe fn library_unload(handle: Handle) -> Done {
    remove(handle, true)
}

pub unsafe fn get_function(out: *mut Handle, module: Handle, name: Name) -> Done {
    let name = unsafe { text(name)? };
    if out.is_null() || name.is_empty() {
        return Err(Error::INVALID_VALUE);
    }
    let entry = with(|code| code.entry(module as usize, &name))?;
    unsafe { *out = entry as Handle };
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

pub unsafe fn count(out: *mut u32, module: Handle) -> Done {
    let names =
        with(|code| code.modules.get(&(module as usize)).map(|found| found.image.kernels().len()));
    let names = names.ok_or(Error::INVALID_HANDLE)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = names as u32 };
    Ok(())
}

pub unsafe fn enumerate(out: *mut Handle, room: u32, module: Handle) -> Done {
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
        unsafe { *out.add(at) = entry as Handle };
    }
    Ok(())
}

/// Memory for a global variable, made when it is first asked for.
pub unsafe fn get_global(out: *mut Pointer, bytes: *mut usize, module: Handle, name: Name) -> Done {
    let context = context::current()?;
    let name = unsafe { text(name)? };
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
    unsafe {
        if !out.is_null() {
            *out = pointer;
        }
        if !bytes.is_null() {
            *bytes = size as usize;
        }
    }
    Ok(())
}

pub unsafe fn library_module(out: *mut Handle, library: Handle) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let known = with(|code| code.modules.contains_key(&(library as usize)));
    unsafe { *out = library };
    if known { Ok(()) } else { Err(Error::INVALID_HANDLE) }
}

/// A library's kernel is its own function in every context; asking for it loads it.
pub unsafe fn kernel_function(out: *mut Handle, kernel: Handle) -> Done {
    context::current()?;
    find(kernel)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { load(kernel)? };
    unsafe { *out = kernel };
    Ok(())
}

pub unsafe fn owner(out: *mut Handle, entry: Handle) -> Done {
    let entry = find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = entry.module as Handle };
    Ok(())
}

pub unsafe fn entry_name(out: *mut Name, entry: Handle) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let name = with(|code| code.entries.get(&(entry as usize)).map(|entry| entry.name.as_ptr()));
    unsafe { *out = name.ok_or(Error::INVALID_HANDLE)? };
    Ok(())
}

/// No parameter is known, as in an image without that information.
pub unsafe fn param_info(entry: Handle, _at: usize, _: *mut usize, _: *mut usize) -> Done {
    find(entry)?;
    Err(Error::INVALID_VALUE)
}

pub unsafe fn param_count(entry: Handle, out: *mut usize) -> Done {
    find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = 0 };
    Ok(())
}

pub unsafe fn attribute(out: *mut i32, attribute: i32, entry: Handle) -> Done {
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
    unsafe { *out = value };
    Ok(())
}

pub unsafe fn kernel_attribute(out: *mut i32, which: i32, kernel: Handle, device: i32) -> Done {
    crate::device::by_ordinal(device)?;
    unsafe { attribute(out, which, kernel) }
}

pub unsafe fn set_attribute(entry: Handle, attribute: i32, value: i32) -> Done {
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

pub unsafe fn set_kernel_attribute(which: i32, value: i32, kernel: Handle, device: i32) -> Done {
    crate::device::by_ordinal(device)?;
    unsafe { set_attribute(kernel, which, value) }
}

pub unsafe fn set_cache_config(entry: Handle, _config: i32) -> Done {
    find(entry).map(|_| ())
}

pub unsafe fn set_kernel_cache_config(kernel: Handle, _config: i32, _device: i32) -> Done {
    find(kernel).map(|_| ())
}

pub unsafe fn is_loaded(out: *mut i32, entry: Handle) -> Done {
    let context = context::current()?;
    let entry = find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let loaded = with(|code| {
        code.modules.get(&entry.module).is_some_and(|module| module.loaded.contains(&context.id))
    });
    unsafe { *out = loaded as i32 };
    Ok(())
}

/// Takes the module's memory in this context, once.
pub unsafe fn load(entry: Handle) -> Done {
    let context = context::current()?;
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

pub unsafe fn loading_mode(out: *mut i32) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // CU_MODULE_LAZY_LOADING
    unsafe { *out = 2 };
    Ok(())
}

fn launch_checked(entry: Handle, grid: [u32; 3], block: [u32; 3], stream: StreamArg) -> Done {
    let place = stream::place(stream)?;
    let threads = block.iter().map(|&side| side as u64).product::<u64>();
    if grid.contains(&0) || threads == 0 || threads > 1024 {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { load(entry)? };
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
pub unsafe fn launch(
    entry: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: StreamArg,
    _params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Done {
    launch_checked(entry, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream)
}

#[allow(clippy::too_many_arguments)]
pub unsafe fn launch_cooperative(
    entry: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: StreamArg,
    _params: *mut *mut c_void,
) -> Done {
    launch_checked(entry, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream)
}

/// In the per-thread variant the default stream of the configuration is the thread's.
pub unsafe fn launch_ex(
    config: *const LaunchConfig,
    entry: Handle,
    _params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Done {
    let config = unsafe { config.as_ref() }.ok_or(Error::INVALID_VALUE)?;
    launch_checked(entry, config.grid, config.block, config.stream)
}

// Occupancy.

pub unsafe fn occupancy(out: *mut i32, entry: Handle, block: i32, _dynamic: usize) -> Done {
    find(entry)?;
    if out.is_null() || !(1..=1024).contains(&block) {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = (2048 / block).min(32) };
    Ok(())
}

pub unsafe fn occupancy_flags(
    out: *mut i32,
    entry: Handle,
    block: i32,
    dynamic: usize,
    _flags: u32,
) -> Done {
    unsafe { occupancy(out, entry, block, dynamic) }
}

pub unsafe fn best_block(
    grid: *mut i32,
    block: *mut i32,
    entry: Handle,
    _size_of: *mut c_void,
    _dynamic: usize,
    limit: i32,
) -> Done {
    find(entry)?;
    if grid.is_null() || block.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let best = if limit > 0 { limit.min(1024) } else { 1024 };
    unsafe {
        *grid = 132 * (2048 / best).min(32);
        *block = best;
    }
    Ok(())
}

pub unsafe fn best_block_flags(
    grid: *mut i32,
    block: *mut i32,
    entry: Handle,
    size_of: *mut c_void,
    dynamic: usize,
    limit: i32,
    _flags: u32,
) -> Done {
    unsafe { best_block(grid, block, entry, size_of, dynamic, limit) }
}

pub unsafe fn dynamic_shared(out: *mut usize, entry: Handle, _blocks: i32, _block: i32) -> Done {
    find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = 49_152 };
    Ok(())
}

pub unsafe fn clusters(out: *mut i32, entry: Handle, _config: *const LaunchConfig) -> Done {
    find(entry)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = 8 };
    Ok(())
}

// The linker: what is added comes out as one image.

pub unsafe fn link_create(
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
    out: *mut Handle,
) -> Done {
    context::current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let handle = new_handle();
    with(|code| code.links.insert(handle, Vec::new()));
    unsafe { *out = handle as Handle };
    Ok(())
}

#[allow(clippy::too_many_arguments)]
pub unsafe fn link_add_data(
    link: Handle,
    _kind: i32,
    data: *const u8,
    size: usize,
    _name: Name,
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
) -> Done {
    if data.is_null() || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let data = unsafe { std::slice::from_raw_parts(data, size) };
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

pub unsafe fn link_add_file(
    link: Handle,
    kind: i32,
    path: Name,
    count: u32,
    options: *mut i32,
    values: *mut *mut c_void,
) -> Done {
    let bytes = std::fs::read(unsafe { text(path)? }).map_err(|_| Error::FILE_NOT_FOUND)?;
    unsafe { link_add_data(link, kind, bytes.as_ptr(), bytes.len(), path, count, options, values) }
}

pub unsafe fn link_complete(link: Handle, out: *mut *mut c_void, size: *mut usize) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    with(|code| {
        let all = code.links.get_mut(&(link as usize)).ok_or(Error::INVALID_HANDLE)?;
        if !size.is_null() {
            unsafe { *size = all.len() };
        }
        all.push(0);
        unsafe { *out = all.as_mut_ptr() as *mut c_void };
        Ok(())
    })
}

pub unsafe fn link_destroy(link: Handle) -> Done {
    with(|code| code.links.remove(&(link as usize))).map(|_| ()).ok_or(Error::INVALID_HANDLE)
}

pub fn forget_context(context: u32) {
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
