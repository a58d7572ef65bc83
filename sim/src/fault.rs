//! Faults of the driver, injected as `VRAMTRACE_SIM_FAULT` says.

use crate::error::{Done, Error};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

struct Fault {
    kind: Kind,
    /// The function in which it begins, and at which call of it.
    symbol: String,
    at: u32,
    calls: AtomicU32,
}

enum Kind {
    /// That one call never returns; a signal handler may leave it.
    Hang,
    /// From that call on every call of the context answers this.
    Sticky(i32),
    /// That one call answers this, and nothing else is wrong.
    Once(i32),
    /// After the program's exit handlers every call answers 4.
    Exit,
}

static STICKY: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);

fn fault() -> Option<&'static Fault> {
    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    let read = || {
        let spec = std::env::var("VRAMTRACE_SIM_FAULT").ok().filter(|spec| !spec.is_empty())?;
        let fault = parse(&spec);
        if fault.is_none() {
            eprintln!(
                "vramtrace-sim: VRAMTRACE_SIM_FAULT={spec}: want hang@CALL:N, CODE@CALL:N, once-CODE@CALL:N or exit"
            );
        }
        fault
    };
    FAULT.get_or_init(read).as_ref()
}

/// `hang@cuMemAlloc_v2:3`, `700@cuLaunchKernel:1`, `once-2@cuMemCreate:1`, `exit`.
fn parse(spec: &str) -> Option<Fault> {
    let fault = |kind, symbol: &str, at| {
        Some(Fault { kind, symbol: symbol.into(), at, calls: AtomicU32::new(0) })
    };
    if spec == "exit" {
        return fault(Kind::Exit, "", 0);
    }
    let (kind, place) = spec.split_once('@')?;
    let (symbol, at) = place.split_once(':')?;
    let kind = match (kind, kind.strip_prefix("once-")) {
        ("hang", _) => Kind::Hang,
        (_, Some(code)) => Kind::Once(code.parse().ok()?),
        (code, None) => Kind::Sticky(code.parse().ok()?),
    };
    fault(kind, symbol, at.parse().ok()?)
}

/// At the start of each call.
pub(crate) fn inject(symbol: &str) -> Done {
    let Some(fault) = fault() else { return Ok(()) };
    match fault.kind {
        Kind::Exit if ENDED.load(Relaxed) => return Err(Error::DEINITIALIZED),
        Kind::Exit => return Ok(()),
        _ => {}
    }
    let due = symbol == fault.symbol && fault.calls.fetch_add(1, Relaxed) + 1 == fault.at;
    match fault.kind {
        Kind::Hang if due => loop {
            // SAFETY: waits for a signal, and touches no memory.
            unsafe { libc::pause() };
        },
        Kind::Once(code) if due => Err(Error(code)),
        Kind::Sticky(code) => {
            STICKY.fetch_or(due, Relaxed);
            // What a program resets takes the fault with it.
            if symbol.starts_with("cuDevicePrimaryCtxReset") {
                STICKY.store(false, Relaxed);
            }
            if STICKY.load(Relaxed) && is_of_a_context(symbol) { Err(Error(code)) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Questions about the driver and its devices are answered all the same.
fn is_of_a_context(symbol: &str) -> bool {
    let others = ["cuInit", "cuGet", "cuDriver", "cuDeviceGet", "cuDeviceTotalMem"];
    !others.iter().any(|start| symbol.starts_with(start))
}

/// Called by cuInit: the driver takes itself down among the exit handlers.
pub(crate) fn begin() {
    extern "C" fn end() {
        ENDED.store(true, Relaxed);
    }
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { libc::atexit(end) };
}
