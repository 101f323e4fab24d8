//! NICs through `ofi::nic`, in virtual time: what they accept, when it completes, and what they
//! refuse.

use super::spec::Spec;
use super::world::World;
use crate::clock::{Clock, Virtual};
use crate::fabric::ofi::discover;
use crate::fabric::ofi::nic::OfiNic;
use crate::fabric::{
    Access, Buffer, HostRange, Nic, Posted, Progress, Reaped, Registration, Return, Rma, Route, Scratch,
    Segment, SLOT,
};
use libfabric_sys::*;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

mod connections;
mod cuts;

const PAGE: usize = 65536;
const BOTH: Access = Access::ALL;

/// A NIC with a page of registered memory.
struct Side {
    nic: OfiNic,
    bytes: Vec<u8>,
    memory: Registration,
    done: Vec<Reaped>,
    closed: bool,
}

impl Side {
    fn open(name: &str, access: Access) -> Side {
        let entries = discover::simulated(name).expect("a good name");
        let entry = Arc::new(entries.into_iter().next().expect("a NIC"));
        let mut nic = OfiNic::open(entry, Progress { waits: true, threads: false }).expect("it opens");
        let bytes = vec![0u8; PAGE];
        let range = HostRange { base: bytes.as_ptr() as u64, len: PAGE as u64 };
        let memory = nic.register(range, access).expect("it registers");
        Side { nic, bytes, memory, done: Vec::new(), closed: false }
    }

    fn base(&self) -> u64 {
        if self.nic.limits().virtual_addresses {
            self.bytes.as_ptr() as u64
        } else {
            0
        }
    }

    fn close(&mut self) {
        self.nic.close().expect("it closes");
        self.closed = true;
    }

    fn reap(&mut self) -> usize {
        if self.closed {
            return 0;
        }
        let before = self.done.len();
        self.nic.reap(&mut self.done);
        self.done.len() - before
    }

    fn dial(&mut self, address: &[u8], peer: Option<crate::ids::PeerId>) -> Route {
        let route = self.nic.insert(address, peer).expect("an address");
        self.nic.redial(route);
        route
    }
}

/// Two NICs, and slots for operations.
struct Two {
    time: Arc<Virtual>,
    world: Arc<World>,
    a: Side,
    b: Side,
    route: Route,
    /// As far apart as the rail's: the first half of each is the scratch.
    slots: Vec<[Scratch; SLOT / size_of::<Scratch>()]>,
}

impl Two {
    fn open(parameters: &str) -> Two {
        Self::open_with(parameters, BOTH)
    }

    fn open_with(parameters: &str, access: Access) -> Two {
        static WORLD: AtomicU32 = AtomicU32::new(0);
        let world = WORLD.fetch_add(1, Relaxed);
        let name = format!("sim:{parameters}:clock=virtual:world=t{world}");
        let (mut a, b) = (Side::open(&name, BOTH), Side::open(&name, access));
        let world = World::get(&Spec::parse(&name).expect("a good name")).expect("it exists");
        let Clock::Virtual(time) = world.clock() else { unreachable!("virtual time was asked for") };
        let route = a.dial(b.nic.address(), None);
        let scratch = || Scratch([std::ptr::null_mut(); 8]);
        let slots = (0..4096).map(|_| std::array::from_fn(|_| scratch())).collect();
        let mut two = Two { time, world, a, b, route, slots };
        two.shake_hands();
        two
    }

    fn shake_hands(&mut self) {
        while self.write(4095, 8, false) == Posted::Again {
            self.step();
        }
        self.run(1);
        self.a.done.clear();
    }

    fn step(&mut self) {
        if self.a.reap() + self.b.reap() == 0 {
            self.time.step(u64::MAX);
        }
    }

    /// Makes an ended connection again.
    fn reconnect(&mut self) {
        while self.write(4094, 8, false) != Posted::Yes {
            self.a.nic.redial(self.route);
            self.step();
        }
        let last = |one: &Reaped, two: &Two| two.slot_of(one) == 4094;
        while !self.a.done.iter().any(|one| last(one, self)) {
            self.step();
        }
        self.a.done.retain(|one| one.scratch != &raw mut self.slots[4094][0]);
    }

