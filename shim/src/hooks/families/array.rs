//! Arrays and mipmapped arrays. Their size follows from the descriptor: the driver gives it for arrays without memory only.

use super::alloc::restore;
use super::prelude::*;
use super::vmm::dropping;
use crate::hooks::call::accounting::{allocate, begin_free, commit_free, free, free_failed};
use crate::hooks::call::request::ask_again;
use crate::model::cap::{Budget, Sharing};
use crate::model::vmm::{Owner, State};
use core::ptr::null_mut;
use vramtrace_format::physical::{PAGE, SMALL, round_up};

const LAYERED: u32 = 0x1;
const CUBEMAP: u32 = 0x4;

/// The array that a descriptor requests, from any version of the descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
    /// 0: one.
    levels: u32,
}

macro_rules! shape_of {
    ($( $descriptor:ident { $($more:ident),* } )*) => {$(
        impl From<$descriptor> for Shape {
            fn from(of: $descriptor) -> Shape {
                let $descriptor { width, height, format, channels, $($more),* } = of;
                let [width, height] = [width, height].map(|length| length as u64);
                Shape { width, height, format, channels, $($more: $more as _,)* ..Shape::default() }
            }
        }
    )*};
}
shape_of! {
    CUDA_ARRAY_DESCRIPTOR {}
    CUDA_ARRAY_DESCRIPTOR_v1 {}
    CUDA_ARRAY3D_DESCRIPTOR { depth, flags }
    CUDA_ARRAY3D_DESCRIPTOR_v1 { depth, flags }
}

impl Shape {
    /// Bytes of an element and 1; of a block of compressed elements, and the elements of its side.
    fn element(&self) -> (u64, u64) {
        let channels = u64::from(self.channels.clamp(1, 4));
        match self.format {
            // BC1 and BC4; the other block compressed formats; 10, 10, 10 and 2 bits
            0x91 | 0x92 | 0x97 | 0x98 => (8, 4),
            0x93..=0x96 | 0x99..=0x9e => (16, 4),
            0x50 => (4, 1),
            // Signed, unsigned and normalised 8 bits, NV12's planes
            0x01 | 0x08 | 0xb0 | 0xc0..=0xc2 | 0xc6..=0xc8 => (channels, 1),
            // 16 bits and half
            0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => (2 * channels, 1),
            // 32 bits, float, and what is not known
            _ => (4 * channels, 1),
        }
    }

    /// Bytes that all levels take: the card has elements in blocks of 64 bytes by 8 rows and more. Measured on an H100, by the
    /// memory requirements of deferred arrays; of others the driver gives none.
    fn bytes(&self) -> u64 {
        // Sparse and deferred arrays get their memory by later mappings.
        if self.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
            return 0;
        }
        let (element, side) = self.element();
        let is_solid = self.depth > 0 && self.flags & (LAYERED | CUBEMAP) == 0;
        let whole = |length: u64, most: u64| round_up(length, length.min(most).next_power_of_two());
        let mut all = 0u64;
        for level in 0..self.levels.clamp(1, 64) {
            let at = |length: u64| length.checked_shr(level).unwrap_or(0).max(1);
            let (row, rows) = (at(self.width).div_ceil(side), at(self.height).div_ceil(side));
            let (rows, depth) = match is_solid {
                true => (round_up(rows, 8), whole(at(self.depth), 16)),
                false => (whole(rows.max(8), 128), self.depth.max(1)),
            };
            let row = round_up(row.saturating_mul(element), 64);
            all = all.saturating_add(row.saturating_mul(rows).saturating_mul(depth));
        }
        all
    }

    /// Arrays of up to 1 MiB share pages with others ([`crate::model::cap`]), larger ones have separate pages.
    fn taken(&self) -> u64 {
        match self.bytes() {
            small if small <= SMALL => small,
            large => round_up(large, PAGE),
        }
    }
}

/// What an array shares pages with; `None`: it has its own, or none.
fn sharing(size: u64, context: ContextId, element: u64) -> Option<Sharing> {
    (1..=SMALL).contains(&size).then_some((context, element))
}

pub fn create<D: Copy + Into<Shape>>(
    call: Call<impl Row>,
    array: Out<Array>,
    descriptor: In<D>,
) -> CUresult {
    made(call, Kind::Array, array, descriptor.get().map(Into::into))
}

pub fn create_mipmapped(
    call: Call<impl Row>,
    array: Out<MArray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: u32,
) -> CUresult {
    let shape = descriptor.get().map(|of| Shape { levels, ..of.into() });
    made(call, Kind::Mipmapped, array, shape)
}

fn made(call: Call<impl Row>, kind: Kind, handle: Out<Array>, shape: Option<Shape>) -> CUresult {
    let (p, target) = (call.p, current_target(call.p));
    // The driver refuses NULL in either place.
    let shape = shape.filter(|_| !handle.is_null());
    let (size, element) = shape.map_or((0, 0), |shape| (shape.taken(), shape.element().0));
    let request = Request { element, ..Request::new(call.api(), kind, target, size) };
    let of = sharing(size, target.context, element).filter(|_| !p.cap.is_bad());
    if let Some(Err(refused)) = of.map(|of| comes(p, &request, of)) {
        return refused;
    }
    let old = handle.get();
    let taken = || (handle.get().unwrap_or(null_mut()) as u64, size);
    let result = allocate(call, &request, taken, |key| {
        let destroy = match kind {
            Kind::Mipmapped => driver().mipmapped_array_destroy,
            _ => driver().array_destroy,
        };
        if let Some(destroy) = destroy {
            // SAFETY: the driver has just given this handle; the program has not seen it.
            inside(|| unsafe { destroy(key as Array) });
        }
        restore(handle, old);
    });
    if let Some(of) = of.filter(|_| result != 0) {
        p.cap.array_went(target.device, of, size);
    }
    result
}

