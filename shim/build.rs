//! Linking of libvramtrace.so.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A reference of ours to one of our exports is meant for ourselves, even where another library
    // in front of us defines the name too.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvramtrace.so");
    // Who opened us may close us, but not take away functions that programs hold pointers to.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
