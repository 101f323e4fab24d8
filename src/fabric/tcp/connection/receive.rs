//! How a connection handles received bytes: frames, and the payloads behind them.

use super::{Coming, Connection, Moving, State, Step};
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::{Allowed, Wish};
use crate::fabric::tcp::incoming::{Reach, Read};
use crate::fabric::tcp::outgoing::Flight;
use crate::fabric::tcp::socket::Outcome;
use crate::fabric::tcp::staged::Next;
use crate::fabric::tcp::stream::{chunks, Got};
use crate::fabric::{Reaped, ANOTHER, FAULT, GONE};
use crate::wire::tcp::{is_answer, Answer, Handshake, Kind, Request, ANSWER, HANDSHAKE, REQUEST};
use std::os::fd::AsFd;

impl Connection {
    /// Handles the received bytes, and receives more.
    pub(super) fn take(&mut self, with: &mut Moving) -> Outcome<()> {
        self.take_all(with)?;
        self.inbox.end(with.spare);
        Ok(())
    }

    fn take_all(&mut self, with: &mut Moving) -> Outcome<()> {
        loop {
            loop {
                match self.step(with)? {
                    Step::Done => {}
                    Step::Waits => break,
                    Step::Met => return Ok(()),
                }
            }
            if !self.readable || self.starved || with.budget == 0 {
                return Ok(());
            }
            let ahead = if self.state == State::Unauthenticated { HANDSHAKE } else { self.ahead };
            let Some(socket) = &self.socket else { return Ok(()) };
            let sealed = self.sealed.as_deref_mut();
            self.inbox.begin(with.spare);
            match self.inbox.receive(socket.as_fd(), sealed, ahead, &mut with.budget) {
                Ok(Got::Some) => {}
                Ok(Got::All) => self.readable = self.closing,
                Ok(Got::Nothing) => self.readable = false,
                // Still readable: the next pass receives again, whether or not more comes.
                Ok(Got::Part) => return Ok(()),
                Ok(Got::End) => return Err(libc::ECONNRESET),
                Err(FAULT) if self.inbox.left() > 0 => self.lose(with.sink),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The destination of the payload became unreachable: the rest of it is discarded.
    #[cold]
    fn lose(&mut self, sink: &mut [u8]) {
        match &mut self.coming {
            Coming::Payload(_, errno) => *errno = GONE,
            Coming::Data(errno) => *errno = FAULT,
            Coming::Head => {}
        }
        self.entered = None;
        self.inbox.discard(sink);
    }

    /// Handles one received frame or payload; an error if it is malformed.
    #[inline]
    fn step(&mut self, with: &mut Moving) -> Outcome<Step> {
        match self.coming {
            Coming::Head if self.state == State::Unauthenticated => self.meet(),
            Coming::Head => self.head(with),
            _ if self.inbox.left() > 0 => Ok(Step::Waits),
            Coming::Payload(request, mut errno) => {
                self.coming = Coming::Head;
                let mut entered = self.entered.take();
                let mut slot = None;
                if let Some(staged) = &mut self.staged {
                    let places = self.incoming.pieces.iter().map(|piece| (piece.address, piece.len.into()));
                    if errno != 0 {
                        staged.refuse(with.pool);
                    }
                    // SAFETY: the memory is registered, since nothing has taken it back; what takes it back
                    // waits for the copy.
                    match unsafe { staged.arrived(with.pool, places, &mut entered) } {
                        Ok(copied) => slot = copied,
                        Err(failed) => errno = failed,
                    }
                }
                let announced = request.immediate.map(|immediate| {
                    let landing = self.staged.as_ref().is_some_and(|staged| staged.is_landing());
                    let waits = slot.is_some() || landing;
                    (immediate, waits.then(|| with.pool.begin(self.incoming.owner, request.key)))
                });
                self.follow(Next::Settled(errno, announced), slot, with.reaped);
                Ok(Step::Done)
            }
            Coming::Data(mut errno) => {
                self.coming = Coming::Head;
                let flight = self.outgoing.next_flight(&self.batch)?;
                let mut slot = None;
                if let Some(staged) = &mut self.staged {
                    if self.outgoing.is_disowned(flight.op) {
                        staged.refuse(with.pool);
                    }
                    let parts = self.outgoing.parts(&flight);
                    let places = parts.iter().map(|part| (part.local, part.len));
                    // SAFETY: the operation's memory is valid until it is reaped; `disown` waits, but for a disk.
                    match unsafe { staged.arrived(with.pool, places, &mut None) } {
                        Ok(copied) => slot = copied,
                        Err(failed) => errno = failed,
                    }
                }
                match (errno, slot) {
                    (0, Some(slot)) => self.follow(Next::Data(flight.op), Some(slot), with.reaped),
                    _ => self.outgoing.answered(flight.op, errno, with.reaped),
                }
                Ok(Step::Done)
            }
        }
    }

    /// Does a step behind the devices' copies, or now if there are none.
    #[inline]
    fn follow(&mut self, next: Next, slot: Option<u32>, reaped: &mut Vec<Reaped>) {
        match &mut self.staged {
            Some(staged) if slot.is_some() || staged.is_landing() => staged.push(next, slot),
            _ => self.proceed(next, 0, reaped),
        }
    }

    #[inline]
    fn proceed(&mut self, next: Next, failed: i32, reaped: &mut Vec<Reaped>) {
        match next {
            Next::Settled(errno, announced) => {
                let immediate = announced.map(|(immediate, _)| immediate);
                self.incoming.settle(if failed != 0 { failed } else { errno }, immediate, reaped)
            }
            Next::Answer(read) => self.incoming.read(read),
            Next::Data(op) => self.outgoing.answered(op, failed, reaped),
        }
    }

    /// Continues after copies that devices have finished.
    #[cold]
    pub(super) fn land(&mut self, pool: &mut Pool, reaped: &mut Vec<Reaped>) {
        while let Some((next, failed)) = self.staged.as_mut().and_then(|staged| staged.take(pool)) {
            self.proceed(next, failed, reaped);
        }
    }

    fn meet(&mut self) -> Outcome<Step> {
        let Some(bytes) = self.inbox.ready().first_chunk::<HANDSHAKE>() else { return Ok(Step::Waits) };
        self.handshake = Some(Handshake::read(bytes).ok_or(libc::EPROTO)?);
        self.inbox.consume(HANDSHAKE);
        Ok(Step::Met)
    }

    /// A step waits: for authentication, a receive, or a slot.
    fn starves(&mut self) -> Outcome<Step> {
        self.starved = true;
        Ok(Step::Waits)
    }

    #[inline]
    fn head(&mut self, with: &mut Moving) -> Outcome<Step> {
        let ready = self.inbox.ready();
        let Some(&first) = ready.first() else { return Ok(Step::Waits) };
        if is_answer(first) {
            let Some(bytes) = ready.first_chunk::<ANSWER>() else { return Ok(Step::Waits) };
            let answer = Answer::read(bytes).ok_or(libc::EPROTO)?;
            return self.heed_answer(answer, with);
        }
        if self.state != State::Up {
            return Err(libc::EPROTO);
        }
        let Some(bytes) = ready.first_chunk::<REQUEST>() else { return Ok(Step::Waits) };
        let request = Request::read(bytes).ok_or(libc::EPROTO)?;
        if self.incoming.reach == Reach::Waits && request.kind != Kind::Message {
            return self.starves();
        }
        if !self.incoming.has_room(self.staged.as_ref().map_or(0, |staged| staged.landing())) {
            return Err(libc::EPROTO);
        }
        let head = REQUEST + request.list_len();
        let Some(list) = ready.get(REQUEST..head) else { return Ok(Step::Waits) };
        if !request.read_pieces(list, &mut self.incoming.pieces) {
            return Err(libc::EPROTO);
        }
        match request.kind {
            Kind::Beside => {
                self.inbox.consume(head);
                self.announced = (self.incoming.reach == Reach::Memory).then(|| request.name());
                self.follow(Next::Settled(0, None), None, with.reaped);
                Ok(Step::Done)
            }
            Kind::Write => self.begin_write(request, head, with),
            Kind::Read => self.read(request, head, with),
            Kind::Message => self.message(request, head, with),
        }
    }

    // Requests of the peer.

    #[inline]
    fn begin_write(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        let checked = self.incoming.check(request.key, &self.incoming.pieces, Wish::Write, with.registry);
        let mut slot = None;
        let mut errno = checked.as_ref().err().copied().unwrap_or(0);
        if let Ok(Allowed { device: Some(device), .. }) = checked {
            let whose = self.whose();
            match self.stage().expect(whose, with.pool, device, Some(request.key)) {
                Ok(None) => return self.starves(),
                Ok(taken) => slot = taken,
                Err(failed) => errno = failed,
            }
        }
        self.inbox.consume(head);
        self.ahead = head;
        match (&checked, slot) {
            _ if errno != 0 => self.expect_nothing(request.len, with.sink),
            (Err(_), _) => {}
            // SAFETY: the slot belongs to this table.
            (Ok(_), Some(slot)) => unsafe {
                self.inbox.expect([(slot, request.len as usize)].into_iter(), false)?;
            },
            (Ok(Allowed { may_fault, .. }), None) => {
                let ranges = self.incoming.pieces.iter().map(|piece| (piece.address, piece.len as usize));
                // SAFETY: the memory is registered, and stays so until `forget` is called.
                if unsafe { self.inbox.expect(ranges, *may_fault) }.is_err() {
                    errno = GONE;
                    self.inbox.discard(with.sink);
                }
            }
        }
        self.entered = checked.ok().and_then(|allowed| allowed.entered);
        if let (Some(entered), Some(_)) = (&self.entered, request.immediate) {
            entered.grant().counts();
        }
        self.coming = Coming::Payload(request, errno);
        Ok(Step::Done)
    }

    /// Discards the payload.
    fn expect_nothing(&mut self, len: u32, sink: &mut [u8]) {
        // SAFETY: the sink outlives the NIC's connections.
        let _ = unsafe { self.inbox.expect(chunks(sink, len as usize), false) };
    }

    fn read(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        // The use of the grant begins when the bytes are sent.
        let checked = self.incoming.check(request.key, &self.incoming.pieces, Wish::Read, with.registry);
        self.inbox.consume(head);
        self.ahead = head;
        let next = match checked {
            Err(errno) => Next::Settled(errno, None),
            Ok(Allowed { device, .. }) => {
                if device.is_some() {
                    self.stage();
                }
                let pieces = std::mem::take(&mut self.incoming.pieces);
                Next::Answer(Read { key: request.key, len: request.len, pieces, device, slot: None })
            }
        };
        self.follow(next, None, with.reaped);
        Ok(Step::Done)
    }

    fn message(&mut self, request: Request, head: usize, with: &mut Moving) -> Outcome<Step> {
        let len = request.len as usize;
        let Some(message) = self.inbox.ready().get(head..head + len) else { return Ok(Step::Waits) };
        let Some((buffer, scratch)) = with.receives.front().copied() else { return self.starves() };
        if len > buffer.len {
            return Err(libc::EPROTO);
        }
        // SAFETY: the buffer is ours until it is reaped, and is large enough.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), buffer.address.cast(), len) };
        with.receives.pop_front();
        with.reaped.push(Reaped { len: request.len, connection: self.number, ..Reaped::new(scratch, 0) });
        self.inbox.consume(head + len);
        self.follow(Next::Settled(0, None), None, with.reaped);
        Ok(Step::Done)
    }

    // Answers to us.

    fn heed_answer(&mut self, answer: Answer, with: &mut Moving) -> Outcome<Step> {
        if let Answer::Data { number, len } = answer {
            return self.data(number, len, with);
        }
        self.inbox.consume(ANSWER);
        self.ahead = ANSWER;
        match answer {
            Answer::Accepted if self.state == State::Handshaking => {
                self.state = State::Up;
                Ok(())
            }
            Answer::Failed { errno, .. } if self.state == State::Handshaking && errno == ANOTHER as u32 => {
                Err(ANOTHER)
            }
            _ if self.state != State::Up => Err(libc::EPROTO),
            Answer::Accepted => Err(libc::EPROTO),
            Answer::Done(number) => self.outgoing.settle_below(number, &self.batch, with.reaped),
            Answer::Failed { number, errno } => {
                self.outgoing.settle_below(number, &self.batch, with.reaped)?;
                self.outgoing.settle_next(errno as i32, &self.batch, with.reaped)
            }
            Answer::Data { .. } => Ok(()),
        }?;
        Ok(Step::Done)
    }

    /// The data of our first read in flight.
    #[inline]
    fn data(&mut self, number: u64, len: u32, with: &mut Moving) -> Outcome<Step> {
        if self.state != State::Up {
            return Err(libc::EPROTO);
        }
        self.outgoing.settle_below(number, &self.batch, with.reaped)?;
        let flight = self.outgoing.next_read(len)?;
        let (mut slot, mut errno) = (None, 0);
        if let Some(device) =
            self.outgoing.device(flight.op).filter(|_| !self.outgoing.is_disowned(flight.op))
        {
            let whose = self.whose();
            match self.stage().expect(whose, with.pool, device, None) {
                Ok(None) => return self.starves(),
                Ok(taken) => slot = taken,
                Err(failed) => errno = failed,
            }
        }
        self.inbox.consume(ANSWER);
        self.ahead = ANSWER;
        self.coming = Coming::Data(errno);
        if let Some(slot) = slot {
            // SAFETY: the slot is the connection's until it is given back.
            unsafe { self.inbox.expect([(slot, len as usize)].into_iter(), false) }?;
            return Ok(Step::Done);
        }
        self.begin_data(&flight, errno, with.sink).map(|()| Step::Done)
    }

    fn begin_data(&mut self, flight: &Flight, errno: i32, sink: &mut [u8]) -> Outcome<()> {
        if errno != 0 || self.outgoing.is_disowned(flight.op) {
            self.expect_nothing(flight.len, sink);
            return Ok(());
        }
        let parts = self.outgoing.parts(flight);
        let ranges = parts.iter().map(|part| (part.local, part.len as usize));
        // SAFETY: the operation's memory is valid until it is reaped, or disowned.
        if unsafe { self.inbox.expect(ranges, self.outgoing.may_fault(flight.op)) }.is_err() {
            self.lose(sink);
        }
        Ok(())
    }
}
