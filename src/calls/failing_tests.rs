//! Lanes that fail at a chosen moment: two endpoints over simulated NICs, in virtual time, whose passes the test makes.

use super::{Endpoint, EndpointConfig};
use crate::device::Claim;
use crate::ids::{LaneId, PeerId, RailIndex};
use crate::memory::{Access, Range, RemoteState};
use crate::peer::{Peer, PeerState};
use crate::session::channel::Out;
use crate::status::Status;
use crate::transfer::completion::{Completion, KIND_NOTIFICATION};
use crate::transfer::geometry::Pages;
use crate::transfer::watch::Marks;
use crate::transfer::{Common, Count, Direction, Notify, Terms};
use crate::wire::frame::{self, numbers, Header, Kind, HEADER, USER};
use crate::worker::Worker;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const LEN: u64 = 4096;
const PASSES: usize = 100_000;

/// Two endpoints, of which the first connects.
struct Two([Arc<Endpoint>; 2]);

impl Two {
    fn connecting(rails: u32) -> Two {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let world = NEXT.fetch_add(1, Ordering::Relaxed);
        let open = || {
            let fabric = Some(format!("sim:like=tcp:rails={rails}:clock=virtual:world=failing{world}"));
            let config =
                EndpointConfig { fabric, manual: true, max_transfers: 64, ..EndpointConfig::default() };
            Endpoint::open(config).expect("it opens")
        };
        let two = Two([open(), open()]);
        two.0[0].connect(two.0[1].address(), 0, 0).expect("a connect");
        two
    }

    fn up(rails: u32) -> Two {
        let two = Two::connecting(rails);
        two.pass_until(|two| two.lanes_up() == [rails as usize; 2]);
        two
    }

    /// One pass of a side; returns what has completed.
    fn pass(&self, side: usize) -> Vec<Completion> {
        let mut room = [const { MaybeUninit::uninit() }; 64];
        let endpoint = &self.0[side];
        let count = endpoint.poll(endpoint.queue(), &mut room).expect("it is open") as usize;
        // SAFETY: this many entries were written.
        room[..count].iter().map(|one| unsafe { one.assume_init_read() }).collect()
    }

    /// Returns what has completed at the second one.
    fn pass_until(&self, done: impl Fn(&Two) -> bool) -> Vec<Completion> {
        let mut completed = Vec::new();
        for _ in 0..PASSES {
            if done(self) {
                return completed;
            }
            self.pass(0);
            completed.extend(self.pass(1));
        }
        panic!("that does not happen");
    }

    fn at<T>(&self, side: usize, look: impl FnOnce(&mut Worker) -> T) -> T {
        look(&mut self.0[side].worker().expect("it has manual progress").lock())
    }

    fn now(&self) -> u64 {
        self.0[0].core().clock.now()
    }

    fn peer(&self, side: usize) -> Option<Arc<Peer>> {
        self.0[side].core().peers.all().into_iter().next()
    }

    fn id(&self) -> PeerId {
        self.peer(0).expect("a peer").id
    }

    /// How many lanes are up at both sides of peers that are up.
    fn lanes_up(&self) -> [usize; 2] {
        [0, 1].map(|side| {
            let Some(peer) = self.peer(side).filter(|peer| peer.state() == PeerState::Up) else { return 0 };
            self.at(side, |worker| worker.links.get(peer.id).map_or(0, |link| link.lanes_up().count()))
        })
    }
}

fn first_up(worker: &Worker) -> Option<LaneId> {
    worker.data.rails.lanes().find(|work| work.lane.life.is_up()).map(|work| work.lane.id)
}

/// How many frames of notifications were not sent yet.
fn waiting(worker: &mut Worker, peer: PeerId) -> usize {
    worker.links.get_mut(peer).map_or(0, |link| link.session.channels[USER].waiting())
}

/// Whether a notification that follows the writes of a lane goes out. `fails`: that lane has just failed.
fn goes_out(fails: bool) -> bool {
    let two = Two::up(2);
    let (peer, now) = (two.id(), two.now());
    let sent = two.at(0, |worker| {
        let body = numbers(&[7]);
        let out = Out { speculative: true, ..Out::new(Kind::Notify, body) };
        worker.links.get_mut(peer).expect("a link").push(out);
        worker.links.mark(peer);
        if fails {
            let first = worker.data.control_lane(peer).expect("a lane");
            worker.data.lane_failed(first, libc::ECONNRESET, 0, now);
            assert!(worker.data.control_lane(peer).is_some_and(|other| other != first));
        }
        worker.talk(now);
        waiting(worker, peer) == 0
    });
    let asks = |two: &Two| two.at(0, |worker| worker.links.get(peer).is_some_and(|link| link.is_asking()));
    let left = |two: &Two| two.at(0, |worker| waiting(worker, peer));
    let completed = two.pass_until(|two| left(two) == 0 && !asks(two) && two.lanes_up() == [2, 2]);
    let came = completed.iter().any(|one| one.kind == KIND_NOTIFICATION);
    assert_eq!(came, sent, "it comes if it was sent");
    sent
}

