//! What single calls decide; whole lives are played with the session's (`session/tests.rs`).

use super::*;
use crate::fabric::Resets::{Lane, Never};
use crate::fabric::ANOTHER;
use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    static MOVES_SEEN: RefCell<BTreeSet<(&'static str, &'static str)>> = RefCell::default();
}

pub(super) fn note_move(from: &'static str, to: &'static str) {
    if from != to {
        // A lane that goes as its thread ends may find the set freed.
        let _ = MOVES_SEEN.try_with(|seen| seen.borrow_mut().insert((from, to)));
    }
}

/// The moves that no lane of this thread has made.
pub fn moves_not_seen() -> Vec<String> {
    let seen = MOVES_SEEN.with_borrow(|seen| seen.clone());
    let unseen = MOVES.iter().filter(|(from, to, _)| !seen.contains(&(from, to)));
    unseen.map(|(from, to, why)| format!("{from} to {to}: {why}")).collect()
}

/// Fails unless ARCHITECTURE has these moves between states, as a diagram.
pub fn are_drawn(moves: &[(&str, &str, &str)]) {
    let width = moves.iter().map(|(from, ..)| from.len()).max().unwrap_or(0);
    let line = |(from, to, why): &(&str, &str, &str)| format!("{from:width$} -> {to:width$}  {why}\n");
    let diagram: String = moves.iter().map(line).collect();
    let folder = env!("CARGO_MANIFEST_DIR");
    let read = |at: &str| std::fs::read_to_string(format!("{folder}/{at}ARCHITECTURE.md"));
    // One of the packages that contain these files is in a folder of its own.
    let text = read("").or_else(|_| read("../")).expect("ARCHITECTURE.md");
    assert!(text.contains(&diagram), "put this into ARCHITECTURE.md:\n{diagram}");
}

const FAILURE: Failure =
    Failure { errno: libc::EINVAL, serves: true, connecting: false, resets: Lane, reconnects: true };

fn up() -> Life {
    let mut life = Life::new(3, 0);
    life.answered(7);
    assert!(life.probed());
    life
}

#[test]
fn end_of_a_connection_is_one_failed_attempt() {
    let mut life = Life::new(1, 0);
    assert!(!(0..2 * PATIENCE).any(|_| life.attempt_failed(libc::EIO, true, 7)));
    assert_eq!(life.poll(Sight::default(), 7 + AGAIN_NS), Some(Step::Request { due_ns: 7 + AGAIN_NS }));
    let attempts = (2..).find(|n| life.attempt_failed(libc::EIO, true, 7 + n * AGAIN_NS));
    assert_eq!((attempts, life.is_waiting()), (Some(u64::from(PATIENCE)), false));
    life.restart();
    assert_eq!(life.poll(Sight::default(), 9), Some(Step::Request { due_ns: 0 }));
    assert!(Life::new(1, 0).attempt_failed(ANOTHER, true, 7), "no other attempt helps");
}

#[test]
fn failed_probe_begins_with_a_handshake() {
    let mut life = Life::new(1, 0);
    life.answered(2);
    assert_eq!(life.poll(Sight::default(), 0), Some(Step::Probe));
    life.probe_posted(false, 0);
    assert_eq!((life.poll(Sight::default(), 1), life.is_waiting()), (None, false));
    assert_eq!(life.failed(FAILURE, |_| true, 5), Consequence::Nothing);
    assert!(life.is_handshaking() && !life.probed());
}

#[test]
fn lane_without_an_answer_gives_up_where_its_peer_is_up() {
    let mut life = Life::new(1, 0);
    let peer = Sight { peer_up: true, resets: true, ..Sight::default() };
    assert_ne!(life.poll(peer, RETURN_NS), Some(Step::Unanswered));
    assert_eq!(life.poll(peer, RETURN_NS + 1), Some(Step::Unanswered));
    assert_ne!(life.poll(Sight { unfinished: 1, ..peer }, 2 * RETURN_NS), Some(Step::Unanswered));
    assert_ne!(life.poll(Sight { peer_up: false, ..peer }, 9 * RETURN_NS), Some(Step::Unanswered));
    let gone = Sight { gone: true, ..Sight::default() };
    assert_eq!((life.poll(gone, 9), life.poll(gone, 9)), (Some(Step::Gone), None), "once");
}

