//! Links the library so that calls inside it reach its functions.

fn main() {
    // Calls inside the library must reach its own functions even when an interposer exports the
    // same names, as they do in the real driver.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rerun-if-changed=build.rs");
}