#[test]
fn notification_does_not_leave_the_lane_of_its_writes() {
    assert_eq!([false, true].map(goes_out), [true, false]);
}

#[test]
fn counter_does_not_rise_for_a_notification_that_is_taken_back() {
    let two = Two::up(1);
    let (peer, [a, b]) = (two.id(), &two.0);
    let bytes = vec![0u8; LEN as usize];
    let register = |endpoint: &Endpoint| {
        let range = Range { base: bytes.as_ptr() as u64, len: LEN };
        endpoint.register(vec![range], Access::ALL, 0, Claim::Host).expect("a memory")
    };
    let (local, theirs) = (register(a), register(b));
    let remote = a.import(peer.get(), &theirs.descriptor().expect("a descriptor")).expect("an import");
    two.pass_until(|_| remote.state() == RemoteState::Ready);
    let marks = Marks::default();
    let common = Common { timeout_ns: None, user_data: 0, queue: a.queue(), marks: &marks, grant: None };
    let terms = Terms {
        direction: Direction::Write,
        notify: Some(Notify { value: 7, data: [][..].into(), of_failure: false }),
        count: Some(Count { counter: b.create_counter().expect("a counter"), pages: false }),
        each_peer: false,
        urgent: false,
        durable: false,
        common,
    };
    let id = a.submit(&local, &remote, &Pages::one((&local, 0), (&remote, 0), LEN), &terms).expect("a write");
    let now = two.now();
    two.at(0, |worker| {
        for sent in 0..=2 {
            worker.link_notify(peer, id, true, now);
            let channel = &mut worker.links.get_mut(peer).expect("a link").session.channels[USER];
            assert_eq!(channel.waiting(), 2, "a counter and a notification");
            (0..sent).for_each(|_| channel.sent(now));
            assert_eq!(channel.rewind(), [id]);
            assert_eq!(channel.waiting(), sent, "what was sent keeps its number, and nothing else is sent");
            for number in 1..=sent {
                assert!(channel.next().is_some_and(|(_, out)| out.body.is_empty()), "{number} of {sent}");
                channel.sent(now);
            }
            let last = channel.last();
            channel.acknowledge(last).for_each(drop);
        }
    });
}

/// A lane fails while its peer connects, before or (`served`) after the fabric was selected.
fn returns(served: bool) {
    let two = Two::connecting(2);
    for pass in 0..PASSES {
        let side = pass % 2;
        two.pass(side);
        let Some(peer) = two.peer(side) else { continue };
        assert_ne!(peer.state(), PeerState::Up, "none fails in time");
        if peer.has_service() != served {
            continue;
        }
        let now = two.now();
        let failed = two.at(side, |worker| {
            let lane = first_up(worker)?;
            worker.data.lane_failed(lane, libc::ECONNRESET, 0, now);
            Some(lane)
        });
        if failed.is_some() {
            two.pass_until(|two| two.lanes_up() == [2, 2]);
            return;
        }
    }
    panic!("no lane comes up");
}

#[test]
fn lane_that_fails_before_its_peer_is_up_returns() {
    [false, true].into_iter().for_each(returns);
}

#[test]
fn refusals_do_not_show_that_a_peer_lives() {
    let two = Two::up(1);
    let peer = two.peer(0).expect("a peer");
    let hears = |kind: Kind, body: &[u8]| {
        let (header, before) = (Header { to: peer.token, ..Header::plain(kind) }, peer.received_ns());
        let mut bytes = vec![0; HEADER + body.len()];
        header.write(&mut bytes, body, &[]);
        two.at(0, |worker| worker.frame((RailIndex::at(0), 0), &bytes, before + 1_000_000_000));
        peer.received_ns() > before
    };
    assert!(!hears(Kind::Refuse, &frame::refuse(Status::PeerGone, "another endpoint lives here")));
    assert!(hears(Kind::Ack, &numbers(&[0, 0, 0])));
    assert_eq!(peer.state(), PeerState::Up);
}
