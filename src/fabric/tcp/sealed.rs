//! Encryption of a connection: a stream of bytes becomes a stream of records, and back.
//!
//! The handshake and the records are those of the Noise Protocol Framework, revision 34,
//! `Noise_NNpsk0_25519_AESGCM_SHA256`: both sides prove the secret, and each connection has new
//! keys, so that a later leak of the secret reveals nothing of it. A record's tag is compared
//! before any of its bytes is used.
//!
//! ```text
//! record     u16 len (little-endian)   len bytes of a Noise message
//! ```
//!
//! The initiator's first record carries its handshake, the target's first one the acceptance; a
//! target that does not know the secret sends an empty record. Each direction changes its key after
//! `REKEY` records.

use super::socket::{self, Outcome};
use super::stream::{advance, copy_or_fail};
use crate::status::{Error, Status};
use crate::wire::seal::Root;
use crate::wire::tcp::HANDSHAKE;
use snow::{Builder, HandshakeState, TransportState};
use std::os::fd::BorrowedFd;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"WEFT-TCP sealed 1";
/// Bytes of a record's length, of a tag, and of an exchanged key.
const LEN: usize = 2;
const TAG: usize = 16;
const KEY: usize = 32;
/// The most plaintext bytes of a record.
const RECORD: usize = 32 << 10;
const ROOM: usize = LEN + RECORD + TAG;
/// Records under one key: 2 GiB. (Few in tests, so that tests change keys.)
const REKEY: u64 = if cfg!(test) { 5 } else { 1 << 16 };

enum Noise {
    /// One handshake for each valid secret, until the first record shows which one is used.
    Asked(Vec<HandshakeState>),
    Handshake(Box<HandshakeState>),
    Open(Box<TransportState>),
    Failed,
}

/// The buffer before authentication, so that an unauthenticated endpoint costs little.
const SMALL: usize = LEN + HANDSHAKE + KEY + TAG;

/// The bytes `start..end` of a buffer.
struct Span {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Span {
    fn new() -> Span {
        Span { bytes: vec![0; SMALL], start: 0, end: 0 }
    }

    fn ready(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

pub struct Sealed {
    noise: Noise,
    /// The plaintext of the next record.
    plain: Vec<u8>,
    /// A record that is being sent.
    record: Span,
    /// Bytes that are received but not decrypted, and bytes that are decrypted but not used.
    raw: Span,
    opened: Span,
    /// Records of each direction under the current key.
    sent: u64,
    received: u64,
}

/// The error of a malformed record, or of another secret.
const BAD: i32 = libc::EPROTO;
pub const OTHER_SECRET: i32 = libc::EKEYREJECTED;

fn builder<'a>(key: &'a [u8; KEY]) -> Result<Builder<'a>, snow::Error> {
    let params = PATTERN.parse().map_err(|_| snow::Error::Input)?;
    Builder::new(params).prologue(PROLOGUE)?.psk(0, key)
}

impl Sealed {
    fn new(noise: Noise) -> Box<Sealed> {
        Box::new(Sealed {
            noise,
            plain: vec![0; HANDSHAKE],
            record: Span::new(),
            raw: Span::new(),
            opened: Span::new(),
            sent: 0,
            received: 0,
        })
    }

    /// The side that connects: it uses the first of the valid secrets.
    pub fn initiator(roots: &[Root]) -> crate::status::Result<Box<Sealed>> {
        let key = roots.first().map(Root::connection_key);
        let state = key.and_then(|key| builder(&key).ok()?.build_initiator().ok());
        let state =
            state.ok_or_else(|| Error::new(Status::Internal, "no key to encrypt a connection with"))?;
        Ok(Self::new(Noise::Handshake(Box::new(state))))
    }

    /// An accepted connection, whose other side must know one of the valid secrets.
    pub fn target(roots: &[Root]) -> Box<Sealed> {
        let state = |root: &Root| builder(&root.connection_key()).and_then(Builder::build_responder).ok();
        Self::new(Noise::Asked(roots.iter().filter_map(state).collect()))
    }

    // Sending.

    /// Whether a record is only partly sent.
    #[inline]
    pub fn is_sending(&self) -> bool {
        !self.record.is_empty()
    }

    /// Makes a record of what the vectors begin with, and moves past it: its bytes, and whether it ends
    /// inside a vector.
    ///
    /// # Safety
    /// Each vector covers readable memory, but for pages of what may fault.
    pub unsafe fn seal(
        &mut self,
        iov: &mut [libc::iovec],
        at: &mut usize,
        may_fault: bool,
    ) -> Outcome<(usize, bool)> {
        let (mut len, mut inside) = (0, false);
        while let Some(first) = iov.get_mut(*at).filter(|_| len < self.plain.len()) {
            let part = first.iov_len.min(self.plain.len() - len);
            let to = self.plain[len..].as_mut_ptr();
            // SAFETY: the vector covers memory that is readable or may fault, and `plain` has `part` more bytes.
            unsafe { copy_or_fail(to, first.iov_base.cast(), part, may_fault)? };
            len += part;
            inside = advance(iov, at, part);
        }
        let (plain, to) = (&self.plain[..len], &mut self.record.bytes[LEN..]);
        let sealed = match &mut self.noise {
            Noise::Handshake(state) => state.write_message(plain, to),
            Noise::Open(state) => state.write_message(plain, to),
            Noise::Asked(_) | Noise::Failed => return Err(BAD),
        };
        let sealed = sealed.map_err(|_| BAD)?;
        self.record.bytes[..LEN].copy_from_slice(&(sealed as u16).to_le_bytes());
        (self.record.start, self.record.end) = (0, LEN + sealed);
        self.opens();
        if let Noise::Open(state) = &mut self.noise {
            self.sent += 1;
            if self.sent % REKEY == 0 {
                state.rekey_outgoing();
            }
        }
        Ok((len, inside))
    }

