//! Debug log of stalls: lanes whose posts do not move, and peers that do not acknowledge frames.

use super::lanes::{DataPath, LaneWork};
use super::relay::Path;
use crate::peer::links::Links;
use std::fmt;

/// A lane is stalled after this long without progress, and reported at this interval.
pub(crate) const STILL_NS: u64 = 1_000_000_000;

/// A stalled lane, and the possible reason.
struct Still<'a> {
    work: &'a LaneWork,
    window: u64,
    still_ns: u64,
}

impl fmt::Display for Still<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Still { work, window, still_ns } = self;
        let lane = &work.lane;
        write!(
            f,
            "has moved nothing for {} ms (lane {}); in flight: {} bytes (window {window}), {} operations, {} frames; ",
            still_ns / 1_000_000,
            lane.life.state(),
            lane.inflight_bytes,
            lane.inflight_ops,
            lane.inflight_frames
        )?;
        write!(f, "{}", work.stripes)?;
        let words = [
            (lane.parked, "parked"),
            (lane.refused, "refused"),
            (lane.life.is_held(), "held until it is idle"),
        ];
        words.iter().filter(|(is_so, _)| *is_so).try_for_each(|(_, word)| write!(f, ", {word}"))
    }
}

pub(crate) fn report(data: &DataPath, links: &Links, now: u64) {
    for work in data.rails.lanes() {
        let lane = &work.lane;
        let under_way = lane.inflight_bytes > 0 || lane.inflight_ops > 0 || lane.inflight_frames > 0;
        let waits = under_way || work.stripes.has_work();
        let still_ns = now.saturating_sub(lane.progress_ns.max(lane.delivered_ns));
        if waits && still_ns > STILL_NS && !lane.life.is_handshaking() {
            let still = Still { work, window: lane.window.bytes(), still_ns };
            let to = data.core.why_not(&work.peer, work.plan(), String::new()).at;
            log::debug!("{}: the lane to {to} {still}", work.peer);
        }
    }
    for link in links.iter().filter(|link| link.session.is_up()) {
        if link.asked_ns.is_none_or(|asked| now.saturating_sub(asked) < STILL_NS) {
            continue;
        }
        let path = match data.path_to(link) {
            None => "none",
            Some(Path::Lane { .. }) => "a lane here",
            Some(Path::Worker(_)) => "another worker's lane",
        };
        let channels: Vec<String> = link.session.channels.iter().map(ToString::to_string).collect();
        log::debug!(
            "{} acknowledges nothing (path: {path}); frames that were sent and that wait, by channel: {}; {}",
            link.peer,
            channels.join(", "),
            link.session
        );
    }
}
