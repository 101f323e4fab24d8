//! Connections of endpoints of type FI_EP_MSG, through `ofi::connections`: they behave as was
//! observed with verbs.

use super::*;
use crate::fabric::{Immediate, LinkState};
use crate::ids::PeerId;

const VERBS: &str = "like=verbs:delay_us=20";

impl Two {
    /// Another NIC in the same world.
    fn third(&self) -> Side {
        Side::open(&format!("sim:{VERBS}:clock=virtual:world={}", self.world.name), BOTH)
    }

    /// Posts a message of `side`'s first bytes to one of its routes.
    fn message_of(side: &mut Side, route: Route, slot: &mut Scratch) -> Posted {
        let address = side.bytes.as_mut_ptr().cast();
        let buffer = Buffer { address, len: 8, descriptor: side.memory.descriptor, follows: false };
        // SAFETY: slots and memory outlive the NICs.
        unsafe { side.nic.send(buffer, route, slot) }
    }

    /// Lets time pass until `b` has this many completions.
    fn run_b(&mut self, count: usize) {
        let until = self.time.now() + 60_000_000_000;
        while self.b.done.len() < count && self.time.now() < until {
            self.step();
        }
        assert!(self.b.done.len() >= count, "{} of {count} completions", self.b.done.len());
    }
}

#[test]
fn immediate_consumes_a_shared_receive() {
    let mut two = Two::open(VERBS);
    let (local, remote) = (two.a.bytes.as_ptr() as u64, two.b.base());
    let segments = [Segment { local, remote: remote + 100, len: 8 }];
    let (descriptor, key) = (two.a.memory.descriptor, two.b.memory.key);
    let immediate = Immediate::new(77);
    let rma = Rma { read: false, segments: &segments, descriptor, key, immediate, more: false };
    two.a.bytes[..8].fill(5);
    assert_eq!(two.post(0, &rma), Posted::Yes);
    while !two.is_quiet() {}
    assert!(two.b.done.is_empty() && two.b.bytes[100] == 5, "it waits for a receive");
    assert_eq!(two.receive(100, 64), Posted::Yes);
    two.run_b(1);
    let one = two.b.done[0];
    assert_eq!((one.immediate, two.slot_of(&one), one.errno), (immediate, 100, 0));
    two.run(1);
    // A message is no arrival.
    assert_eq!(two.receive(100, 64), Posted::Yes);
    assert_eq!(two.message(1, 8), Posted::Yes);
    two.run_b(2);
    assert_eq!((two.b.done[1].immediate, two.b.done[1].len), (None, 8));
}

#[test]
fn messages_wait_until_the_connection_is_up() {
    let mut two = Two::open(VERBS);
    let mut third = two.third();
    let route = third.dial(two.b.nic.address(), None);
    let mut slots = [const { Scratch([std::ptr::null_mut(); 8]) }; 4];
    (10..14).for_each(|slot| assert_eq!(two.receive(slot, 8), Posted::Yes));
    for slot in &mut slots {
        assert_eq!(Two::message_of(&mut third, route, slot), Posted::Yes);
    }
    while third.done.len() < 4 {
        third.reap();
        two.step();
    }
    let order: Vec<_> = third.done.iter().map(|one| (one.scratch, one.errno)).collect();
    assert_eq!(order, slots.each_mut().map(|slot| (slot as *mut Scratch, 0)));
    assert_eq!(two.b.done.len(), 4);
}

/// What the message over a new connection of a NIC ends with, and how often the NIC was opened anew for that.
fn opened_anew(two: &mut Two, side: &mut Side) -> (i32, u32) {
    for times in 0.. {
        let mut slot = Scratch([std::ptr::null_mut(); 8]);
        side.reap(); // Faults that are due come.
        let route = side.dial(two.b.nic.address(), None);
        side.done.clear();
        assert_eq!(Two::message_of(side, route, &mut slot), Posted::Yes);
        while side.done.is_empty() {
            side.reap();
            two.step();
        }
        if side.nic.link() == LinkState::Up {
            return (side.done[0].errno, times);
        }
        side.nic.close_endpoint().expect("it closes");
        while side.nic.come_back().expect("it opens") != Return::Ready {}
        side.memory = side.nic.refreshed(side.memory);
        assert_eq!(side.nic.open_endpoint().ok(), Some(true));
    }
    unreachable!("it is opened anew without end")
}

#[test]
fn nic_that_is_forgotten_before_its_first_connection_is_opened_anew() {
    let mut two = Two::open(VERBS);
    let mut third = two.third();
    (10..14).for_each(|slot| assert_eq!(two.receive(slot, 8), Posted::Yes));
    strike(&two, "port2 forgotten");
    assert_eq!(opened_anew(&mut two, &mut third), (0, 1));
}

#[test]
fn connecting_fails_without_the_right_listener() {
    let mut two = Two::open(VERBS);
    let mut gone = two.third();
    let mut address = gone.nic.address().to_vec();
    gone.close();
    let mut other = two.b.nic.address().to_vec();
    *other.last_mut().expect("a name") ^= 1;
    for (address, rejected) in [(&mut address, 0), (&mut other, 1)] {
        let route = two.a.dial(address, None);
        two.route = route;
        two.a.done.clear();
        assert_eq!(two.message(0, 8), Posted::Yes);
        assert!(!two.a.nic.is_gone(route));
        two.run(1);
        assert_eq!(two.a.done[0].errno, FI_ECONNREFUSED);
        assert!(two.a.nic.is_gone(route));
        assert_eq!(two.b.nic.take_rejected().len(), rejected);
    }
    assert!(two.a.nic.insert(b"sim://1", None).is_err() && two.a.nic.insert(&[0; 32], None).is_err());
}

