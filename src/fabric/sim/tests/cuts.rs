//! Connections that one side ends.

use super::*;

const CONNECTED: [&str; 2] = ["like=tcp:gbps=100:delay_us=20", "like=verbs:gbps=100:delay_us=20"];

/// Two connected NICs, where four writes of `a` wait for the link.
fn waiting(parameters: &str) -> (Two, Route) {
    let mut two = Two::open(parameters);
    let back = two.b.dial(two.a.nic.address(), None);
    two.a.bytes.fill(7);
    strike(&two, "port1 down");
    two.a.reap();
    (0..4).for_each(|slot| assert_eq!(two.write(slot, 64, false), Posted::Yes));
    assert!(two.is_quiet());
    (two, back)
}

/// Nothing from `a` has arrived, and what it writes now does.
fn goes_on_anew(two: &mut Two) {
    strike(two, "port1 up");
    two.run(0);
    while !two.is_quiet() {}
    assert_eq!(two.b.bytes[0], 0, "a ghost");
    if two.world.mode().connections {
        two.reconnect();
    }
    two.a.done.clear();
    two.a.bytes.fill(9);
    assert_eq!(two.write(9, 64, false), Posted::Yes);
    two.run(1);
    assert_eq!((two.a.done[0].errno, two.slot_of(&two.a.done[0]), two.b.bytes[0]), (0, 9, 9));
}

#[test]
fn posts_to_a_removed_address_return_and_never_land() {
    for mode in CONNECTED {
        let (mut two, back) = waiting(mode);
        two.a.nic.remove(two.route);
        while two.a.reap() > 0 {}
        let mut slots: Vec<_> = two.a.done.iter().map(|one| (one.errno, two.slot_of(one))).collect();
        slots.sort();
        assert_eq!(slots, [0, 1, 2, 3].map(|slot| (FI_ECANCELED, slot)), "{mode}");
        // The other side must refuse bytes that tcp's kernel has.
        two.b.nic.remove(back);
        two.route = two.a.dial(two.b.nic.address(), None);
        goes_on_anew(&mut two);
    }
}

#[test]
fn tcp_bytes_land_after_their_sender_has_closed() {
    for mode in CONNECTED {
        let (mut two, _) = waiting(mode);
        two.a.nic.remove(two.route);
        two.a.bytes.fill(8); // The bytes belong to the caller again.
        strike(&two, "port1 up");
        while !two.is_quiet() {}
        assert_eq!(two.b.bytes[0], if mode.contains("tcp") { 7 } else { 0 });
    }
}

#[test]
fn writes_from_a_removed_address_never_land_and_fail_there() {
    for mode in CONNECTED {
        let (mut two, back) = waiting(mode);
        two.b.nic.remove(back);
        assert!(two.is_quiet(), "{mode}: the word of it cannot pass");
        strike(&two, "port1 up");
        two.run(4);
        let gone = two.world.mode().gone;
        assert!(two.a.done.iter().all(|one| one.errno == gone) && two.a.done.len() == 4, "{mode}");
        // The bytes land unless this side ends the connection, too.
        if !two.world.mode().connections {
            assert_eq!(two.write(8, 64, false), Posted::Yes);
            two.run(5);
            assert_eq!((two.a.done[4].errno, two.b.bytes[0]), (FI_ECANCELED, 0), "{mode}");
            two.a.nic.remove(two.route);
            two.route = two.a.dial(two.b.nic.address(), None);
        }
        goes_on_anew(&mut two);
    }
}

#[test]
fn delivered_bytes_stay_although_their_completion_is_lost() {
    for mode in CONNECTED {
        let mut two = Two::open(mode);
        two.a.bytes.fill(7);
        strike(&two, "port0 down:rx");
        two.a.reap();
        assert_eq!(two.write(0, 64, false), Posted::Yes);
        assert!(two.is_quiet(), "{mode}");
        assert_eq!(two.b.bytes[0], 7);
        two.a.nic.remove(two.route);
        two.run(1);
        assert_eq!(two.a.done[0].errno, FI_ECANCELED);
    }
}

#[test]
fn address_inserted_twice_is_removed_twice() {
    for mode in CONNECTED {
        let (mut two, _) = waiting(mode);
        let again = two.a.dial(two.b.nic.address(), None);
        assert_eq!(again, two.route);
        two.a.nic.remove(again);
        assert_eq!(two.a.reap(), 0, "{mode}");
        two.a.nic.remove(again);
        assert!(two.a.reap() > 0);
    }
}

#[test]
fn closed_endpoint_takes_no_posts() {
    let mut two = Two::open("like=efa-direct");
    let before = two.a.nic.address().to_vec();
    two.a.nic.close_endpoint().expect("it closes");
    assert_eq!(two.write(0, 8, false), Posted::Failed(libc::ENOTCONN));
    assert_eq!(two.a.reap(), 0);
    assert_eq!(two.a.nic.open_endpoint().ok(), Some(true));
    assert_ne!(two.a.nic.address(), before);
    two.route = two.a.dial(two.b.nic.address(), None);
    two.shake_hands();
}
