//! Loads libfabric, and asks it for the tcp provider, where it is installed.

use libfabric_sys::*;
use std::ffi::CStr;
use std::ptr;

#[test]
fn failed_load_explains_what_to_do() {
    let missing = Library::load_from("/nonexistent/libfabric.so.1").expect_err("there is no such file");
    assert!(matches!(&missing, LoadError::NotLoadable { path, .. } if path == "/nonexistent/libfabric.so.1"));
    let text = missing.to_string();
    assert!(text.starts_with("/nonexistent/libfabric.so.1 cannot be loaded"), "{text}");

    let other = Library::load_from("libc.so.6").expect_err("libc is not libfabric");
    assert!(matches!(&other, LoadError::SymbolMissing { symbol, .. } if symbol == "fi_getinfo@FABRIC_1.3"));

    let nul = Library::load_from("libfabric\0.so").expect_err("a path with a NUL");
    assert!(nul.to_string().contains("NUL"), "{nul}");

    let absent = LoadError::NotFound { reason: "no".into() }.to_string();
    assert!(absent.starts_with("libfabric.so.1 was not found: install libfabric1"), "{absent}");
}

/// An endpoint of the tcp provider from end to end: a table in the wrong order would fail here.
#[test]
fn tcp_opens_and_closes() {
    let library = match Library::load_from("libfabric.so.1") {
        Ok(library) => library,
        Err(error) => return println!("skipped: {error}"),
    };
    assert!(library.path().contains("libfabric.so"), "{}", library.path());
    assert!(library.version() >= FI_VERSION(1, 17), "{:#x}", library.version());
    assert!(
        library.strerror(-FI_EAVAIL).to_lowercase().contains("error"),
        "{}",
        library.strerror(-FI_EAVAIL)
    );
    let api = library.version().min(FI_VERSION(1, 18));
    for provider in [c"tcp;ofi_rxm", c"tcp"] {
        // SAFETY: the calls follow their man pages.
        if unsafe { open_and_close(&library, api, provider) } {
            println!("libfabric {}: {provider:?}", library.path());
            return;
        }
    }
    panic!("neither tcp;ofi_rxm nor tcp offers a reliable endpoint");
}

