//! Grants: what a peer may reach of a memory, until its owner takes it back.

use super::config::read_or_default;
use super::endpoint::weft_endpoint;
use super::entries::read_side;
use super::guard::{guard, output, with_endpoint};
use super::handle;
use super::memory::{weft_memory, WEFT_ACCESS_REMOTE_READ, WEFT_ACCESS_REMOTE_WRITE};
use super::op::{weft_grant_token, weft_op, weft_op_options};
use super::options::{options, Takes};
use super::peer::weft_peer;
use super::status::weft_status;
use super::transfer::weft_page_side;
use crate::endpoint::grants::GrantSpec;
use crate::status::Error;
use crate::transfer::geometry::{Pages, Side};
use crate::transfer::RevokeSpec;

/// What is granted. Start from `WEFT_GRANT_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_grant_args {
    /// `sizeof(weft_grant_args)`.
    pub size: u32,
    /// `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ` added up. 0: what the memory has.
    pub access: u32,
    /// Which pages: as the peer's `remote` side has them. NULL: the whole memory.
    pub pages: *const weft_page_side,
    /// With `pages`, as in `weft_pages`: bytes of each, how many each layer has, and how many layers;
    /// up to 1,048,576 pages in all.
    pub page_len: u64,
    pub page_count: u64,
    pub layer_count: u32,
    /// 0.
    pub reserved: u32,
}

/// Lets a peer reach a memory, or some pages of it, until `weft_grant_revoke`. Nothing is sent:
/// tell the peer the token, in a message or by any other way. The peer names it in the
/// options of its transfers, and reaches nothing by it but what is granted; no other
/// peer can use it. The peer imports the memory once, whatever grants there are.
///
/// A memory that is registered with `WEFT_ACCESS_GRANTED` is reached under grants alone:
/// what this page promises holds for those against any peer. Others can be reached without a
/// grant, too, by a peer that lies. The memory stays in use until its grants are revoked.
///
/// `memory`: of host memory. `peer`: it may still be connecting. `args`: NULL: the
/// whole memory. `token`: receives the token.
/// Any thread; does not block. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_RANGE`,
/// `WEFT_ERR_LIMIT`, `WEFT_ERR_UNSUPPORTED` (memory of a device), `WEFT_ERR_CLOSED`,
/// `WEFT_ERR_HANDLE`, `WEFT_ERR_NO_MEMORY`. Since 0.2.
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
        let memory = handle::memory(memory)?;
        let ep = memory.endpoint()?;
        // SAFETY: passed on.
        let args = unsafe { read_or_default(args)? };
        super::config::zero_reserved(args.reserved)?;
        let unknown = args.access & !(WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_REMOTE_WRITE);
        if unknown != 0 {
            return Err(Error::invalid(format!(
                "access has bits {unknown:#x}: a grant's are WEFT_ACCESS_REMOTE_WRITE and WEFT_ACCESS_REMOTE_READ"
            )));
        }
        let each = (args.page_len, args.page_count);
        // SAFETY: passed on; aligned or not.
        let side = (!args.pages.is_null()).then(|| unsafe { args.pages.read_unaligned() });
        let pages = match &side {
            None if each != (0, 0) => {
                return Err(Error::invalid("page_len or page_count is set, but pages is NULL"))
            }
            None => None,
            Some(side) => Some(Pages {
                local: Side::default(),
                // SAFETY: passed on.
                remote: unsafe { read_side(side, each, "pages.pages")? },
                page_len: args.page_len,
                page_count: args.page_count,
                layer_count: args.layer_count.max(1),
            }),
        };
        let write = args.access & WEFT_ACCESS_REMOTE_WRITE != 0;
        let read = args.access & WEFT_ACCESS_REMOTE_READ != 0;
        let token = ep.grant(memory.of(&ep)?, &GrantSpec { peer, write, read, pages })?;
        out.store(weft_grant_token { bytes: token.get().to_le_bytes() });
        Ok(())
    })
}

/// Takes a grant back. When its completion (`WEFT_COMPLETION_FENCE`) says `WEFT_OK`, no byte, notification or
/// count of an operation under the grant can arrive any more, and the memory can be used for
/// something else at once. What the peer has under it ends there with `WEFT_ERR_REVOKED`;
/// its other operations go on.
///
/// Over host and tcp that takes no answer of the peer: it may be stopped, dead or
/// lie. Over the other fabrics, the peer is asked to come to rest, and the completion comes
/// with its answer, or when it has ended (right before its PEER_DOWN): a peer that lies
/// there can still write. After `WEFT_ERR_TIMED_OUT` call it again: the grant stays as it is.
///
/// `token`: of a grant of this endpoint. `options`: NULL for defaults. `op`: receives
/// the id; NULL if it is not wanted.
/// Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (no such grant, or one that was revoked
/// before), `WEFT_ERR_AGAIN`, `WEFT_ERR_INVALID`, `WEFT_ERR_CLOSED`. In the completion also
/// `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`. Since 0.2.
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
            // SAFETY: valid as the header asks; aligned or not.
            let token = unsafe { token.read_unaligned() };
            let grant =
                token.read().ok_or_else(|| Error::handle("the token is all zeros, which is of no grant"))?;
            let options = self::options(ep, options, Takes::NOTHING)?;
            options.submit(ep, op, |common| {
                let (timeout_ns, user_data, queue) = (common.timeout_ns, common.user_data, common.queue);
                ep.revoke(RevokeSpec { grant, timeout_ns, user_data, queue })
            })
        })
    })
}
