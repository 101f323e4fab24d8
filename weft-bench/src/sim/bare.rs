//! The posts and polls of a drive, straight to the simulated NICs: what of a
//! drive's time is theirs.

use super::{Drive, Took};
use crate::memory::untouched;
use crate::pages::Lists;
use anyhow::{anyhow, bail, Result};
use libfabric_sys::*;
use std::ffi::c_void;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::Instant;

/// Posts before the doorbell, and entries of one read: as Weft's.
const BATCH: usize = 32;
const WINDOW: usize = 128;

struct Port {
    av: *mut fid_av,
    cq: *mut fid_cq,
    ep: *mut fid_ep,
    mr: *mut fid_mr,
    base: *mut u8,
    virtual_addresses: bool,
}

fn check(doing: &str, rc: isize) -> Result<()> {
    if rc != 0 {
        bail!("{doing}: libfabric error {}", -rc);
    }
    Ok(())
}

impl Port {
    /// Opened for the life of the process.
    fn open(info: *mut fi_info, len: usize) -> Result<Port> {
        let (mut fabric, mut domain, null) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let base = untouched(len)?;
        // SAFETY: an info of the simulation's; objects are made in libfabric's order.
        unsafe {
            let virtual_addresses = (*(*info).domain_attr).mr_mode & FI_MR_VIRT_ADDR != 0;
            let mut port = Port {
                av: ptr::null_mut(),
                cq: ptr::null_mut(),
                ep: ptr::null_mut(),
                mr: ptr::null_mut(),
                base,
                virtual_addresses,
            };
            check("fabric", weft::simulated::open_fabric(&mut fabric, null) as isize)?;
            check("domain", fi_domain(fabric, info, &mut domain, null) as isize)?;
            let mut av_attr = fi_av_attr { type_: fi_av_type::FI_AV_TABLE, ..Default::default() };
            check("vector", fi_av_open(domain, &mut av_attr, &mut port.av, null) as isize)?;
            let mut cq_attr =
                fi_cq_attr { size: 4096, format: fi_cq_format::FI_CQ_FORMAT_DATA, ..Default::default() };
            check("queue", fi_cq_open(domain, &mut cq_attr, &mut port.cq, null) as isize)?;
            check("endpoint", fi_endpoint(domain, info, &mut port.ep, null) as isize)?;
            check("bind", fi_ep_bind(port.ep, port.cq.cast(), FI_TRANSMIT | FI_RECV) as isize)?;
            check("bind", fi_ep_bind(port.ep, port.av.cast(), 0) as isize)?;
            check("enable", fi_enable(port.ep) as isize)?;
            let access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
            let registered = fi_mr_reg(domain, base.cast(), len, access, 0, 7, 0, &mut port.mr, null);
            check("registration", registered as isize)?;
            Ok(port)
        }
    }

    fn insert(&self, other: &Port) -> Result<fi_addr_t> {
        let (mut name, mut len, mut route) = ([0u8; 512], 512, 0);
        // SAFETY: room for the name, which is a C string.
        let inserted = unsafe {
            check("name", fi_getname(other.ep.cast(), name.as_mut_ptr().cast(), &mut len) as isize)?;
            fi_av_insert(self.av, name.as_ptr().cast(), 1, &mut route, 0, ptr::null_mut())
        };
        check("insert", inserted as isize - 1)?;
        Ok(route)
    }

    fn reap(&self) -> Result<usize> {
        // SAFETY: integers and pointers; room for as many entries.
        let rc = unsafe {
            let mut entries: [fi_cq_data_entry; BATCH] = zeroed();
            fi_cq_read(self.cq, entries.as_mut_ptr().cast(), BATCH)
        };
        match rc {
            rc if rc == -(FI_EAGAIN as isize) => Ok(0),
            rc if rc < 0 => bail!("a completion: libfabric error {}", -rc),
            rc => Ok(rc as usize),
        }
    }
}

struct Bare {
    from: Port,
    to: Port,
    route: fi_addr_t,
    contexts: Vec<[*mut c_void; 8]>,
    flags: u64,
}

pub fn run(drive: &Drive) -> Result<Took> {
    let infos = weft::simulated::nics(&drive.fabric).map_err(|error| anyhow!(error))?;
    let len = drive.page * drive.pages * 2;
    let (from, to) = (Port::open(infos[0], len)?, Port::open(infos[0], len)?);
    let route = from.insert(&to)?;
    let flags = FI_COMPLETION | if drive.fabric.contains("efa-direct") { 0 } else { FI_DELIVERY_COMPLETE };
    let mut bare = Bare { from, to, route, contexts: vec![[ptr::null_mut(); 8]; WINDOW + BATCH], flags };
    bare.write(&Lists { source: vec![0], target: vec![0] }, drive.page)?;
    let lists = Lists::random(0, drive.pages, drive.pages * 2);
    let (begun, before) = (Instant::now(), processor_ns());
    for _ in 0..drive.transfers {
        bare.write(&lists, drive.page)?;
    }
    let worker_ns = processor_ns() - before;
    Ok(Took { wall_ns: begun.elapsed().as_nanos() as u64, worker_ns })
}

/// Of this thread.
fn processor_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in `t`; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Bare {
    fn write(&mut self, lists: &Lists, page: usize) -> Result<()> {
        let (mut posted, mut done, mut idle) = (0, 0, 0);
        while done < lists.len() {
            let batch = BATCH.min(lists.len() - posted).min(WINDOW - (posted - done));
            for i in 0..batch {
                let more = if i + 1 < batch { FI_MORE } else { 0 };
                self.post(lists, posted + i, page, more)?;
            }
            posted += batch;
            let reaped = self.from.reap()?;
            done += reaped;
            idle = if reaped > 0 { 0 } else { idle + 1 };
            if idle > 0 {
                self.to.reap()?; // It may have a handshake to answer.
            }
        }
        Ok(())
    }

    fn post(&mut self, lists: &Lists, i: usize, page: usize, more: u64) -> Result<()> {
        let remote_base = if self.to.virtual_addresses { self.to.base as u64 } else { 0 };
        let iov = iovec {
            iov_base: (self.from.base as usize + lists.source[i] as usize * page) as *mut c_void,
            iov_len: page,
        };
        let addr = remote_base + (lists.target[i] as usize * page) as u64;
        let context = &raw mut self.contexts[i % (WINDOW + BATCH)];
        // SAFETY: everything outlives the call, and memory the process.
        unsafe {
            let mut desc = fi_mr_desc(self.from.mr);
            let remote = fi_rma_iov { addr, len: page, key: fi_mr_key(self.to.mr) };
            let message = fi_msg_rma {
                msg_iov: &iov,
                desc: &mut desc,
                iov_count: 1,
                addr: self.route,
                rma_iov: &remote,
                rma_iov_count: 1,
                context: context.cast(),
                data: 0,
            };
            check("a write", fi_writemsg(self.from.ep, &message, self.flags | more))
        }
    }
}

const _: () = assert!(size_of::<[*mut c_void; 8]>() >= size_of::<fi_context2>());
