//! Does what a case says, and asks the model about all that comes of it.

use crate::arena::{self, Arena};
use crate::case::{Case, ImportFlaw, Op, RegisterFlaw, SendFlaw, Who};
use crate::counters::CountOp;
use crate::messages::mark;
use crate::model::{status_name, told, Import, Kept, Link, Memory, Model, Note, Operation, Outcome, State};
use crate::shape::Sequence;
use crate::side::{check, last_error, sized, Setting, Side, MESSAGE_BYTES};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft::capi::completion::*;
use weft::capi::endpoint::*;
use weft::capi::kept::weft_kept;
use weft::capi::memory::*;
use weft::capi::message::*;
use weft::capi::peer::*;
use weft::capi::status::*;
use weft::capi::transfer::weft_transfer_cancel;

/// Nothing takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(40);
pub const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// What was done, and what became of it: a line each.
pub type Trace = Arc<Mutex<Vec<String>>>;

pub struct Driver {
    pub sides: [Side; 2],
    pub arenas: [Arena; 2],
    pub model: Model,
    /// By the model's indexes.
    pub memories: [Vec<*mut weft_memory>; 2],
    pub remotes: [Vec<*mut weft_remote_memory>; 2],
    pub kept: [Vec<*mut weft_kept>; 2],
    descriptors: [Vec<Option<Vec<u8>>>; 2],
    held: [Vec<u64>; 2],
    /// Deregistering drives only its own side.
    alone: bool,
    manual: bool,
    pub step: usize,
    random: Sequence,
    trace: Trace,
}

/// Statuses that a call may be refused with; whether it must be.
#[derive(Default)]
pub struct Refusal {
    pub statuses: Vec<i32>,
    pub must: bool,
}

impl Refusal {
    pub fn must(&mut self, status: i32) {
        self.statuses.push(status);
        self.must = true;
    }

    pub fn may(&mut self, status: i32) {
        self.statuses.push(status);
    }

    /// Whether the call was accepted, if it answered as it may.
    pub fn judge(&self, call: &str, status: i32) -> Outcome<bool> {
        self.judge_told(call, status, &last_error())
    }

    fn judge_told(&self, call: &str, status: i32, told: &str) -> Outcome<bool> {
        let named = || self.statuses.iter().map(|s| status_name(*s)).collect::<Vec<_>>().join(", ");
        match status {
            WEFT_OK if self.must => Err(format!("{call} was accepted, not refused with {}", named())),
            WEFT_OK => Ok(true),
            _ if !self.statuses.contains(&status) => Err(format!(
                "{call} was refused with {} (\"{}\"), not with one of [{}]",
                status_name(status),
                told,
                named()
            )),
            _ if told.is_empty() => Err(format!("{call} was refused without a message")),
            _ => Ok(false),
        }
    }
}

fn status_of<T>(answer: &Result<T, i32>) -> i32 {
    answer.as_ref().err().copied().unwrap_or(WEFT_OK)
}

impl Driver {
    pub fn new(settings: &[Setting; 2], case: &Case, virtual_time: bool, trace: Trace) -> Outcome<Driver> {
        let mut random = Sequence(case.seed);
        let bytes = [random.bytes(arena::LEN), random.bytes(arena::LEN)];
        let manual = settings[0].manual;
        Ok(Driver {
            arenas: [Arena::new(&bytes[0]), Arena::new(&bytes[1])],
            sides: [Side::open(&settings[0])?, Side::open(&settings[1])?],
            model: Model::new(bytes),
            memories: Default::default(),
            remotes: Default::default(),
            kept: Default::default(),
            descriptors: Default::default(),
            held: Default::default(),
            alone: manual && !virtual_time,
            manual,
            step: 0,
            random,
            trace,
        })
    }

    /// A notification with so many bytes, whose value no other has.
    pub fn note_of(&mut self, bytes: Option<usize>) -> Option<Note> {
        let (value, data) = (self.random.draw(), self.random.bytes(bytes?));
        Some(Note { value, data, seen: false })
    }

    pub fn is_virtual(&self) -> bool {
        self.manual && !self.alone
    }

    pub fn note(&self, line: String) {
        if let Ok(mut trace) = self.trace.lock() {
            trace.push(line);
        }
    }

    /// Runs a case from connect to close.
    pub fn run(mut self, case: &Case) -> Outcome {
        let outcome = self.play(case);
        if outcome.is_err() {
            self.abandon();
        }
        outcome
    }

