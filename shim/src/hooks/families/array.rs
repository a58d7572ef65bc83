//! Arrays and mipmapped arrays. Their size is the driver's own figure (cuArrayGetMemoryRequirements);
//! before the call it is estimated from the descriptor.

use super::sparse::destroy_with_tiles;
use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::{In, Out};
use crate::hooks::call::accounting::{allocate, free};
use crate::hooks::call::request::Request;
use crate::hooks::call::{Call, Function, hooks};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::model::contexts::Target;
use core::ffi::c_void;
use core::ptr::null_mut;
use vramtrace_format::physical::{PAGE, SMALL, round_up};
use vramtrace_format::{DeviceId, Kind, Space};

const LAYERED: u32 = 0x1;
const CUBEMAP: u32 = 0x4;

/// The array that a descriptor requests, from any version of the descriptor.
#[derive(Clone, Copy, Debug)]
struct Shape {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
    levels: u32,
}

macro_rules! shape {
    ($descriptor:ident, $depth:expr, $flags:expr) => {
        Shape {
            width: $descriptor.width as u64,
            height: $descriptor.height as u64,
            depth: $depth as u64,
            format: $descriptor.format,
            channels: $descriptor.channels,
            flags: $flags,
            levels: 1,
        }
    };
}

/// Bits of one channel of one element; block-compressed formats as the average of an element.
fn channel_bits(format: u32) -> u64 {
    match format {
        // Signed, unsigned and normalised 8 bits, NV12's planes
        0x01 | 0x08 | 0xb0 | 0xc0..=0xc2 | 0xc6..=0xc8 => 8,
        // 16 bits and half
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 16,
        // Block compressed: 64 (BC1, BC4) or 128 bits for 16 elements
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9d => 8,
        // 32 bits, float, and what is not known
        _ => 32,
    }
}

impl Shape {
    /// Sparse and deferred arrays get their memory by later mappings.
    fn takes_memory(&self) -> bool {
        self.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) == 0
    }

    /// Bytes of all levels, without the driver's padding.
    fn bytes(&self) -> u64 {
        if !self.takes_memory() {
            return 0;
        }
        let bits = channel_bits(self.format) * u64::from(self.channels.clamp(1, 4));
        let layers = self.flags & (LAYERED | CUBEMAP) != 0;
        let mut all = 0u64;
        for level in 0..self.levels.clamp(1, 64) {
            let at = |length: u64| length.checked_shr(level).unwrap_or(0).max(1);
            let depth = if layers { self.depth.max(1) } else { at(self.depth) };
            let elements = at(self.width).saturating_mul(at(self.height)).saturating_mul(depth);
            all = all.saturating_add(elements.saturating_mul(bits).div_ceil(8));
        }
        all
    }

    /// Bytes that an array takes on an H200, measured: arrays of up to 1 MiB share pages with others,
    /// larger ones have separate pages. The driver gives the requirements of deferred arrays only.
    fn padded(&self) -> u64 {
        match self.bytes() {
            small if small <= SMALL => small,
            large => round_up(large, PAGE),
        }
    }

    /// Bytes to reserve under the cap before the call. The driver pads, rarely beyond the page.
    fn forecast(&self) -> u64 {
        match self.bytes() {
            0 => 0,
            bytes => round_up(bytes, PAGE),
        }
    }
}

/// The driver's figure of the bytes; where it gives none, the estimate from the descriptor.
fn required(
    p: &'static Process,
    kind: Kind,
    handle: *mut c_void,
    target: Target,
    shape: &Shape,
) -> u64 {
    if !shape.takes_memory() {
        return 0;
    }
    let ask = match kind {
        Kind::Mipmapped => driver().mipmapped_array_get_memory_requirements,
        _ => driver().array_get_memory_requirements,
    };
    let (Some(ask), false) = (ask, target.device == DeviceId::UNKNOWN || p.stream_captures.any())
    else {
        return shape.padded();
    };
    let mut answer = CUDA_ARRAY_MEMORY_REQUIREMENTS { size: 0, alignment: 0, reserved: [0; 4] };
    // SAFETY: the driver has just given this handle; room for the answer.
    let result = inside(|| unsafe { ask(&mut answer, handle, target.device.0.into()) });
    if result == 0 && answer.size > 0 { answer.size as u64 } else { shape.padded() }
}