    fn rma(&mut self, slot: usize, segments: &[Segment], key: u64, read: bool, more: bool) -> Posted {
        let rma = Rma { read, segments, descriptor: self.a.memory.descriptor, key, immediate: None, more };
        self.post(slot, &rma)
    }

    fn post(&mut self, slot: usize, rma: &Rma) -> Posted {
        // SAFETY: slots and memory outlive the NICs.
        unsafe { self.a.nic.rma(rma, self.route, &[&raw mut self.slots[slot][0]]).1 }
    }

    fn write(&mut self, slot: usize, len: usize, more: bool) -> Posted {
        let (local, remote) = (self.a.bytes.as_ptr() as u64, self.b.base());
        let segment = Segment { local, remote, len: len as u64 };
        self.rma(slot, &[segment], self.b.memory.key, false, more)
    }

    fn slot_of(&self, reaped: &Reaped) -> usize {
        (reaped.scratch as usize - self.slots.as_ptr() as usize) / SLOT
    }

    /// Polls both sides, while time passes, until `a` has this many completions, or for a minute.
    fn run(&mut self, count: usize) {
        let until = self.time.now() + 60_000_000_000;
        while self.a.done.len() < count && self.time.now() < until {
            if self.a.reap() + self.b.reap() == 0 {
                self.time.step(until);
            }
        }
        assert!(self.a.done.len() >= count, "{} of {count} completions", self.a.done.len());
    }

    /// Checks that nothing arrives within a second.
    fn is_quiet(&mut self) -> bool {
        let until = self.time.now() + 1_000_000_000;
        while self.time.now() < until {
            if self.a.reap() + self.b.reap() > 0 {
                return false;
            }
            self.time.step(until);
        }
        true
    }

    fn message(&mut self, slot: usize, len: usize) -> Posted {
        let address = self.a.bytes.as_mut_ptr().cast();
        let buffer = Buffer { address, len, descriptor: self.a.memory.descriptor, follows: false };
        // SAFETY: slots and memory outlive the NICs.
        unsafe { self.a.nic.send(buffer, self.route, &mut self.slots[slot][0]) }
    }

    fn receive(&mut self, slot: usize, len: usize) -> Posted {
        let address = self.b.bytes.as_mut_ptr().cast();
        let buffer = Buffer { address, len, descriptor: self.b.memory.descriptor, follows: false };
        // SAFETY: slots and memory outlive the NICs.
        unsafe { self.b.nic.receive(buffer, &mut self.slots[slot][0]) }
    }

    /// Writes pages with a full window; returns nanoseconds of virtual time.
    fn stream(&mut self, pages: usize) -> u64 {
        let begin = self.time.now();
        let (mut posted, mut done) = (0, 0);
        while done < pages {
            while posted < pages && self.write(posted % 2048, PAGE, false) == Posted::Yes {
                posted += 1;
            }
            let reaped = self.a.reap();
            done += reaped;
            if reaped + self.b.reap() == 0 {
                self.time.step(u64::MAX);
            }
        }
        self.time.now() - begin
    }
}

const MODES: [&str; 4] = ["like=tcp", "like=efa", "like=efa-direct", "like=verbs"];

fn close_to(took: u64, ideal: f64) {
    let share = ideal / took as f64;
    assert!((0.99..=1.0).contains(&share), "{took} ns, where the line needs {ideal}: {share}");
}

#[test]
fn line_rate_limits_throughput() {
    for mode in MODES {
        let mut two = Two::open(&format!("{mode}:gbps=100:delay_us=10"));
        close_to(two.stream(2000), 2000.0 * PAGE as f64 * 0.08);
        let mut slow = Two::open(&format!("{mode}:gbps=400:slow=1/1@0.25:nocopy"));
        close_to(slow.stream(2000), 2000.0 * PAGE as f64 * 0.08);
    }
}

