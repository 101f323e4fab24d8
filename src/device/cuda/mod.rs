//! CUDA's driver, loaded at run time. Only this module uses it, through cudarc's bindings: building
//! or loading the library does not need it.
//!
//! All calls use the devices' primary contexts, as the CUDA runtime does (PyTorch, CuPy). A context
//! is pushed for a call and popped after it: the calling thread's own context does not change, and
//! need not exist.

mod copier;
mod parts;
mod shared;

use super::{unsupported, Copier, Device, Driver, Export, Found, Handle, ImportedPart};
use crate::descriptor::Descriptor;
use crate::pass;
use crate::range::Range;
use crate::status::{Error, Result, Status};
use crate::topology::pci::PciAddress;
use cudarc::driver::sys::{self, CUcontext, CUfunction, CUresult};
use cudarc::driver::sys::{CUdevice_attribute as About, CUpointer_attribute as Attribute};
use once_cell::sync::OnceCell;
use std::ffi::{c_int, c_void, CStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{null, null_mut};

/// The oldest driver with every function used here: CUDA 12.0.
const OLDEST: i32 = 12000;
const HOST_MAPPED: u32 = 3; // CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP, and the same of REGISTER
const KERNEL: &str = concat!(include_str!("copy.ptx"), "\0");

/// A number that no other process has.
pub fn this_process() -> u64 {
    static NUMBER: OnceCell<u64> = OnceCell::new();
    *NUMBER.get_or_init(|| {
        let random = crate::clock::Random::System.u64();
        random.unwrap_or(u64::from(std::process::id()))
    })
}

/// Whether the program has loaded the driver.
pub fn is_loaded() -> bool {
    if cfg!(miri) {
        return false; // It loads no libraries.
    }
    // SAFETY: RTLD_NOLOAD loads nothing, and the reference is released.
    unsafe {
        let handle = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        !handle.is_null() && libc::dlclose(handle) == 0
    }
}

pub fn driver() -> Result<&'static dyn Driver> {
    Ok(Box::leak(Box::new(Cuda::load()?)))
}

/// CUDA's name of a result.
fn name_of(result: CUresult) -> String {
    let mut name = null();
    // SAFETY: stores a pointer to a constant string.
    match unsafe { sys::cuGetErrorName(result, &mut name) } {
        // SAFETY: CUDA has stored a static string, which ends.
        CUresult::CUDA_SUCCESS if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy().into(),
        _ => format!("CUDA error {}", result as u32),
    }
}

fn check(result: CUresult, what: &str) -> Result<()> {
    let status = match result {
        CUresult::CUDA_SUCCESS => return Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Status::NoMemory,
        CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_NO_DEVICE => Status::Unsupported,
        _ => Status::System,
    };
    Err(Error { provider_errno: result as i32, ..Error::new(status, format!("{what}: {}", name_of(result))) })
}

/// An attribute of a device.
fn attribute(device: Device, what: About) -> Result<i32> {
    let mut value: c_int = 0;
    // SAFETY: `value` is valid for the call; a device that does not exist returns an error.
    check(
        unsafe { sys::cuDeviceGetAttribute(&mut value, what, device as i32) },
        "asking CUDA about a device",
    )?;
    Ok(value)
}

/// The host pages that contain a range: address and bytes.
fn whole_pages(range: &Range) -> (u64, usize) {
    // SAFETY: the call takes no pointers.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let base = range.base - range.base % page;
    (base, (range.base + range.len).next_multiple_of(page) as usize - base as usize)
}

