//! A few bytes there and back, by Weft and (over tcp) by bare libfabric in turns, between two processes that both
//! poll. Both know whose turn it is: each throws as often as it has to, then the next one does.

mod hands;

use crate::engines::{self, Rail};
use crate::lab;
use crate::machine::Facts;
use crate::pair::{Case, Fabric, Rival};
use crate::process::{hear, say, Part, Process};
use crate::processors;
use crate::show::Progress;
use crate::stats::Spread;
use anyhow::{bail, Context, Result};
use hands::Hand;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Of a turn: throws that only settle it, and those that are timed.
const SETTLE: usize = 20;
const TIMED: usize = 200;
/// Rounds that are not counted.
const WARM_UP: usize = 3;
/// The last throw of all, which is not returned.
const OVER: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(20);

/// What is thrown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Game {
    /// A write of eight bytes, which the counterpart sees in its memory.
    Words,
    /// A message of 64 bytes.
    Messages,
    /// Weft: a write of eight bytes that notifies; the bare loops: a message.
    Notifications,
}

/// What the two processes are to do.
#[derive(Clone, Serialize, Deserialize)]
pub struct Spec {
    game: Game,
    fabric: Fabric,
    rounds: usize,
    /// The initiator finds it out for the target.
    rail: Option<Rail>,
    /// The processors of the initiator and of the target.
    processors: Option<(usize, usize)>,
}

#[derive(Serialize, Deserialize)]
pub struct Outcome {
    pub facts: Facts,
    pub provider: String,
    /// The last is Weft, all others are bare.
    pub names: Vec<String>,
    /// For each round, of each of these: nanoseconds there and back.
    pub rounds: Vec<Vec<f64>>,
    /// Over host: of each session, the nanoseconds of a bare cache line between the two
    /// processors, which are those that are nearest to each other.
    pub lines: Vec<f64>,
}

impl Outcome {
    pub fn median(&self, hand: usize) -> f64 {
        Spread::of(self.rounds.iter().map(|round| round[hand]).collect()).median
    }

    /// Of each round: Weft's time over that of the bare loop which is the fastest in all.
    pub fn ratios(&self) -> Result<Spread> {
        let weft = self.names.len() - 1;
        let fastest = (0..weft).min_by(|a, b| self.median(*a).total_cmp(&self.median(*b)));
        let fastest = fastest.context("no bare loop")?;
        Ok(Spread::of(self.rounds.iter().map(|round| round[weft] / round[fastest]).collect()))
    }
}

/// Measures in processes of its own: each time, they and their connections happen
/// to lie elsewhere.
pub fn measure(
    game: Game,
    fabric: Fabric,
    rounds: usize,
    sessions: usize,
    progress: &Progress,
) -> Result<Outcome> {
    let (mut whole, mut lines): (Option<Outcome>, Vec<f64>) = (None, Vec::new());
    for session in 0..sessions {
        progress.at(session as u64, sessions as u64);
        let nearest = if fabric == Fabric::Host { processors::nearest() } else { None };
        lines.extend(nearest.map(|(_, _, ns)| ns));
        let processors = nearest.map(|(one, other, _)| (one, other));
        let spec = Spec { game, fabric, rounds: rounds.div_ceil(sessions), rail: None, processors };
        let one: Outcome = Part::Throw(spec).measure()?;
        match &mut whole {
            None => whole = Some(one),
            Some(whole) => whole.rounds.extend(one.rounds),
        }
    }
    whole.map(|whole| Outcome { lines, ..whole }).context("no session")
}

type Hands = Vec<Box<dyn Hand>>;

/// Whose turns they are in a round: in the other order each time.
fn turns(round: usize, hands: usize) -> impl Iterator<Item = usize> {
    (0..hands).map(move |i| if round % 2 == 0 { i } else { hands - 1 - i })
}

