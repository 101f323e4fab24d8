//! What the initiator sends over the socket.

use super::{Incoming, Listened, WORDS};
use crate::fabric::host::socket::{self, Control, Received};
use crate::fabric::host::user;
use std::os::fd::AsFd;

impl Incoming {
    /// Reads at most `words` messages from the socket.
    pub fn listen(&mut self, words: &mut u32) -> Listened {
        for _ in 0..WORDS.min(*words) {
            let received = socket::receive(self.socket.as_fd());
            *words -= 1;
            match received {
                Received::Nothing => return Listened::All,
                Received::Control(Control::Wake) => {}
                Received::Control(Control::Forget(number)) if self.devices.forget(number) => {}
                Received::Control(Control::Forget(number)) => self.areas.remove(number),
                // A connection without a peer cannot write.
                Received::Control(
                    Control::Area(..) | Control::Part(..) | Control::Device(..) | Control::Channel(_),
                ) if self.peer.is_none() => return Listened::End,
                Received::Control(Control::Channel(file)) if self.passed.is_none() => {
                    self.passed = Some(file);
                }
                Received::Control(Control::Part(number, len, file)) => {
                    if !self.devices.add_part(number, len, file) {
                        return Listened::End;
                    }
                }
                Received::Control(Control::Device(number, handle))
                    if self.devices.has_room() && user::may_pass(self.socket.as_fd(), &handle) =>
                {
                    self.devices.add(number, handle)
                }
                Received::Control(Control::Area(number, len, file)) => {
                    // Without the mapping, writes from the area are refused.
                    if let Err(error) = self.areas.add(number, len, file.as_fd()) {
                        let level = if self.warned { log::Level::Debug } else { log::Level::Warn };
                        self.warned = true;
                        log::log!(level, "memory of a peer on this host: {error}");
                    }
                }
                Received::Control(Control::Channel(_) | Control::Device(..)) | Received::End => {
                    return Listened::End
                }
            }
        }
        Listened::Part
    }
}
