//! How a NIC registers memory.

use super::OfiNic;
use crate::device::{driver, Device, Export};
use crate::fabric::ofi::registrations::{described, Wanted};
use crate::fabric::{LinkState, Registration, Way};
use crate::pass;
use crate::status::Result;
use libfabric_sys::*;
use std::ffi::c_void;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::ptr;

/// How a range is registered.
#[derive(Clone, Copy)]
enum By<'a> {
    /// Host memory, by address.
    Host,
    /// Device memory, by address.
    Address(Device),
    Dmabuf(Device, &'a Export),
}

impl By<'_> {
    fn way(self) -> Option<Way> {
        match self {
            By::Host => None,
            By::Address(_) => Some(Way::Address),
            By::Dmabuf(..) => Some(Way::Dmabuf),
        }
    }
}

impl OfiNic {
    /// Registers memory; while the NIC has no device, it only notes what to register. (One that is opening has passed
    /// places that are free now, so what it refuses is an error.)
    pub(super) fn keep(&mut self, wanted: Wanted) -> Result<Registration> {
        let later = (ptr::null_mut(), wanted.device.map(|_| Way::Address));
        let (mr, way) = match self.domain.is_null() {
            true => later,
            false => match self.register_wanted(&wanted) {
                Err(_) if self.device_link() == LinkState::Removed => later,
                registered => registered?,
            },
        };
        let handle = self.mrs.keep(mr, wanted);
        Ok(described(mr, Registration { handle, descriptor: ptr::null_mut(), key: 0, way }))
    }

    pub(super) fn register_wanted(&self, wanted: &Wanted) -> Result<(*mut fid_mr, Option<Way>)> {
        let Some(device) = wanted.device else { return self.register_by(wanted, By::Host) };
        if self.takes_dmabufs {
            let registered = driver(device)
                .and_then(|driver| driver.export(device, &wanted.range))
                .and_then(|export| self.register_by(wanted, By::Dmabuf(device, &export)));
            match registered {
                Ok(registered) => return Ok(registered),
                Err(error) => log::info!("no DMA-BUF of device {device}: {error}"),
            }
        }
        // Some providers then make DMA-BUFs of their own.
        self.register_by(wanted, By::Address(device))
    }

    fn register_by(&self, wanted: &Wanted, by: By) -> Result<(*mut fid_mr, Option<Way>)> {
        let &Wanted { range, access, .. } = wanted;
        let mut flags = FI_SEND | FI_WRITE;
        // NICs pin memory as writable if they may write to it.
        if access.local_write {
            flags |= FI_RECV | FI_READ;
        }
        if access.remote_write {
            flags |= FI_REMOTE_WRITE;
        }
        if access.remote_read {
            flags |= FI_REMOTE_READ;
        }
        let iov = libc::iovec { iov_base: range.base as *mut c_void, iov_len: range.len as usize };
        let dmabuf;
        // SAFETY: the structs have only integers and pointers; the iov and the DMA-BUF outlive the
        // call.
        unsafe {
            let mut attr: fi_mr_attr = zeroed();
            attr.iov.mr_iov = &iov;
            attr.iov_count = 1;
            attr.access = flags;
            if let By::Address(device) | By::Dmabuf(device, _) = by {
                attr.iface = fi_hmem_iface::FI_HMEM_CUDA;
                attr.device.cuda = device as i32;
            }
            let mut options = 0;
            match by {
                By::Dmabuf(_, export) => {
                    dmabuf = fi_mr_dmabuf {
                        fd: export.dmabuf.as_raw_fd(),
                        offset: range.base - export.base,
                        len: range.len as usize,
                        base_addr: export.base as *mut c_void,
                    };
                    attr.iov.dmabuf = &dmabuf;
                    options = FI_MR_DMABUF;
                }
                By::Address(_) | By::Host => {}
            }
            if self.mr_mode & FI_MR_PROV_KEY == 0 {
                // Weft chooses the key, so that it cannot be guessed.
                attr.requested_key = self.random.u64()?;
            }
            let mut mr = ptr::null_mut();
            let rc = pass::call(|| fi_mr_regattr(self.domain, &attr, options, &mut mr));
            self.source.check(&format!("registering {} bytes at {:#x}", range.len, range.base), rc)?;
            Ok((mr, by.way()))
        }
    }
}