    fn play(&mut self, case: &Case) -> Outcome {
        self.connect(Who(0))?;
        for who in [Who(0), Who(1)] {
            self.register(who, 0, &[(0, arena::LEN / 2)], 0, 0, None)?;
            let ranges: Vec<_> = (4..8).map(|i| (i * arena::LEN / 8, arena::LEN / 8 - 100 * i)).collect();
            self.register(who, 1, &ranges, 0, 0, None)?;
            self.count(who, &CountOp::Create { slot: 0 })?;
        }
        for (step, op) in case.ops.iter().enumerate() {
            self.step = step;
            self.note(format!("{step:2}  {op}"));
            let result = self.apply(op)?;
            if !result.is_empty() {
                self.note(format!("      {result}"));
            }
        }
        if !case.abrupt {
            self.settle()?;
        }
        self.end()
    }

    fn apply(&mut self, op: &Op) -> Outcome<String> {
        match op {
            Op::Move(op) => self.transfer(op),
            Op::List(op) => self.list(op),
            Op::Kept(who, op) => self.kept(*who, op),
            Op::Count(who, op) => self.count(*who, op),
            Op::Atomic(op) => self.atomic(op),
            Op::Send { who, len, timeout_ns, second_queue, flaw } => {
                self.send(*who, *len, *timeout_ns, *second_queue, *flaw)
            }
            Op::Cancel { who, back } => self.cancel(*who, *back),
            Op::Register { who, slot, ranges, access, rails, flaw } => {
                self.register(*who, *slot, ranges, *access, *rails, *flaw)
            }
            Op::Deregister { who, slot } => match self.model.parts[who.0].slots[*slot] {
                Some(memory) => self.deregister(*who, memory).map(status_name),
                None => Ok(String::new()),
            },
            Op::Import { who, slot, flaw } => self.import(*who, *slot, *flaw),
            Op::Release { who, slot } => self.release(*who, *slot),
            Op::Poll { who } => self.pump(*who).map(|came| format!("{came} came")),
            Op::ReleaseMessages { who } => self.release_messages(*who).map(|()| String::new()),
            Op::Settle => self.settle().map(|()| String::new()),
            Op::Disconnect { who, wait } => self.disconnect(*who, *wait),
            Op::Connect { who } => self.connect(*who).map(|()| String::new()),
        }
    }

    // What arrives.

    /// Takes what both queues of a side have now.
    pub fn pump(&mut self, who: Who) -> Outcome<usize> {
        Ok(self.take(who, false, 0)? + self.take(who, true, 0)?)
    }

