//! A stream of copies. Added copies are written into a table that the device reads. A kernel launch
//! executes one table, and an event signals its end. Tables are used in turn.

use super::{check, Current, HOST_MAPPED};
use crate::device::{Copied, Copier};
use crate::status::{Error, Result};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUfunction, CUresult, CUstream};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Maximum launches in flight, and maximum pieces of one launch.
const TABLES: usize = 16;
const PIECES: usize = 2048;
/// Maximum bytes of a piece, and bytes that one block of the kernel copies.
const PIECE: u64 = 64 << 10;
const BLOCK: u64 = 16 << 10;
const THREADS: u32 = 256;
const NON_BLOCKING: u32 = 1;
const NO_TIMING: u32 = 2;

/// The layout that the kernel reads.
#[repr(C)]
struct KernelCopy {
    from: u64,
    to: u64,
    len: u64,
    unused: u64,
}

pub struct Stream {
    context: CUcontext,
    kernel: CUfunction,
    stream: CUstream,
    events: [CUevent; TABLES],
    /// Host memory that the device reads.
    tables: *mut KernelCopy,
    /// Pieces in the table being filled, and bytes of the longest one.
    filled: usize,
    longest: u64,
    /// Launches begun, and launches known to be done.
    begun: u64,
    done: u64,
    failed: Option<Error>,
}

// SAFETY: any thread may use the driver's handles, one thread at a time.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(context: CUcontext, kernel: CUfunction) -> Result<Stream> {
        let _current = Current::new(context)?;
        let mut new = Stream {
            context,
            kernel,
            stream: null_mut(),
            events: [null_mut(); TABLES],
            tables: null_mut(),
            filled: 0,
            longest: 0,
            begun: 0,
            done: 0,
            failed: None,
        };
        let (mut least, mut greatest, mut tables) = (0, 0, null_mut());
        let len = TABLES * PIECES * size_of::<KernelCopy>();
        // SAFETY: all outputs are valid for the calls. Dropping `new` frees what was made.
        unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest);
            // Higher priority than the device's other work, since a NIC waits for the copies.
            let made = sys::cuStreamCreateWithPriority(&mut new.stream, NON_BLOCKING, greatest);
            check(made, "making a stream for copies")?;
            for event in &mut new.events {
                check(sys::cuEventCreate(event, NO_TIMING), "making an event for copies")?;
            }
            check(sys::cuMemHostAlloc(&mut tables, len, HOST_MAPPED), "memory for tables of copies")?;
        }
        new.tables = tables.cast();
        // A stream's first launch is slow: it copies nothing.
        // SAFETY: the table has space for its first entry.
        unsafe { new.table().write(KernelCopy { from: 0, to: 0, len: 0, unused: 0 }) };
        new.filled = 1;
        new.flush();
        new.failed.take().map_or(Ok(new), Err)
    }

    fn table(&self) -> *mut KernelCopy {
        // SAFETY: the index is inside the allocation of `TABLES * PIECES` entries.
        unsafe { self.tables.add(self.begun as usize % TABLES * PIECES) }
    }

    fn fail(&mut self, error: Error) {
        log::warn!("{error}");
        self.failed.get_or_insert(error);
    }

    /// Launches the table's copies, and takes the next table.
    fn flush(&mut self) {
        let (mut table, pieces) = (self.table() as u64, self.filled as u32);
        let blocks = self.longest.div_ceil(BLOCK).max(1) as u32;
        (self.filled, self.longest) = (0, 0);
        let begun = Current::new(self.context).and_then(|_current| {
            let mut arguments: [*mut c_void; 1] = [(&raw mut table).cast()];
            let event = self.events[self.begun as usize % TABLES];
            // SAFETY: the kernel has one argument; the table is not reused before its event.
            unsafe {
                if pieces > 0 {
                    let (kernel, to) = (self.kernel, arguments.as_mut_ptr());
                    let launched = sys::cuLaunchKernel(
                        kernel,
                        pieces,
                        blocks,
                        1,
                        THREADS,
                        1,
                        1,
                        0,
                        self.stream,
                        to,
                        null_mut(),
                    );
                    check(launched, "starting copies")?;
                }
                check(sys::cuEventRecord(event, self.stream), "starting copies")
            }
        });
        self.begun += 1;
        if let Err(error) = begun {
            self.fail(error);
        }
        // The next table must be free.
        if self.begun - self.done >= TABLES as u64 {
            self.await_one();
        }
    }

    fn await_one(&mut self) {
        let event = self.events[self.done as usize % TABLES];
        let waited = Current::new(self.context).and_then(|_current| {
            // SAFETY: the event was made by `new`.
            check(unsafe { sys::cuEventSynchronize(event) }, "waiting for copies")
        });
        self.done += 1;
        if let Err(error) = waited {
            self.fail(error);
        }
    }
}

impl Copier for Stream {
    unsafe fn add(&mut self, from: u64, to: u64, len: u64) {
        let mut at = 0;
        while at < len {
            let part = PIECE.min(len - at);
            let entry = KernelCopy { from: from + at, to: to + at, len: part, unused: 0 };
            // SAFETY: `filled < PIECES`, and the device does not read this table before its launch.
            unsafe { self.table().add(self.filled).write(entry) };
            self.filled += 1;
            self.longest = self.longest.max(part);
            at += part;
            if self.filled == PIECES {
                self.flush();
            }
        }
    }

    fn launch(&mut self) -> u64 {
        if self.filled > 0 {
            self.flush();
        }
        self.begun
    }

    fn poll(&mut self, ticket: u64) -> Copied {
        while self.done < ticket && self.failed.is_none() {
            // SAFETY: the event was made by `new`.
            match unsafe { sys::cuEventQuery(self.events[self.done as usize % TABLES]) } {
                CUresult::CUDA_SUCCESS => self.done += 1,
                CUresult::CUDA_ERROR_NOT_READY => return Copied::Pending,
                result => {
                    if let Err(error) = check(result, "copying device memory") {
                        self.fail(error);
                    }
                }
            }
        }
        self.failed.as_ref().map_or(Copied::Done, |_| Copied::Gone)
    }

    fn wait(&mut self) -> bool {
        while self.done < self.begun {
            self.await_one();
        }
        true
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.wait();
        let Ok(_current) = Current::new(self.context) else { return };
        // SAFETY: no copy is in flight, and handles that were not made are NULL.
        unsafe {
            self.events.iter().filter(|event| !event.is_null()).for_each(|event| {
                sys::cuEventDestroy_v2(*event);
            });
            if !self.stream.is_null() {
                sys::cuStreamDestroy_v2(self.stream);
            }
            if !self.tables.is_null() {
                sys::cuMemFreeHost(self.tables.cast());
            }
        }
    }
}
