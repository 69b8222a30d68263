//! Sets the soname of the shared library, `libnetnice.so.0`. The number at its end changes when the
//! interface changes.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnetnice.so.0");
}