unsafe fn open_and_close(library: &Library, api: u32, provider: &CStr) -> bool {
    let hints = library.allocinfo();
    assert!(!hints.is_null());
    (*hints).caps = FI_MSG | FI_RMA;
    (*hints).mode = FI_CONTEXT | FI_CONTEXT2;
    (*(*hints).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
    (*(*hints).domain_attr).mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
    let text = library.tostr((&raw const (*(*hints).ep_attr).type_).cast(), fi_type::FI_TYPE_EP_TYPE);
    assert_eq!(text, "FI_EP_RDM");

    let mut info = ptr::null_mut();
    let rc = library.getinfo(api, ptr::null(), ptr::null(), 0, hints, &mut info);
    library.freeinfo(hints);
    if rc == -FI_ENODATA {
        return false;
    }
    assert_eq!(rc, 0, "{}", library.strerror(rc));
    assert_eq!((*(*info).ep_attr).type_, fi_ep_type::FI_EP_RDM);
    assert_eq!((*(*info).fabric_attr).api_version, api);
    assert!(CStr::from_ptr((*(*info).fabric_attr).prov_name).to_bytes().starts_with(b"tcp"));

    let mut fabric = ptr::null_mut();
    assert_eq!(library.fabric((*info).fabric_attr, &mut fabric, ptr::null_mut()), 0);
    assert_eq!((*fabric).fid.fclass, FI_CLASS_FABRIC);
    let mut domain = ptr::null_mut();
    assert_eq!(fi_domain(fabric, info, &mut domain, ptr::null_mut()), 0);
    let mut av = ptr::null_mut();
    assert_eq!(fi_av_open(domain, &mut fi_av_attr::default(), &mut av, ptr::null_mut()), 0);
    let mut cq = ptr::null_mut();
    let mut attr = fi_cq_attr { size: 64, format: fi_cq_format::FI_CQ_FORMAT_DATA, ..Default::default() };
    assert_eq!(fi_cq_open(domain, &mut attr, &mut cq, ptr::null_mut()), 0);
    let mut ep = ptr::null_mut();
    assert_eq!(fi_endpoint(domain, info, &mut ep, ptr::null_mut()), 0);
    assert_eq!(fi_ep_bind(ep, &raw mut (*cq).fid, FI_TRANSMIT | FI_RECV), 0);
    assert_eq!(fi_ep_bind(ep, &raw mut (*av).fid, 0), 0);
    assert_eq!(fi_enable(ep), 0);

    let (mut name, mut len) = ([0u8; 256], 256);
    assert_eq!(fi_getname(ep.cast(), name.as_mut_ptr().cast(), &mut len), 0);
    assert!((16..256).contains(&len), "an address of {len} bytes");
    let mut own: fi_addr_t = FI_ADDR_UNSPEC;
    assert_eq!(fi_av_insert(av, name.as_ptr().cast(), 1, &mut own, 0, ptr::null_mut()), 1);

    write_to_itself(domain, ep, cq, own, (*(*info).domain_attr).mr_mode);

    assert_eq!(fi_av_remove(av, &mut own, 1, 0), 0);
    let objects: [*mut fid; 5] = [ep.cast(), cq.cast(), av.cast(), domain.cast(), fabric.cast()];
    for object in objects {
        assert_eq!(fi_close(object), 0);
    }
    library.freeinfo(info);
    true
}

/// A write with an immediate, to the endpoint's own address.
unsafe fn write_to_itself(
    domain: *mut fid_domain,
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    own: fi_addr_t,
    mr_mode: i32,
) {
    let (source, mut target) = ([7u8; 4096], [0u8; 4096]);
    let iov = iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let mut attr = fi_mr_attr {
        iov: fi_mr_attr_memory { mr_iov: &iov },
        iov_count: 1,
        access: FI_REMOTE_WRITE,
        requested_key: 0x5eed,
        ..Default::default()
    };
    attr.device.reserved = 0;
    let mut mr = ptr::null_mut();
    assert_eq!(fi_mr_regattr(domain, &attr, 0, &mut mr), 0);
    assert_eq!((*mr).fid.fclass, FI_CLASS_MR);

    let local = iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: source.len() };
    let addr = if mr_mode & FI_MR_VIRT_ADDR != 0 { target.as_ptr() as u64 } else { 0 };
    let remote = fi_rma_iov { addr, len: source.len(), key: fi_mr_key(mr) };
    let mut context = fi_context2::default();
    let message = fi_msg_rma {
        msg_iov: &local,
        desc: &mut ptr::null_mut(),
        iov_count: 1,
        addr: own,
        rma_iov: &remote,
        rma_iov_count: 1,
        context: (&raw mut context).cast(),
        data: 42,
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let (mut posted, mut written, mut arrived) = (false, false, false);
    while !(posted && written && arrived) {
        assert!(
            std::time::Instant::now() < deadline,
            "posted {posted}, written {written}, arrived {arrived}"
        );
        if !posted {
            match fi_writemsg(ep, &message, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE) {
                0 => posted = true,
                rc => assert_eq!(rc, -(FI_EAGAIN as isize)),
            }
        }
        let mut entries = [fi_cq_data_entry::default(); 4];
        let rc = fi_cq_read(cq, entries.as_mut_ptr().cast(), entries.len());
        if rc == -(FI_EAVAIL as isize) {
            let mut error = fi_cq_err_entry::default();
            assert_eq!(fi_cq_readerr(cq, &mut error, 0), 1);
            panic!("{error:?}");
        }
        assert!(rc > 0 || rc == -(FI_EAGAIN as isize), "{rc}");
        for entry in &entries[..rc.max(0) as usize] {
            if entry.flags & FI_REMOTE_WRITE != 0 {
                assert_eq!(entry.data, 42);
                arrived = true;
            } else {
                assert_eq!(entry.op_context, message.context);
                written = true;
            }
        }
    }
    assert_eq!(source, target);
    assert_eq!(fi_close(mr.cast()), 0);
}

#[test]
fn missing_table_or_slot_returns_an_error() {
    let mut ops = fi_ops::EMPTY;
    let mut object = fid { fclass: FI_CLASS_DOMAIN, context: ptr::null_mut(), ops: ptr::null_mut() };
    // SAFETY: the objects are our own, with tables as empty as the calls allow.
    unsafe {
        assert_eq!(fi_close(&mut object), -FI_ENOSYS);
        object.ops = &mut ops;
        assert_eq!(fi_close(&mut object), -FI_ENOSYS);
        let name = c"name".as_ptr();
        assert_eq!(fi_set_ops(&mut object, name, 0, ptr::null_mut(), ptr::null_mut()), -FI_ENOSYS);

        unsafe extern "C" fn past_the_end(
            _: *mut fid_domain,
            _: fi_datatype,
            _: fi_op,
            _: *mut fi_atomic_attr,
            _: u64,
        ) -> i32 {
            panic!("a slot past the table's size was called")
        }
        let mut calls = fi_ops_domain { query_atomic: Some(past_the_end), ..fi_ops_domain::EMPTY };
        calls.size = std::mem::offset_of!(fi_ops_domain, query_atomic);
        let mut domain = fid_domain { fid: object, ops: &mut calls, mr: ptr::null_mut() };
        let (datatype, op) = (fi_datatype::FI_UINT64, fi_op::FI_SUM);
        assert_eq!(fi_query_atomic(&mut domain, datatype, op, ptr::null_mut(), 0), -FI_ENOSYS);
        let mut mr = ptr::null_mut();
        assert_eq!(fi_mr_regattr(&mut domain, &fi_mr_attr::default(), 0, &mut mr), -FI_ENOSYS);
    }
}
