//! A few bytes there and back over tcp, by Weft and by bare libfabric in turns,
//! between two processes that both poll.
//!
//! | | |
//! | --- | --- |
//! | [`hands`] | what all that throw have in common |
//! | [`bare`], [`messages`], [`weft`] | the ways to throw |
//! | [`play`] | the two processes, and whose turn it is |

mod bare;
mod hands;
mod messages;
mod play;
mod weft;

pub use hands::Game;

use crate::engines::Rail;
use crate::machine::Facts;
use crate::show::Progress;
use crate::stats::Spread;
use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};

/// What the two processes are to do.
#[derive(Clone, Serialize, Deserialize)]
struct Spec {
    game: Game,
    rounds: usize,
    /// The initiator finds it out for the target.
    rail: Option<Rail>,
}

#[derive(Serialize, Deserialize)]
pub struct Outcome {
    pub facts: Facts,
    pub provider: String,
    /// The last is Weft, all others are bare.
    pub names: Vec<String>,
    /// Of each: whether its completions mean that the bytes have arrived.
    pub promises: Vec<bool>,
    /// For each round, of each of these: nanoseconds there and back.
    pub rounds: Vec<Vec<f64>>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Role {
    Initiator,
    Target,
}

impl Outcome {
    pub fn median(&self, hand: usize) -> f64 {
        Spread::of(self.rounds.iter().map(|round| round[hand]).collect()).median
    }

    /// Of each round: Weft's time over that of the bare loop which is the fastest in all.
    pub fn ratios(&self, of: impl Fn(usize) -> bool) -> Result<Spread> {
        let weft = self.names.len() - 1;
        let bare = (0..weft).filter(|hand| of(*hand));
        let fastest = bare.min_by(|a, b| self.median(*a).total_cmp(&self.median(*b)));
        let fastest = fastest.context("no bare loop")?;
        Ok(Spread::of(self.rounds.iter().map(|round| round[weft] / round[fastest]).collect()))
    }
}

/// Starts one of the two processes.
fn command_of(role: &str, spec: &Spec) -> Result<Command> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(["throw-part", role, &serde_json::to_string(spec)?]).stdout(Stdio::piped());
    Ok(command)
}

/// Measures in processes of its own: each time, they and their connections happen
/// to lie elsewhere.
pub fn measure(game: Game, rounds: usize, sessions: usize, progress: &Progress) -> Result<Outcome> {
    let mut whole: Option<Outcome> = None;
    for session in 0..sessions {
        progress.at(session as u64, sessions as u64);
        let spec = Spec { game, rounds: rounds.div_ceil(sessions), rail: None };
        let output =
            command_of("initiator", &spec)?.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("the initiator ended with {}", output.status);
        }
        let one: Outcome = serde_json::from_slice(&output.stdout).context("the initiator's report")?;
        match &mut whole {
            None => whole = Some(one),
            Some(whole) => whole.rounds.extend(one.rounds),
        }
    }
    whole.context("no session")
}

/// The life of such a process.
pub fn run(role: Role, spec: &str) -> Result<()> {
    // Nobody is left behind when the one that watches ends.
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let spec: Spec = serde_json::from_str(spec).context("what to do")?;
    match role {
        Role::Initiator => play::initiate(spec),
        Role::Target => play::respond(&spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weft_stands_beside_the_loop_that_is_fastest_in_all() {
        let outcome = Outcome {
            facts: Facts::default(),
            provider: String::new(),
            names: ["slow", "fast", "promising", "weft"].map(String::from).into(),
            promises: vec![false, false, true, true],
            rounds: vec![
                vec![9.0, 10.0, 20.0, 30.0],
                vec![30.0, 10.0, 20.0, 30.0],
                vec![30.0, 5.0, 20.0, 30.0],
            ],
        };
        assert_eq!(outcome.ratios(|_| true).unwrap().median, 3.0);
        assert_eq!(outcome.ratios(|hand| outcome.promises[hand]).unwrap().median, 1.5);
        assert!(outcome.ratios(|_| false).is_err());
    }
}
