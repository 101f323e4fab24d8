//! What goes into one post of a stripe.

use super::{Gathered, Stripe, PART_LEAST};
use crate::fabric::Segment;
use crate::rail::Burst;
use crate::transfer::layer::Layer;
use crate::transfer::operation::Move;
use arrayvec::ArrayVec;

/// Bytes of a post for a disk that are of one layer, if it has as many.
const SLOW_LEN: u64 = 64 << 10;

impl Stripe {
    /// Cuts a segment to the unposted bytes that fit the window.
    pub(super) fn cut(&self, segment: &mut Segment, gathered: &mut Gathered, room: u64) {
        segment.local += self.within;
        segment.remote += self.within;
        segment.len -= self.within;
        let part = room.max(PART_LEAST);
        if segment.len > part {
            segment.len = part;
            (gathered.slices, gathered.after) = (0, self.at);
        }
        gathered.bytes = segment.len;
    }

    /// Adds the slices that may go in the same post, up to this many segments and bytes.
    pub(super) fn gather<const MOST: usize>(
        &self,
        segments: &mut ArrayVec<Segment, MOST>,
        gathered: &mut Gathered,
        transfer: &Move,
        burst: &Burst,
        most: usize,
        most_len: u64,
    ) {
        let view = transfer.view();
        let mut layer = self.layer;
        while segments.len() < most {
            let left = self.end - self.next - gathered.slices;
            if left == 0 {
                return;
            }
            if gathered.after.layer != layer.index {
                // A failure of a disk names the entry that a post begins with.
                if self.slow && gathered.bytes >= SLOW_LEN {
                    return;
                }
                layer = Layer::new(transfer, gathered.after.layer, burst);
                if !layer.joins(&self.layer) {
                    return;
                }
            }
            let (slice, after) = view.take(gathered.after, left);
            if gathered.bytes + slice.len > most_len {
                return;
            }
            segments.push(layer.segment(&slice));
            gathered.bytes += slice.len;
            gathered.slices += slice.slices;
            gathered.after = after;
        }
    }
}
