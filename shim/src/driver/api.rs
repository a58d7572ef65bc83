//! Names and properties of the entry points, made from the table.

use super::cuda::*;
use super::table::table;
use core::ffi::c_char;

/// The library that holds the real function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    Cuda,
    Nvml,
    /// PyTorch's libc10.so, whose exported functions are interposed.
    Torch,
}

/// One line of the table, without its types.
pub struct Line {
    pub name: &'static str,
    pub family: Family,
    pub home: Home,
}

/// `note` or `family::function`.
macro_rules! hook_name {
    ({ $hook:ident $(:: $rest:ident)? $(( $($passed:tt)* ))? }) => {
        concat!(stringify!($hook) $(, "::", stringify!($rest))?)
    };
}

macro_rules! define {
    ($( $title:literal $family:ident in $home:ident { $(
        $( $name:ident $since:literal ),+ : $arguments:tt => $hook:tt
    )* } )*) => {
        /// An entry point of the table; its number travels in the trace (`Definition::Api`).
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Api { $($($( $name, )+)*)* }

        /// The table's sections.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Family { $( #[doc = $title] $family, )* }

        static LINES: &[Line] = &[ $($($( Line {
            name: stringify!($name),
            family: Family::$family,
            home: Home::$home,
        }, )+)*)* ];

        const ALL: &[Api] = &[ $($($( Api::$name, )+)*)* ];

        /// One line per entry point: name, since, section, hook; separated by tabs.
        const COVERAGE: &str = concat!( $($($(
            stringify!($name), "\t", $since, "\t", $title, "\t", hook_name!($hook), "\n",
        )+)*)* "\0");
    };
}
table!(define);

impl Api {
    pub const ALL: &'static [Api] = ALL;
    pub const COUNT: usize = ALL.len();

    pub fn line(self) -> &'static Line {
        &LINES[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.line().name
    }

    pub fn family(self) -> Family {
        self.line().family
    }

    pub fn home(self) -> Home {
        self.line().home
    }

    /// The result of an export whose real function is missing. `found`: the library is there, without
    /// the function.
    pub fn missing(self, found: bool) -> CUresult {
        match (self.home(), found) {
            (Home::Cuda, false) => CUDA_ERROR_NO_DEVICE,
            (Home::Cuda, true) => CUDA_ERROR_NOT_SUPPORTED,
            (Home::Nvml, false) => NVML_ERROR_LIBRARY_NOT_FOUND,
            (Home::Nvml, true) => NVML_ERROR_FUNCTION_NOT_FOUND,
            // These functions return nothing.
            (Home::Torch, _) => CUDA_SUCCESS,
        }
    }

    /// Exact names only. Neither allocates nor locks, since many look-ups of the process call it: nearly all names differ in
    /// their length.
    pub fn from_name(name: &[u8]) -> Option<Api> {
        ALL.iter().copied().find(|api| api.name().as_bytes() == name)
    }
}

/// The table as text for `vramtrace doctor` and docs/COVERAGE.md: a line per entry point, with name,
/// since, section and hook separated by tabs; ends with NUL.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_coverage() -> *const c_char {
    COVERAGE.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_nothing_like_it() {
        for &api in Api::ALL {
            assert_eq!(Api::from_name(api.name().as_bytes()), Some(api));
            let longer = format!("{}x", api.name());
            assert_eq!(Api::from_name(longer.as_bytes()), None);
        }
        for other in ["cu", "cudnnCreate", "cuMemAlloc_v", "malloc", "", "cuMemAlloc_v2 "] {
            assert_eq!(Api::from_name(other.as_bytes()), None, "{other}");
        }
    }
}
