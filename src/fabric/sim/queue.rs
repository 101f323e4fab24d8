//! Completion queues.

use super::fid_ops::{self, table};
use crate::failing::step;
use libfabric_sys::*;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;

/// A finished operation that was not read yet.
#[derive(Clone, Copy)]
pub struct Finished {
    pub context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub data: u64,
    pub errno: c_int,
    /// Whether reading it frees a post of the endpoint.
    pub sent: bool,
}

/// The source of a queue's completions.
pub trait Owner {
    /// Drives every operation in flight.
    fn progress(&mut self);

    /// Whether the next event depends on another side; then the bell rings for it.
    fn may_sleep(&mut self) -> bool;

    /// How an error is reported: its number, and the provider's own.
    fn reported(&self, errno: c_int) -> (c_int, c_int);

    /// A completion was read: its context belongs to the caller again. False if the caller touched
    /// it earlier.
    ///
    /// # Safety
    /// The entry must belong to this owner.
    unsafe fn given_back(&mut self, entry: &Finished) -> bool;
}

#[repr(C)]
pub struct Queue {
    fid: fid_cq,
    pub users: usize,
    owner: Option<*mut dyn Owner>,
    entries: VecDeque<Finished>,
    size: usize,
    overrun: bool,
    /// The descriptor to wait on, if one was requested.
    waits_on: Option<RawFd>,
    domain_users: *mut usize,
}

static FID: fi_ops = fi_ops { close: Some(close), control: Some(control), ..fi_ops::EMPTY };
static OPS: fi_ops_cq =
    fi_ops_cq { read: Some(read), readerr: Some(readerr), strerror: None, ..fi_ops_cq::EMPTY };

/// # Safety
/// The caller upholds the contract of `fi_cq_open`; `domain_users` outlives the queue.
pub unsafe fn open(
    attr: *const fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
    waits_on: Option<RawFd>,
    domain_users: *mut usize,
) -> c_int {
    // SAFETY: the attributes are valid for the call.
    let attr = unsafe { &*attr };
    let waits = match attr.wait_obj {
        fi_wait_obj::FI_WAIT_NONE => false,
        fi_wait_obj::FI_WAIT_FD if waits_on.is_some() => true,
        _ => return -FI_ENOSYS,
    };
    if attr.format != fi_cq_format::FI_CQ_FORMAT_DATA {
        return -FI_ENOSYS;
    }
    let size = if attr.size == 0 { 1024 } else { attr.size };
    let queue = Box::new(Queue {
        fid: fid_cq { fid: fid_ops::fid(FI_CLASS_CQ, context, &FID), ops: table(&OPS) },
        users: 0,
        owner: None,
        entries: VecDeque::with_capacity(size),
        size,
        overrun: false,
        waits_on: waits_on.filter(|_| waits),
        domain_users,
    });
    // SAFETY: the domain's count and the room for a pointer are valid for the call.
    unsafe {
        *domain_users += 1;
        *cq = Box::into_raw(queue).cast();
    }
    0
}

impl Queue {
    pub fn serve(&mut self, owner: *mut dyn Owner) {
        self.owner = Some(owner);
        self.users += 1;
    }

    pub fn release(&mut self) {
        self.owner = None;
        self.users -= 1;
    }

    #[inline]
    pub fn push(&mut self, entry: Finished) {
        if self.entries.len() < self.size {
            self.entries.push_back(entry);
        } else {
            self.overrun();
        }
    }

    /// An endpoint that serves requests itself then stops accepting arrivals.
    pub fn is_half_full(&self) -> bool {
        self.entries.len() >= self.size / 2
    }

    #[cold]
    fn overrun(&mut self) {
        if !self.overrun {
            log::error!("sim: a completion queue of {} entries ran over", self.size);
        }
        self.overrun = true;
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: `open` made the queue, and the caller passes space for a descriptor.
    unsafe {
        match (command, (*fid.cast::<Queue>()).waits_on) {
            (FI_GETWAIT, Some(fd)) => *arg.cast::<c_int>() = fd,
            _ => return -FI_ENOSYS,
        }
    }
    0
}

/// Like `fi_trywait`, for queues.
pub unsafe extern "C" fn trywait(_fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    for i in 0..count as usize {
        // SAFETY: `open` made the queues; their endpoints release them before they close.
        let ready = unsafe {
            let queue: *mut Queue = (*fids.add(i)).cast();
            (*queue).entries.is_empty() && (*queue).owner.is_some_and(|owner| (*owner).may_sleep())
        };
        if !ready {
            return -FI_EAGAIN;
        }
    }
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    if step("closing a completion queue") {
        return -FI_EBUSY;
    }
    let queue: *mut Queue = fid.cast();
    // SAFETY: `open` made the queue, which is closed only here.
    unsafe {
        if (*queue).users > 0 {
            return -FI_EBUSY;
        }
        *(*queue).domain_users -= 1;
        drop(Box::from_raw(queue));
    }
    0
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: `open` made the queue, and the buffer has space for `count` entries of its format;
    // the endpoint releases the queue before it closes. The borrow ends before the endpoint pushes
    // to the queue.
    unsafe {
        let queue: *mut Queue = cq.cast();
        let Some(owner) = (*queue).owner else { return -(FI_EAGAIN as isize) };
        (*owner).progress();
        let queue = &mut *queue;
        if queue.overrun {
            return -(FI_EOVERRUN as isize);
        }
        let mut out: *mut fi_cq_data_entry = buf.cast();
        let mut taken = 0;
        while taken < count {
            let Some(entry) = queue.entries.front().copied() else { break };
            if entry.errno != 0 {
                break;
            }
            queue.entries.pop_front();
            let Finished { context, flags, len, data, .. } = entry;
            out.write(fi_cq_data_entry { op_context: context, flags, len, buf: ptr::null_mut(), data });
            if !(*owner).given_back(&entry) {
                // The error is only found here: the entry reports it.
                queue.entries.push_front(Finished { errno: FI_EINVAL, sent: false, ..entry });
                break;
            }
            out = out.add(1);
            taken += 1;
        }
        match (taken, queue.entries.front()) {
            (0, None) => -(FI_EAGAIN as isize),
            (0, Some(_)) => -(FI_EAVAIL as isize),
            _ => taken as isize,
        }
    }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: `open` made the queue, and the caller passes one entry.
    unsafe {
        let queue: *mut Queue = cq.cast();
        let owner = (*queue).owner;
        let queue = &mut *queue;
        let Some(entry) = queue.entries.front().copied().filter(|entry| entry.errno != 0) else {
            return -(FI_EAGAIN as isize);
        };
        queue.entries.pop_front();
        let out = &mut *buf;
        out.op_context = entry.context;
        out.flags = entry.flags;
        out.len = 0;
        (out.err, out.prov_errno) =
            owner.map_or((entry.errno, entry.errno), |owner| (*owner).reported(entry.errno));
        out.err_data_size = 0;
        if let Some(owner) = owner {
            (*owner).given_back(&entry);
        }
    }
    1
}
