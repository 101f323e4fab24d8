//! Which library this is.

/// Version of this header: major, minor, patch.
pub const WEFT_VERSION_MAJOR: u32 = 0;
pub const WEFT_VERSION_MINOR: u32 = 1;
pub const WEFT_VERSION_PATCH: u32 = 0;

/// The version of the library that is loaded: `major << 16 | minor << 8 |
/// patch`.
#[no_mangle]
pub extern "C" fn weft_version() -> u32 {
    WEFT_VERSION_MAJOR << 16 | WEFT_VERSION_MINOR << 8 | WEFT_VERSION_PATCH
}