#[test]
fn two_senders_share_the_receiver_line_rate() {
    let mut two = Two::open("like=efa-direct:gbps=100");
    let name = format!("sim:like=efa-direct:gbps=100:clock=virtual:world={}", two.world.name);
    let mut third = Side::open(&name, BOTH);
    let route = third.dial(two.b.nic.address(), None);
    let begin = two.time.now();
    for slot in 0..100 {
        assert_eq!(two.write(slot, PAGE, false), Posted::Yes);
        let segments =
            [Segment { local: third.bytes.as_ptr() as u64, remote: two.b.base(), len: PAGE as u64 }];
        let (descriptor, key) = (third.memory.descriptor, two.b.memory.key);
        let rma = Rma { read: false, segments: &segments, descriptor, key, immediate: None, more: false };
        // SAFETY: slots and memory outlive the NICs.
        assert_eq!(
            unsafe { third.nic.rma(&rma, route, &[&raw mut two.slots[1000 + slot][0]]) }.1,
            Posted::Yes
        );
    }
    while two.a.done.len() + third.done.len() < 200 {
        if two.a.reap() + third.reap() == 0 {
            two.time.step(u64::MAX);
        }
    }
    close_to(two.time.now() - begin, 200.0 * PAGE as f64 * 0.08);
}

#[test]
fn write_completes_after_the_delay_of_both_directions() {
    for (mode, spread) in [("like=verbs", 0), ("like=tcp", 0), ("like=efa", 4000)] {
        let mut two = Two::open(&format!("{mode}:delay_us=50"));
        let begin = two.time.now();
        two.write(0, 8, false);
        two.run(1);
        let took = two.time.now() - begin;
        assert!((100_000..=100_000 + spread).contains(&took), "{mode}: {took} ns");
    }
}

fn order_of(mode: &str, seed: u32) -> Vec<usize> {
    let mut two = Two::open(&format!("{mode}:gbps=400:delay_us=1:seed={seed}"));
    (0..64).for_each(|slot| assert_eq!(two.write(slot, 512, slot < 63), Posted::Yes));
    two.run(64);
    two.a.done.iter().map(|reaped| two.slot_of(reaped)).collect()
}

#[test]
fn writes_keep_their_order_only_in_ordered_modes() {
    let posted: Vec<usize> = (0..64).collect();
    assert_eq!(order_of("like=verbs", 1), posted);
    assert_eq!(order_of("like=tcp", 1), posted);
    let efa = order_of("like=efa", 1);
    assert_ne!(efa, posted);
    assert_eq!(efa, order_of("like=efa", 1));
    assert_ne!(efa, order_of("like=efa", 2));
}

#[test]
fn written_bytes_arrive_at_the_remote_offset() {
    for mode in MODES {
        let mut two = Two::open(&format!("{mode}:gbps=10:delay_us=1"));
        two.a.bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let (local, remote, key) = (two.a.bytes.as_ptr() as u64, two.b.base(), two.b.memory.key);
        let segment = Segment { local: local + 100, remote: remote + 1000, len: 300 };
        assert_eq!(two.rma(0, &[segment], key, false, false), Posted::Yes);
        two.run(1);
        assert_eq!(two.b.bytes[1000..1300], two.a.bytes[100..400], "{mode}");
        assert!(two.b.bytes[..1000].iter().chain(&two.b.bytes[1300..]).skip(8).all(|byte| *byte == 0));
        two.b.bytes[2000..2010].fill(0xee);
        let segment = Segment { local: local + 50_000, remote: remote + 2000, len: 10 };
        assert_eq!(two.rma(1, &[segment], key, true, false), Posted::Yes);
        two.run(2);
        assert_eq!(two.a.bytes[50_000..50_010], [0xee; 10], "{mode}");
    }
}

/// tcp's queue is unlimited; over verbs each arrival uses a receive.
#[test]
fn unread_arrivals_are_limited_except_over_tcp() {
    for (mode, immediates, bounded) in [
        ("like=tcp", true, false),
        ("like=efa", true, true),
        ("like=efa-direct", true, true),
        ("like=verbs", true, true),
    ] {
        let two = Two::open(mode);
        let limits = two.a.nic.limits();
        let found = (limits.immediate_max > 0, limits.arrival_room.is_some());
        assert_eq!(found, (immediates, bounded), "{mode}");
    }
}

#[test]
fn posts_beyond_the_depth_return_again() {
    let mut two = Two::open("like=efa-direct:depth=16:delay_us=5");
    (0..16).for_each(|slot| assert_eq!(two.write(slot, 8, false), Posted::Yes));
    assert_eq!(two.write(16, 8, false), Posted::Again);
    two.run(1);
    assert_eq!(two.write(16, 8, false), Posted::Yes);
}

