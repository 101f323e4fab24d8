//! Control frames and what is in them.

use crate::codec::Reader;
use crate::ids::RailIndex;
use crate::peer::link::Part;
use crate::transfer::atomic::{read_answer, Request};
use crate::transfer::pack::{read_list, Tally, SLOTS};
use crate::wire::address::Address;
use crate::wire::frame::{self, Header, Hello, Welcome};
use crate::wire::seal::{Opener, Proven, Root, Sealer, Side, SEAL};

/// A frame, and its body as that of every kind.
pub fn frame(data: &[u8]) {
    let Some((header, body)) = Header::read(data) else { return sealed(data) };
    let mut again = vec![0; data.len()];
    assert_eq!(header.write(&mut again, body, &[]), data.len());
    assert!(Header::read(&again).is_some_and(|(_, other)| other == body));
    if let Some(channel) = header.kind.channel() {
        assert!(channel < frame::CHANNELS);
    }
    hello(body);
    if let Some(welcome) = Welcome::decode(body) {
        assert_eq!(Welcome::decode(&welcome.encode()).map(|again| again.nonce), Some(welcome.nonce));
    }
    frame::read_refuse(body);
    frame::read_ready(body);
    frame::read_numbers::<3>(body);
    if let Some(part) = Part::read(body) {
        assert!(part.offset + part.bytes.len() <= part.total);
    }
    if let Some((id, request)) = Request::decode(body) {
        assert_eq!(Request::decode(&request.encode(id)), Some((id, request)));
    }
    read_answer(body);
}

fn hello(body: &[u8]) {
    let Some(hello) = Hello::decode(body) else { return };
    let again = hello.encode();
    assert!(body.starts_with(&again), "a proof may follow");
    let _ = Address::decode(hello.address);
}

/// What is said behind a frame's body: nothing of a session that it does not know.
fn sealed(data: &[u8]) {
    let Some((_, body, rest)) = Header::begins(data) else { return };
    assert!(body.len() != rest && data.len() == rest + frame::HEADER);
    let (mut sealer, mut opener) = session();
    assert!(opener.open(data).is_none());
    let mut again = [data, &[0; SEAL]].concat();
    assert_eq!(sealer.seal(&mut again, data.len()), again.len());
    assert_eq!(opener.open(&again), Some(data));
    assert!(opener.open(&again).is_none());
}

fn session() -> (Sealer, Opener) {
    let root = Root::new(b"nobody knows this one");
    let side = |n| Side { incarnation: n, nonce: 3, epoch: 4, rail: RailIndex::new(5) };
    (Sealer::new(&root, &side(1), &side(2)), Opener::new(&root, &side(1), &side(2)))
}

/// Nobody proves what they do not know: not by rubbish, and not by what another said.
pub fn handshake(data: &[u8]) {
    let root = Root::new(b"nobody knows this one");
    for what in [Proven::Hello, Proven::Welcome, Proven::Refuse] {
        assert!(root.proven(what, 1, 2, data).is_none());
    }
    let mut hello = data.to_vec();
    root.prove(Proven::Hello, 1, 2, &mut hello);
    assert_eq!(root.proven(Proven::Hello, 1, 2, &hello), Some(data));
    assert!(root.proven(Proven::Welcome, 1, 2, &hello).is_none());
    assert!(root.proven(Proven::Hello, 2, 1, &hello).is_none());
    let at = data.first().map_or(0, |first| usize::from(*first)) % hello.len();
    hello[at] ^= 1 << (data.len() % 8);
    assert!(root.proven(Proven::Hello, 1, 2, &hello).is_none());
    self::hello(data);
}

/// The list of a bundle, and what becomes of bundles that a peer announces as it likes.
pub fn bundle(data: &[u8]) {
    if let Some(list) = read_list(data) {
        assert_eq!(list.pieces.count() * 16 + 16, data.len());
    }
    let (mut tally, mut r) = (Tally::default(), Reader::new(data));
    let (mut taken, mut told) = (0u32, 0);
    while let Some(step) = r.u8() {
        match step % 4 {
            0 | 1 if tally.expects(taken, 0) => {
                let refused = step % 4 == 1;
                tally.advance(if refused { Err(crate::status::Status::RemoteAccess) } else { Ok(()) });
                taken += 1;
            }
            2 => assert!(!tally.expects(taken.wrapping_add(1 + u32::from(step)), 0)),
            _ => {
                if let Some(due) = tally.due() {
                    tally.said(due);
                    told += 1;
                }
            }
        }
        assert!(tally.due().is_some() || tally.expects(taken, 0));
    }
    // Who was told nothing has no more than its slots.
    assert!(taken <= SLOTS * (1 + told));
}
