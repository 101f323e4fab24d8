//! Weft between two processes of this host, beside a plain memcpy of the same
//! pages, and the time of a message there and back.

mod initiator;
pub mod side;
mod target;

use crate::processors;
use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Case {
    /// Random pages out of twice as many; `shared`: in memory of `weft_memory_alloc`.
    Pages { page_len: usize, pages: usize, shared: bool },
    /// Eight bytes there and back.
    PingPong,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Spec {
    case: Case,
    rounds: usize,
    /// The processors of the initiator and of the target.
    processors: Option<(usize, usize)>,
}

/// Of each round: pages, the nanoseconds of memcpy and of Weft; there and back,
/// the nanoseconds of one.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    pub rounds: Vec<(f64, f64)>,
    /// Bytes of a round.
    pub bytes: usize,
    /// There and back: of each session, the nanoseconds of a bare cache line between the two
    /// processors, which are those that are nearest to each other.
    pub lines: Vec<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Role {
    Initiator,
    Target,
}

/// Starts one of the two processes.
fn command_of(role: &str, spec: Spec) -> Result<Command> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(["host-part", role, &serde_json::to_string(&spec)?]).stdout(Stdio::piped());
    Ok(command)
}

/// Measures a case in processes of its own: each time, they and their memory
/// happen to lie elsewhere.
pub fn measure(case: Case, rounds: usize, sessions: usize) -> Result<Outcome> {
    let mut whole = Outcome { rounds: Vec::new(), bytes: 0, lines: Vec::new() };
    for _ in 0..sessions {
        let nearest = if case == Case::PingPong { processors::nearest() } else { None };
        whole.lines.extend(nearest.map(|(_, _, ns)| ns));
        let processors = nearest.map(|(one, other, _)| (one, other));
        let spec = Spec { case, rounds: rounds.div_ceil(sessions), processors };
        let output = command_of("initiator", spec)?.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("the initiator ended with {}", output.status);
        }
        let one: Outcome = serde_json::from_slice(&output.stdout).context("the initiator's report")?;
        whole.rounds.extend(one.rounds);
        whole.bytes = one.bytes;
    }
    Ok(whole)
}

/// The life of such a process.
pub fn run(role: Role, spec: &str) -> Result<()> {
    // Nobody is left behind when the one that watches ends.
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let spec: Spec = serde_json::from_str(spec).context("what to do")?;
    match role {
        Role::Initiator => {
            let target = initiator::start(spec)?;
            spec.processors.iter().for_each(|(one, _)| processors::keep_on_only(*one));
            initiator::run(target, spec)
        }
        Role::Target => {
            spec.processors.iter().for_each(|(_, other)| processors::keep_on_only(*other));
            target::run(spec)
        }
    }
}
