//! Direct calls of the tables, for functions that `ofi::nic` does not use.

use libfabric_sys::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

/// A NIC with 4 KiB of registered memory; a test closes its objects, or none.
struct Raw {
    domain: *mut fid_domain,
    cq: *mut fid_cq,
    av: *mut fid_av,
    ep: *mut fid_ep,
    mr: *mut fid_mr,
    bytes: &'static mut [u8],
    virtual_addresses: bool,
}

impl Raw {
    fn open(name: &str, queue: usize) -> Raw {
        let info = super::nics(name).expect("a good name")[0];
        let (mut fabric, mut domain, null) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let bytes = Box::leak(vec![0u8; 4096].into_boxed_slice());
        // SAFETY: objects are made in libfabric's order, and outlive what uses them.
        unsafe {
            let virtual_addresses = (*(*info).domain_attr).mr_mode & FI_MR_VIRT_ADDR != 0;
            assert_eq!(super::open_fabric(&mut fabric, null), 0);
            assert_eq!(fi_domain(fabric, info, &mut domain, null), 0);
            let (mut cq, mut av, mut ep) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            let mut attr =
                fi_cq_attr { size: queue, format: fi_cq_format::FI_CQ_FORMAT_DATA, ..Default::default() };
            assert_eq!(fi_cq_open(domain, &mut attr, &mut cq, null), 0);
            assert_eq!(fi_av_open(domain, &mut fi_av_attr::default(), &mut av, null), 0);
            assert_eq!(fi_endpoint(domain, info, &mut ep, null), 0);
            assert_eq!(fi_enable(ep), -FI_ENOCQ);
            assert_eq!(fi_ep_bind(ep, cq.cast(), FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(fi_ep_bind(ep, av.cast(), 0), 0);
            if name.starts_with("sim:like=efa:") || name == "sim" || name == "sim:like=efa" {
                assert_eq!(fi_enable(ep), -FI_ENOEQ, "the provider would end the process for an error");
            }
            let mut eq = ptr::null_mut();
            let mut events = fi_eq_attr { wait_obj: fi_wait_obj::FI_WAIT_NONE, ..Default::default() };
            assert_eq!(fi_eq_open(fabric, &mut events, &mut eq, null), 0);
            assert_eq!(fi_ep_bind(ep, eq.cast(), 0), 0);
            assert_eq!(fi_enable(ep), 0);
            assert_eq!(fi_close(eq.cast()), 0);
            super::free(info);
            let mut raw = Raw { domain, cq, av, ep, mr: ptr::null_mut(), bytes, virtual_addresses };
            assert_eq!(raw.register(7, &mut ptr::null_mut()), 0);
            raw
        }
    }

    fn register(&mut self, key: u64, mr: &mut *mut fid_mr) -> c_int {
        let (base, len) = (self.bytes.as_ptr().cast(), self.bytes.len());
        let access = FI_RECV | FI_WRITE | FI_REMOTE_WRITE;
        // SAFETY: the memory lives as long as the process.
        let rc = unsafe { fi_mr_reg(self.domain, base, len, access, 0, key, 0, mr, ptr::null_mut()) };
        if self.mr.is_null() {
            self.mr = *mr;
        }
        rc
    }

    fn route_to(&self, other: &Raw) -> fi_addr_t {
        let (mut name, mut len, mut route) = ([0u8; 256], 256, 0);
        // SAFETY: the buffer has space for the name, which is a NUL-terminated string.
        unsafe {
            assert_eq!(fi_getname(other.ep.cast(), name.as_mut_ptr().cast(), &mut len), 0);
            assert_eq!(fi_av_insert(self.av, name.as_ptr().cast(), 1, &mut route, 0, ptr::null_mut()), 1);
        }
        route
    }

    fn read(&self) -> Result<Option<fi_cq_data_entry>, c_int> {
        // SAFETY: the buffer has space for one entry.
        unsafe {
            let mut entry: fi_cq_data_entry = zeroed();
            match fi_cq_read(self.cq, (&raw mut entry).cast(), 1) {
                1 => Ok(Some(entry)),
                rc if rc == -(FI_EAGAIN as isize) => Ok(None),
                rc => Err(-rc as c_int),
            }
        }
    }

    /// Writes 8 bytes with an immediate.
    fn write(&self, to: &Raw, route: fi_addr_t, data: u64, context: &mut [u64; 8]) -> isize {
        let remote = if to.virtual_addresses { to.bytes.as_ptr() as u64 } else { 0 };
        let iov = iovec { iov_base: self.bytes.as_ptr() as *mut _, iov_len: 8 };
        // SAFETY: all buffers outlive the operation.
        unsafe {
            let mut desc = fi_mr_desc(self.mr);
            let range = fi_rma_iov { addr: remote, len: 8, key: fi_mr_key(to.mr) };
            let message = fi_msg_rma {
                msg_iov: &iov,
                desc: &mut desc,
                iov_count: 1,
                addr: route,
                rma_iov: &range,
                rma_iov_count: 1,
                context: context.as_mut_ptr().cast(),
                data,
            };
            fi_writemsg(self.ep, &message, FI_REMOTE_CQ_DATA)
        }
    }
}

/// Polls both queues until one has an entry.
fn next(end: &Raw, other: &Raw) -> fi_cq_data_entry {
    for _ in 0..10_000_000 {
        if let Some(entry) = end.read().expect("no error") {
            return entry;
        }
        assert!(other.read().expect("no error").is_none_or(|entry| entry.flags & FI_RMA != 0));
    }
    panic!("nothing came");
}

#[test]
fn efa_direct_immediate_consumes_a_receive() {
    for (mode, wide, receives) in [("tcp", true, false), ("efa", false, false), ("efa-direct", false, true)] {
        let name = format!("sim:like={mode}:world=imm");
        let (a, b) = (Raw::open(&name, 64), Raw::open(&name, 64));
        let (route, mut contexts) = (a.route_to(&b), [[0u64; 8]; 3]);
        let [first, second, receive] = &mut contexts;
        assert_eq!(a.write(&b, route, 1 << 40, first) == 0, wide, "{mode}");
        assert_eq!(a.write(&b, route, 0x1234, second), 0);
        let posted = receive.as_mut_ptr().cast();
        if receives {
            for _ in 0..1000 {
                assert!(a.read().expect("no error").is_none_or(|entry| entry.flags & FI_WRITE != 0));
                assert!(b.read().expect("no error").is_none(), "{mode}");
            }
            // SAFETY: the buffer outlives the process.
            let rc = unsafe {
                fi_recv(b.ep, b.bytes.as_ptr() as *mut _, 64, fi_mr_desc(b.mr), FI_ADDR_UNSPEC, posted)
            };
            assert_eq!(rc, 0);
        }
        let mut seen = vec![next(&b, &a)];
        if wide {
            seen.push(next(&b, &a));
            assert!(seen.iter().any(|entry| entry.data == 1 << 40));
        }
        let entry = seen.iter().find(|entry| entry.data == 0x1234).expect("the immediate");
        assert_eq!((entry.flags, entry.len), (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, 8), "{mode}");
        assert_eq!(entry.op_context, if receives { posted } else { ptr::null_mut() }, "{mode}");
    }
}

#[test]
fn objects_close_only_in_order_and_keys_are_unique() {
    let mut tcp = Raw::open("sim:like=tcp:world=order", 64);
    let mut second = ptr::null_mut();
    assert_eq!(tcp.register(7, &mut second), -FI_ENOKEY);
    assert_eq!(tcp.register(8, &mut second), 0);
    // SAFETY: each object is closed once, at the end.
    unsafe {
        assert_eq!(fi_close(tcp.cq.cast()), -FI_EBUSY);
        assert_eq!(fi_close(tcp.av.cast()), -FI_EBUSY);
        assert_eq!(fi_close(tcp.ep.cast()), 0);
        assert_eq!(fi_close(tcp.domain.cast()), -FI_EBUSY);
        for fid in [tcp.mr.cast(), second.cast(), tcp.cq.cast(), tcp.av.cast(), tcp.domain.cast::<fid>()] {
            assert_eq!(fi_close(fid), 0);
        }
    }
}

#[test]
fn too_small_queue_overruns() {
    let name = "sim:like=efa-direct:nocopy:world=over";
    let (a, b) = (Raw::open(name, 4), Raw::open(name, 64));
    let (route, mut contexts) = (a.route_to(&b), [[0u64; 8]; 5]);
    for context in &mut contexts {
        assert_eq!(a.write(&b, route, 0, context), 0);
    }
    assert_eq!(a.read().err(), Some(FI_EOVERRUN));
}