pub fn initiate(mut spec: Spec) -> Result<Outcome> {
    let network = (spec.fabric == Fabric::Tcp).then(lab::enter);
    let rail = engines::rail(&Case::new(spec.fabric, 4096, Rival::Weft))?;
    let mut facts = Facts::of_machine();
    facts.add("libfabric", &rail.libfabric);
    if let Some(network) = network {
        facts.add("tcp", &format!("{} on {network}", lab::congestion_control()));
    }
    let provider = format!("{} ({})", rail.provider, rail.domain);
    spec.rail = Some(rail);
    let mut target = Process::start(&mut Part::ThrowTarget(spec.clone()).command()?)?;
    spec.processors.iter().for_each(|(one, _)| processors::keep_on_only(*one));
    let offers: Vec<Value> = target.lines.hear()?;
    let mut hands = hands::open(&spec)?;
    target.lines.say(&said(&hands)?)?;
    join(&mut hands, &offers, true)?;
    let mut rounds = Vec::new();
    let mut number = 0;
    for round in 0..WARM_UP + spec.rounds {
        let mut times = vec![0.0; hands.len()];
        for turn in turns(round, hands.len()) {
            times[turn] = take_turn(&mut hands, turn, &mut number)?;
        }
        if round >= WARM_UP {
            rounds.push(times);
        }
    }
    hands[0].throw(OVER)?;
    while !target.is_over()? {
        hands.iter_mut().try_for_each(|hand| hand.look().map(drop))?;
    }
    let names = hands.iter().map(|hand| hand.name()).collect();
    Ok(Outcome { facts, provider, names, rounds, lines: Vec::new() })
}

/// Nanoseconds of one throw there and back.
fn take_turn(hands: &mut Hands, turn: usize, number: &mut u64) -> Result<f64> {
    // What others left unfinished in their turns ends while the first throw is under way.
    *number += 1;
    hands[turn].throw(*number)?;
    wait_among(hands, turn, *number)?;
    let hand = &mut hands[turn];
    for _ in 1..SETTLE {
        there_and_back(hand, number)?;
    }
    let begun = Instant::now();
    for _ in 0..TIMED {
        there_and_back(hand, number)?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / TIMED as f64)
}

#[inline]
fn there_and_back(hand: &mut Box<dyn Hand>, number: &mut u64) -> Result<()> {
    *number += 1;
    hand.throw(*number)?;
    wait(hand, *number)
}

pub fn respond(spec: &Spec) -> Result<()> {
    spec.processors.iter().for_each(|(_, other)| processors::keep_on_only(*other));
    let mut hands = hands::open(spec)?;
    say(&said(&hands)?)?;
    let offers: Vec<Value> = hear()?;
    join(&mut hands, &offers, false)?;
    let mut number = 0;
    for round in 0..WARM_UP + spec.rounds {
        for turn in turns(round, hands.len()) {
            number += 1;
            wait_among(&mut hands, turn, number)?;
            let hand = &mut hands[turn];
            hand.throw(number)?;
            for _ in 1..SETTLE + TIMED {
                number += 1;
                wait(hand, number)?;
                hand.throw(number)?;
            }
        }
    }
    wait_among(&mut hands, 0, OVER)
}

/// Until the number has come, with all of them making progress.
fn wait_among(hands: &mut Hands, turn: usize, number: u64) -> Result<()> {
    let begun = Instant::now();
    loop {
        for (i, hand) in hands.iter_mut().enumerate() {
            if hand.look()? == number && i == turn {
                return Ok(());
            }
        }
        if begun.elapsed() > PATIENCE {
            bail!("{}: nothing came for {PATIENCE:?}", hands[turn].name());
        }
    }
}

#[inline]
fn wait(hand: &mut Box<dyn Hand>, number: u64) -> Result<()> {
    let (mut looks, mut since) = (0u32, None);
    while hand.look()? != number {
        looks = looks.wrapping_add(1);
        if looks % (1 << 20) == 0 && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            bail!("{}: nothing came for {PATIENCE:?}", hand.name());
        }
    }
    Ok(())
}

fn said(hands: &Hands) -> Result<Vec<Value>> {
    hands.iter().map(|hand| hand.offer()).collect()
}

fn join(hands: &mut Hands, offers: &[Value], first: bool) -> Result<()> {
    if hands.len() != offers.len() {
        bail!("{} ways to throw here, {} there", hands.len(), offers.len());
    }
    hands.iter_mut().zip(offers).try_for_each(|(hand, offer)| hand.join(offer, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weft_stands_beside_the_loop_that_is_fastest_in_all() {
        let outcome = Outcome {
            facts: Facts::default(),
            provider: String::new(),
            names: ["slow", "fast", "weft"].map(String::from).into(),
            lines: Vec::new(),
            rounds: vec![vec![9.0, 10.0, 30.0], vec![30.0, 10.0, 30.0], vec![30.0, 5.0, 30.0]],
        };
        assert_eq!(outcome.ratios().unwrap().median, 3.0);
    }
}
