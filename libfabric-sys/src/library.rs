//! Finding and loading libfabric.
//!
//! Its few exported functions are versioned. With the versions below, the same build runs on
//! libfabric 1.17, which has no newer ones, and on 2.x, which keeps them:
//! - 1.17: `fi_getinfo@@FABRIC_1.3` is the default; its layouts are those of this crate.
//! - 2.x (to 2.7-dev, src/abi_1_0.c): `fi_getinfo@FABRIC_1.3` copies the hints, part by part, into
//!   zeroed structs of its own newest layout, and returns its newest infos as they are.
//!   `fi_dupinfo@FABRIC_1.3` likewise. Since structs grew at their ends only, the fields of this
//!   crate lie where they are expected. `fi_dupinfo@FABRIC_1.3(NULL)` allocates the newest layout.
//!
//! So the fields of an info depend on the library, not on the symbol: this crate declares none that
//! 1.17 lacks.

use crate::{fi_fabric_attr, fi_info, fi_type, fid_fabric};
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::mem::transmute_copy;
use std::path::Path;
use std::ptr;

/// Names a library that is loaded instead of the system's.
const VARIABLE: &str = "WEFT_LIBFABRIC";

const SONAME: &str = "libfabric.so.1";

/// The EFA installer's folder, which the linker's path may lack.
const ELSEWHERE: [&str; 2] = ["/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"];

type Getinfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;

/// A loaded libfabric. It stays loaded for the life of the process: its providers leave threads
/// and handlers behind that would run on in unmapped code.
///
/// Loading and `getinfo` may replace the process's signal handlers; the caller has to save them.
#[derive(Clone, Debug)]
pub struct Library {
    path: String,
    getinfo: Getinfo,
    freeinfo: unsafe extern "C" fn(*mut fi_info),
    dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    tostr_r: unsafe extern "C" fn(*mut c_char, usize, *const c_void, fi_type) -> *mut c_char,
    version: unsafe extern "C" fn() -> u32,
}

/// Why libfabric is unavailable; the text tells what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// None was found on this machine.
    NotFound { reason: String },
    /// The library that `WEFT_LIBFABRIC` names does not load.
    VariableNotLoadable { path: String, reason: String },
    /// One was found, but does not load.
    NotLoadable { path: String, reason: String },
    /// It loads, but lacks a function: it is not libfabric, or older than 1.12.
    SymbolMissing { path: String, symbol: String },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NotFound { reason } => write!(
                f,
                "{SONAME} was not found: install libfabric1 (Debian, Ubuntu) or the EFA installer, or set \
                 {VARIABLE} to its path (dlopen: {reason})"
            ),
            LoadError::VariableNotLoadable { path, reason } => {
                // The linker's reason begins with the path, too.
                let reason = reason.strip_prefix(&format!("{path}: ")).unwrap_or(reason);
                write!(
                    f,
                    "{VARIABLE} names {path}, which cannot be loaded: {reason}; name a libfabric.so.1, or unset it to \
                     use the system's"
                )
            }
            LoadError::NotLoadable { path, reason } => {
                write!(f, "{path} cannot be loaded as libfabric: {reason}")
            }
            LoadError::SymbolMissing { path, symbol } => write!(
                f,
                "{path} was loaded, but has no {symbol}: it is not libfabric, or one older than 1.12; install a \
                 newer one, or set {VARIABLE} to its path"
            ),
        }
    }
}

impl std::error::Error for LoadError {}

/// An environment variable that decides what is loaded, or read; `None` if it is not set or empty.
/// In a program with more rights than its user (set-uid, say) the environment is ignored.
pub fn variable(name: &str) -> Option<std::ffi::OsString> {
    // SAFETY: the call has no preconditions.
    let secure = !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|value| !secure && !value.is_empty())
}

impl Library {
    /// Loads the library that `WEFT_LIBFABRIC` names, if it is set and not empty; else the
    /// system's; else the EFA installer's.
    pub fn load() -> Result<Library, LoadError> {
        if let Some(named) = variable(VARIABLE) {
            return Library::load_from(Path::new(&named)).map_err(|error| match error {
                LoadError::NotLoadable { path, reason } => LoadError::VariableNotLoadable { path, reason },
                other => other,
            });
        }
        let mut failed = match Library::load_from(SONAME) {
            Ok(library) => return Ok(library),
            Err(LoadError::NotLoadable { reason, .. }) if means_absent(&reason) => {
                LoadError::NotFound { reason }
            }
            Err(error) => error,
        };
        for path in ELSEWHERE.iter().filter(|path| Path::new(path).exists()) {
            match Library::load_from(path) {
                Ok(library) => return Ok(library),
                // A library that exists but is broken gives a better error than a missing one.
                Err(error) if matches!(failed, LoadError::NotFound { .. }) => failed = error,
                Err(_) => {}
            }
        }
        Err(failed)
    }

