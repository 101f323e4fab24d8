//! Grants: what a peer may reach of a memory until it is revoked.

use super::endpoint::Endpoint;
use super::ids::{GrantToken, Op, Peer};
use super::memory::Memory;
use super::options::OpOptions;
use super::pages::Pages;
use super::time::ns_not_0;
use crate::calls::grants::GrantSpec;
use crate::status::Result;
use crate::transfer::options::{timeout, Takes};
use std::time::Duration;

/// The extent of a grant. The default is the whole memory, with its own access.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct GrantArgs<'a> {
    write: bool,
    read: bool,
    pages: Option<Pages<'a>>,
    timeout: Option<Duration>,
    notify_failure: Option<u64>,
}

impl<'a> GrantArgs<'a> {
    /// The whole memory, with the access that it has.
    pub fn new() -> GrantArgs<'a> {
        GrantArgs::default()
    }

    /// Only these pages: the `remote` side, as the peer's transfers have it. Up to 1,048,576 pages in all.
    ///
    /// A range of bytes is one page: `len` bytes at `offset` of range 0 are
    /// `Pages { page_len: len, page_count: 1, remote: PageSide { offset, ..PageSide::default() }, ..Pages::default() }`.
    pub fn pages(mut self, pages: Pages<'a>) -> Self {
        self.pages = Some(pages);
        self
    }

    /// Only to write; with `read`, both.
    pub fn write(mut self) -> Self {
        self.write = true;
        self
    }

    /// Only to read; with `write`, both.
    pub fn read(mut self) -> Self {
        self.read = true;
        self
    }

    /// The grant ends by itself after this long, as by a revoke; revoke it all the same. Up to 24 hours
    /// ([`Limit`](crate::Status::Limit)); zero: at once. Default: it has no end of its own.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The value of one notification if the peer ends or the time is over, with the PEER_DOWN's status,
    /// [`Canceled`](crate::Status::Canceled) (we ended the peer) or [`TimedOut`](crate::Status::TimedOut); also after a
    /// success, but not after a revoke or a failure of which a transfer notified ([`OpOptions::notify_failure`]). It takes
    /// a place in the endpoint's queue until the revoke; such grants take half of the queue at most.
    pub fn notify_failure(mut self, value: u64) -> Self {
        self.notify_failure = Some(value);
        self
    }
}

impl Memory {
    /// Lets a peer reach a memory, or some pages of it, until [`Endpoint::revoke`]. Nothing is sent: send the peer the
    /// token by any means. The peer names it in the options of its operations; no other peer can use it. The peer
    /// imports the memory once. It may still be connecting, or have connected (PEER_UP).
    ///
    /// Memory with [`Access::Granted`](crate::Access::Granted) is reached under grants alone, whatever a peer does; a
    /// peer that lies can reach other memory without one. The memory is in use until its grants are revoked, also after a
    /// success.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, b, local) = (&world.a, &world.b, &world.local);
    /// use libweft::{Access, GrantArgs, MemoryArgs, OpOptions, PageSide, Pages, Status};
    ///
    /// let cache = b.register_with(vec![vec![0; 65536]], &MemoryArgs::new().access(Access::Granted))?;
    /// let remote = a.import(world.a_to_b, &cache.export()?)?;
    ///
    /// // `b` lends pages 3 and 9 to one request of `a`.
    /// let lent = PageSide { pages: Some(&[3, 9]), ..PageSide::default() };
    /// let pages = Pages { page_len: 4096, page_count: 2, remote: lent, ..Pages::default() };
    /// let token = cache.grant(world.b_to_a, &GrantArgs::new().write().pages(pages))?;
    /// let op = a.write_pages(local, &remote, &pages, &OpOptions::new().grant(token))?;
    /// world.wait_a(op)?.done().unwrap().result()?;
    ///
    /// // It takes them back, whatever `a` does: from the completion on they can be reused.
    /// let revoke = b.revoke(token, &OpOptions::new())?;
    /// world.wait_b(revoke)?.done().unwrap().result()?;
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Range`](crate::Status::Range), [`Limit`](crate::Status::Limit), [`NoMemory`](crate::Status::NoMemory),
    /// [`Again`](crate::Status::Again).
    pub fn grant(&self, peer: Peer, args: &GrantArgs) -> Result<GrantToken> {
        let pages =
            args.pages.map(|pages| Pages { local: Default::default(), ..pages }.check()).transpose()?;
        let timeout_ns = timeout("timeout", args.timeout.map_or(0, ns_not_0))?;
        let (peer, notify) = (peer.id(), args.notify_failure);
        let spec = GrantSpec { peer, write: args.write, read: args.read, pages, timeout_ns, notify };
        self.shared.call(|ep| ep.grant(self.internal()?, &spec)).map(GrantToken)
    }
}

impl Endpoint {
    /// Takes a grant back. After its [`Completion::Fence`](crate::Completion::Fence) with success no byte,
    /// notification or count under the grant can arrive, and the memory can be reused at once. The peer's operations
    /// under it end with [`Revoked`](crate::Status::Revoked), in their completions or, once its side knows, as the error of
    /// its calls; its others go on. So may a write that has just arrived and notified here, since its side knows that a
    /// little later: a peer that has to know is sent a message.
    ///
    /// No answer of the peer is needed where the memory has [`Access::Granted`](crate::Access::Granted), and over host and
    /// tcp: it may be stopped, dead or lie. After [`TimedOut`](crate::Status::TimedOut) call it again. After the grant's own
    /// timeout it completes at once, and it is valid after the peer's PEER_DOWN, too. Notifications that arrived under the grant are in the
    /// endpoint's queue before.
    ///
    /// # Errors
    /// [`Handle`](crate::Status::Handle) (no such grant, or revoked before). In the completion:
    /// [`TimedOut`](crate::Status::TimedOut), [`Canceled`](crate::Status::Canceled).
    pub fn revoke(&self, token: GrantToken, options: &OpOptions) -> Result<Op> {
        options.submit(self.shared(), Takes::NOTHING, |ep, common| ep.revoke(token.0, &common))
    }
}