/// Counts the page that a small array may begin. `Err`: the result for the program.
fn comes(p: &'static Process, request: &Request, of: Sharing) -> Result<(), CUresult> {
    let device = request.target.device;
    let within = || p.cap.array_comes(device, of, request.size, Budget::try_take);
    let anyway = || {
        let take = |budget: &Budget, bytes| {
            budget.take_anyway(bytes);
            Ok::<(), ()>(())
        };
        let _ = p.cap.array_comes(device, of, request.size, take);
    };
    within().or_else(|_| ask_again(p, device, within, anyway, |why| refuse(p, request, why)))
}

/// cuArrayDestroy and cuMipmappedArrayDestroy: of a sparse one the references of its tiles are dropped.
pub fn destroy(call: Call<impl Row>, array: Array) -> CUresult {
    let tiles = |vmm: &mut State| vmm.begin_untie(Owner::Array(array as u64), None);
    dropping(call, tiles, || destroyed(call, array as u64))
}

fn destroyed(call: Call<impl Row>, key: u64) -> CUresult {
    let p = call.p;
    let Some(removed) = begin_free(p, call.api(), (Space::Array, key), |_| true) else {
        return free(call, (Space::Array, key), 0);
    };
    let Entry { size, context, stream: element, device, .. } = removed.entry;
    let result = call.forward();
    match sharing(size, context, element) {
        _ if result != 0 => free_failed(p, &removed),
        Some(of) => p.cap.array_went(device, of, size),
        None => commit_free(p, &removed, 0),
    }
    result
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

    const BYTE: Shape = Shape { format: 0x01, channels: 1, ..SQUARE };

    #[test]
    fn whole_blocks_of_all_levels() {
        assert_eq!(SQUARE.bytes(), 256 * MIB);
        let mipmap = Shape { width: 2048, height: 2048, levels: 5, ..SQUARE };
        let levels = (64 + 16 + 4 + 1) * MIB + MIB / 4;
        assert_eq!((mipmap.bytes(), mipmap.taken()), (levels, 86 * MIB));
        assert_eq!(Shape { height: 0, ..SQUARE }.bytes(), 512 << 10);
        assert_eq!(Shape { format: 0x10, channels: 2, depth: 3, ..SQUARE }.bytes(), 256 * MIB);
    }

    /// Memory requirements of deferred arrays, KiB: multiples of 64.
    #[test]
    fn the_measured_sizes() {
        let flat = |width, height| Shape { width, height, ..BYTE };
        let wide = |side| Shape { width: side, height: side, ..SQUARE };
        let deep = |height, depth| Shape { width: 2048, height, depth, ..BYTE };
        let of = |flags, shape: Shape| Shape { flags, ..shape };
        for (shape, expected) in [
            (flat(1, 0), 64),
            (flat(65536, 0), 512),
            (flat(700, 1024), 704),
            (flat(1024, 700), 768),
            (flat(1024, 1025), 1152),
            (flat(1, 16384), 1024),
            (flat(65, 8192), 1024),
            (flat(65536, 9), 1024),
            (wide(100), 256),
            (wide(200), 832),
            (wide(257), 1600),
            (wide(362), 2240),
            (Shape { depth: 33, ..flat(33, 33) }, 128),
            (Shape { depth: 200, ..flat(10, 10) }, 256),
            (deep(1, 5), 128),
            (deep(17, 3), 192),
            (deep(65, 1), 192),
            (deep(100, 16), 3328),
            (deep(129, 129), 39168),
            (of(CUBEMAP, Shape { depth: 6, ..wide(33) }), 256),
            (of(LAYERED, deep(33, 100)), 12800),
            (of(LAYERED, Shape { depth: 5, ..flat(16384, 0) }), 640),
            (Shape { levels: 9, ..flat(256, 256) }, 128),
            (Shape { levels: 9, format: FLOAT, ..flat(256, 256) }, 384),
            (Shape { levels: 10, format: FLOAT, ..flat(512, 512) }, 1408),
        ] {
            assert_eq!(round_up(shape.bytes(), 64 << 10) >> 10, expected, "{shape:?}");
        }
    }

    #[test]
    fn compressed_elements_lie_in_blocks_of_four_by_four() {
        let compressed = |format| Shape { format, ..SQUARE };
        assert_eq!((compressed(0x91).element(), compressed(0x9e).element()), ((8, 4), (16, 4)));
        assert_eq!(compressed(0x91).bytes(), 1024 * 1024 * 8);
    }

    #[test]
    fn no_memory_yet_and_nonsense() {
        assert_eq!(Shape { flags: CUDA_ARRAY3D_SPARSE, ..SQUARE }.taken(), 0);
        assert_eq!(Shape { flags: CUDA_ARRAY3D_DEFERRED_MAPPING, ..SQUARE }.bytes(), 0);
        let huge = Shape { width: u64::MAX, height: u64::MAX, levels: u32::MAX, ..SQUARE };
        assert!(huge.taken() > 1 << 60);
    }
}