#[test]
fn missing_doorbell_is_counted_at_close() {
    for parameters in ["like=efa", "like=efa:nocopy", "like=verbs", "like=tcp"] {
        let mut two = Two::open(parameters);
        (0..3).for_each(|slot| assert_eq!(two.write(slot, 8, true), Posted::Yes));
        assert!(two.is_quiet(), "{parameters}");
        assert_eq!(two.write(3, 8, false), Posted::Yes);
        two.run(4);
        assert_eq!(two.write(4, 8, true), Posted::Yes);
        two.a.close();
        // Over a connection, its posts come back.
        let lost = u64::from(!two.world.mode().connections);
        assert_eq!(two.world.counts.lost_flushes.load(Relaxed), lost, "{parameters}");
    }
}

#[test]
fn efa_queues_sixteen_operations_before_its_handshake() {
    let mut two = Two::open("like=efa:delay_us=1");
    let mut fresh = Side::open(&format!("sim:like=efa:clock=virtual:world={}", two.world.name), BOTH);
    two.route = two.a.dial(fresh.nic.address(), None);
    two.b.memory = fresh.memory;
    let segment = [Segment { local: two.a.bytes.as_ptr() as u64, remote: fresh.base(), len: 8 }];
    let key = fresh.memory.key;
    let post = |two: &mut Two, slot| two.rma(slot, &segment, key, false, false);
    (0..16).for_each(|slot| assert_eq!(post(&mut two, slot), Posted::Yes));
    assert_eq!(post(&mut two, 16), Posted::Again);
    assert!(two.is_quiet());
    while two.a.done.len() < 16 {
        if two.a.reap() + fresh.reap() == 0 {
            two.time.step(u64::MAX);
        }
    }
    assert_eq!(post(&mut two, 16), Posted::Yes);
}

#[test]
fn access_outside_a_registration_is_refused() {
    for mode in MODES {
        let mut two = Two::open_with(mode, Access { remote_read: false, ..Access::ALL });
        let (local, remote, key) = (two.a.bytes.as_ptr() as u64, two.b.base(), two.b.memory.key);
        let inside = Segment { local, remote, len: 8 };
        let outside = Segment { local, remote: remote + PAGE as u64 - 4, len: 8 };
        let before = Segment { local, remote: remote.wrapping_sub(1), len: 8 };
        let refused = two.world.mode().refused;
        let cases =
            [(inside, key ^ 1, false), (outside, key, false), (before, key, false), (inside, key, true)];
        for (slot, (segment, key, read)) in cases.into_iter().enumerate() {
            assert_eq!(two.rma(slot, &[segment], key, read, false), Posted::Yes);
            two.run(slot + 1);
            assert_eq!(two.a.done[slot].errno, refused, "{mode}, case {slot}");
            if two.world.mode().connections {
                two.reconnect();
            }
        }
        two.b.nic.deregister(two.b.memory).expect("it is registered");
        assert_eq!(two.rma(9, &[inside], key, false, false), Posted::Yes);
        two.run(5);
        assert_eq!(two.a.done[4].errno, refused, "{mode}, deregistered");
    }
}

#[test]
fn local_registration_is_checked_where_the_mode_requires_it() {
    for (mode, posted) in [
        ("like=tcp", Posted::Yes),
        ("like=efa", Posted::Yes),
        ("like=efa-direct", Posted::Failed(FI_EINVAL)),
        ("like=verbs", Posted::Failed(FI_EINVAL)),
    ] {
        let mut two = Two::open(mode);
        let other = two.a.memory;
        two.a.memory.descriptor = std::ptr::null_mut();
        assert_eq!(two.write(0, 8, false), posted, "{mode}");
        assert_eq!(two.message(1, 8), posted, "{mode}");
        two.a.memory = other;
        let outside = Segment { local: two.a.bytes.as_ptr() as u64 - 8, remote: two.b.base(), len: 4 };
        if posted != Posted::Yes {
            assert_eq!(two.rma(2, &[outside], two.b.memory.key, false, false), posted, "{mode}");
        }
    }
}

