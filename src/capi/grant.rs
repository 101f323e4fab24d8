//! Grants: what a peer may reach of a memory until it is revoked.

use super::args::{read_or_default, Sized32};
use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint};
use super::handle;
use super::memory::{weft_memory, WEFT_ACCESS_REMOTE_READ, WEFT_ACCESS_REMOTE_WRITE};
use super::op::{weft_grant_token, weft_op, weft_op_options, WEFT_NOTIFY_FAILURE};
use super::options::options;
use super::peer::weft_peer;
use super::status::weft_status;
use super::transfer::{read_side, weft_page_side};
use crate::calls::grants::GrantSpec;
use crate::status::Error;
use crate::transfer::geometry::{Pages, Side};
use crate::transfer::options::{check_flags, timeout, Takes};

/// What is granted. Start from `WEFT_GRANT_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_grant_args {
    pub size: u32,
    /// `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ` added up. 0:
    /// what the memory has.
    pub access: u32,
    /// Which pages, as the peer's `remote` side has them. NULL: the whole
    /// memory.
    pub pages: *const weft_page_side,
    /// With `pages`, as in `weft_pages`; up to 1,048,576 pages in all.
    pub page_len: u64,
    pub page_count: u64,
    pub layer_count: u32,
    /// 0, or `WEFT_NOTIFY_FAILURE`: here, if the peer ends or the time is over.
    pub flags: u32,
    /// Nanoseconds, up to 24 hours, until the grant ends as by a revoke; revoke
    /// it all the same. 0: none.
    pub timeout_ns: u64,
    /// With the flag: the value of one notification, with the PEER_DOWN's
    /// status, `WEFT_ERR_CANCELED` (we ended the peer) or `WEFT_ERR_TIMED_OUT`;
    /// also after a success, but not after a revoke or a failure of which a
    /// transfer notified. It takes a place in the endpoint's queue until the
    /// revoke; such grants take half of the queue at most.
    pub notify: u64,
}

// SAFETY: the struct has only integers and pointers, for which zero is valid.
unsafe impl Sized32 for weft_grant_args {
    const FIRST: usize = 56;
}

/// Lets a peer reach a memory, or some pages of it, until
/// `weft_grant_revoke`: docs/pages-back.md. Nothing is sent: send the peer the
/// token by any means. The peer names it in the options of its operations; no
/// other peer can use it. The peer imports the memory once.
///
/// The memory is in use until its grants are revoked, also after a success.
///
/// `peer`: it may still be connecting, or have connected (PEER_UP). `args`:
/// NULL: the whole memory. Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_LIMIT`,
/// `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_AGAIN`.
///
/// # Safety
/// `args` must be NULL or valid for `args->size` bytes, its pages for `page_count`
/// indexes, and `token` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_grant_create(
    memory: *const weft_memory,
    peer: weft_peer,
    args: *const weft_grant_args,
    token: *mut weft_grant_token,
) -> weft_status {
    guard(|| {
        let out = output(token, "token")?;
        let memory = handle::get(memory)?;
        let ep = memory.endpoint()?;
        // SAFETY: `args` is NULL or a struct with its size.
        let args = unsafe { read_or_default(args)? };
        check_flags(args.flags, WEFT_NOTIFY_FAILURE)?;
        let notify = (args.flags & WEFT_NOTIFY_FAILURE != 0).then_some(args.notify);
        if notify.is_none() && args.notify != 0 {
            return Err(Error::invalid("notify is set, but WEFT_NOTIFY_FAILURE is not in flags"));
        }
        let timeout_ns = timeout("timeout_ns", args.timeout_ns)?;
        let unknown = args.access & !(WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_REMOTE_WRITE);
        if unknown != 0 {
            return Err(Error::invalid(format!(
                "access has bits {unknown:#x}: a grant's are WEFT_ACCESS_REMOTE_WRITE and WEFT_ACCESS_REMOTE_READ"
            )));
        }
        // SAFETY: same contract; may be unaligned.
        let side = (!args.pages.is_null()).then(|| unsafe { args.pages.read_unaligned() });
        let pages = match &side {
            None if (args.page_len, args.page_count) != (0, 0) => {
                return Err(Error::invalid("page_len or page_count is set, but pages is NULL"))
            }
            None => None,
            Some(side) => Some(Pages::new(args.page_len, args.page_count, args.layer_count, || {
                // SAFETY: `pages` is not NULL, so it is a side with as many indexes as there are pages.
                Ok((Side::default(), unsafe { read_side(side, args.page_count, "pages.pages")? }))
            })?),
        };
        let write = args.access & WEFT_ACCESS_REMOTE_WRITE != 0;
        let read = args.access & WEFT_ACCESS_REMOTE_READ != 0;
        let token =
            ep.grant(memory.belonging_to(&ep)?, &GrantSpec { peer, write, read, pages, timeout_ns, notify })?;
        out.store(weft_grant_token { bytes: token.get().to_le_bytes() });
        Ok(())
    })
}

/// Takes a grant back. After its completion (`WEFT_COMPLETION_FENCE`) with
/// `WEFT_OK` no byte, notification or count under the grant can arrive, and the
/// memory can be reused at once. The peer's operations under it end with
/// `WEFT_ERR_REVOKED`, in their completions or, once its side knows, as the
/// status of its calls; its others go on. So may a write that has just arrived
/// and notified here, since its side knows that a little later: a peer that has
/// to know is sent a message.
///
/// No answer of the peer is needed where the memory has `WEFT_ACCESS_GRANTED`,
/// and over host and tcp: docs/pages-back.md. After `WEFT_ERR_TIMED_OUT` call
/// it again. After the grant's own timeout it completes at once, and it is valid
/// after the peer's PEER_DOWN, too. Notifications that arrived under the grant
/// are in the endpoint's queue before.
///
/// Errors: `WEFT_ERR_HANDLE` (no such grant, or revoked before). In the
/// completion: `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`.
///
/// # Safety
/// `token` must be valid, `options` NULL or valid for `options->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_grant_revoke(
    endpoint: *mut weft_endpoint,
    token: *const weft_grant_token,
    options: *const weft_op_options,
    op: *mut weft_op,
) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |ep| {
            if token.is_null() {
                return Err(Error::invalid("token is NULL"));
            }
            // SAFETY: the header requires a valid token; may be unaligned.
            let token = unsafe { token.read_unaligned() };
            let grant =
                token.read().ok_or_else(|| Error::handle("the token is all zeros, which is of no grant"))?;
            let options = self::options(ep, options, Takes::NOTHING)?;
            options.submit(ep, op, |common| ep.revoke(grant, &common))
        })
    })
}