    /// Loads a library by its path, or by a name without `/` that the dynamic linker looks up.
    pub fn load_from(path: impl AsRef<Path>) -> Result<Library, LoadError> {
        let path = path.as_ref();
        let shown = path.to_string_lossy().into_owned();
        let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else {
            let reason = "the path has a NUL in it".to_owned();
            return Err(LoadError::NotLoadable { path: shown, reason });
        };
        // SAFETY: the name is a NUL-terminated string. The constructors of libraries are as
        // trustworthy as their names.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(LoadError::NotLoadable { path: shown, reason: dl_reason() });
        }
        // SAFETY: the versions fix the signatures, which are those of the headers.
        unsafe {
            let getinfo: Getinfo = symbol(handle, &shown, c"fi_getinfo", c"FABRIC_1.3")?;
            Ok(Library {
                path: path_of(getinfo as *const c_void).unwrap_or_else(|| shown.clone()),
                getinfo,
                freeinfo: symbol(handle, &shown, c"fi_freeinfo", c"FABRIC_1.3")?,
                dupinfo: symbol(handle, &shown, c"fi_dupinfo", c"FABRIC_1.3")?,
                fabric: symbol(handle, &shown, c"fi_fabric", c"FABRIC_1.1")?,
                strerror: symbol(handle, &shown, c"fi_strerror", c"FABRIC_1.0")?,
                tostr_r: symbol(handle, &shown, c"fi_tostr_r", c"FABRIC_1.4")?,
                version: symbol(handle, &shown, c"fi_version", c"FABRIC_1.0")?,
            })
        }
    }

    /// The file that was loaded.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The API version of the library: the newest that `getinfo` takes.
    pub fn version(&self) -> u32 {
        // SAFETY: the call takes no arguments.
        unsafe { (self.version)() }
    }

    /// The text for an error number, which may be negated.
    pub fn strerror(&self, errno: c_int) -> String {
        // SAFETY: any number has a text, which lives until this thread's next call.
        unsafe {
            let text = (self.strerror)(errno.saturating_abs());
            match text.is_null() {
                true => format!("error {errno}"),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        }
    }

    /// `data` in libfabric's notation, for log lines. By `fi_tostr_r`: `fi_tostr` has one buffer
    /// for all threads.
    ///
    /// # Safety
    /// `data` must point to what `type_` says.
    pub unsafe fn tostr(&self, data: *const c_void, type_: fi_type) -> String {
        let mut text = vec![0u8; 8192];
        // SAFETY: the buffer has space for len bytes, of which the last stays 0 below.
        unsafe { (self.tostr_r)(text.as_mut_ptr().cast(), text.len() - 1, data, type_) };
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    /// # Safety
    /// The same contract as in `man fi_getinfo`; `hints` is NULL or from [`Library::dupinfo`].
    pub unsafe fn getinfo(
        &self,
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: &mut *mut fi_info,
    ) -> c_int {
        // SAFETY: the symbol is libfabric's function, and the arguments are valid for it.
        unsafe { (self.getinfo)(version, node, service, flags, hints, info) }
    }

    /// # Safety
    /// `info` is NULL, or a list from `getinfo` or `dupinfo` that is no longer used; strings put
    /// into it must be allocated with the C library's `malloc`.
    pub unsafe fn freeinfo(&self, info: *mut fi_info) {
        if !info.is_null() {
            // SAFETY: libfabric made the list, and nothing uses it after this.
            unsafe { (self.freeinfo)(info) }
        }
    }

    /// A copy of a list's first info.
    ///
    /// # Safety
    /// `info` is NULL or from this library.
    pub unsafe fn dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: libfabric made the info.
        unsafe { (self.dupinfo)(info) }
    }

    /// An empty info with all its parts, for hints; NULL without memory. Like the inline function
    /// of the headers.
    pub fn allocinfo(&self) -> *mut fi_info {
        // SAFETY: NULL requests an empty info.
        unsafe { self.dupinfo(ptr::null()) }
    }

    /// # Safety
    /// `attr` is of an info from `getinfo`; `fabric` is written.
    pub unsafe fn fabric(
        &self,
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: the attributes are libfabric's, and `fabric` has room for a pointer.
        unsafe { (self.fabric)(attr, fabric, context) }
    }
}

/// Whether dlopen did not find the library itself. If it found the library, but not a dependency,
/// or could not use it, the text starts with another name; the rest is translated.
fn means_absent(reason: &str) -> bool {
    reason.strip_prefix(SONAME).is_some_and(|rest| rest.starts_with(": "))
}

fn dl_reason() -> String {
    // SAFETY: the pointer is this thread's last error, or NULL.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "nothing".to_owned(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// # Safety
/// `F` must be the function pointer type of that symbol.
unsafe fn symbol<F: Copy>(
    handle: *mut c_void,
    path: &str,
    name: &CStr,
    version: &CStr,
) -> Result<F, LoadError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the handle is open, and the names are NUL-terminated strings. In a library that was
    // built without symbol versions, the linker takes the only symbol of that name.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    if address.is_null() {
        let symbol = format!("{}@{}", name.to_string_lossy(), version.to_string_lossy());
        return Err(LoadError::SymbolMissing { path: path.to_owned(), symbol });
    }
    // SAFETY: the pointer is not NULL, and F is the type of the function of that name.
    Ok(unsafe { transmute_copy(&address) })
}

fn path_of(function: *const c_void) -> Option<String> {
    // SAFETY: the call fills in the struct, or returns 0 if it does not know the address.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(function, &mut found) == 0 || found.dli_fname.is_null() {
            return None;
        }
        Some(CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned())
    }
}
