//! Links like the shipped library (../../build.rs): programs can load either.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
