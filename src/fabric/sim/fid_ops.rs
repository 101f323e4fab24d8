//! Operations that all objects share.

use libfabric_sys::*;
use std::ffi::c_void;

/// Objects point to their tables without `const`, but nothing writes to them.
pub fn table<T>(ops: &'static T) -> *mut T {
    std::ptr::from_ref(ops).cast_mut()
}

pub fn fid(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: table(ops) }
}