fn create(
    p: &'static Process,
    api: Api,
    kind: Kind,
    handle: Out<*mut c_void>,
    shape: Option<Shape>,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let target = current_target(p);
    // The driver refuses NULL in either place.
    let size = match shape {
        Some(shape) if !handle.is_null() => shape.forecast(),
        _ => 0,
    };
    let old = handle.get();
    let taken = || {
        let made = handle.get().unwrap_or(null_mut());
        let size = shape.map_or(0, |shape| required(p, kind, made, target, &shape));
        (made as u64, size)
    };
    allocate(p, &Request::new(api, kind, target, size), real, taken, |key| {
        let destroy = match kind {
            Kind::Mipmapped => driver().mipmapped_array_destroy,
            _ => driver().array_destroy,
        };
        if let Some(destroy) = destroy {
            // SAFETY: the driver has just given this handle; the program has not seen it.
            inside(|| unsafe { destroy(key as *mut c_void) });
        }
        if let Some(old) = old {
            handle.set(old);
        }
    })
}

hooks! { p, call:
    create_2d(array: Out<Array>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) =
        made(p, call, array, descriptor.get().map(|d| shape!(d, 0, 0)));
    create_2d_v1(array: Out<Array>, descriptor: In<CUDA_ARRAY_DESCRIPTOR_v1>) =
        made(p, call, array, descriptor.get().map(|d| shape!(d, 0, 0)));
    create_3d(array: Out<Array>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) =
        made(p, call, array, descriptor.get().map(|d| shape!(d, d.depth, d.flags)));
    create_3d_v1(array: Out<Array>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR_v1>) =
        made(p, call, array, descriptor.get().map(|d| shape!(d, d.depth, d.flags)));
    create_mipmapped(array: Out<MArray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) = {
        let shape = descriptor.get().map(|d| Shape { levels, ..shape!(d, d.depth, d.flags) });
        create(p, call.api, Kind::Mipmapped, array, shape, || call.forward())
    };
    /// cuArrayDestroy and cuMipmappedArrayDestroy.
    destroy(array: *mut c_void) = destroy_with_tiles(p, call.api, array as u64, || {
        free(p, call, call.api, (Space::Array, array as u64), 0)
    });
}

fn made(
    p: &'static Process,
    call: &Call<impl Function>,
    array: Out<Array>,
    shape: Option<Shape>,
) -> CUresult {
    create(p, call.api, Kind::Array, array, shape, || call.forward())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::physical::MIB;

    const FLOAT: u32 = 0x20;
    const SQUARE: Shape = Shape {
        width: 4096,
        height: 4096,
        depth: 0,
        format: FLOAT,
        channels: 4,
        flags: 0,
        levels: 1,
    };

    #[test]
    fn sizes_are_in_bytes_and_count_all_levels() {
        assert_eq!(SQUARE.bytes(), 256 * MIB);
        let mipmap = Shape { width: 2048, height: 2048, levels: 5, ..SQUARE };
        let levels = (64 + 16 + 4 + 1) * MIB + MIB / 4;
        assert_eq!((mipmap.bytes(), mipmap.forecast()), (levels, 86 * MIB));
        assert_eq!(Shape { height: 0, ..SQUARE }.bytes(), 64 << 10);
        assert_eq!(Shape { format: 0x01, channels: 1, ..SQUARE }.bytes(), 16 * MIB);
        assert_eq!(Shape { format: 0x10, channels: 2, depth: 3, ..SQUARE }.bytes(), 192 * MIB);
    }

    #[test]
    fn layers_stay_and_depth_halves() {
        let solid = Shape { width: 64, height: 64, depth: 8, levels: 2, ..SQUARE };
        let base = 64 * 64 * 8 * 16;
        assert_eq!(solid.bytes(), base + base / 8);
        assert_eq!(Shape { flags: LAYERED, ..solid }.bytes(), base + base / 4);
    }

    #[test]
    fn no_memory_yet_and_nonsense() {
        assert_eq!(Shape { flags: CUDA_ARRAY3D_SPARSE, ..SQUARE }.forecast(), 0);
        assert_eq!(Shape { flags: CUDA_ARRAY3D_DEFERRED_MAPPING, ..SQUARE }.bytes(), 0);
        let huge = Shape { width: u64::MAX, height: u64::MAX, levels: u32::MAX, ..SQUARE };
        assert!(huge.forecast() > 1 << 60);
    }
}
