//! What can be known of a kernel image without a compiler: the kernels in PTX, and what they need.

use crate::abi::In;
use crate::error::Done;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};

/// What a kernel takes of the device at its first launch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Needs {
    /// Bytes of local memory of a thread.
    pub local: u64,
    /// It calls malloc.
    pub heap: bool,
}

pub(crate) struct Image {
    kernels: BTreeMap<String, Needs>,
    /// Not PTX: any name may be in it.
    opaque: bool,
}

impl Image {
    pub(crate) fn read(image: In<c_void>) -> Done<Image> {
        let first = (0..).map(|at| image.cast::<u8>().at(at).get());
        let first = first.skip_while(|byte| byte.is_ok_and(|byte| byte.is_ascii_whitespace()));
        match first.take(1).collect::<Done<Vec<u8>>>()?[..] {
            [b'.' | b'/'] => Ok(Image::of_ptx(&image.cast::<c_char>().text()?)),
            _ => Ok(Image { kernels: BTreeMap::new(), opaque: true }),
        }
    }

    fn of_ptx(text: &str) -> Image {
        let mut kernels = BTreeMap::new();
        let mut kernel: Option<&mut Needs> = None;
        for line in text.lines() {
            if let Some((_, name)) = line.split_once(".entry") {
                let name = name.trim_start().split(|c: char| c.is_whitespace() || c == '(').next();
                let name = name.filter(|name| !name.is_empty());
                kernel = name.map(|name| kernels.entry(name.to_owned()).or_default());
            }
            let Some(needs) = &mut kernel else { continue };
            if line.split_whitespace().any(|word| word == ".local") {
                let bytes = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                needs.local += bytes.and_then(|(count, _)| count.parse().ok()).unwrap_or(8);
            }
            needs.heap |= line.contains("malloc,");
        }
        Image { kernels, opaque: false }
    }

    pub(crate) fn kernel(&self, name: &str) -> Option<Needs> {
        let known = self.kernels.get(name).copied();
        known.or(self.opaque.then(Needs::default))
    }

    pub(crate) fn kernel_count(&self) -> usize {
        self.kernels.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_in_ptx_and_what_they_need() {
        let ptx = "\n.version 8.0\n.visible .global .align 4 .b8 table[16];\n\
            .visible .entry plain(\n.param .u64 p)\n{ ret; }\n.entry  deep ()\n{\n\
            .local .align 8 .b8 __local_depot0[2048];\n\
            call.uni (retval0), malloc, (param0);\n ret; }\n";
        let image = Image::of_ptx(ptx);
        assert_eq!(image.kernel("plain"), Some(Needs::default()));
        assert_eq!(image.kernel("deep"), Some(Needs { local: 2048, heap: true }));
        assert_eq!((image.kernel("table"), image.kernel_count()), (None, 2));
        let other = Image::read(In::from(b"\x50\xed\x55\xba....").cast()).unwrap();
        assert_eq!(other.kernel("any"), Some(Needs::default()));
    }
}
