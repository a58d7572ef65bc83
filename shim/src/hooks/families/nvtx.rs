//! The functions that NVTX calls for the program's marks and ranges.

use crate::hooks::call::beside;
use crate::hooks::call::handler_exits::deferred;
use crate::hooks::process::mark::{LONGEST, end, moment, pop, push, start};
use crate::hooks::process::nvtx_strings::{register, registered};
use crate::interpose::nvtx::{self, Event, Text, Wide};
use core::ffi::c_int;
use std::borrow::Cow;

/// # Safety
/// Called by NVTX, with its function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(export_table: nvtx::ExportTable) -> c_int {
    // SAFETY: the table is NVTX's; the functions are those of their numbers.
    unsafe { nvtx::install(export_table, &MODULES) }
}

fn name_of(event: &Event) -> Cow<'_, str> {
    event.message(LONGEST, registered)
}

macro_rules! functions {
    ($( $module:ident { $(
        $number:literal $name:ident ( $($arg:ident: $ty:ty),* ) -> $out:ty = $hook:expr;
    )* } )*) => {
        $($(
            unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $out {
                #[inline(never)]
                fn called($($arg: $ty),*) -> $out {
                    beside("a function of NVTX", $hook)
                }
                deferred(|| called($($arg),*))
            }
        )*)*

        /// The functions of each module, by number.
        const MODULES: [nvtx::Module; 2] =
            [$( (nvtx::$module, &[ $( ($number, $name as _), )* ]), )*];
    };
}

/// A handle that `register` returned.
type Domain = usize;

functions! {
    CORE {
        1 mark_ex(event: Event) -> () = |p| moment(p, 0, &name_of(&event));
        2 mark_a(name: Text) -> () = |p| moment(p, 0, &name.read());
        3 mark_w(name: Wide) -> () = |p| moment(p, 0, &name.read(LONGEST));
        4 start_ex(event: Event) -> u64 = |p| start(p, 0, &name_of(&event));
        5 start_a(name: Text) -> u64 = |p| start(p, 0, &name.read());
        6 start_w(name: Wide) -> u64 = |p| start(p, 0, &name.read(LONGEST));
        7 end_any(range: u64) -> () = |p| end(p, range);
        8 push_ex(event: Event) -> c_int = |p| push(p, 0, &name_of(&event));
        9 push_a(name: Text) -> c_int = |p| push(p, 0, &name.read());
        10 push_w(name: Wide) -> c_int = |p| push(p, 0, &name.read(LONGEST));
        11 pop_any() -> c_int = pop;
    }
    CORE2 {
        1 domain_mark(domain: Domain, event: Event) -> () = |p| moment(p, domain, &name_of(&event));
        2 domain_start(domain: Domain, event: Event) -> u64 = |p| start(p, domain, &name_of(&event));
        3 domain_end(_domain: Domain, range: u64) -> () = |p| end(p, range);
        4 domain_push(domain: Domain, event: Event) -> c_int = |p| push(p, domain, &name_of(&event));
        5 domain_pop(_domain: Domain) -> c_int = pop;
        10 register_a(_domain: Domain, name: Text) -> usize = |_| register(&name.read());
        11 register_w(_domain: Domain, name: Wide) -> usize = |_| register(&name.read(LONGEST));
        12 create_a(name: Text) -> usize = |_| register(&name.read());
        13 create_w(name: Wide) -> usize = |_| register(&name.read(LONGEST));
    }
}
