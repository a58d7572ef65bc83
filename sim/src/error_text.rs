//! The names and texts of result codes, as the driver gives them.

use crate::abi::{In, Name, Out};
use crate::error::{Done, Error, entry};
use std::ffi::CStr;

fn text_out(
    code: i32,
    out: Out<Name>,
    pick: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    match entry(code) {
        Some(both) => {
            out.set(In::of_text(pick(both)));
            Ok(())
        }
        None => {
            out.set(In::none());
            Err(Error::INVALID_VALUE)
        }
    }
}

pub(crate) fn name(code: i32, out: Out<Name>) -> Done {
    text_out(code, out, |both| both.0)
}

pub(crate) fn string(code: i32, out: Out<Name>) -> Done {
    text_out(code, out, |both| both.1)
}
