//! Sets the soname of the shared library. The number in it changes when the interface changes.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnetnice.so.0");
}