/// A device in use: its context and the copy kernel.
struct Opened {
    context: CUcontext,
    copy: CUfunction,
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for Opened {}
// SAFETY: nothing of it changes through `&Opened`: it names what CUDA has opened.
unsafe impl Sync for Opened {}

/// Keeps a device's context current while it lives.
struct Current;

impl Current {
    fn new(context: CUcontext) -> Result<Current> {
        // SAFETY: the context is never released.
        check(unsafe { sys::cuCtxPushCurrent_v2(context) }, "making a device's context current")?;
        Ok(Current)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: pops the context that `new` pushed.
        unsafe { sys::cuCtxPopCurrent_v2(&mut null_mut()) };
    }
}

struct Cuda {
    devices: Box<[OnceCell<Opened>]>,
    shared: shared::Shared,
}

impl Cuda {
    fn load() -> Result<Cuda> {
        // SAFETY: loads the driver, which stays loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(unsupported("device memory needs CUDA's driver: libcuda.so.1 cannot be loaded"));
        }
        let (mut version, mut count) = (0, 0);
        // SAFETY: every driver has these functions, and the outputs are valid for the calls.
        unsafe {
            check(sys::cuInit(0), "starting CUDA")?;
            check(sys::cuDriverGetVersion(&mut version), "CUDA's version")?;
            check(sys::cuDeviceGetCount(&mut count), "counting CUDA's devices")?;
        }
        if version < OLDEST {
            return Err(unsupported(format!(
                "CUDA's driver is for {}.{}: device memory needs 12.0",
                version / 1000,
                version % 1000 / 10
            )));
        }
        let devices = (0..count).map(|_| OnceCell::new()).collect();
        Ok(Cuda { devices, shared: shared::Shared::default() })
    }

    fn opened(&self, device: Device) -> Result<&Opened> {
        let place = self.devices.get(device as usize).ok_or_else(|| {
            Error::invalid(format!("there is no device {device}: CUDA sees {}", self.devices.len()))
        })?;
        place.get_or_try_init(|| {
            let (mut context, mut module, mut copy) = (null_mut(), null_mut(), null_mut());
            // SAFETY: the outputs are valid for the calls, and the text ends with NUL. The context
            // is never released, since other code uses it too.
            unsafe {
                let what = || format!("opening device {device}");
                check(sys::cuDevicePrimaryCtxRetain(&mut context, device as i32), &what())?;
                let _current = Current::new(context)?;
                check(sys::cuModuleLoadData(&mut module, KERNEL.as_ptr().cast()), "loading the copy kernel")?;
                let found = sys::cuModuleGetFunction(&mut copy, module, c"weft_copy".as_ptr());
                check(found, "loading the copy kernel")?;
            }
            Ok(Opened { context, copy })
        })
    }

    /// Any context: the caller's own, else an open one. (Opening another one costs memory of its
    /// device.)
    fn some_context(&self) -> Result<Current> {
        let mut context = null_mut();
        // SAFETY: `context` is valid for the call.
        unsafe { sys::cuCtxGetCurrent(&mut context) };
        match self.devices.iter().find_map(OnceCell::get) {
            _ if !context.is_null() => Current::new(context),
            Some(opened) => Current::new(opened.context),
            None => self.current(0),
        }
    }

    fn current(&self, device: Device) -> Result<Current> {
        Current::new(self.opened(device)?.context)
    }
}

/// Asks CUDA about a pointer; outputs of one that it does not know are zeros.
///
/// # Safety
/// Each output has the size of its attribute.
unsafe fn ask<const N: usize>(address: u64, attributes: [(Attribute, *mut c_void); N]) -> Result<()> {
    let (mut attributes, mut to) =
        (attributes.map(|(attribute, _)| attribute), attributes.map(|(_, output)| output));
    // SAFETY: there are N attributes, and N outputs that are as large as CUDA says of them.
    let asked =
        unsafe { sys::cuPointerGetAttributes(N as u32, attributes.as_mut_ptr(), to.as_mut_ptr(), address) };
    check(asked, "asking CUDA about memory")
}

/// Attributes of a pointer.
#[derive(Default)]
struct Pointer {
    /// 0: unknown to CUDA; 1: host; 2: device.
    kind: u32,
    device: i32,
    managed: u32,
    context: usize,
    start: u64,
    size: u64,
    shareable: u32,
    identity: u64,
}

impl Pointer {
    fn ask(address: u64) -> Result<Pointer> {
        let mut p = Pointer { device: -1, ..Default::default() };
        let attributes = [
            (Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut p.kind).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (&raw mut p.device).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, (&raw mut p.managed).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, (&raw mut p.context).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (&raw mut p.start).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, (&raw mut p.size).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (&raw mut p.shareable).cast()),
            (Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, (&raw mut p.identity).cast()),
        ];
        // SAFETY: each output has the right size.
        unsafe { ask(address, attributes)? };
        Ok(p)
    }

    /// Whether it is device memory or managed memory, which a device can always access.
    fn is_of_device(&self) -> bool {
        self.kind == 2 || self.managed != 0
    }
}