#[test]
fn efa_direct_detects_context_reuse() {
    let mut two = Two::open("like=efa-direct:delay_us=1");
    assert_eq!(two.write(0, 8, false), Posted::Yes);
    assert_eq!(two.write(0, 8, false), Posted::Failed(FI_EINVAL)); // The slot is in use.
    assert_eq!(two.write(1, 8, false), Posted::Yes);
    two.slots[1][0].0[3] = std::ptr::null_mut(); // This slot's context was overwritten.
    two.run(2);
    let errno = |slot| two.a.done.iter().find(|one| two.slot_of(one) == slot).map(|one| one.errno);
    assert_eq!((errno(0), errno(1)), (Some(0), Some(FI_EINVAL)));
    assert_eq!(two.world.counts.spoilt_contexts.load(Relaxed), 2);
    two.a.done.clear();
    assert_eq!(two.write(0, 8, false), Posted::Yes);
    two.run(1);
}

#[test]
fn messages_wait_for_a_posted_receive() {
    for mode in MODES {
        let mut two = Two::open(mode);
        two.a.bytes[..5].copy_from_slice(b"hello");
        assert_eq!(two.message(0, 5), Posted::Yes);
        assert!(two.is_quiet(), "{mode}");
        assert_eq!(two.receive(100, 64), Posted::Yes);
        two.run(1);
        assert_eq!((two.b.done[0].len, &two.b.bytes[..5]), (5, &b"hello"[..]), "{mode}");
        two.receive(101, 2);
        two.message(1, 5);
        two.run(2);
        assert_eq!(two.b.done[1].errno, FI_ETRUNC, "{mode}");
    }
}

#[test]
fn write_to_a_closed_peer_fails() {
    for mode in MODES {
        let mut two = Two::open(&format!("{mode}:delay_us=5"));
        assert_eq!(two.message(0, 8), Posted::Yes);
        two.b.close();
        two.run(1);
        let gone = two.world.mode().gone;
        assert_eq!(two.a.done[0].errno, gone, "{mode}");
        let again = two.write(1, 8, false);
        if two.world.mode().connections {
            assert_eq!(again, Posted::Failed(FI_ECONNRESET), "{mode}");
            assert_eq!(two.message(1, 8), Posted::Yes, "{mode}");
        } else {
            assert_eq!(again, Posted::Yes, "{mode}");
        }
        two.route = two.a.dial(b"sim://00000000/efa/x/7\0", None);
        assert_eq!(two.message(2, 8), Posted::Yes);
        two.run(3);
        let never = two.a.done.iter().find(|one| two.slot_of(one) == 2).map(|one| one.errno);
        assert_eq!(never, Some(two.world.mode().never_there), "{mode}");
    }
}

/// Plans a fault for the current time.
fn strike(two: &Two, what: &str) {
    let plan = format!("{} {what}", two.world.now() / 1_000_000);
    two.world.plan(&plan).expect("a good plan");
}

#[test]
fn writes_wait_while_the_link_is_down() {
    for mode in MODES {
        for which in ["port0 down:tx", "port1 down:rx", "* down"] {
            let mut two = Two::open(&format!("{mode}:gbps=100"));
            strike(&two, which);
            two.a.reap();
            assert_eq!(two.write(0, 8, false), Posted::Yes);
            assert!(two.is_quiet(), "{mode}, {which}");
            strike(&two, "* up");
            two.run(1);
            assert_eq!(two.a.done[0].errno, 0);
        }
    }
}

#[test]
fn registration_is_refused_by_a_device_that_is_opening() {
    let mut two = Two::open("like=verbs");
    let memory = two.a.memory;
    let page = HostRange { base: two.a.base(), len: PAGE as u64 };
    let more: Vec<_> = (0..200).map(|_| two.a.nic.register(page, BOTH).expect("it registers")).collect();
    strike(&two, "port0 removed=1000");
    two.a.reap();
    two.a.nic.close_endpoint().expect("it closes");
    two.a.nic.deregister(more[0]).expect("it is known");
    assert_eq!(two.a.nic.come_back().ok(), Some(Return::Absent));
    let nowhere = HostRange { base: PAGE as u64, len: PAGE as u64 };
    let back = two.time.now() + 2_000_000;
    while two.time.now() < back {
        two.time.step(back);
    }
    assert_eq!(two.a.nic.come_back().ok(), Some(Return::Partly));
    assert!(two.a.nic.register(nowhere, BOTH).is_err(), "the device is there");
    let late = two.a.nic.register(page, BOTH).expect("it registers");
    while two.a.nic.come_back().expect("it opens") == Return::Partly {}
    let known = [memory, late].into_iter().chain(more.into_iter().skip(1));
    assert!(known.into_iter().all(|one| two.a.nic.refreshed(one).key != 0));
    assert_eq!(two.a.nic.open_endpoint().ok(), Some(true));
}

