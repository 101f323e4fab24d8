//! What is counted of lanes that come and go.

use super::{Lane, Rail};

impl Rail {
    /// A lane's probe was answered.
    pub fn lane_is_up(&mut self, lane: &Lane) {
        lane.traffic.publish(lane);
        self.watch_sockets(lane);
        if lane.traffic.comes_up() {
            self.traffic.lane_reconnects.add(1);
            lane.traffic.reconnects.add(1);
        }
    }

    /// The sockets over which the bytes of a lane move may have changed.
    pub fn watch_sockets(&mut self, lane: &Lane) {
        if lane.life.is_up() {
            lane.traffic.use_sockets(self.nic.sockets_of(lane.route));
        }
    }

    /// Counts that a lane which served is reset.
    pub fn count_reset(&self, lane: &Lane) {
        self.traffic.lane_resets.add(1);
        lane.traffic.resets.add(1);
    }
}
