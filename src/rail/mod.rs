//! An open NIC: its window, its op slots, its frames, its lanes.
//!
//! A rail belongs to one worker. It keeps each operation's slot until the NIC returns the
//! operation, even if the transfer has ended meanwhile.

mod burst;
mod counts;
mod credits;
mod frames;
mod lane;
mod lane_traffic;
mod lanes;
mod op;
mod reap;
mod reset;
mod traffic;
mod window;

pub use burst::Burst;
pub use credits::Half;
pub use frames::Frame;
pub use lane::{Lane, OfPeer};
pub use lane_traffic::LaneTraffic;
pub use lanes::{HasLane, Lanes};
pub use op::{Done, Tag, Work};
pub use traffic::{Elsewhere, Traffic};

use crate::device::Device;
use crate::fabric::grants::Grants;
use crate::fabric::{
    Access, Buffer, Connection, HostRange, Limits, LinkState, Nic, Posted, Reaped, Registration, Rejected,
    Resets, Route, Scratch,
};
use crate::failing;
use crate::ids::{GrantToken, LaneId, LaneSlot, PeerId, RailIndex};
use crate::lane::Life;
use crate::status::{Error, Result, Status};
use crate::trace::{self, Event};
use crate::wire;
use credits::Budget;
use frames::Frames;
use op::Op;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use traffic::Glance;

/// Maximum operations in flight per lane. Enough for the smallest pages: more gained nothing on any
/// provider (measured).
const LANE_OPS: usize = 128;
const RECEIVES: usize = 128;
/// Send buffers. Each has an op slot, so that data cannot hold back control frames.
const SENDS: usize = 128;
/// Maximum sends in flight per lane: a stalled peer must not block the others.
const SENDS_OF_LANE: u32 = 16;
/// Maximum answers and handshakes in flight to endpoints that are not peers yet: an endpoint that
/// gives an address where nothing receives must not keep peers from sending.
const ANSWERS: usize = 16;
const HANDSHAKES: usize = 48;
const HANDSHAKES_OF_LANE: u32 = 4;
/// Bytes beyond a full window for transfers of the latency class.
const URGENT_WINDOW: u64 = 128 << 10;
/// Bytes beyond a full window for staged transfers, whose bytes are also in flight while devices
/// gather and scatter.
const STAGED_WINDOW: u64 = 7 << 20;
/// After a post of that class, the queue is kept short for this long.
const URGENT_NS: u64 = 5_000_000;
/// A lane with bytes in flight that completes nothing for this long is stalled.
const PARKED_NS: u64 = 20_000_000;
/// Routes of answers are kept this long: removing one earlier could drop the answer.
const ANSWERED_NS: u64 = 1_000_000_000;
/// Bytes of the buffer that peers probe lanes with.
const PROBE_LEN: usize = 4096;
/// A route of an endpoint that was closed.
const NO_ROUTE: Route = Route::MAX;

pub struct Rail {
    pub index: RailIndex,
    nic: Box<dyn Nic>,
    limits: Limits,
    /// Type-stable memory: the NIC holds pointers into it.
    ops: *mut Op,
    op_count: usize,
    free_ops: Vec<*mut Op>,
    /// Operations that one lane may have in flight; the same number stays free for idle lanes.
    lane_ops: u32,
    /// Answers in flight to endpoints that are not peers yet.
    answers: usize,
    handshakes: usize,
    urgent_until: u64,
    /// Bytes in flight of all lanes that are not stalled.
    inflight_bytes: u64,
    traffic: Arc<Traffic>,
    /// Something has completed since the figures were published.
    changed: bool,
    reaped: Vec<Reaped>,
    /// Routes by which unauthenticated endpoints were answered, and when.
    answered: Vec<(Route, u64)>,
    /// The lane whose last post announced that another follows.
    unflushed: Option<LaneSlot>,
    budget: Budget,
    sends: ManuallyDrop<Frames>,
    receives: ManuallyDrop<Frames>,
    probe_buffer: ManuallyDrop<Frame>,
    registered: failing::Registered,
    closed: bool,
}

// SAFETY: all pointers are to memory that the rail owns, and it moves as a whole.
unsafe impl Send for Rail {}

