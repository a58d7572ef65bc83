//! What `stack_interner.rs` finds under this name: types alone, for stacks without Python.

#[path = "../../../shim/src/capture/definitions.rs"]
pub mod definitions;
#[path = "../../../shim/src/capture/stack_interner.rs"]
pub mod stack_interner;

pub mod native {
    #[derive(Clone, Copy, Default)]
    pub struct Frame {
        pub address: usize,
        pub low: usize,
    }
}

pub mod python {
    pub struct Layout {
        pub minor: u8,
    }

    pub struct Interpreter {
        pub layout: Layout,
    }

    pub mod memory {
        pub struct Plain;
    }

    pub mod code {
        pub struct Code {
            pub name: String,
            pub file: String,
            pub first_line: i32,
            pub line_table: Vec<u8>,
        }

        pub fn read(_: &super::memory::Plain, _: &super::Layout, _: usize) -> Option<Code> {
            None
        }
    }

    pub mod walk {
        #[derive(Clone, Copy)]
        pub struct Frame {
            pub identity: u64,
            pub code: usize,
            pub last_instruction: i32,
        }
    }
}
