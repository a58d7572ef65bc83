//! How the table's functions are exported and found: one `call!` for each export, and
//! cuGetProcAddress over all of them.

use crate::abi::{Handle, In, Name, Out, STREAM_PER_THREAD, StreamArg};
use crate::driver;
use crate::error::{Done, Error};
use std::collections::HashMap;
use std::sync::OnceLock;

/// One exported function.
pub struct Export {
    pub symbol: &'static str,
    /// The CUDA version that brought it.
    pub since: i32,
    /// For the per-thread default stream.
    pub per_thread: bool,
    pub address: usize,
}

/// What an argument becomes in the per-thread variant of a call.
pub trait Argument {
    fn per_thread(self) -> Self;
}

impl Argument for StreamArg {
    fn per_thread(self) -> StreamArg {
        if self.0 == 0 { STREAM_PER_THREAD } else { self }
    }
}

macro_rules! unchanged {
    ($($type:ty;)*) => {$(
        impl Argument for $type {
            fn per_thread(self) -> Self { self }
        }
    )*};
}

unchanged! {
    u8; u16; u32; u64; usize; i32; Handle; crate::abi::Sealed; crate::abi::Location;
    Option<crate::abi::HostFunction>; Option<crate::abi::StreamCallback>;
}

impl<T> Argument for In<T> {
    fn per_thread(self) -> Self {
        self
    }
}

impl<T> Argument for Out<T> {
    fn per_thread(self) -> Self {
        self
    }
}

/// Runs one call. `symbol` keeps exports apart that do the same: a linker that folded them would
/// give two names one address, which the real driver never does.
#[inline(always)]
pub fn call(symbol: &'static str, early: bool, body: impl FnOnce() -> Done) -> i32 {
    std::hint::black_box(symbol);
    if let Err(error) = crate::fault::strike(symbol) {
        return error.0;
    }
    if !early && let Err(error) = crate::host_function::permits().and_then(|()| driver::ready()) {
        return error.0;
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.0,
        Err(_) => Error::UNKNOWN.0,
    }
}

/// One line of the table: its export, and that of its per-thread twin.
macro_rules! export {
    (@one $early:literal $symbol:ident($($arg:ident: $type:ty),*) $path:path) => {
        #[allow(non_snake_case)]
        pub mod $symbol {
            use super::*;

            #[unsafe(export_name = stringify!($symbol))]
            pub extern "C" fn plain($($arg: $type),*) -> i32 {
                $crate::entry::resolve::call(stringify!($symbol), $early, || $path($($arg),*))
            }
        }
    };
    (@both $suffix:literal $symbol:ident($($arg:ident: $type:ty),*) $path:path) => {
        #[allow(non_snake_case)]
        pub mod $symbol {
            use super::*;

            #[unsafe(export_name = stringify!($symbol))]
            pub extern "C" fn plain($($arg: $type),*) -> i32 {
                $crate::entry::resolve::call(stringify!($symbol), false, || $path($($arg),*))
            }

            #[unsafe(export_name = concat!(stringify!($symbol), $suffix))]
            pub extern "C" fn twin($($arg: $type),*) -> i32 {
                #[allow(unused_imports)]
                use $crate::entry::resolve::Argument;
                $crate::entry::resolve::call(concat!(stringify!($symbol), $suffix), false, || {
                    $path($(Argument::per_thread($arg)),*)
                })
            }
        }
    };
    (call $($line:tt)*) => { export!(@one false $($line)*); };
    (early $($line:tt)*) => { export!(@one true $($line)*); };
    (ptsz $($line:tt)*) => { export!(@both "_ptsz" $($line)*); };
    (ptds $($line:tt)*) => { export!(@both "_ptds" $($line)*); };
}

/// The same line as entries of the list of exports.
macro_rules! entries {
    (@plain $list:ident $since:literal $symbol:ident) => {
        $list.push($crate::entry::resolve::Export {
            symbol: stringify!($symbol),
            since: $since,
            per_thread: false,
            address: $symbol::plain as *const () as usize,
        });
    };
    (@twin $list:ident $since:literal $symbol:ident $suffix:literal) => {
        entries!(@plain $list $since $symbol);
        $list.push($crate::entry::resolve::Export {
            symbol: concat!(stringify!($symbol), $suffix),
            // The per-thread default stream came with 7.0.
            since: if $since < 7000 { 7000 } else { $since },
            per_thread: true,
            address: $symbol::twin as *const () as usize,
        });
    };
    (call $list:ident $since:literal $symbol:ident) => { entries!(@plain $list $since $symbol) };
    (early $list:ident $since:literal $symbol:ident) => { entries!(@plain $list $since $symbol) };
    (ptsz $list:ident $since:literal $symbol:ident) => {
        entries!(@twin $list $since $symbol "_ptsz")
    };
    (ptds $list:ident $since:literal $symbol:ident) => {
        entries!(@twin $list $since $symbol "_ptds")
    };
}
pub(crate) use {entries, export};

fn base(symbol: &str) -> &str {
    let symbol = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    match symbol.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => symbol,
    }
}

fn by_name() -> &'static HashMap<&'static str, Vec<Export>> {
    static MAP: OnceLock<HashMap<&'static str, Vec<Export>>> = OnceLock::new();
    MAP.get_or_init(|| {
        let mut map: HashMap<&'static str, Vec<Export>> = HashMap::new();
        for export in crate::entry::table::exports() {
            map.entry(base(export.symbol)).or_default().push(export);
        }
        map
    })
}

const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

const FOUND: i32 = 0;
const UNKNOWN_NAME: i32 = 1;
const TOO_OLD: i32 = 2;

fn look_up(name: &str, version: i32, flags: u64) -> Result<usize, i32> {
    let variants = by_name().get(name).ok_or(UNKNOWN_NAME)?;
    let newest = |per_thread: bool| {
        variants
            .iter()
            .filter(|export| export.per_thread == per_thread && export.since <= version)
            .max_by_key(|export| export.since)
    };
    // Where there is a per-thread variant at all, an older plain one does not stand in for it.
    let found = match flags & PER_THREAD != 0 && variants.iter().any(|export| export.per_thread) {
        true => newest(true),
        false => newest(false),
    };
    found.map(|export| export.address).ok_or(TOO_OLD)
}

/// Outputs stay untouched only where the question itself is wrong; a name that is not there is an
/// answer: NULL and a status.
pub fn get_proc_address_v2(
    name: Name,
    out: Out<Handle>,
    version: i32,
    flags: u64,
    status: Out<i32>,
) -> Done {
    let wrong_flags = flags & !(LEGACY | PER_THREAD) != 0;
    if name.is_null() || out.is_null() || wrong_flags || version > crate::device::DRIVER_VERSION {
        return Err(Error::INVALID_VALUE);
    }
    let found = look_up(&name.text()?, version, flags);
    out.set(found.unwrap_or(0) as Handle);
    status.set(found.err().unwrap_or(FOUND));
    Ok(())
}

pub fn get_proc_address(name: Name, out: Out<Handle>, version: i32, flags: u64) -> Done {
    get_proc_address_v2(name, out, version, flags, Out::none())
}
