//! What is counted of lanes that come and go.

use super::{Lane, Rail};

impl Rail {
    /// A lane's probe was answered.
    pub fn lane_is_up(&mut self, of: &Lane) {
        of.traffic.publish(of);
        self.watch_sockets(of);
        if of.traffic.comes_up() {
            self.traffic.lane_reconnects.add(1);
            of.traffic.reconnects.add(1);
        }
    }

    /// The sockets over which the bytes of a lane move may have changed.
    pub fn watch_sockets(&mut self, of: &Lane) {
        if of.life.is_up() {
            of.traffic.use_sockets(self.nic.sockets_of(of.route));
        }
    }

    /// Counts that a lane which served is reset.
    pub fn count_reset(&self, of: &Lane) {
        self.traffic.lane_resets.add(1);
        of.traffic.resets.add(1);
    }
}
