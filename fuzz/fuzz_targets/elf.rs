//! Parses arbitrary bytes as the dynamic section, hash table, symbols and relocations of a loaded object, as the library
//! does in a stranger's process. The bytes are all that may be read.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../shim/src/runtime"]
mod runtime {
    pub mod errno;
    pub mod readable;

    pub mod elf {
        pub mod image;
        pub mod tables;

        use image::Image;
        use std::cell::Cell;
        use tables::{Tables, is_function, is_in_memory};

        /// Most words of an object.
        const WORDS: usize = 2048;
        /// Tags whose values are addresses, which the loader relocates in place.
        const ADDRESSES: [u64; 6] = [4, 5, 6, 7, 23, 0x6fff_fef5];

        thread_local! {
            /// Stays for the whole process, as the parser expects of an object.
            static OBJECT: &'static [Cell<u64>] = vec![const { Cell::new(0) }; WORDS].leak();
        }

        /// The first 8 bytes say where the dynamic section is, what the object's base is, and a name; then the object.
        pub fn parse(input: &[u8]) {
            let Some((head, object)) = input.split_at_checked(8) else { return };
            let all = OBJECT.with(|object| *object);
            let words = &all[..object.len().div_ceil(8).min(WORDS)];
            for (word, bytes) in words.iter().zip(object.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.set(u64::from_ne_bytes(whole));
            }
            let start = words.as_ptr() as usize;
            let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
            let dynamic = number(0);
            for entry in words.get(dynamic / 8..).unwrap_or(&[]).chunks_exact(2) {
                match entry[0].get() {
                    0 => break,
                    tag if ADDRESSES.contains(&tag) => entry[1].set(entry[1].get().wrapping_add(start as u64)),
                    _ => {}
                }
            }
            let mut image = Image::of_range(start, start + words.len() * 8);
            image.base = start.wrapping_sub(number(2));
            let Some(tables) = Tables::of(image, start + dynamic) else { return };
            let _ = tables.soname();
            for name in [&b"dlsym"[..], &head[4..], b""] {
                let _ = tables.symbol(name, is_function);
                let _ = tables.symbol(name, is_in_memory);
            }
            let _ = tables.references().count();
        }
    }
}

fuzz_target!(|bytes: &[u8]| runtime::elf::parse(bytes));