#[test]
fn planned_errors_name_the_operation_only_over_connections() {
    for parameters in ["like=efa", "like=efa-direct:nocopy", "like=verbs:nocopy", "like=tcp"] {
        let mut two = Two::open(parameters);
        strike(&two, "port0 error=2");
        two.a.reap();
        (0..3).for_each(|slot| assert_eq!(two.write(slot, 8, false), Posted::Yes));
        two.run(3);
        let errors: Vec<_> = two.a.done.iter().filter(|one| one.errno == FI_EIO).collect();
        let unnamed = errors.iter().filter(|one| one.scratch.is_null()).count();
        let named = two.world.mode().connects || two.world.mode().connections;
        assert_eq!((errors.len(), unnamed), (2, if named { 0 } else { 2 }), "{parameters}");
    }
}

#[test]
fn dead_rail_stays_silent_and_killed_rail_is_gone() {
    let mut two = Two::open("like=efa-direct");
    strike(&two, "port0 dead");
    two.a.reap();
    assert_eq!(two.write(0, 8, false), Posted::Yes);
    assert!(two.is_quiet());
    let mut two = Two::open("like=efa-direct");
    strike(&two, "rail0 again=100");
    two.a.reap();
    assert_eq!(two.write(0, 8, false), Posted::Again);
    assert!(two.is_quiet());
    assert_eq!(two.write(0, 8, false), Posted::Yes);
    two.run(1);
    strike(&two, "port1 kill");
    two.a.reap();
    two.write(1, 8, false);
    two.run(2);
    assert_eq!(two.a.done[1].errno, FI_ENOTCONN);
}

#[test]
fn slow_fault_reduces_the_line_rate() {
    let mut two = Two::open("like=efa:gbps=100");
    strike(&two, "rail0 slow=0.5");
    two.a.reap();
    close_to(two.stream(500), 500.0 * PAGE as f64 * 0.16);
}

#[test]
fn world_keeps_its_first_clock_and_seed() {
    let two = Two::open("like=efa:seed=3");
    let name = format!("sim:like=efa:seed=4:clock=virtual:world={}", two.world.name);
    assert!(discover::simulated(&name).is_err());
    let name = format!("sim:like=efa:seed=3:world={}", two.world.name);
    assert!(discover::simulated(&name).is_err());
}

fn is_readable(fd: i32) -> bool {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one descriptor, and the call does not wait.
    unsafe { libc::poll(&mut one, 1, 0) == 1 }
}

#[test]
fn arrival_wakes_a_sleeping_nic() {
    let name = "sim:like=tcp:world=bell";
    let (mut a, mut b) = (Side::open(name, BOTH), Side::open(name, BOTH));
    let route = a.dial(b.nic.address(), None);
    let mut slots = [const { Scratch([std::ptr::null_mut(); 8]) }; 2];
    let Some((target, true)) = b.nic.wait_fd() else { panic!("an idle NIC may be slept on") };
    assert!(!is_readable(target));
    let buffer = Buffer {
        address: a.bytes.as_mut_ptr().cast(),
        len: 8,
        descriptor: a.memory.descriptor,
        follows: false,
    };
    // SAFETY: slots and memory outlive the NICs.
    assert_eq!(unsafe { a.nic.send(buffer, route, &mut slots[0]) }, Posted::Yes);
    assert!(is_readable(target));
    assert!(b.nic.wait_fd().is_some_and(|(_, may)| !may));
    let Some((sender, true)) = a.nic.wait_fd() else { panic!("only the target can go on") };
    let buffer = Buffer {
        address: b.bytes.as_mut_ptr().cast(),
        len: 8,
        descriptor: b.memory.descriptor,
        follows: false,
    };
    // SAFETY: slots and memory outlive the NICs.
    assert_eq!(unsafe { b.nic.receive(buffer, &mut slots[1]) }, Posted::Yes);
    assert!(!is_readable(sender));
    assert_eq!((b.reap(), is_readable(sender)), (1, true));
    assert_eq!(a.reap(), 1);
    let mut two = Two::open("like=verbs");
    assert!(two.a.nic.wait_fd().is_none(), "nobody sleeps in virtual time");
}
