//! Peers: connecting, disconnecting, fences.

use super::endpoint::Endpoint;
use super::ids::{Op, Peer};
use super::options::OpOptions;
use crate::ids::PeerId;
use crate::status::{Error, Result};
use crate::transfer::options::Takes;

impl Endpoint {
    /// Starts to connect to the endpoint whose [`address`](Endpoint::address) this is. One
    /// [`Completion::PeerUp`](crate::Completion::PeerUp) in the endpoint's own queue answers. The other side gets one
    /// with `accepted`, and needs to do nothing ([`PeerUp`](crate::PeerUp): which peer it is). The peer can be used at once:
    /// operations wait until it is up.
    ///
    /// A peer that was up ends in exactly one [`Completion::PeerDown`](crate::Completion::PeerDown); once that is
    /// polled, nothing of the peer arrives here any longer (over efa its writes may, until the memory is
    /// deregistered). Endpoints that connect to each other become one peer; connecting to a peer gives the same id
    /// and one more PEER_UP: of one that is ending, with how it ends.
    ///
    /// ```
    /// # use libweft::{Endpoint, EndpointConfig};
    /// # let config = EndpointConfig::new().fabric("host");
    /// # let (a, b) = (Endpoint::open(&config)?, Endpoint::open(&config)?);
    /// use libweft::Completion;
    /// use std::time::Duration;
    ///
    /// let peer = a.connect(b.address())?;
    /// match a.queue().wait(Duration::from_secs(10))? {
    ///     Some(Completion::PeerUp(up)) => {
    ///         up.result()?;
    ///         assert_eq!(up.peer, peer);
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Format`](crate::Status::Format), [`NoCommonFabric`](crate::Status::NoCommonFabric),
    /// [`Version`](crate::Status::Version), [`Invalid`](crate::Status::Invalid),
    /// [`Limit`](crate::Status::Limit) (`max_peers`), [`Again`](crate::Status::Again) (the queue is full).
    pub fn connect(&self, address: &[u8]) -> Result<Peer> {
        self.connect_with(address, &OpOptions::new())
    }

    /// Like [`connect`](Endpoint::connect), with the options `timeout` and `user_data`.
    ///
    /// ```
    /// # use libweft::{Endpoint, EndpointConfig, OpOptions, Completion, Status};
    /// # use std::time::Duration;
    /// # let config = EndpointConfig::new().fabric("host");
    /// let a = Endpoint::open(&config)?;
    /// let gone = Endpoint::open(&config)?.address().to_vec(); // Closed at once.
    /// let options = OpOptions::new().timeout(Duration::from_millis(300)).user_data(3);
    /// a.connect_with(&gone, &options)?;
    /// let Some(Completion::PeerUp(up)) = a.queue().wait(Duration::from_secs(10))? else { panic!() };
    /// assert_eq!(up.user_data, 3);
    /// assert_ne!(up.status, Status::Ok);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `connect`.
    pub fn connect_with(&self, address: &[u8], options: &OpOptions) -> Result<Peer> {
        let (timeout_ns, user_data) = options.connect()?;
        let id = self.shared().call(|ep| ep.connect(address, timeout_ns, user_data))?;
        PeerId::new(id).map(Peer).ok_or_else(|| Error::handle("a peer without an id"))
    }

    /// Ends the connection with a peer: its operations end at once with [`Canceled`](crate::Status::Canceled); both
    /// sides drain what is in flight; a PEER_DOWN with [`Ok`](crate::Status::Ok) follows, within 3 seconds also if the peer
    /// does not answer, unless a provider does not return. The id is valid until then. The peer gets a PEER_DOWN with
    /// [`PeerClosed`](crate::Status::PeerClosed).
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::{Completion, Status};
    /// use std::time::Duration;
    ///
    /// world.a.disconnect(world.a_to_b)?;
    /// match world.b.queue().wait(Duration::from_secs(10))? {
    ///     Some(Completion::PeerDown(down)) => assert_eq!(down.status, Status::PeerClosed),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Handle`](crate::Status::Handle) (it has ended).
    pub fn disconnect(&self, peer: Peer) -> Result<()> {
        self.shared().call(|ep| ep.disconnect(peer.id()))
    }

    /// Waits until no operation that the peer had accepted before it saw the fence can change local memory, notify or
    /// raise counters here, whatever its outcome.
    ///
    /// Call it before memory is reused that writes of the peer may still reach: your request timed out, or the peer
    /// says that a write failed. Without grants, nothing is needed after the write's notification, PEER_DOWN (except over
    /// efa) or [`Memory::deregister`](crate::Memory::deregister).
    ///
    /// Ends in one [`Completion::Fence`](crate::Completion::Fence). With success it is so, and every notification of those
    /// operations is in the queue already; any other status promises nothing. The fence ends no operation, and waits for
    /// the peer's until their deadlines: have the peer cancel them, give the fence a longer deadline, or disconnect. What
    /// the peer accepts later is not waited for.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::OpOptions;
    /// let fence = world.b.fence(world.b_to_a, &OpOptions::new())?;
    /// world.wait_b(fence)?.done().unwrap().result()?; // Nothing of `a` is under way to `b`.
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Again`](crate::Status::Again), [`Handle`](crate::Status::Handle). In the completion:
    /// [`TimedOut`](crate::Status::TimedOut), [`Limit`](crate::Status::Limit) (64 fences are under way),
    /// [`PeerLost`](crate::Status::PeerLost), [`PeerClosed`](crate::Status::PeerClosed).
    pub fn fence(&self, peer: Peer, options: &OpOptions) -> Result<Op> {
        options.submit(self.shared(), Takes::NOTHING, |ep, common| ep.fence(peer.id(), &common))
    }
}