impl Rail {
    pub fn open(index: RailIndex, nic: Box<dyn Nic>) -> Result<Rail> {
        // Declared before the NIC, so dropped after it: if one allocation fails, the NIC is closed
        // before buffers registered with it are freed.
        let (sends, receives, probe_buffer);
        let mut nic = nic;
        let limits = nic.limits().clone();
        let receive_count = RECEIVES.min(limits.rx_depth);
        let op_count = limits.tx_depth + receive_count + SENDS;
        let frame = limits.message_max;
        sends = Frames::new(&mut *nic, SENDS, frame)?;
        receives = Frames::new(&mut *nic, receive_count, frame)?;
        probe_buffer = Frame::new(&mut *nic, PROBE_LEN, true)?;
        let ops: Box<[Op]> = (0..op_count).map(|_| Op::empty()).collect();
        let ops = Box::into_raw(ops) as *mut Op;
        let mut rail = Rail {
            index,
            ops,
            op_count,
            // SAFETY: `i < op_count`, so the pointer is inside the array.
            free_ops: (0..op_count).rev().map(|i| unsafe { ops.add(i) }).collect(),
            lane_ops: (limits.tx_depth / 4).clamp(1, LANE_OPS) as u32,
            answers: 0,
            handshakes: 0,
            urgent_until: 0,
            inflight_bytes: 0,
            traffic: Arc::default(),
            changed: false,
            reaped: Vec::new(),
            answered: Vec::new(),
            unflushed: None,
            budget: Budget::new(limits.arrival_room),
            sends: ManuallyDrop::new(sends),
            receives: ManuallyDrop::new(receives),
            probe_buffer: ManuallyDrop::new(probe_buffer),
            limits,
            nic,
            registered: Default::default(),
            closed: false,
        };
        rail.post_receives()?;
        Ok(rail)
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    pub fn address(&self) -> &[u8] {
        self.nic.address()
    }

    pub fn other_ip(&self) -> Option<IpAddr> {
        self.nic.other_ip()
    }

    /// The buffer that peers probe lanes with: address and key.
    pub fn probe_buffer(&self) -> (u64, u64) {
        let base = if self.limits.virtual_addresses { self.probe_buffer.address() as u64 } else { 0 };
        (base, self.probe_buffer.key())
    }

    pub fn register(&mut self, range: HostRange, access: Access) -> Result<Registration> {
        self.nic.register(range, access).inspect(|_| self.registered.add(1))
    }

    pub fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        device: Device,
        shareable: bool,
    ) -> Result<Option<Registration>> {
        self.nic
            .register_device(range, access, device, shareable)
            .inspect(|known| self.registered.add(known.iter().count() as i64))
    }

