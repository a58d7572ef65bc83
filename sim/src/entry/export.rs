//! How a list of functions is exported: one C function for each line, a second one where a call has
//! a per-thread variant, and the list of both with their addresses.

use crate::abi::{Handle, In, Out, STREAM_PER_THREAD, StreamArg};
use crate::driver;
use crate::error::{Done, Error};

/// One exported function.
pub(crate) struct Export {
    pub symbol: &'static str,
    /// The CUDA version that brought it.
    pub since: i32,
    /// For the per-thread default stream.
    pub per_thread: bool,
    pub address: usize,
}

/// What an argument becomes in the per-thread variant of a call.
pub(crate) trait Argument {
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
pub(crate) fn call(symbol: &'static str, early: bool, body: impl FnOnce() -> Done) -> i32 {
    std::hint::black_box(symbol);
    if let Err(error) = crate::fault::inject(symbol) {
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
        pub(crate) mod $symbol {
            use super::*;

            #[unsafe(export_name = stringify!($symbol))]
            pub(crate) extern "C" fn plain($($arg: $type),*) -> i32 {
                $crate::entry::export::call(stringify!($symbol), $early, || $path($($arg),*))
            }
        }
    };
    (@both $suffix:literal $symbol:ident($($arg:ident: $type:ty),*) $path:path) => {
        #[allow(non_snake_case)]
        pub(crate) mod $symbol {
            use super::*;

            #[unsafe(export_name = stringify!($symbol))]
            pub(crate) extern "C" fn plain($($arg: $type),*) -> i32 {
                $crate::entry::export::call(stringify!($symbol), false, || $path($($arg),*))
            }

            #[unsafe(export_name = concat!(stringify!($symbol), $suffix))]
            pub(crate) extern "C" fn twin($($arg: $type),*) -> i32 {
                #[allow(unused_imports)]
                use $crate::entry::export::Argument;
                $crate::entry::export::call(concat!(stringify!($symbol), $suffix), false, || {
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
        $list.push($crate::entry::export::Export {
            symbol: stringify!($symbol),
            since: $since,
            per_thread: false,
            address: $symbol::plain as *const () as usize,
        });
    };
    (@twin $list:ident $since:literal $symbol:ident $suffix:literal) => {
        entries!(@plain $list $since $symbol);
        $list.push($crate::entry::export::Export {
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

/// A list of functions: their exports, and `add_exports`, which adds them to a list.
macro_rules! table {
    ($($kind:ident $since:literal $symbol:ident($($arg:ident: $type:ty),*) = $path:path;)*) => {
        $(export!($kind $symbol($($arg: $type),*) $path);)*

        pub(crate) fn add_exports(list: &mut Vec<$crate::entry::export::Export>) {
            $(entries!($kind list $since $symbol);)*
        }
    };
}
pub(crate) use {entries, export, table};