    /// Sends a record: true when all of it is sent.
    pub fn send(&mut self, socket: BorrowedFd) -> Outcome<bool> {
        while self.is_sending() {
            let ready = self.record.ready();
            let iov = libc::iovec { iov_base: ready.as_ptr().cast_mut().cast(), iov_len: ready.len() };
            // SAFETY: the bytes belong to this object.
            match unsafe { socket::send(socket, &[iov]) } {
                Ok(sent) => self.record.start += sent,
                Err(errno) if socket::is_later(errno) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    // Receiving.

    /// Receives decrypted bytes into the vectors, like `socket::receive`.
    ///
    /// # Safety
    /// Each vector covers writable memory, but for pages of what may fault.
    pub unsafe fn receive(
        &mut self,
        socket: BorrowedFd,
        iov: &[libc::iovec],
        may_fault: bool,
    ) -> Outcome<usize> {
        let mut total = 0;
        for vector in iov {
            let mut filled = 0;
            while filled < vector.iov_len {
                let opened = !self.opened.is_empty()
                    || self.open_next().or_else(|errno| self.refuse(errno, socket))?;
                if !opened {
                    match self.fill(socket) {
                        Ok(0) => return Ok(total),
                        Ok(_) => continue,
                        Err(errno) if socket::is_later(errno) && total > 0 => return Ok(total),
                        Err(errno) => return Err(errno),
                    }
                }
                let part = self.opened.ready();
                let len = part.len().min(vector.iov_len - filled);
                // SAFETY: the bytes lie inside the vector, which is writable; our own bytes do not
                // overlap it.
                let copied = unsafe {
                    let to = vector.iov_base.cast::<u8>().add(filled);
                    copy_or_fail(to, part.as_ptr(), len, may_fault)
                };
                match copied {
                    Ok(()) => {}
                    // The next call reports it.
                    Err(_) if total > 0 => return Ok(total),
                    Err(errno) => return Err(errno),
                }
                self.opened.start += len;
                (filled, total) = (filled + len, total + len);
            }
        }
        Ok(total)
    }

    /// Receives more of a record.
    fn fill(&mut self, socket: BorrowedFd) -> Outcome<usize> {
        let raw = &mut self.raw;
        raw.bytes.copy_within(raw.start..raw.end, 0);
        (raw.start, raw.end) = (0, raw.end - raw.start);
        let room = &mut raw.bytes[raw.end..];
        let iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: the bytes belong to this object.
        let got = unsafe { socket::receive(socket, &[iov]) }?;
        raw.end += got;
        Ok(got)
    }

    /// Reports to an initiator that its secret is unknown here.
    fn refuse(&mut self, errno: i32, socket: BorrowedFd) -> Outcome<bool> {
        if let (Noise::Asked(_), OTHER_SECRET) = (&self.noise, errno) {
            self.record.bytes[..LEN].fill(0);
            (self.record.start, self.record.end) = (0, LEN);
            self.send(socket)?;
        }
        Err(errno)
    }

    /// Decrypts the next record, if all of it was received.
    fn open_next(&mut self) -> Outcome<bool> {
        let Some((len, rest)) = self.raw.ready().split_first_chunk::<LEN>() else { return Ok(false) };
        let len = usize::from(u16::from_le_bytes(*len));
        let most = if let Noise::Open(_) = self.noise { RECORD } else { HANDSHAKE + KEY };
        if len > most + TAG {
            return Err(BAD);
        }
        if let (Noise::Handshake(_), 0) = (&self.noise, len) {
            return Err(OTHER_SECRET);
        }
        let Some(record) = rest.get(..len) else { return Ok(false) };
        let to = &mut self.opened.bytes;
        let opened = match &mut self.noise {
            Noise::Asked(states) => {
                let mut tried = states.iter_mut().enumerate();
                let meant = tried.find_map(|(i, state)| Some((i, state.read_message(record, to).ok()?)));
                let (meant, opened) = meant.ok_or(OTHER_SECRET)?;
                self.noise = Noise::Handshake(Box::new(states.swap_remove(meant)));
                opened
            }
            Noise::Handshake(state) => state.read_message(record, to).map_err(|_| BAD)?,
            Noise::Open(state) => state.read_message(record, to).map_err(|_| BAD)?,
            Noise::Failed => return Err(BAD),
        };
        (self.opened.start, self.opened.end) = (0, opened);
        self.raw.start += LEN + len;
        self.opens();
        if let Noise::Open(state) = &mut self.noise {
            self.received += 1;
            if self.received % REKEY == 0 {
                state.rekey_incoming();
            }
        }
        Ok(true)
    }

    /// The handshake may be complete.
    fn opens(&mut self) {
        self.noise = match std::mem::replace(&mut self.noise, Noise::Failed) {
            Noise::Handshake(state) if state.is_handshake_finished() => match state.into_transport_mode() {
                Ok(state) => {
                    self.plain.resize(RECORD, 0);
                    for part in [&mut self.record, &mut self.raw, &mut self.opened] {
                        part.bytes.resize(ROOM, 0);
                    }
                    Noise::Open(Box::new(state))
                }
                Err(_) => Noise::Failed,
            },
            noise => noise,
        }
    }
}