    pub fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.nic.deregister(registration).inspect(|()| self.registered.add(-1))
    }

    pub fn use_grants(&mut self, grants: Arc<Grants>) {
        self.nic.use_grants(grants);
    }

    pub fn revoke(&mut self, grant: GrantToken) {
        self.nic.revoke(grant);
    }

    /// Adds a lane to the peer's rail at that address.
    pub fn add_lane<L: HasLane>(
        &mut self,
        lanes: &mut Lanes<L>,
        to: OfPeer,
        life: Life,
        address: &[u8],
        make: impl FnOnce(Lane) -> L,
    ) -> Result<LaneId> {
        self.open_endpoint()?;
        let route = self.nic.insert(address, Some(to.peer))?;
        let window = self.limits.lane_window;
        Ok(lanes.insert(|id| make(Lane::new(id, to, life, route, window))))
    }

    pub fn assign_connection(&mut self, connection: Connection, peer: PeerId) {
        self.nic.assign_connection(connection, peer);
    }

    /// A peer has ended (`Nic::end_peer`).
    pub fn end_peer(&mut self, peer: PeerId, at_once: bool) {
        self.nic.end_peer(peer, at_once);
    }

    /// Device memory of the peer's was imported (`Nic::reach`).
    pub fn reach(&mut self, lane: &Lane, remotes: &[(u64, u64)]) {
        self.nic.reach(lane.route, remotes);
    }

    /// The interfaces that carry a lane in the NIC's place (`Nic::elsewhere`).
    pub fn elsewhere(&mut self, lane: &Lane) -> [Option<String>; 2] {
        self.nic.elsewhere(lane.route)
    }

    /// Whether the peer's NIC is known to be gone.
    pub fn is_gone(&mut self, lane: &Lane) -> bool {
        self.nic.is_gone(lane.route)
    }

    /// What the lane's handshake waits for.
    pub fn waits_for(&mut self, lane: &Lane) -> &'static str {
        self.nic.waits_for(lane.route)
    }

    /// Cleans up after a lane was removed from `lanes`.
    pub fn drop_lane(&mut self, gone: Lane, lanes: &Lanes<impl HasLane>) {
        if !gone.parked {
            self.inflight_bytes -= gone.inflight_bytes;
        }
        if !gone.life.is_closed() || self.limits.resets == Resets::Rail {
            self.release(gone.route, lanes);
        }
        self.budget.take_back(gone.granted);
    }

    /// Removes a route, unless another lane or an answer uses it. (Where removing a route closes its connection,
    /// the NIC counts insertions.)
    fn release(&mut self, route: Route, lanes: &Lanes<impl HasLane>) {
        let kept = self.limits.resets == Resets::Rail;
        let uses = |lane: &Lane| lane.route == route && (kept || !lane.life.is_closed());
        let used = || {
            lanes.iter().any(|one| uses(one.lane()))
                || self.answered.iter().any(|(answered, _)| *answered == route)
        };
        if route != NO_ROUTE && (self.limits.resets == Resets::Lane || !used()) {
            self.nic.remove(route);
        }
    }

    /// Rings the doorbell if the last post announced another that did not follow: by a write to the
    /// probe buffer of its lane.
    pub fn flush(&mut self, lanes: &mut Lanes<impl HasLane>, now: u64) {
        if let Some(lane) = self.unflushed {
            self.trace("flush", now);
            let lane = lanes.get_mut(lane);
            if lane.is_none_or(|lane| self.post_probe(lane.lane_mut(), now) != Posted::Again) {
                self.unflushed = None;
            }
        }
    }

    fn take_op(&mut self, tag: Tag) -> Option<*mut Op> {
        let op = self.free_ops.pop()?;
        // SAFETY: no NIC uses a free op.
        unsafe { (*op).tag = tag };
        Some(op)
    }

    /// Frees an op that the NIC does not have.
    #[inline]
    fn put_op(&mut self, op: *mut Op) {
        // SAFETY: the op belongs to this rail, and the NIC does not use it.
        unsafe { (*op).tag.work = Work::Nothing };
        self.free_ops.push(op);
    }

    /// The op whose scratch the NIC returned. A provider's pointer is checked before it is
    /// followed. `None`: the NIC has no such op.
    #[inline]
    fn op_of(&self, scratch: *mut Scratch) -> Option<*mut Op> {
        let offset = (scratch as usize).wrapping_sub(self.ops as usize);
        let is_one = offset < self.op_count * size_of::<Op>() && offset % size_of::<Op>() == 0;
        // SAFETY: the offset is inside the array, at the beginning of an op.
        let op = is_one.then(|| unsafe { self.ops.byte_add(offset) })?;
        // SAFETY: the NIC writes only the scratch, not the tag.
        (unsafe { (*op).tag.work } != Work::Nothing).then_some(op)
    }

    /// Disowns the posts of some stripes of a lane, whose operations have ended: their local memory
    /// is not touched again, except by hardware.
    pub fn disown(&mut self, lane: LaneSlot, owns: impl Fn(u32) -> bool) {
        // SAFETY: `i < op_count`, so the pointer is inside the array.
        let ops = (0..self.op_count).map(|i| unsafe { self.ops.add(i) });
        let its = ops.filter(|op| {
            // SAFETY: the NIC writes only the scratch of a posted op, not the tag.
            let tag = unsafe { (**op).tag };
            let moves = matches!(tag.work, Work::Slice | Work::Counted(_) | Work::Slow);
            tag.lane == lane && moves && owns(tag.index)
        });
        let scratches: Vec<*mut Scratch> = its.map(|op| op.cast()).collect();
        self.nic.disown(&scratches);
    }

    /// The size of a half of the peer's credits that is granted again; `None` if the lane is gone.
    pub fn grant(&mut self, lanes: &mut Lanes<impl HasLane>, lane: LaneSlot, half: Half) -> Option<u32> {
        let count = lanes.iter().count() as u32;
        Some(self.budget.renew(&mut lanes.get_mut(lane)?.lane_mut().granted, half, count))
    }

    /// Subtracts stalled lanes' bytes from the rail's: a silent peer must not hold back the others.
    /// Returns the connections that the NIC has rejected meanwhile.
    pub fn park(&mut self, lanes: &mut Lanes<impl HasLane>, now: u64) -> Vec<Rejected> {
        for lane in lanes.iter_mut().map(HasLane::lane_mut) {
            if !lane.parked && lane.inflight_bytes > 0 && now.saturating_sub(lane.progress_ns) > PARKED_NS {
                lane.parked = true;
                self.inflight_bytes -= lane.inflight_bytes;
            }
        }
        let (old, new) = self.answered.drain(..).partition(|(_, at)| now.saturating_sub(*at) > ANSWERED_NS);
        self.answered = new;
        let old: Vec<(Route, u64)> = old;
        old.into_iter().for_each(|(route, _)| self.release(route, lanes));
        self.nic.tend();
        self.publish(lanes);
        self.nic.take_rejected()
    }

    /// The link of its NIC, as the kernel reports it.
    pub fn link(&mut self) -> LinkState {
        let link = self.nic.link();
        self.traffic.set_link(link);
        link
    }

    /// The error with which the connection of a route has ended, if it has.
    pub fn has_ended(&mut self, route: Route) -> Option<i32> {
        self.nic.has_ended(route)
    }

    /// The network of its NIC, if that has other addresses since the last call.
    pub fn take_moved(&mut self) -> Option<String> {
        self.nic.take_moved()
    }

    /// Publishes figures before the worker goes idle, so that none shows work that has ended.
    pub fn publish_changes(&mut self, lanes: &Lanes<impl HasLane>) {
        if self.changed {
            self.publish(lanes);
        }
    }

    fn publish(&mut self, lanes: &Lanes<impl HasLane>) {
        self.changed = false;
        let mut glance = Glance::default();
        lanes.iter().for_each(|one| one.lane().add_to(&mut glance));
        self.traffic.publish(&glance);
    }

    pub fn count_retry(&self, now: u64) {
        self.traffic.retries.add(1);
        self.trace("handshake retry", now);
    }

    fn trace(&self, name: &'static str, at: u64) {
        trace::add(|| Event::Rail { rail: self.index.get(), name, at });
    }

    /// Posts a small write, as the first of a lane or after its last post (`flush`).
    pub fn post_probe(&mut self, lane: &mut Lane, now: u64) -> Posted {
        let tag = Tag::new(Work::Probe, lane.id.slot, 0, 0);
        let Some(mut burst) = self.burst(lane, now) else { return Posted::Failed(libc::ENOTCONN) };
        burst.probe(tag)
    }

    /// Sends a control frame over a lane, in its session; `fill` writes it and returns its length.
    /// `behind`: the frame refers to earlier writes, and arrives after them where the NIC
    /// guarantees this.
    pub fn send_frame(
        &mut self,
        lane: &mut Lane,
        behind: bool,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Posted {
        self.send_over(lane, true, behind, fill)
    }

    /// Like `send_frame`, for a handshake before the session exists.
    pub fn send_open(&mut self, lane: &mut Lane, fill: impl FnOnce(&mut [u8]) -> usize) -> Posted {
        self.send_over(lane, false, false, fill)
    }

    /// Whether a handshake can be sent now.
    pub fn may_handshake(&self, lane: &Lane) -> bool {
        self.handshakes < HANDSHAKES && lane.inflight_frames < HANDSHAKES_OF_LANE
    }

    fn send_over(
        &mut self,
        to: &mut Lane,
        seals: bool,
        follows: bool,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Posted {
        if to.life.is_closed() {
            return Posted::Failed(libc::ENOTCONN);
        }
        let handshaking = to.life.is_open() && !to.life.is_up();
        let (work, most) =
            if handshaking { (Work::Handshake, HANDSHAKES_OF_LANE) } else { (Work::Frame, SENDS_OF_LANE) };
        if to.inflight_frames >= most || handshaking && self.handshakes >= HANDSHAKES {
            return Posted::Again;
        }
        // (Operations that wait for the peer's acknowledgement have left the provider.)
        let idle = to.inflight_frames == 0 && to.inflight_ops == 0;
        let room = !self.sends.is_empty() && !self.free_ops.is_empty();
        let rail = self.index;
        if to.life.is_handshaking() {
            self.nic.redial(to.route);
        }
        let posted = self.send_to(to.route, Tag::new(work, to.id.slot, 0, 0), follows, |frame| {
            let len = fill(frame);
            wire::stamp(frame, rail, to.to);
            match &mut to.sealer {
                Some(sealer) if seals => sealer.seal(frame, len),
                _ => len,
            }
        });
        match posted {
            Posted::Yes => {
                to.inflight_frames += 1;
                to.refused = false;
            }
            // With nothing in flight on the lane, the provider rejects because there is no
            // connection.
            _ => to.refused = idle && room,
        }
        self.handshakes += usize::from(handshaking && posted == Posted::Yes);
        posted
    }

    fn send_to(
        &mut self,
        route: Route,
        tag: Tag,
        follows: bool,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Posted {
        let Some(buffer) = self.sends.take() else { return Posted::Again };
        let len = fill(self.sends.bytes_mut(buffer));
        let Some(op) = self.take_op(Tag { index: buffer, ..tag }) else {
            self.sends.put(buffer);
            return Posted::Again;
        };
        let bytes = Buffer { len, follows, ..self.sends.buffer(buffer) };
        // SAFETY: the buffer stays taken, and in place, until the op is reaped.
        let posted = unsafe { self.nic.send(bytes, route, op.cast()) };
        match posted {
            Posted::Yes => self.traffic.frames_sent.add(1),
            Posted::Again => self.traffic.refused.add(1),
            Posted::Failed(_) => self.traffic.errors.add(1),
        }
        if posted != Posted::Yes {
            self.put_op(op);
            self.sends.put(buffer);
        }
        posted
    }

    /// Answers an unauthenticated endpoint over the connection of its frame (`connection`), so that
    /// a claimed address alone never makes this endpoint dial it. If no send buffer is free, the
    /// answer is dropped: the endpoint repeats its request.
    pub fn answer(
        &mut self,
        lanes: &Lanes<impl HasLane>,
        address: &[u8],
        connection: Connection,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        if self.answers >= ANSWERS {
            return;
        }
        let Ok(route) = self.nic.insert_caller(address, connection) else { return };
        let tag = Tag { bytes: route, ..Tag::new(Work::Answer, LaneSlot::NONE, 0, 0) };
        match self.send_to(route, tag, false, fill) {
            Posted::Yes => self.answers += 1,
            _ => self.release(route, lanes),
        }
    }

    /// False when the NIC's receive queue is full.
    fn post_receive(&mut self, buffer: u32) -> Result<bool> {
        let tag = Tag::new(Work::Receive, LaneSlot::NONE, buffer, 0);
        let Some(op) = self.take_op(tag) else { return Ok(false) };
        let bytes = self.receives.buffer(buffer);
        // SAFETY: only the NIC uses the buffer until the op is reaped.
        match unsafe { self.nic.receive(bytes, op.cast()) } {
            Posted::Yes => Ok(true),
            Posted::Again => {
                self.put_op(op);
                Ok(false)
            }
            Posted::Failed(errno) => {
                self.put_op(op);
                let error = Error::new(Status::Fabric, format!("posting a receive: libfabric error {errno}"));
                Err(Error { provider_errno: errno, ..error })
            }
        }
    }

    /// The bytes of a received frame; call `give_back` after reading them.
    pub fn received(&self, done: &Done) -> &[u8] {
        let bytes = self.receives.bytes(done.index);
        &bytes[..done.len.min(bytes.len())]
    }

    /// Posts a receive buffer again, and earlier ones that the NIC rejected.
    pub fn give_back(&mut self, done: &Done) -> Result<()> {
        self.receives.put(done.index);
        self.post_receives()
    }

    fn post_receives(&mut self) -> Result<()> {
        while let Some(buffer) = self.receives.take() {
            if !self.post_receive(buffer)? {
                self.receives.put(buffer);
                break;
            }
        }
        Ok(())
    }

    pub fn wait_fd(&mut self) -> Option<(RawFd, bool)> {
        self.nic.wait_fd()
    }

    /// The NIC's `wait_fd` has become readable.
    pub fn woken(&mut self) {
        self.nic.woken();
    }

    /// Closes the NIC: it does not access memory afterwards. Where that fails, it can be tried again.
    pub fn close(&mut self) -> Result<()> {
        self.traffic.close();
        if !self.closed {
            self.nic.close()?;
        }
        (self.closed, self.registered) = (true, Default::default());
        Ok(())
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        // A NIC that could not be closed may still use the memory, so the memory is leaked.
        if self.close().is_ok() {
            // SAFETY: `ops` was made from a boxed slice of this length. All four are dropped once,
            // and the closed NIC does not use them.
            unsafe {
                drop(Box::from_raw(ptr::slice_from_raw_parts_mut(self.ops, self.op_count)));
                ManuallyDrop::drop(&mut self.sends);
                ManuallyDrop::drop(&mut self.receives);
                ManuallyDrop::drop(&mut self.probe_buffer);
            }
        }
    }
}
