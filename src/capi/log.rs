//! The log.

use super::guard::guard;
use super::status::weft_status;
use crate::fork;
use crate::logging::{self, Sink};
use crate::status::Error;
use log::{Level, LevelFilter};
use std::ffi::{c_char, c_void, CString};

/// How much is logged: `WEFT_LOG_*`. Each level includes those before it.
pub type weft_log_level = u32;
/// What the environment variable WEFT_LOG names (error, warn, info, debug,
/// trace), else warnings.
pub const WEFT_LOG_DEFAULT: weft_log_level = 0;
/// What stops an endpoint.
pub const WEFT_LOG_ERROR: weft_log_level = 1;
/// What an operator should know: a NIC left out, a peer unreachable or lost.
pub const WEFT_LOG_WARN: weft_log_level = 2;
/// Operations that failed because a fabric reported an error.
pub const WEFT_LOG_INFO: weft_log_level = 3;
/// Choices of rails and fabrics, and every failed operation.
pub const WEFT_LOG_DEBUG: weft_log_level = 4;
/// Connects, registrations, imports, shutdowns.
pub const WEFT_LOG_TRACE: weft_log_level = 5;

/// Receives one line of the log: level, part of the library ("endpoint",
/// "rail", ...) and text without a newline. Both strings are valid during the
/// call only.
///
/// Any thread may call it, several at once, while they move data: return
/// quickly. It must not call Weft, wait for a thread that does, throw or
/// longjmp.
pub type weft_log_callback = Option<
    unsafe extern "C" fn(
        level: weft_log_level,
        component: *const c_char,
        message: *const c_char,
        user_data: *mut c_void,
    ),
>;

/// Sets what all endpoints of this process log, and where, also before the
/// first one is opened. Warnings of refused requests and of connections that
/// are not authenticated, which others can cause again and again, come once a
/// second at most for each kind; the next says how many were left out.
///
/// `callback`: gets the lines in place of stderr; NULL: stderr. `user_data`:
/// passed to it; keep it until the callback is replaced. Blocks while another
/// thread is in the old callback, which is not called after the return.
///
/// Errors: `WEFT_ERR_BUSY` (called by a log callback), `WEFT_ERR_UNSUPPORTED`
/// (a Rust program that has a logger).
///
/// # Safety
/// `callback` must be as its type says.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_log_set(
    level: weft_log_level,
    callback: weft_log_callback,
    user_data: *mut c_void,
) -> weft_status {
    guard(|| {
        fork::watch();
        let level = match level {
            WEFT_LOG_DEFAULT => None,
            WEFT_LOG_ERROR => Some(LevelFilter::Error),
            WEFT_LOG_WARN => Some(LevelFilter::Warn),
            WEFT_LOG_INFO => Some(LevelFilter::Info),
            WEFT_LOG_DEBUG => Some(LevelFilter::Debug),
            WEFT_LOG_TRACE => Some(LevelFilter::Trace),
            other => {
                return Err(Error::invalid(format!("level is {other}: it must be 0 to {WEFT_LOG_TRACE}")))
            }
        };
        logging::set(level, callback.map(|callback| sink(callback, user_data as usize)))
    })
}

fn sink(
    callback: unsafe extern "C" fn(weft_log_level, *const c_char, *const c_char, *mut c_void),
    user_data: usize,
) -> Sink {
    Box::new(move |level, component, message| {
        let c_string = |text: &str| CString::new(text.replace('\0', "?")).unwrap_or_default();
        let (component, message) = (c_string(component), c_string(message));
        // SAFETY: the caller of weft_log_set keeps `callback` and `user_data` valid.
        unsafe { callback(number(level), component.as_ptr(), message.as_ptr(), user_data as *mut c_void) };
    })
}

fn number(level: Level) -> weft_log_level {
    match level {
        Level::Error => WEFT_LOG_ERROR,
        Level::Warn => WEFT_LOG_WARN,
        Level::Info => WEFT_LOG_INFO,
        Level::Debug => WEFT_LOG_DEBUG,
        Level::Trace => WEFT_LOG_TRACE,
    }
}
