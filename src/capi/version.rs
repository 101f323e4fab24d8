//! Which library this is.

// In the header build.rs writes them: cbindgen evaluates no constants.
pub const WEFT_VERSION_MAJOR: u32 = number(env!("CARGO_PKG_VERSION_MAJOR"));
pub const WEFT_VERSION_MINOR: u32 = number(env!("CARGO_PKG_VERSION_MINOR"));
pub const WEFT_VERSION_PATCH: u32 = number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo's versions are numbers"),
    }
}

/// The version of the library that is loaded: `major << 16 | minor << 8 |
/// patch`.
#[no_mangle]
pub extern "C" fn weft_version() -> u32 {
    WEFT_VERSION_MAJOR << 16 | WEFT_VERSION_MINOR << 8 | WEFT_VERSION_PATCH
}
