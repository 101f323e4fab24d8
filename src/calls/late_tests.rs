//! Operations that end while several NICs have their memory.

use super::{Endpoint, EndpointConfig};
use crate::device::Claim;
use crate::ids::LaneId;
use crate::memory::{Access, Memory, Range, RemoteState};
use crate::status::Status;
use crate::transfer::completion::{Completion, KIND_PEER_UP};
use crate::transfer::geometry::Pages;
use crate::transfer::watch::Marks;
use crate::transfer::{Common, Direction, Outcome, Terms};
use crate::worker::lanes::PeerEnd;
use crate::worker::Worker;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(70);

fn next(endpoint: &Endpoint) -> Completion {
    let mut room = [MaybeUninit::uninit()];
    let count = endpoint.wait(endpoint.queue(), &mut room, PATIENCE.as_nanos() as u64).expect("it is open");
    assert_eq!(count, 1, "a completion");
    // SAFETY: one entry was written.
    unsafe { room[0].assume_init() }
}

/// The lane over which a worker reads a file.
fn reads(worker: &Worker) -> Option<LaneId> {
    worker.data.rails.lanes().find(|work| work.lane.slow_ops > 0).map(|work| work.lane.id)
}

#[test]
fn lane_that_is_reset_leaves_the_completion_to_lanes_of_other_workers() {
    let open = || {
        let fabric = Some("tcp".into());
        let config = EndpointConfig { fabric, workers: 2, tcp_streams: 2, ..EndpointConfig::default() };
        Endpoint::open(config).expect("it opens")
    };
    let (a, b) = (open(), open());
    let b_of_a = a.connect(b.address(), 0, 0).expect("a connect");
    [&a, &b].iter().for_each(|endpoint| assert_eq!(next(endpoint).kind, KIND_PEER_UP));
    let file = tempfile::tempfile().expect("a file");
    file.set_len(LEN).expect("its length");
    let register = |endpoint: &Endpoint, base, claim| -> Arc<Memory> {
        endpoint.register(vec![Range { base, len: LEN }], Access::ALL, 0, claim).expect("a memory")
    };
    let bytes: &'static mut [u8] = Box::leak(vec![0; LEN as usize].into_boxed_slice());
    let local = register(&a, bytes.as_ptr() as u64, Claim::Host);
    let stored = register(&b, 0, Claim::File(file.as_raw_fd()));
    let remote = a.import(b_of_a, &stored.descriptor().expect("a descriptor")).expect("an import");
    let began = Instant::now();
    while remote.state() != RemoteState::Ready {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let read = || {
        let marks = Marks::default();
        let common = Common { timeout_ns: None, user_data: 0, queue: a.queue(), marks: &marks, grant: None };
        let (direction, notify, count) = (Direction::Read, None, None);
        let terms =
            Terms { direction, notify, count, each_peer: false, urgent: false, durable: false, common };
        a.submit(&local, &remote, &Pages::one((&local, 0), (&remote, 0), LEN), &terms).expect("a read")
    };
    // Until the connections for disks are there, and both lanes take part.
    loop {
        assert!(began.elapsed() < PATIENCE, "one of the lanes reads nothing");
        read();
        assert_eq!(next(&a).status, Status::Ok as i32);
        // Nothing is answered from here on.
        let theirs: Vec<_> = b.workers.iter().map(|worker| worker.driver.lock()).collect();
        let mut ours: Vec<_> = a.workers.iter().map(|worker| worker.driver.lock()).collect();
        let id = read();
        (0..20).for_each(|_| ours.iter_mut().for_each(|worker| _ = worker.step()));
        let [Some(lane), Some(_)] = [0, 1].map(|worker| reads(&ours[worker])) else {
            drop((ours, theirs));
            next(&a);
            continue;
        };
        a.cancel(id.get()).expect("it is there");
        let (late, now) = (|| a.core.table.late(), a.core.clock.now());
        let outcome = Outcome { provider_errno: libc::ETIMEDOUT, ..Outcome::new(Status::PeerLost) };
        ours[0].data.begin_reset(lane, outcome, PeerEnd::Open);
        ours[0].data.release_late(now);
        assert_eq!(late(), 1, "the other worker's NIC has the memory");
        ours[1].data.release_late(now);
        assert_eq!(late(), 0);
        return assert_eq!(next(&a).status, Status::Canceled as i32);
    }
}
