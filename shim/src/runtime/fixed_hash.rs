//! Hash maps that ask the kernel for nothing. The default hasher of `std` takes its keys from
//! `getrandom` and panics where that is denied (a seccomp filter, a container without /dev/urandom).
//! Our keys are handles and names of the program itself: nobody needs to be kept from guessing.

use std::hash::{BuildHasherDefault, DefaultHasher};

pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
