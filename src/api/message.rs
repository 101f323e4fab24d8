//! Messages: small control data, in order.

use super::endpoint::Endpoint;
use super::ids::{Op, Peer};
use super::options::OpOptions;
use crate::room::Theirs;
use crate::status::Result;
use crate::transfer::options::Takes;

/// Bytes of the longest message.
pub use crate::calls::MESSAGE_MAX;

impl Endpoint {
    /// Sends a message, for requests, descriptors and the like: up to [`MESSAGE_MAX`] bytes, which are copied.
    /// Messages of one peer arrive in the order of their calls, each once, as
    /// [`Completion::Message`](crate::Completion::Message) in the peer's own endpoint queue; they have no order with
    /// transfers.
    ///
    /// Ends in one [`Completion::Send`](crate::Completion::Send); success: it is in the peer's queue. A peer that
    /// does not poll, or keeps its messages, holds back its senders, within `message_bytes`; nothing is dropped.
    /// After any other status it may have arrived, or may still; later ones arrive all the same.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, b, peer) = (&world.a, &world.b, world.a_to_b);
    /// use libweft::OpOptions;
    ///
    /// a.send(peer, b"page 12, please", &OpOptions::new())?;
    /// let message = world.message_b()?;
    /// assert_eq!(&message[..], b"page 12, please");
    /// // The answer goes to the one who asked.
    /// b.send(message.peer, b"here it is", &OpOptions::new())?;
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Again`](crate::Status::Again), [`Handle`](crate::Status::Handle) (the peer has ended),
    /// [`Limit`](crate::Status::Limit).
    pub fn send(&self, peer: Peer, data: &[u8], options: &OpOptions) -> Result<Op> {
        options.submit(self.shared(), Takes::NOTHING, |ep, common| {
            ep.send(peer.id(), Theirs::from(data), &common)
        })
    }
}