    fn take(&mut self, who: Who, second: bool, wait_ns: u64) -> Outcome<usize> {
        let got = self.sides[who.0].poll(second, wait_ns)?.unwrap_or_default();
        got.iter().try_for_each(|completion| self.handle(who, second, completion))?;
        Ok(got.len())
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Driver) -> bool, release: bool) -> Outcome {
        let begin = Instant::now();
        let mut turn = 0;
        while !done(self) {
            turn += 1;
            let came = self.pump(Who(0))? + self.pump(Who(1))?;
            if release {
                self.release_messages(Who(0))?;
                self.release_messages(Who(1))?;
            }
            if came == 0 && !self.manual {
                self.take(Who(turn % 2), false, 100_000)?;
            }
            if begin.elapsed() > PATIENCE {
                let open: Vec<_> = self.model.open().map(|(index, _)| self.model.name(index)).collect();
                return Err(format!("{what} within {PATIENCE:?}; open: {open:?}"));
            }
        }
        Ok(())
    }

    /// Polls until nothing is left in any queue.
    fn drain(&mut self) -> Outcome {
        while self.pump(Who(0))? + self.pump(Who(1))? > 0 {}
        Ok(())
    }

    fn handle(&mut self, who: Who, second: bool, c: &weft_completion) -> Outcome {
        self.note(format!("      {who} polled {}", told(c)));
        let part = &mut self.model.parts[who.0];
        let wrong = |what: &str| Err(format!("{who}: {what}: {}", told(c)));
        if matches!(
            c.kind,
            WEFT_COMPLETION_WRITE
                | WEFT_COMPLETION_READ
                | WEFT_COMPLETION_SEND
                | WEFT_COMPLETION_COUNTER
                | WEFT_COMPLETION_ATOMIC
        ) {
            if !second && part.saw_down && c.peer == part.peer {
                return wrong("something of the peer after its PEER_DOWN");
            }
            return self.completed(who, second, c);
        }
        if second {
            return wrong("this does not belong into a second queue");
        }
        if c.kind == WEFT_COMPLETION_PEER_UP {
            let expected = part.ups.iter().position(|user_data| *user_data == c.user_data as u64);
            let Some(at) = expected else { return wrong("nobody connected") };
            part.ups.remove(at);
            (part.peer, part.saw_down) = (c.peer, false);
            return check("connecting", c.status);
        }
        if c.peer != part.peer || part.saw_down {
            return wrong("not of the peer that is connected");
        }
        match c.kind {
            WEFT_COMPLETION_PEER_DOWN => self.down(who, c),
            WEFT_COMPLETION_MESSAGE | WEFT_COMPLETION_NOTIFICATION => self.data(who, c),
            _ => wrong("of an unknown kind"),
        }
    }

    fn completed(&mut self, who: Who, second: bool, c: &weft_completion) -> Outcome {
        self.model.completed(who.0, second, c, &self.arenas)?;
        let index = c.user_data as usize - 1;
        let op = &self.model.operations[index];
        let expects = op.expects.clone();
        if !op.fenced && self.is_cut_off(op) {
            self.model.fence(index, &self.arenas)?;
        }
        match c.status {
            WEFT_OK => self.check_expected(who, &expects),
            _ => Ok(()),
        }
    }

    /// A memory without which nothing of it can land was given back.
    fn is_cut_off(&self, op: &Operation) -> bool {
        let (part, other) = (&self.model.parts[op.who], &self.model.parts[1 - op.who]);
        let mut locals = op.locals.iter();
        let mut words = op.imports.iter().filter(|_| op.word.is_some());
        locals.any(|memory| !part.memories[*memory].alive)
            || words.any(|import| !other.memories[part.imports[*import].memory].alive)
    }

    fn data(&mut self, who: Who, c: &weft_completion) -> Outcome {
        let wrong = |what: &str| Err(format!("{who}: {what}: {}", told(c)));
        if c.data.is_null() != (c.bytes == 0) || (c.transfer == 0) != (c.bytes == 0) {
            return wrong("data, bytes and id do not fit");
        }
        let bytes: &[u8] = match c.bytes {
            0 => &[],
            // SAFETY: the data is there until it is released.
            len => unsafe { std::slice::from_raw_parts(c.data.cast(), len as usize) },
        };
        if c.status != WEFT_OK || !c.user_data.is_null() {
            return wrong("status or user_data is set");
        }
        if c.kind == WEFT_COMPLETION_MESSAGE {
            self.model.parts[who.0].arrived.push(mark(bytes));
            self.held[who.0].push(c.transfer);
            return Ok(());
        }
        self.model.notified(who.0, c.value, bytes, &self.arenas)?;
        check("weft_message_release", self.sides[who.0].release_message(c.transfer))
    }

    fn down(&mut self, who: Who, c: &weft_completion) -> Outcome {
        let left = self.model.left;
        let fits = match c.status {
            WEFT_OK => left[who.0],
            WEFT_ERR_PEER_CLOSED => left[1 - who.0],
            _ => false,
        };
        if !fits {
            return Err(format!("{who}: the peer ended, but left were {left:?}: {}", told(c)));
        }
        self.model.parts[who.0].saw_down = true;
        if self.model.parts.iter().all(|part| part.saw_down) {
            self.connection_ended()?;
        }
        Ok(())
    }

    /// Both have seen the end: all has completed, and nothing lands any more.
    fn connection_ended(&mut self) -> Outcome {
        for who in [Who(0), Who(1)] {
            while self.take(who, true, 0)? > 0 {}
        }
        self.model.check_messages()?;
        for index in 0..self.model.operations.len() {
            let op = &self.model.operations[index];
            if !op.expects.is_empty() {
                continue;
            }
            let Some(status) = op.status else {
                return Err(format!("{} has no completion before the PEER_DOWN", self.model.name(index)));
            };
            if status == WEFT_OK && op.note.as_ref().is_some_and(|note| !note.seen) {
                return Err(format!("the notification of {} never came", self.model.name(index)));
            }
            if !op.fenced {
                self.model.fence(index, &self.arenas)?;
            }
        }
        for part in &mut self.model.parts {
            part.arrived.clear();
            part.sent.clear();
            for import in &mut part.imports {
                import.state = match import.state {
                    State::Live | State::Ended => State::Ended,
                    State::Gone | State::GoneAndEnded => State::GoneAndEnded,
                };
            }
        }
        self.model.link = Link::Down;
        Ok(())
    }

    // All that is open comes to its end.

    pub fn settle(&mut self) -> Outcome {
        let over = |op: &Operation| {
            !op.expects.is_empty()
                || op.status.is_some()
                    && op.note.as_ref().is_none_or(|n| n.seen || op.status != Some(WEFT_OK))
        };
        self.until("not all has ended", |driver| driver.model.operations.iter().all(over), true)?;
        self.until("counters have not what arrived", Driver::counters_settled, true)?;
        if self.model.link == Link::Parting {
            self.until("the peers have not ended", |driver| driver.model.link == Link::Down, true)?;
        }
        self.drain()?;
        for who in [Who(0), Who(1)] {
            self.fence_failed(who)?;
        }
        self.check_counters()?;
        self.model.check_bytes(&self.arenas)?;
        self.model.check_messages()
    }

    /// Deregisters what failed operations used, and registers it again.
    fn fence_failed(&mut self, who: Who) -> Outcome {
        let failed = self.model.operations.iter().filter(|op| op.status.is_some() && !op.fenced);
        let mut memories: Vec<_> = failed.filter_map(|op| self.cutting_off(who, op)).collect();
        memories.sort_unstable();
        memories.dedup();
        for memory in memories {
            self.release_kept_of(who, memory)?;
            let begin = Instant::now();
            while self.deregister(who, memory)? == WEFT_ERR_BUSY {
                self.pump(Who(0))?;
                self.pump(Who(1))?;
                if begin.elapsed() > PATIENCE {
                    return Err(format!("memory of {who} is busy for {PATIENCE:?} after its operations"));
                }
            }
            let slots = self.model.parts[who.0].slots;
            if let Some(slot) = slots.iter().position(|held| *held == Some(memory)) {
                let Memory { ranges, access, rails, .. } = self.model.parts[who.0].memories[memory].clone();
                self.register(who, slot, &ranges, access, rails, None)?;
            }
        }
        Ok(())
    }

    /// The memory of a side without which nothing of an operation can land.
    fn cutting_off(&self, who: Who, op: &Operation) -> Option<usize> {
        let import = op.imports.first().filter(|_| op.word.is_some() && op.who != who.0);
        let of_word = import.map(|import| self.model.parts[op.who].imports[*import].memory);
        of_word.or_else(|| op.locals.first().copied().filter(|_| op.who == who.0))
    }

    fn release_kept_of(&mut self, who: Who, memory: usize) -> Outcome {
        for index in 0..self.model.parts[who.0].kept.len() {
            let kept = &self.model.parts[who.0].kept[index];
            if kept.alive && kept.locals.contains(&memory) {
                self.release_kept(who, index)?;
            }
        }
        Ok(())
    }

    // Peers.

    fn connect(&mut self, who: Who) -> Outcome {
        if self.model.link == Link::Parting {
            self.until("the peers have not ended", |driver| driver.model.link == Link::Down, true)?;
        }
        let again = self.model.link == Link::Up;
        let user_data = self.random.draw();
        let address = self.sides[1 - who.0].address()?;
        let answer = self.sides[who.0].connect(&address, user_data);
        let peer =
            answer.map_err(|s| format!("weft_peer_connect gave {}: {}", status_name(s), last_error()))?;
        if again && peer != self.model.parts[who.0].peer {
            return Err("connecting to a peer that is up gave another id".into());
        }
        self.model.parts[who.0].ups.push(user_data);
        if !again {
            self.model.parts[1 - who.0].ups.push(0);
        }
        let up = |driver: &Driver| driver.model.parts.iter().all(|part| part.ups.is_empty());
        self.until("the peers are not up", up, false)?;
        if self.model.parts[who.0].peer != peer {
            return Err("PEER_UP is of another peer".into());
        }
        if !again {
            (self.model.link, self.model.left) = (Link::Up, [false; 2]);
            for (who, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                self.import(Who(who), slot, None)?;
            }
        }
        Ok(())
    }

    /// What is open may end so from now on; what has no peer only with its endpoint.
    fn may_end(&mut self, leaver: Who, shuts_down: bool) {
        let ends = |op: &&mut Operation| op.peer != 0 || shuts_down && op.who == leaver.0;
        let open = self.model.operations.iter_mut().filter(|op| op.status.is_none());
        for op in open.filter(ends) {
            op.may.push(if op.who == leaver.0 { WEFT_ERR_CANCELED } else { WEFT_ERR_PEER_CLOSED });
        }
        self.model.left[leaver.0] = true;
        if self.model.link == Link::Up {
            self.model.link = Link::Parting;
        }
    }

    fn disconnect(&mut self, who: Who, wait: bool) -> Outcome<String> {
        let mut refusal = Refusal::default();
        match self.model.link {
            Link::Up => {}
            Link::Parting => refusal.may(WEFT_ERR_HANDLE),
            Link::Down => refusal.must(WEFT_ERR_HANDLE),
        }
        // SAFETY: an open endpoint.
        let status =
            unsafe { weft_peer_disconnect(self.sides[who.0].endpoint, self.model.parts[who.0].peer) };
        if refusal.judge("weft_peer_disconnect", status)? {
            self.may_end(who, false);
            if wait {
                self.until("the peers have not ended", |driver| driver.model.link == Link::Down, true)?;
            }
        }
        Ok(status_name(status))
    }

    // Messages.

    fn send(
        &mut self,
        who: Who,
        len: usize,
        timeout_ns: u64,
        second: bool,
        flaw: Option<SendFlaw>,
    ) -> Outcome<String> {
        let data = self.random.bytes(len);
        let peer = self.model.parts[who.0].peer;
        let mut args = sized!(weft_send_args);
        (args.peer, args.data, args.len) = (peer, data.as_ptr().cast(), len as u64);
        (args.timeout_ns, args.user_data) = (timeout_ns, (self.model.operations.len() + 1) as *mut c_void);
        args.queue = if second { self.sides[who.0].queue } else { ptr::null() };
        let mut refusal = self.refusal(who, second);
        match self.model.link {
            Link::Up => {}
            Link::Parting => refusal.may(WEFT_ERR_HANDLE),
            Link::Down => refusal.must(WEFT_ERR_HANDLE),
        }
        let waiting = self.model.sending(who.0);
        if waiting > 0 && waiting + len as u64 + 64 > MESSAGE_BYTES {
            refusal.may(WEFT_ERR_AGAIN);
        }
        if let Some(flaw) = flaw {
            refusal.must(self.spoil_send(who, &mut args, flaw));
        }
        let mut transfer = 0;
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        let status = unsafe { weft_send(self.sides[who.0].endpoint, &args, &mut transfer) };
        if refusal.judge("weft_send", status)? {
            let mut op = self.begun(who, WEFT_COMPLETION_SEND, transfer, second);
            (op.bytes, op.timeout_ns, op.message) = (len as u64, timeout_ns, Some(mark(&data)));
            self.model.parts[who.0].sent.push(self.model.operations.len());
            self.model.operations.push(op);
        }
        Ok(status_name(status))
    }

    fn spoil_send(&self, who: Who, args: &mut weft_send_args, flaw: SendFlaw) -> i32 {
        match flaw {
            SendFlaw::TooLong => {
                args.len = u64::from(WEFT_MESSAGE_MAX) + 1;
                return WEFT_ERR_LIMIT;
            }
            SendFlaw::NullData => {
                (args.data, args.len) = (ptr::null(), 1);
                return WEFT_ERR_INVALID;
            }
            SendFlaw::LongTimeout => {
                args.timeout_ns = DAY_NS + 1;
                return WEFT_ERR_LIMIT;
            }
            SendFlaw::UnknownFlag => {
                args.flags = 1 << 31;
                return WEFT_ERR_UNSUPPORTED;
            }
            SendFlaw::NoPeer => args.peer = 0,
            SendFlaw::QueueOfOther => args.queue = self.sides[1 - who.0].queue,
        }
        WEFT_ERR_HANDLE
    }

    fn release_messages(&mut self, who: Who) -> Outcome {
        for message in std::mem::take(&mut self.held[who.0]) {
            check("weft_message_release", self.sides[who.0].release_message(message))?;
            if message != 0 && self.sides[who.0].release_message(message) != WEFT_ERR_HANDLE {
                return Err("a message was released twice".into());
            }
        }
        Ok(())
    }

    // What operations have in common.

    /// What refuses any operation that completes.
    pub fn refusal(&self, who: Who, second: bool) -> Refusal {
        let mut refusal = Refusal::default();
        if second && self.model.queued(who.0) >= crate::side::QUEUE_DEPTH as usize {
            refusal.must(WEFT_ERR_AGAIN);
        }
        if self.model.link == Link::Parting {
            refusal.may(WEFT_ERR_PEER_CLOSED);
            refusal.may(WEFT_ERR_CANCELED);
        }
        refusal
    }

    /// An operation that was accepted.
    pub fn begun(&self, who: Who, kind: i32, transfer: u64, second_queue: bool) -> Operation {
        let parting = self.model.link == Link::Parting;
        Operation {
            step: self.step,
            who: who.0,
            kind,
            transfer,
            peer: self.model.parts[who.0].peer,
            bytes: 0,
            second_queue,
            timeout_ns: 0,
            moved: None,
            note: None,
            message: None,
            locals: Vec::new(),
            imports: Vec::new(),
            idle: Vec::new(),
            entries: None,
            kept: None,
            raises: Vec::new(),
            expects: Vec::new(),
            deserted: false,
            word: None,
            may: if parting { vec![WEFT_ERR_CANCELED, WEFT_ERR_PEER_CLOSED] } else { Vec::new() },
            not_ok: false,
            canceled: None,
            status: None,
            fenced: false,
            complete: false,
        }
    }

    /// What refuses an operation because of an imported memory.
    pub fn refuse_import(&self, refusal: &mut Refusal, who: Who, import: usize) {
        let import = &self.model.parts[who.0].imports[import];
        if import.late {
            refusal.may(WEFT_ERR_PEER_LOST);
        }
        match import.state {
            State::Live => {}
            State::Gone => refusal.may(WEFT_ERR_MEMORY_GONE),
            State::Ended => refusal.must(WEFT_ERR_PEER_CLOSED),
            State::GoneAndEnded => {
                refusal.must(WEFT_ERR_PEER_CLOSED);
                refusal.may(WEFT_ERR_MEMORY_GONE);
            }
        }
        if self.model.link == Link::Parting && import.state == State::Gone {
            refusal.may(WEFT_ERR_PEER_CLOSED);
        }
    }

    /// An operation that was accepted depends on imported memories.
    pub fn follow(&self, op: &mut Operation, imports: &[usize]) {
        for index in imports {
            let import = &self.model.parts[op.who].imports[*index];
            if import.state == State::Gone {
                op.may.push(WEFT_ERR_MEMORY_GONE);
                op.not_ok |= op.bytes > 0;
            }
            if import.late {
                op.may.push(WEFT_ERR_PEER_LOST);
            }
        }
        op.imports.extend(imports);
    }

    fn cancel(&mut self, who: Who, back: usize) -> Outcome<String> {
        let mut own = self.model.operations.iter_mut().rev().filter(|op| op.who == who.0);
        let Some(op) = own.nth(back) else { return Ok(String::new()) };
        let mut refusal = Refusal::default();
        if op.status.is_some() || op.canceled.is_some() {
            refusal.must(WEFT_ERR_HANDLE);
        } else {
            refusal.may(WEFT_ERR_HANDLE);
        }
        // SAFETY: an open endpoint.
        let status = unsafe { weft_transfer_cancel(self.sides[who.0].endpoint, op.transfer) };
        let accepted = refusal.judge("weft_transfer_cancel", status)?;
        op.canceled.get_or_insert(accepted);
        Ok(format!("step {}: {}", op.step, status_name(status)))
    }

    // Memory.

    fn register(
        &mut self,
        who: Who,
        slot: usize,
        ranges: &[(usize, usize)],
        access: u32,
        rails: u64,
        flaw: Option<RegisterFlaw>,
    ) -> Outcome<String> {
        let before = self.model.parts[who.0].slots[slot];
        if let Some(before) = before.filter(|memory| self.model.parts[who.0].memories[*memory].alive) {
            if self.deregister(who, before)? == WEFT_ERR_BUSY {
                return Ok("still in use".into());
            }
        }
        let known = (1u64 << self.sides[who.0].rails()?) - 1;
        let (mut access, mut rails) = (access, rails & known);
        let mut list: Vec<_> = ranges
            .iter()
            .map(|(at, len)| weft_memory_range { address: self.arenas[who.0].at(*at), len: *len as u64 })
            .collect();
        let mut refusal = Refusal::default();
        if let Some(flaw) = flaw {
            refusal.must(spoil_registration(flaw, &mut list, &mut access, &mut rails, known));
        }
        let answer = self.sides[who.0].register(&list, access, rails);
        if !refusal.judge("weft_memory_register", status_of(&answer))? {
            return Ok(status_name(status_of(&answer)));
        }
        let Ok(memory) = answer else { return Ok(String::new()) };
        let part = &mut self.model.parts[who.0];
        part.slots[slot] = Some(part.memories.len());
        part.memories.push(Memory { ranges: ranges.to_vec(), access, rails, alive: true });
        self.memories[who.0].push(memory);
        // SAFETY: just registered.
        let exported = unsafe { Side::export(memory) };
        let mut refusal = Refusal::default();
        if access == WEFT_ACCESS_LOCAL {
            refusal.must(WEFT_ERR_INVALID);
        }
        refusal.judge("weft_memory_export", status_of(&exported))?;
        self.descriptors[who.0].push(exported.ok());
        if self.model.link == Link::Up {
            self.import(who.other(), slot, None)?;
        }
        Ok(String::new())
    }

    /// Its status, `WEFT_OK` or one that says why it stays.
    fn deregister(&mut self, who: Who, memory: usize) -> Outcome<i32> {
        let mut refusal = Refusal::default();
        if !self.model.parts[who.0].memories[memory].alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        let uses = |op: &Operation| op.who == who.0 && op.locals.contains(&memory) && !op.fenced;
        if self.model.parts[who.0].kept.iter().any(|kept| kept.alive && kept.locals.contains(&memory)) {
            refusal.must(WEFT_ERR_BUSY);
        }
        if self.model.operations.iter().any(uses) {
            refusal.may(WEFT_ERR_BUSY);
        }
        let reaching = self.reaching(who, memory);
        for index in &reaching {
            self.model.operations[*index].may.push(WEFT_ERR_MEMORY_GONE);
        }
        let (status, told) = self.deregister_call(who, memory)?;
        if !refusal.judge_told("weft_memory_deregister", status, &told)? {
            for index in reaching {
                self.model.operations[index].may.pop();
            }
            return Ok(status);
        }
        self.model.parts[who.0].memories[memory].alive = false;
        let live = |import: &&mut Import| import.memory == memory && import.state == State::Live;
        let imports = &mut self.model.parts[1 - who.0].imports;
        imports.iter_mut().filter(live).for_each(|import| import.state = State::Gone);
        for index in 0..self.model.operations.len() {
            let op = &self.model.operations[index];
            let cut_off = uses(op) || !op.fenced && op.who != who.0 && self.is_cut_off(op);
            if cut_off && op.status.is_some() {
                self.model.fence(index, &self.arenas)?;
            }
        }
        Ok(status)
    }

    /// The other side's operations that have not ended, and reach this memory.
    fn reaching(&self, who: Who, memory: usize) -> Vec<usize> {
        let imports = &self.model.parts[1 - who.0].imports;
        let reaches = |op: &Operation| op.imports.iter().any(|import| imports[*import].memory == memory);
        let open = |op: &Operation| op.who != who.0 && op.status.is_none() && reaches(op);
        (0..self.model.operations.len()).filter(|index| open(&self.model.operations[*index])).collect()
    }

    /// The status, and what its thread was told.
    fn deregister_call(&mut self, who: Who, memory: usize) -> Outcome<(i32, String)> {
        let handle = self.memories[who.0][memory] as usize;
        let call = move || {
            // SAFETY: a handle that is checked, stale or not.
            let status = unsafe { weft_memory_deregister(handle as *mut weft_memory) };
            (status, last_error())
        };
        if !self.alone {
            return Ok(call());
        }
        let thread = std::thread::spawn(call);
        while !thread.is_finished() {
            self.pump(who.other())?;
        }
        thread.join().map_err(|_| "weft_memory_deregister panicked".into())
    }

    fn import(&mut self, who: Who, slot: usize, flaw: Option<ImportFlaw>) -> Outcome<String> {
        let owner = who.other();
        let Some(memory) = self.model.parts[owner.0].slots[slot] else { return Ok(String::new()) };
        let Some(mut descriptor) = self.descriptors[owner.0][memory].clone() else {
            return Ok(String::new());
        };
        let mut refusal = Refusal::default();
        match self.model.link {
            Link::Up => {}
            Link::Parting => [WEFT_ERR_HANDLE, WEFT_ERR_PEER_CLOSED].into_iter().for_each(|s| refusal.may(s)),
            Link::Down => refusal.must(WEFT_ERR_HANDLE),
        }
        let alive = self.model.parts[owner.0].memories[memory].alive;
        if !alive {
            refusal.may(WEFT_ERR_MEMORY_GONE);
        }
        let mut peer = self.model.parts[who.0].peer;
        match flaw {
            Some(ImportFlaw::Truncated) => descriptor.truncate(descriptor.len() - 1),
            Some(ImportFlaw::Empty) => descriptor.clear(),
            Some(ImportFlaw::Damaged(at)) => {
                let at = usize::from(at) % descriptor.len();
                descriptor[at] ^= 1;
            }
            Some(ImportFlaw::OwnDescriptor) => {
                let own = self.descriptors[who.0].iter().flatten().next().cloned();
                let Some(own) = own else { return Ok(String::new()) };
                descriptor = own;
            }
            Some(ImportFlaw::NoPeer) => peer = 0,
            None => {}
        }
        match flaw {
            Some(ImportFlaw::OwnDescriptor) => refusal.must(WEFT_ERR_PEER_GONE),
            Some(ImportFlaw::NoPeer) => refusal.must(WEFT_ERR_HANDLE),
            Some(_) => refusal.must(WEFT_ERR_FORMAT),
            None => {}
        }
        let answer = self.sides[who.0].import(peer, &descriptor);
        refusal.judge("weft_remote_memory_import", status_of(&answer))?;
        if let Ok(remote) = answer {
            self.release(who, slot)?;
            let late = self.model.link == Link::Parting;
            let part = &mut self.model.parts[who.0];
            part.import_slots[slot] = Some(part.imports.len());
            let state = if alive { State::Live } else { State::Gone };
            part.imports.push(Import { memory, state, late });
            self.remotes[who.0].push(remote);
        }
        Ok(status_name(status_of(&answer)))
    }

    fn release(&mut self, who: Who, slot: usize) -> Outcome<String> {
        let Some(import) = self.model.parts[who.0].import_slots[slot] else { return Ok(String::new()) };
        let mut refusal = Refusal::default();
        // What is at its end with the peer still counts, if it failed.
        let uses = |op: &Operation| {
            op.who == who.0
                && (op.imports.contains(&import) || op.idle.contains(&import))
                && (!op.fenced || op.status != Some(WEFT_OK))
        };
        let keeps =
            |kept: &Kept| kept.imports.iter().any(|(kept, _)| *kept == import) || kept.idle.contains(&import);
        if self.model.parts[who.0].kept.iter().any(|kept| kept.alive && keeps(kept)) {
            refusal.must(WEFT_ERR_BUSY);
        }
        if self.model.operations.iter().any(uses) {
            refusal.may(WEFT_ERR_BUSY);
        }
        // SAFETY: a handle that is checked.
        let status = unsafe { weft_remote_memory_release(self.remotes[who.0][import]) };
        if refusal.judge("weft_remote_memory_release", status)? {
            self.model.parts[who.0].import_slots[slot] = None;
        }
        Ok(status_name(status))
    }

    // The end.

    fn end(&mut self) -> Outcome {
        self.note("the end".into());
        let connected = self.model.link != Link::Down;
        self.shutdown(Who(0))?;
        if connected {
            self.until("the peers have not ended", |driver| driver.model.link == Link::Down, false)?;
        }
        self.shutdown(Who(1))?;
        if let Some(open) = self.model.operations.iter().position(|op| op.status.is_none()) {
            return Err(format!("{} never completed", self.model.name(open)));
        }
        self.model.check_bytes(&self.arenas)?;
        for side in &self.sides {
            // SAFETY: an endpoint that is shut down.
            check("weft_endpoint_close", unsafe { weft_endpoint_close(side.endpoint) })?;
        }
        self.arenas.iter_mut().for_each(Arena::unmap);
        Ok(())
    }

    /// After a failure: nothing of this case goes on beside the next one.
    fn abandon(&self) {
        let end = |side: &Side| {
            let endpoint = side.endpoint as usize;
            // SAFETY: handles are checked; the arenas stay mapped.
            std::thread::spawn(move || unsafe {
                let endpoint = endpoint as *mut weft_endpoint;
                let _ = weft_endpoint_shutdown(endpoint, 0);
                weft_endpoint_close(endpoint)
            })
        };
        for thread in self.sides.each_ref().map(end) {
            let _ = thread.join();
        }
    }

    fn shutdown(&mut self, who: Who) -> Outcome {
        self.may_end(who, true);
        let endpoint = self.sides[who.0].endpoint as usize;
        let call = move || {
            // SAFETY: an open endpoint.
            let status = unsafe { weft_endpoint_shutdown(endpoint as *mut weft_endpoint, 0) };
            check("weft_endpoint_shutdown", status)
        };
        if self.alone {
            let thread = std::thread::spawn(call);
            while !thread.is_finished() {
                self.pump(who.other())?;
            }
            thread.join().unwrap_or(Err("weft_endpoint_shutdown panicked".into()))?;
        } else {
            call()?;
        }
        for second in [false, true] {
            while let Some(got) = self.sides[who.0].poll(second, 0)? {
                got.iter().try_for_each(|completion| self.handle(who, second, completion))?;
            }
        }
        Ok(())
    }
}

fn spoil_registration(
    flaw: RegisterFlaw,
    list: &mut Vec<weft_memory_range>,
    access: &mut u32,
    rails: &mut u64,
    known: u64,
) -> i32 {
    match flaw {
        RegisterFlaw::NoRanges => list.clear(),
        RegisterFlaw::EmptyRange => list[0].len = 0,
        RegisterFlaw::NullRange => list[0].address = ptr::null_mut(),
        RegisterFlaw::LocalAndRemote => *access = WEFT_ACCESS_LOCAL | WEFT_ACCESS_REMOTE_READ,
        RegisterFlaw::UnknownRail => *rails = known + 1,
        // The first page of the address space is never there.
        RegisterFlaw::NotThere => list[0].address = ptr::without_provenance_mut(64),
        RegisterFlaw::UnknownAccess => {
            *access = 1 << 31;
            return WEFT_ERR_UNSUPPORTED;
        }
    }
    WEFT_ERR_INVALID
}