impl Driver for Cuda {
    fn place(&self, device: Device) -> Option<PciAddress> {
        let ask = |what| attribute(device, what).ok();
        Some(PciAddress {
            domain: ask(About::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?.try_into().ok()?,
            bus: ask(About::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?.try_into().ok()?,
            device: ask(About::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?.try_into().ok()?,
            function: 0,
        })
    }

    fn find(&self, range: &Range) -> Result<Option<Found>> {
        let first = Pointer::ask(range.base)?;
        if !first.is_of_device() {
            return Ok(None);
        }
        let device = Device::try_from(first.device).map_err(|_| {
            unsupported("managed memory that belongs to no device yet: touch it on one first")
        })?;
        let context = self.opened(device)?.context as usize;
        let foreign = first.context != 0 && first.context != context && first.managed == 0;
        if foreign {
            return Err(unsupported(format!(
                "memory of a context that is not the primary one of device {device}: allocate it with the CUDA \
                 runtime, or after cuDevicePrimaryCtxRetain"
            )));
        }
        // Memory of CUDA's virtual memory API may consist of several allocations.
        let (mut at, end, mut shareable) = (range.base, range.base + range.len, first.shareable != 0);
        while at < end {
            let part = Pointer::ask(at)?;
            let after = part.start.saturating_add(part.size);
            if !part.is_of_device() || part.device != first.device || after <= at {
                return Err(Error::invalid(format!(
                    "only {} bytes of it are memory of device {device}",
                    at - range.base
                )));
            }
            shareable &= part.start == first.start && first.managed == 0;
            at = after;
        }
        if first.managed == 0 && !shareable {
            let passes = |address| self.current(device).is_ok_and(|_current| parts::export(address).is_ok());
            shareable = passes(range.base) && passes(end - 1);
        }
        Ok(Some(Found { device, shareable, identity: first.identity }))
    }

    fn identity(&self, address: u64) -> Option<u64> {
        let (mut identity, what) = (0u64, Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID);
        // SAFETY: `identity` is valid for the call; an unknown address returns an error.
        let asked = unsafe { sys::cuPointerGetAttribute((&raw mut identity).cast(), what, address) };
        (asked == CUresult::CUDA_SUCCESS && identity != 0).then_some(identity)
    }

    fn copier(&self, device: Device) -> Result<Box<dyn Copier>> {
        let opened = self.opened(device)?;
        Ok(Box::new(copier::Stream::new(opened.context, opened.copy)?))
    }

    fn pin(&self, device: Device, base: u64, len: u64) -> Result<()> {
        let _current = self.current(device)?;
        // SAFETY: the caller keeps the memory until `unpin`.
        let pinned = unsafe { sys::cuMemHostRegister_v2(base as *mut c_void, len as usize, HOST_MAPPED) };
        check(pinned, "pinning host memory for copies")
    }

    fn unpin(&self, device: Device, base: u64) {
        let Ok(_current) = self.current(device) else { return };
        // SAFETY: `pin` registered this memory.
        unsafe { sys::cuMemHostUnregister(base as *mut c_void) };
    }

    fn share(&self, device: Device, range: &Range) -> Result<Handle> {
        let pointer = Pointer::ask(range.base)?;
        let _current = self.current(device)?;
        if pointer.shareable == 0 {
            let (base, len, identity) = parts::whole(range)?;
            let mut token = [0; 64];
            token[..8].copy_from_slice(&identity.to_ne_bytes());
            return Ok(Handle { process: this_process(), device, base, len, in_parts: true, token });
        }
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `handle` is valid for the call; an unknown address returns an error.
        let got = unsafe { sys::cuIpcGetMemHandle(&mut handle, pointer.start) };
        check(got, "sharing device memory with other processes")?;
        let token = handle.reserved.map(|byte| byte as u8);
        let (base, len) = (pointer.start, pointer.size);
        Ok(Handle { process: this_process(), device, base, len, in_parts: false, token })
    }

    fn part(&self, handle: &Handle, offset: u64) -> Result<(Descriptor, u64)> {
        let _current = self.current(handle.device)?;
        let part = parts::Mapping::at(handle.base + offset)?;
        if part.base != handle.base + offset || part.len > handle.len - offset {
            return Err(Error::invalid(format!(
                "device memory at {:#x}: its allocations have changed since it was registered; deregister it and register it again",
                handle.base + offset
            )));
        }
        Ok((parts::export(part.base)?, part.len))
    }

    fn import(&self, file: BorrowedFd, len: u64) -> Result<ImportedPart> {
        let _current = self.some_context()?;
        let (mut memory, descriptor) = (0, file.as_raw_fd() as usize as *mut c_void);
        // SAFETY: `memory` is valid for the call; a file that is no device memory returns an error.
        let imported = pass::call(|| unsafe {
            sys::cuMemImportFromShareableHandle(&mut memory, descriptor, parts::POSIX)
        });
        check(imported, "importing another process's device memory")?;
        Ok(ImportedPart { len, memory })
    }

    fn release(&self, part: &ImportedPart) {
        // SAFETY: `import` made the handle, and its owner is being dropped. Mappings stay.
        unsafe { sys::cuMemRelease(part.memory) };
    }

    fn open(&self, device: Device, handle: &Handle, parts: &[ImportedPart]) -> Result<(u64, u64)> {
        let context = self.opened(device)?.context;
        if handle.in_parts {
            // Not shared between users, as an opened IPC handle is: the files name the memory, and
            // the handle is what a peer says.
            let _current = Current::new(context)?;
            return parts::map(device, handle.len, parts).map(|base| (base, handle.len));
        }
        let base = if handle.process == this_process() {
            let other = self.opened(handle.device)?.context;
            shared::reach(context, other).map(|()| handle.base)?
        } else {
            self.shared.open(device, context, handle)?
        };
        let is = Pointer::ask(base)?;
        let before = base.wrapping_sub(is.start);
        if !is.is_of_device() || before >= is.size {
            return Err(Error::invalid("a handle of device memory that is none"));
        }
        Ok((base, is.size - before))
    }

    fn close(&self, device: Device, handle: &Handle, base: u64) {
        let Ok(opened) = self.opened(device) else { return };
        if handle.in_parts {
            if let Ok(_current) = Current::new(opened.context) {
                parts::unmap(base, handle.len, handle.len);
            }
        } else if handle.process != this_process() {
            self.shared.close(device, opened.context, handle);
        }
    }

    fn export(&self, device: Device, range: &Range) -> Result<Export> {
        if attribute(device, About::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? == 0 {
            return Err(unsupported(format!("device {device} makes no DMA-BUF of its memory")));
        }
        let _current = self.current(device)?;
        let (base, len) = whole_pages(range);
        let mut dmabuf = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: `dmabuf` is valid for the call; an unknown range returns an error.
        let got = unsafe { sys::cuMemGetHandleForAddressRange((&raw mut dmabuf).cast(), base, len, kind, 0) };
        check(got, "making a DMA-BUF of device memory")?;
        let dmabuf = Descriptor::opened(|| dmabuf).ok_or_else(|| Error::system("keeping a DMA-BUF"))?;
        Ok(Export { dmabuf, base })
    }

    fn words(&self, len: u64) -> Result<u64> {
        let _current = self.some_context()?;
        let mut base = null_mut();
        // SAFETY: `base` is valid for the call.
        check(unsafe { sys::cuMemHostAlloc(&mut base, len as usize, HOST_MAPPED) }, "memory for watches")?;
        // SAFETY: the new allocation has `len` bytes.
        unsafe { std::ptr::write_bytes(base.cast::<u8>(), 0, len as usize) };
        Ok(base as u64)
    }

    fn free_words(&self, base: u64) {
        let Ok(_current) = self.some_context() else { return };
        // SAFETY: `words` allocated it.
        unsafe { sys::cuMemFreeHost(base as *mut c_void) };
    }
}
