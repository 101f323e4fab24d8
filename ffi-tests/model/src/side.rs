//! An endpoint, through the C functions.

use crate::model::{status_name, Outcome};
use std::ffi::{c_void, CStr, CString};
use std::mem::{size_of, zeroed};
use std::ptr;
use weft::capi::completion::*;
use weft::capi::endpoint::*;
use weft::capi::memory::*;
use weft::capi::message::*;
use weft::capi::peer::*;
use weft::capi::status::*;

/// Places of the second queue.
pub const QUEUE_DEPTH: u32 = 16;
pub const MESSAGE_BYTES: u64 = 1 << 20;

pub struct Setting {
    pub fabric: String,
    pub rails: Option<&'static str>,
    pub manual: bool,
    pub packing: u32,
    pub idle: u32,
    pub workers: u32,
}

pub struct Side {
    pub endpoint: *mut weft_endpoint,
    pub queue: *mut weft_queue,
}

pub fn last_error() -> String {
    // SAFETY: a C string, valid until the thread's next call.
    unsafe { CStr::from_ptr(weft_last_error()) }.to_string_lossy().into_owned()
}

pub fn check(call: &str, status: weft_status) -> Outcome {
    match status {
        WEFT_OK => Ok(()),
        _ => Err(format!("{call} gave {}: {}", status_name(status), last_error())),
    }
}

/// A struct of the header, zeroed, with its size.
macro_rules! sized {
    ($type:ty) => {{
        // SAFETY: integers and pointers only.
        let mut value: $type = unsafe { std::mem::zeroed() };
        value.size = std::mem::size_of::<$type>() as u32;
        value
    }};
}
pub(crate) use sized;

/// A blob of two calls: its length, then its bytes.
fn blob(call: impl Fn(*mut c_void, usize, *mut usize) -> weft_status) -> Result<Vec<u8>, weft_status> {
    let mut len = 0;
    let status = call(ptr::null_mut(), 0, &mut len);
    let mut bytes = vec![0u8; len];
    match status {
        WEFT_OK => match call(bytes.as_mut_ptr().cast(), len, &mut len) {
            WEFT_OK => Ok(bytes),
            failed => Err(failed),
        },
        failed => Err(failed),
    }
}

impl Side {
    pub fn open(setting: &Setting) -> Outcome<Side> {
        let mut config = sized!(weft_endpoint_config);
        let text = |text: &str| CString::new(text).map_err(|e| e.to_string());
        let fabric = text(&setting.fabric)?;
        let rails = setting.rails.map(text).transpose()?;
        config.fabric = fabric.as_ptr();
        config.rails = rails.as_ref().map_or(ptr::null(), |rails| rails.as_ptr());
        config.progress = if setting.manual { WEFT_PROGRESS_MANUAL } else { WEFT_PROGRESS_THREADS };
        config.packing = setting.packing;
        config.idle = setting.idle;
        config.workers = setting.workers;
        config.message_bytes = MESSAGE_BYTES;
        let mut side = Side { endpoint: ptr::null_mut(), queue: ptr::null_mut() };
        // SAFETY: a valid config, and places for the results.
        unsafe {
            check("weft_endpoint_open", weft_endpoint_open(&config, &mut side.endpoint))?;
            let made = weft_queue_create(side.endpoint, QUEUE_DEPTH, &mut side.queue);
            check("weft_queue_create", made)?;
        }
        Ok(side)
    }

    pub fn address(&self) -> Outcome<Vec<u8>> {
        // SAFETY: an open endpoint; `blob` passes a valid buffer.
        let address = blob(|buffer, capacity, len| unsafe {
            weft_endpoint_address(self.endpoint, buffer, capacity, len)
        });
        address.map_err(|status| format!("weft_endpoint_address gave {}", status_name(status)))
    }

    pub fn connect(&self, address: &[u8], user_data: u64) -> Result<u64, weft_status> {
        let mut args = sized!(weft_connect_args);
        args.user_data = user_data as *mut c_void;
        let mut peer = 0;
        // SAFETY: valid arguments.
        let status = unsafe {
            weft_peer_connect(self.endpoint, address.as_ptr().cast(), address.len(), &args, &mut peer)
        };
        if status == WEFT_OK {
            Ok(peer)
        } else {
            Err(status)
        }
    }

    /// What one of the queues has now; `None` once the endpoint is shut down.
    pub fn poll(&self, second: bool, wait_ns: u64) -> Outcome<Option<Vec<weft_completion>>> {
        const MOST: usize = 32;
        // SAFETY: integers and pointers.
        let mut got: [weft_completion; MOST] = unsafe { zeroed() };
        // SAFETY: an open endpoint and queue, and room for so many.
        let n = unsafe {
            match (second, wait_ns) {
                (false, 0) => weft_poll(self.endpoint, got.as_mut_ptr(), MOST as u32),
                (false, _) => weft_wait(self.endpoint, got.as_mut_ptr(), MOST as u32, wait_ns),
                (true, 0) => weft_queue_poll(self.queue, got.as_mut_ptr(), MOST as u32),
                (true, _) => weft_queue_wait(self.queue, got.as_mut_ptr(), MOST as u32, wait_ns),
            }
        };
        match n {
            WEFT_ERR_CLOSED => Ok(None),
            0..=32 => Ok(Some(got[..n as usize].to_vec())),
            _ => Err(format!("polling gave {n} ({}): {}", status_name(n), last_error())),
        }
    }

    pub fn register(
        &self,
        ranges: &[weft_memory_range],
        access: u32,
        rails: u64,
    ) -> Result<*mut weft_memory, weft_status> {
        let mut args = sized!(weft_memory_args);
        (args.access, args.rails) = (access, rails);
        let mut memory = ptr::null_mut();
        let first = if ranges.is_empty() { ptr::null() } else { ranges.as_ptr() };
        // SAFETY: valid arguments.
        match unsafe { weft_memory_register(self.endpoint, first, ranges.len(), &args, &mut memory) } {
            WEFT_OK => Ok(memory),
            failed => Err(failed),
        }
    }

    /// # Safety
    /// As `weft_memory_export` asks.
    pub unsafe fn export(memory: *const weft_memory) -> Result<Vec<u8>, weft_status> {
        // SAFETY: passed on; `blob` passes a valid buffer.
        blob(|buffer, capacity, len| unsafe { weft_memory_export(memory, buffer, capacity, len) })
    }

    pub fn import(&self, peer: u64, descriptor: &[u8]) -> Result<*mut weft_remote_memory, weft_status> {
        let mut remote = ptr::null_mut();
        let (data, len) = (descriptor.as_ptr().cast(), descriptor.len());
        // SAFETY: valid arguments.
        match unsafe { weft_remote_memory_import(self.endpoint, peer, data, len, &mut remote) } {
            WEFT_OK => Ok(remote),
            failed => Err(failed),
        }
    }

    pub fn release_message(&self, message: u64) -> weft_status {
        // SAFETY: an open endpoint.
        unsafe { weft_message_release(self.endpoint, message) }
    }

    pub fn rails(&self) -> Outcome<u32> {
        let mut properties = sized!(weft_endpoint_properties);
        // SAFETY: an open endpoint and a valid struct.
        check("weft_endpoint_info", unsafe { weft_endpoint_info(self.endpoint, &mut properties) })?;
        Ok(properties.rails)
    }
}

const _: () = assert!(size_of::<weft_completion>() == 128);
