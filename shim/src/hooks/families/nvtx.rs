//! The functions that NVTX calls for the program's marks and ranges.

use crate::driver::depth;
use crate::hooks::call::after_call;
use crate::hooks::call::handler_exits::deferred;
use crate::hooks::process::mark;
use crate::hooks::process::nvtx_strings::{register, registered};
use crate::hooks::process::state::{self, Process};
use crate::interpose::nvtx::{self, Event, Text, Wide};
use crate::runtime::log;
use crate::runtime::{errno, panic_boundary};
use core::ffi::c_int;
use std::borrow::Cow;
use vramtrace_format::StopReason;

/// # Safety
/// Called by NVTX, with its function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(export_table: nvtx::ExportTable) -> c_int {
    let modules: [nvtx::Module; 2] = [
        (
            nvtx::CORE,
            &[
                (1, mark_ex as _),
                (2, mark_a as _),
                (3, mark_w as _),
                (4, start_ex as _),
                (5, start_a as _),
                (6, start_w as _),
                (7, end as _),
                (8, push_ex as _),
                (9, push_a as _),
                (10, push_w as _),
                (11, pop as _),
            ],
        ),
        (
            nvtx::CORE2,
            &[
                (1, domain_mark as _),
                (2, domain_start as _),
                (3, domain_end as _),
                (4, domain_push as _),
                (5, domain_pop as _),
                (10, register_a as _),
                (11, register_w as _),
                (12, create_a as _),
                (13, create_w as _),
            ],
        ),
    ];
    // SAFETY: the table is NVTX's; the functions are those of their numbers.
    unsafe { nvtx::install(export_table, &modules) }
}

/// Runs a hook of marks. No panic unwinds into the program, and errno is kept.
fn run<R: Default>(hook: impl FnOnce(Option<&'static Process>) -> R) -> R {
    let Some(depth) = depth::enter() else { return R::default() };
    depth.settle();
    let kept = errno::get();
    let outcome = panic_boundary::catch(|| {
        let process = state::existing();
        let result = hook(process);
        if let Some(process) = process {
            after_call::after_block(process);
        }
        result
    });
    errno::set(kept);
    let result = outcome.unwrap_or_else(|_| {
        if let Some(process) = state::existing().filter(|p| p.usage.first_panic()) {
            log::line(format_args!(
                "internal error in a function of NVTX; recording ends here, the program goes on"
            ));
            process.trace_writer.stop(StopReason::Panic, 0);
        }
        R::default()
    });
    depth.leave();
    result
}

fn name_of(event: &Event) -> Cow<'_, str> {
    event.message(mark::LONGEST, registered)
}

macro_rules! marks {
    ($( $name:ident ( $($arg:ident: $ty:ty),* ) -> $out:ty = $hook:ident ( $domain:expr, $text:expr ); )*) => { $(
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $out {
            #[inline(never)]
            fn marked($($arg: $ty),*) -> $out {
                run(|process| mark::$hook(process, $domain, &$text))
            }
            deferred(|| marked($($arg),*))
        }
    )* };
}

/// A handle that `register` returned.
type Domain = usize;

marks! {
    mark_ex(event: Event) -> () = moment(0, name_of(&event));
    mark_a(name: Text) -> () = moment(0, name.read());
    mark_w(name: Wide) -> () = moment(0, name.read(mark::LONGEST));
    start_ex(event: Event) -> u64 = start(0, name_of(&event));
    start_a(name: Text) -> u64 = start(0, name.read());
    start_w(name: Wide) -> u64 = start(0, name.read(mark::LONGEST));
    push_ex(event: Event) -> c_int = push(0, name_of(&event));
    push_a(name: Text) -> c_int = push(0, name.read());
    push_w(name: Wide) -> c_int = push(0, name.read(mark::LONGEST));
    domain_mark(domain: Domain, event: Event) -> () = moment(domain, name_of(&event));
    domain_start(domain: Domain, event: Event) -> u64 = start(domain, name_of(&event));
    domain_push(domain: Domain, event: Event) -> c_int = push(domain, name_of(&event));
}

unsafe extern "C" fn end(range: u64) {
    run(|process| mark::end(process, range));
}

unsafe extern "C" fn domain_end(_domain: Domain, range: u64) {
    run(|process| mark::end(process, range));
}

unsafe extern "C" fn pop() -> c_int {
    run(|process| mark::pop(process, 0))
}

unsafe extern "C" fn domain_pop(domain: Domain) -> c_int {
    run(|process| mark::pop(process, domain))
}

unsafe extern "C" fn register_a(_domain: Domain, name: Text) -> usize {
    run(|_| register(&name.read()))
}

unsafe extern "C" fn register_w(_domain: Domain, name: Wide) -> usize {
    run(|_| register(&name.read(mark::LONGEST)))
}

unsafe extern "C" fn create_a(name: Text) -> usize {
    run(|_| register(&name.read()))
}

unsafe extern "C" fn create_w(name: Wide) -> usize {
    run(|_| register(&name.read(mark::LONGEST)))
}
