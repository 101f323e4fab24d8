//! Device memory of other processes, opened once for each local device and shared by all users.

use super::{check, Current};
use crate::device::{Device, Handle};
use crate::pass;
use crate::status::Result;
use cudarc::driver::sys::{self, CUcontext, CUipcMemHandle, CUresult};
use parking_lot::Mutex;
use std::collections::HashMap;

const LAZY_PEER_ACCESS: u32 = 1;

#[derive(Default)]
pub struct Shared {
    /// The address of each opened memory, and its number of users.
    opened: Mutex<HashMap<(Device, Handle), (u64, usize)>>,
}

impl Shared {
    pub fn open(&self, device: Device, context: CUcontext, handle: &Handle) -> Result<u64> {
        let mut opened = self.opened.lock();
        if let Some((base, users)) = opened.get_mut(&(device, *handle)) {
            *users += 1;
            return Ok(*base);
        }
        let _current = Current::new(context)?;
        let mut base = 0;
        let token = CUipcMemHandle { reserved: handle.token.map(|byte| byte as _) };
        // SAFETY: `base` is valid for the call; an invalid handle returns an error.
        let result = pass::call(|| unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, token, LAZY_PEER_ACCESS) });
        check(result, "opening another process's device memory")?;
        opened.insert((device, *handle), (base, 1));
        Ok(base)
    }

    pub fn close(&self, device: Device, context: CUcontext, handle: &Handle) {
        let mut opened = self.opened.lock();
        let Some((base, users)) = opened.get_mut(&(device, *handle)) else { return };
        *users -= 1;
        if *users == 0 {
            if let Ok(_current) = Current::new(context) {
                // SAFETY: `open` opened it, and this was its last user.
                pass::call(|| unsafe { sys::cuIpcCloseMemHandle(*base) });
            }
            opened.remove(&(device, *handle));
        }
    }
}

/// Lets a context access the memory of another context in this process.
pub fn reach(context: CUcontext, other: CUcontext) -> Result<()> {
    if context == other {
        return Ok(());
    }
    let _current = Current::new(context)?;
    // SAFETY: the contexts are never released.
    match unsafe { sys::cuCtxEnablePeerAccess(other, 0) } {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        result => check(result, "reaching another device's memory"),
    }
}