#[test]
fn reset_is_over_when_both_ends_are() {
    let mut life = up();
    assert_eq!(life.failed(FAILURE, |_| true, 0), Consequence::Reset);
    assert!(life.begin_reset(5, false) && !life.begin_reset(6, true));
    assert_eq!(life.failed(FAILURE, |_| unreachable!(), 0), Consequence::Pointless);
    let peer_has = |life: &mut Life, epoch| Life::peer_has([life, &mut up()].into_iter(), epoch);
    assert!(!life.is_reset(0) && !peer_has(&mut life, 7), "the peer's end of that epoch is as it was");
    assert!(peer_has(&mut life, 8) && life.is_reset(0) && !life.is_reset(1));
    assert_eq!(life.errno(), 5);
}

#[test]
fn peer_frame_about_a_reset_means_one_end() {
    let mut life = up();
    assert!(life.is_meant(7, true) && life.is_meant(3, false) && !life.is_meant(3, true));
    assert_eq!(Life::peer_reset(Some(&mut life), true, Never), Asked::EndPeer);
    assert_eq!(Life::peer_reset(Some(&mut life), true, Lane), Asked::Reset);
    assert!(life.begin_reset(5, false));
    assert_eq!(Life::peer_reset(Some(&mut life), false, Lane), Asked::Nothing);
    assert!(life.is_reset(0));
    assert_eq!(
        (Life::peer_reset(None, true, Lane), Life::peer_reset(None, false, Lane)),
        (Asked::Confirm, Asked::Nothing)
    );
    life.drain(false, 9);
    assert!(!life.is_meant(3, false) && life.draining_since() == Some(9));
}

#[test]
fn request_of_a_newer_lane_ends_this_one() {
    let mut life = up();
    assert_eq!(
        (life.meets(7, true), life.meets(6, true), life.meets(8, true)),
        (Request::Answer, Request::Ignore, Request::Reset)
    );
    let mut new = Life::new(1, 0);
    assert_eq!(
        (new.meets(4, true), new.meets(5, true), new.meets(5, false)),
        (Request::Answer, Request::GiveUp, Request::Answer)
    );
}

#[test]
fn lane_that_cannot_be_reset_ends_its_peer_once() {
    let mut life = up();
    assert_eq!(life.failed(FAILURE, |last| last, 0), Consequence::Broken { ends_peer: true });
    assert_eq!(life.failed(FAILURE, |_| unreachable!(), 0), Consequence::Noted);
    assert_eq!(
        up().failed(Failure { serves: false, ..FAILURE }, |_| unreachable!(), 0),
        Consequence::Broken { ends_peer: false }
    );
    let early = |resets| up().failed(Failure { connecting: true, resets, ..FAILURE }, |_| false, 0);
    assert_eq!([Lane, Never].map(early), [Consequence::GivenUp, Consequence::Broken { ends_peer: true }]);
}

#[test]
fn architecture_diagram_has_the_moves_of_lanes() {
    are_drawn(MOVES);
}

#[test]
fn lane_that_is_held_rests_once_its_operations_are_back() {
    let mut life = up();
    assert!(life.quiesce(Rest::Answer(1)) && life.quiesce(Rest::Close));
    assert!(life.is_held() && !life.takes_transfers());
    assert_eq!(life.held_for(1).collect::<Vec<_>>(), [Rest::Answer(1), Rest::Close]);
    assert!(life.begin_reset(5, false));
    assert_eq!(life.held_for(0).collect::<Vec<_>>(), [Rest::Answer(1)], "the peer may still post over it");
    assert!(!life.quiesce(Rest::Close), "it goes anyway");
    let mut life = up();
    assert!(life.quiesce(Rest::Answer(2)) && life.takes_transfers());
    assert_eq!((life.held_for(0).count(), life.is_held()), (0, false));
}

#[test]
fn lane_stalls_while_others_move_or_for_long_where_a_nic_serves_it() {
    let mut life = up();
    let others = |now| Load { inflight_bytes: 1, moved_ns: now, ..Load::default() };
    assert_eq!(life.watch(others(9), SUSPECT_NS - 1), Verdict::Wait);
    assert_eq!(life.watch(others(SUSPECT_NS), SUSPECT_NS), Verdict::Suspect);
    let wait = (1..).take_while(|n| life.watch(others(SUSPECT_NS + n), SUSPECT_NS + n) == Verdict::Wait);
    assert!(wait.count() > 100);
    assert_eq!(
        up().watch(Load { link_fails: true, ..others(SUSPECT_NS) }, SUSPECT_NS),
        Verdict::Stalled,
        "its link is down"
    );
    let alone = Load { inflight_bytes: 1, by_nic: true, ..Load::default() };
    assert_eq!(up().watch(alone, 6_000_000_000), Verdict::Lost);
    assert_eq!(up().watch(Load { by_nic: false, ..alone }, 6_000_000_000), Verdict::Suspect);
    assert!(!life.has_ended_again(true) && life.has_ended_again(true) && !life.has_ended_again(false));
}
