//! What all objects have in common.

use libfabric_sys::*;
use std::ffi::{c_int, c_void};

/// Objects point to their tables without `const`; nobody writes to them.
pub fn table<T>(ops: &'static T) -> *mut T {
    std::ptr::from_ref(ops).cast_mut()
}

pub fn fid(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: table(ops) }
}

pub unsafe extern "C" fn no_control(_fid: *mut fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -FI_ENOSYS
}
