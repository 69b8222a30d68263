//! Gives the shared library its name for the dynamic linker; the number changes when the interface does.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnetnice.so.0");
}