#[test]
fn wrong_key_ends_only_its_own_connection() {
    let mut two = Two::open(VERBS);
    let mut third = two.third();
    let (good, bytes) = (two.route, two.a.bytes.as_ptr() as u64);
    let to_third = two.a.dial(third.nic.address(), None);
    let segment = [Segment { local: bytes, remote: third.base(), len: 8 }];
    two.route = to_third;
    while two.rma(0, &segment, third.memory.key, false, false) == Posted::Again {
        third.reap();
        two.step();
    }
    two.run(1);
    two.a.done.clear();
    assert_eq!(two.rma(1, &segment, third.memory.key ^ 1, false, false), Posted::Yes);
    (2..5).for_each(|slot| {
        assert_eq!(two.rma(slot, &segment, third.memory.key, false, false), Posted::Yes);
    });
    third.bytes.fill(1);
    two.a.bytes[..8].fill(2);
    two.run(4);
    let mut errors: Vec<_> = two.a.done.iter().map(|one| one.errno).collect();
    errors.sort();
    assert_eq!(errors, [FI_EIO, FI_ECANCELED, FI_ECANCELED, FI_ECANCELED]);
    assert_eq!(third.bytes[0], 1, "what was behind it moves nothing");
    assert_eq!(two.rma(5, &segment, third.memory.key, false, false), Posted::Failed(FI_EIO));
    two.route = good;
    two.a.done.clear();
    assert_eq!(two.write(6, 8, false), Posted::Yes);
    two.run(1);
    assert_eq!(two.a.done[0].errno, 0);
}

/// Posts stay pending on a connection that the other side has closed, and come back when this side
/// closes it.
#[test]
fn posts_return_after_both_sides_closed() {
    for kill in [false, true] {
        let mut two = Two::open(VERBS);
        assert_eq!(two.message(0, 8), Posted::Yes); // The message waits for a receive.
        assert!(two.is_quiet());
        match kill {
            true => strike(&two, "port1 kill"),
            false => two.b.close(),
        }
        two.run(1);
        assert_eq!(two.a.done[0].errno, FI_ECANCELED, "{kill}");
        two.a.nic.redial(two.route);
        let Posted::Failed(ended) = two.write(1, 8, false) else { panic!("its connection has ended") };
        assert_eq!(ended, FI_ECONNRESET);
        two.a.reap();
        two.a.nic.redial(two.route);
        while !two.a.nic.is_gone(two.route) {
            two.step();
        }
    }
}

#[test]
fn route_closes_both_ways_except_newer_connections() {
    let peer = Some(PeerId::numbered(1));
    let mut two = Two::open(VERBS);
    // `a` is a peer of `b`, and an earlier connection belongs to that peer.
    let back = two.b.dial(two.a.nic.address(), peer);
    while !two.is_quiet() {}
    two.a.nic.reset(two.route);
    two.route = two.a.dial(two.b.nic.address(), peer);
    two.shake_hands();
    // `b` has authenticated nothing over the new connection when it resets the old one.
    two.b.nic.reset(back);
    assert!(two.is_quiet());
    assert_eq!(two.write(0, 8, false), Posted::Yes);
    two.run(1);
    assert_eq!(two.a.done[0].errno, 0);
    // Now it has, so the new connection ends with the route.
    let back = two.b.dial(two.a.nic.address(), peer);
    while !two.is_quiet() {}
    two.b.nic.reset(back);
    while !two.is_quiet() {}
    assert_eq!(two.write(0, 8, false), Posted::Failed(FI_ECONNRESET));
}

#[test]
fn unauthenticated_caller_is_answered_over_its_connection_then_dropped() {
    let mut two = Two::open(VERBS);
    assert!(two.b.nic.insert_caller(&[b's'; 40], 0).is_err(), "no connection is of that NIC");
    let back = two.b.nic.insert_caller(two.a.nic.address(), 0).expect("its connection");
    let mut slot = Scratch([std::ptr::null_mut(); 8]);
    let address = two.a.bytes.as_mut_ptr().cast();
    let buffer = Buffer { address, len: 8, descriptor: two.a.memory.descriptor, follows: false };
    let mut receive = Scratch([std::ptr::null_mut(); 8]);
    // SAFETY: slots and memory outlive the NICs.
    assert_eq!(unsafe { two.a.nic.receive(buffer, &mut receive) }, Posted::Yes);
    assert_eq!(Two::message_of(&mut two.b, back, &mut slot), Posted::Yes);
    two.run(1);
    assert_eq!((two.a.done[0].scratch, two.a.done[0].len), (&raw mut receive, 8));
    two.b.nic.remove(back);
    while !two.is_quiet() {}
    assert_eq!(two.write(0, 8, false), Posted::Yes, "its connection stays");
    for after in [0, 6_000_000_000] {
        let until = two.time.now() + after;
        while two.time.now() < until {
            two.time.step(until);
        }
        two.b.nic.tend();
        while !two.is_quiet() {}
    }
    assert_eq!(two.write(0, 8, false), Posted::Failed(FI_ECONNRESET));
}
