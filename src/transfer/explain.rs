//! Why an operation failed, for the log: more than its completion has fields for.

use super::completion::{self, Completion};
use super::Outcome;
use crate::fabric::error_text;
use crate::ids::PeerId;
use crate::status::Status;

pub(super) struct Published {
    pub completion: Completion,
    pub outcome: Outcome,
    pub deadline: u64,
    /// How far it had come, of one whose deadline passed.
    pub so_far: String,
}

impl Published {
    /// Logs why the operation failed, with details that its completion has no field for.
    pub fn explain(&self) {
        let &Published { completion, outcome, deadline, ref so_far } = self;
        let level = if outcome.provider_errno == 0 { log::Level::Debug } else { log::Level::Info };
        if !log::log_enabled!(level) {
            return;
        }
        let Completion { transfer, kind, user_data, submit_ns, done_ns, .. } = completion;
        let peer = completion.peer.map_or(0, PeerId::get);
        let why = Status::text_of(completion.status).to_string_lossy();
        let ended = match outcome.status {
            Status::TimedOut if deadline != u64::MAX => deadline,
            _ => done_ns,
        };
        let errno = outcome.provider_errno;
        let cause = match (outcome.rail, errno) {
            (_, 0) => String::new(),
            (Some(rail), _) => format!("; rail {rail}: {} ({errno})", error_text(errno)),
            (None, _) => format!(": {} ({errno})", error_text(errno)),
        };
        let what = completion::name_of(kind);
        let after = ended.saturating_sub(submit_ns);
        log::log!(
            level,
            "{what} {transfer:#x} (user_data {user_data:#x}) with peer {peer:#x}: {why}, {} ms after the \
             submission{so_far}{cause}",
            after / 1_000_000
        );
    }
}
