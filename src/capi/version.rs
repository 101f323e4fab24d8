//! Which library this is.

use std::ffi::{c_char, CStr};

/// Version of this header: major, minor, patch. The C macros and
/// `weft_version` agree when a program runs with the library it was
/// compiled for.
pub const WEFT_VERSION_MAJOR: u32 = 0;
pub const WEFT_VERSION_MINOR: u32 = 1;
pub const WEFT_VERSION_PATCH: u32 = 0;

const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the package version contains a NUL"),
};

/// The version of the library that is loaded:
/// `major << 16 | minor << 8 | patch`. Any thread, never blocks, cannot fail.
/// Since 0.1.
#[no_mangle]
pub extern "C" fn weft_version() -> u32 {
    WEFT_VERSION_MAJOR << 16 | WEFT_VERSION_MINOR << 8 | WEFT_VERSION_PATCH
}

/// The same as text ("0.1.0"). Static: never free it. Since 0.1.
#[no_mangle]
pub extern "C" fn weft_version_string() -> *const c_char {
    TEXT.as_ptr()
}
