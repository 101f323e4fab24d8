//! The formats of `fabric::tcp`, and its connections.

use crate::wire::tcp::{Answer, Handshake, Piece, Request, PIECE, PIECES};

/// A decoded value encodes to the same bytes.
pub fn tcp_frame(data: &[u8]) {
    if let Some((bytes, handshake)) =
        data.first_chunk().and_then(|bytes| Some((bytes, Handshake::read(bytes)?)))
    {
        assert_eq!(*bytes, handshake.bytes());
    }
    if let Some((bytes, answer)) = data.first_chunk().and_then(|bytes| Some((bytes, Answer::read(bytes)?))) {
        assert_eq!(*bytes, answer.bytes());
    }
    let Some((bytes, rest)) = data.split_first_chunk() else { return };
    let Some(request) = Request::read(bytes) else { return };
    assert_eq!(*bytes, request.bytes());
    assert!(request.list_len() <= PIECES * PIECE);
    let mut pieces = vec![Piece::default(); 3];
    let list = rest.get(..request.list_len()).unwrap_or(rest);
    if request.read_pieces(list, &mut pieces) {
        assert_eq!(pieces.len(), usize::from(request.pieces));
        assert_eq!(pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>(), u64::from(request.len));
    }
}

pub fn tcp_stream(data: &[u8]) {
    crate::fabric::tcp::check_stream(data);
}

pub fn tcp_twins(data: &[u8]) {
    crate::fabric::tcp::check_twins(data);
}
