//! Control frames and their contents.

use crate::fabric::staged;
use crate::ids::RailIndex;
use crate::peer::link::MessagePart;
use crate::transfer::atomic::{read_answer, Request};
use crate::transfer::durable::{self, Answer};
use crate::wire::address::Address;
use crate::wire::frame::{self, HandshakeReply, HandshakeRequest, Header};
use crate::wire::seal::{Opener, Proof, Root, Sealer, Side, SEAL};

/// A frame, and its body decoded as that of every kind.
pub fn frame(data: &[u8]) {
    let Some((header, body)) = Header::read(data) else { return sealed(data) };
    let mut again = vec![0; data.len()];
    assert_eq!(header.write(&mut again, body, &[]), data.len());
    assert!(Header::read(&again).is_some_and(|(_, other)| other == body));
    if let Some(channel) = header.kind.channel() {
        assert!(channel < frame::CHANNELS);
    }
    request(body);
    if let Some(reply) = HandshakeReply::decode(body) {
        assert_eq!(HandshakeReply::decode(&reply.encode()).map(|again| again.nonce), Some(reply.nonce));
    }
    frame::read_refuse(body);
    frame::read_ready(body);
    frame::read_numbers::<3>(body);
    if let Some(part) = MessagePart::read(body) {
        assert!(part.offset + part.bytes.len() <= part.total);
    }
    if let Some((id, request)) = Request::decode(body) {
        assert_eq!(Request::decode(&request.encode(id)), Some((id, request)));
    }
    read_answer(body);
    if let Some(request) = durable::Request::decode(body) {
        assert_eq!(request.encode(), body);
    }
    Answer::decode(body);
    if let Some((id, request)) = staged::Request::decode(body) {
        assert!(staged::Request::decode(&request.encode(id)).is_some_and(|again| again == (id, request)));
    }
    staged::Answer::decode(body);
}

fn request(body: &[u8]) {
    let Some(request) = HandshakeRequest::decode(body) else { return };
    let again = request.encode();
    assert!(body.starts_with(&again), "a proof may follow");
    let _ = Address::decode(request.address);
}

/// The bytes behind a frame's body: they prove nothing about an unknown session.
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

/// No input proves a secret that its author does not know: neither random bytes nor a replayed
/// message.
pub fn handshake(data: &[u8]) {
    let root = Root::new(b"nobody knows this one");
    for what in [Proof::Request, Proof::Reply, Proof::Refusal] {
        assert!(root.verify(what, 1, 2, data).is_none());
    }
    let mut request = data.to_vec();
    root.prove(Proof::Request, 1, 2, &mut request);
    assert_eq!(root.verify(Proof::Request, 1, 2, &request), Some(data));
    assert!(root.verify(Proof::Reply, 1, 2, &request).is_none());
    assert!(root.verify(Proof::Request, 2, 1, &request).is_none());
    let at = data.first().map_or(0, |first| usize::from(*first)) % request.len();
    request[at] ^= 1 << (data.len() % 8);
    assert!(root.verify(Proof::Request, 1, 2, &request).is_none());
    self::request(data);
}
