//! Counters: raised by what peers write, expected and read here.

use super::endpoint::Endpoint;
use super::ids::{CounterId, Op};
use super::options::OpOptions;
use super::parked::Shared;
use crate::room::Theirs;
use crate::status::Result;
use crate::transfer::options::Takes;
use std::sync::Arc;

/// A counter that peers' transfers raise. Dropping it destroys it: waits for values that it has not reached end with
/// [`Canceled`](crate::Status::Canceled); late increments are discarded.
#[derive(Debug)]
pub struct Counter {
    shared: Arc<Shared>,
    id: CounterId,
}

impl Counter {
    /// What peers name it by.
    pub fn id(&self) -> CounterId {
        self.id
    }

    /// Its value: all bytes that it counts are visible then. It stops at 2^48 - 1. With manual progress it changes
    /// only while somebody polls.
    ///
    /// # Errors
    /// [`Internal`](crate::Status::Internal), [`Forked`](crate::Status::Forked).
    pub fn read(&self) -> Result<u64> {
        self.shared.call(|ep| ep.read_counter(self.id.0))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = self.shared.call(|ep| ep.destroy_counter(self.id.0));
    }
}

impl Endpoint {
    /// Makes a counter of value 0, which peers' transfers raise.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, b, local, remote) = (&world.a, &world.b, &world.local, &world.remote);
    /// use libweft::OpOptions;
    ///
    /// let counter = b.create_counter()?;
    /// let id = counter.id(); // To be sent to the peers.
    /// for page in 0..4 {
    ///     a.write(local, page * 4096, remote, page * 4096, 4096, &OpOptions::new().counter(id))?;
    /// }
    /// let all = b.expect(&[(id, 4)], &OpOptions::new())?;
    /// world.wait_b(all)?.done().unwrap().result()?;
    /// assert_eq!(counter.read()?, 4);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Limit`](crate::Status::Limit) (`max_counters`).
    pub fn create_counter(&self) -> Result<Counter> {
        let id = self.shared().call(|ep| ep.create_counter())?;
        Ok(Counter { shared: self.shared().clone(), id: CounterId(id) })
    }

    /// Waits for counters of this endpoint: ends in one [`Completion::Counter`](crate::Completion::Counter), with
    /// success once each has reached its value and all bytes they count are visible, with
    /// [`TimedOut`](crate::Status::TimedOut), or with [`Canceled`](crate::Status::Canceled) (canceled, or one was
    /// destroyed). Any number may wait for one counter.
    ///
    /// A counter does not know its peers: cancel this on PEER_DOWN. Counters only grow: expect totals. 1 to 65,536
    /// counters, values up to 2^48 - 1.
    ///
    /// # Errors
    /// [`Again`](crate::Status::Again), [`Handle`](crate::Status::Handle), [`Limit`](crate::Status::Limit).
    pub fn expect(&self, counters: &[(CounterId, u64)], options: &OpOptions) -> Result<Op> {
        let (ids, values): (Vec<u64>, Vec<u64>) = counters.iter().map(|(id, value)| (id.0, *value)).unzip();
        options.submit(self.shared(), Takes::EXPECT, |ep, common| {
            ep.expect(Theirs::from(&ids[..]), Theirs::from(&values[..]), &common)
        })
    }
}
