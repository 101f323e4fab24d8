//! Grants: what a peer may reach until they are taken back; and fences.

use super::world::*;
use libweft::*;
use std::time::Duration;

/// `a` reaches the first half of a memory of `b` under a grant.
fn granted(access: Access) -> (World, Memory, RemoteMemory, GrantToken) {
    let world = world("tcp");
    let lent =
        world.b.register_with(vec![vec![5; LEN]], &MemoryArgs::new().access(access)).expect("a memory");
    let remote = import(&world.a, world.a_to_b, &lent);
    let pages = Pages { page_len: LEN as u64 / 2, page_count: 1, ..Pages::default() };
    let args = GrantArgs::new().write().pages(pages).notify_failure(44);
    let token = lent.grant(world.b_to_a, &args).expect("a grant");
    (world, lent, remote, token)
}

fn write_under_a_grant_arrives_and_others_are_refused(access: Access) {
    let (mut world, lent, remote, token) = granted(access);
    let op = world.a.write(&world.local, 0, &remote, 0, 64, &none().grant(token).notify(1));
    world.succeeds(op);
    assert_eq!(world.notification().0, 1);
    assert_eq!(bytes(&lent)[..65].iter().filter(|byte| **byte == 1).count(), 64);
    let beside = world.a.write(&world.local, 0, &remote, LEN as u64 / 2, 64, &none().grant(token));
    assert_eq!(world.outcome(beside), Status::Revoked);
    let revoke = world.b.revoke(token, &none());
    world.succeeds(revoke);
    let late = world.a.write(&world.local, 0, &remote, 0, 64, &none().grant(token).notify(2));
    assert_eq!(world.outcome(late), Status::Revoked);
}

#[test]
fn write_under_a_grant_arrives_until_it_is_revoked() {
    write_under_a_grant_arrives_and_others_are_refused(Access::default());
}

#[test]
fn memory_that_is_granted_only_is_reached_under_grants() {
    write_under_a_grant_arrives_and_others_are_refused(Access::Granted);
}

#[test]
fn grant_ends_at_its_time_and_says_so() {
    let mut world = world("tcp");
    let args = GrantArgs::new().read().timeout(Duration::from_millis(30)).notify_failure(9);
    let token = world.theirs.grant(world.b_to_a, &args).expect("a grant");
    assert_eq!(world.notification().0, 9);
    let late = world.a.read(&world.local, 0, &world.remote, 0, 64, &none().grant(token));
    assert_eq!(world.outcome(late), Status::Revoked);
}

#[test]
fn revoke_ends_what_is_under_way() {
    let (mut world, lent, remote, token) = granted(Access::Granted);
    let ops: Vec<Op> = (0..3)
        .map(|_| {
            world.a.write(&world.local, 0, &remote, 0, 512, &none().grant(token)).expect("it is accepted")
        })
        .collect();
    let revoke = world.b.revoke(token, &none());
    world.succeeds(revoke);
    lent.write_at(0, &[7; 512]).expect("it is in the memory");
    let ended: Vec<Status> = ops.into_iter().map(|op| world.status(op)).collect();
    assert!(ended.iter().all(|status| matches!(status, Status::Ok | Status::Revoked)), "{ended:?}");
    assert!(bytes(&lent)[..512].iter().all(|byte| *byte == 7));
}

#[test]
fn grant_of_another_peer_is_refused() {
    let (world, lent, _remote, _token) = granted(Access::Granted);
    let stale = lent.grant(world.a_to_b, &GrantArgs::new().write());
    assert_eq!(stale.expect_err("no peer of this endpoint").status, Status::Handle);
    assert!(GrantToken::from_bytes([0; 16]).is_none());
}

#[test]
fn granted_memory_is_not_deregistered() {
    let (mut world, lent, remote, token) = granted(Access::Granted);
    let (lent, error) = lent.deregister().expect_err("there is a grant");
    assert_eq!(error.status, Status::Busy);
    let revoke = world.b.revoke(token, &none());
    world.succeeds(revoke);
    assert_eq!(lent.deregister().expect("nothing uses it"), [vec![5; LEN]]);
    drop(remote);
}

#[test]
fn fence_completes_after_what_was_posted() {
    let mut world = world("tcp");
    let write = world.a.write(&world.local, 0, &world.remote, 0, 512, &none()).expect("it is accepted");
    let fence = world.b.fence(world.b_to_a, &none());
    world.succeeds(fence);
    world.theirs.write_at(0, &[9; 512]).expect("it is in the memory");
    assert_eq!(world.status(write), Status::Ok);
}

#[test]
fn peer_that_is_dropped_ends_its_grants() {
    let (mut world, lent, remote, token) = granted(Access::Granted);
    drop(remote);
    world.a.disconnect(world.a_to_b).expect("it is connected");
    assert_eq!(world.notification().0, 44);
    let revoke = world.b.revoke(token, &none());
    if let Ok(op) = revoke {
        assert_eq!(world.status(op), Status::Ok);
    }
    drop(lent);
}
