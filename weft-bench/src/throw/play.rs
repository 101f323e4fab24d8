//! The two processes. Both know whose turn it is: each throws as often as it has
//! to, then the next one does.

use super::hands::{self, Hand};
use super::{command_of, Outcome, Spec};
use crate::engines;
use crate::lab;
use crate::machine::Facts;
use crate::pair::{Case, Fabric, Rival};
use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Of a turn: throws that only settle it, and those that are timed.
const SETTLE: usize = 20;
const TIMED: usize = 200;
/// Rounds that are not counted.
const WARM_UP: usize = 3;
/// The last throw of all, which is not returned.
const OVER: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(20);

type Hands = Vec<Box<dyn Hand>>;

/// Whose turns they are in a round: in the other order each time.
fn turns(round: usize, hands: usize) -> impl Iterator<Item = usize> {
    (0..hands).map(move |i| if round % 2 == 0 { i } else { hands - 1 - i })
}

pub fn initiate(mut spec: Spec) -> Result<()> {
    let network = lab::enter();
    let rail = engines::rail(&Case::new(Fabric::Tcp, 4096, Rival::Weft))?;
    let mut facts = Facts::of_machine();
    facts.add("libfabric", &rail.libfabric);
    facts.add("tcp", &format!("{} on {network}", lab::congestion_control()));
    spec.rail = Some(rail.clone());
    let mut target = command_of("target", &spec)?.stdin(Stdio::piped()).spawn().context("the target")?;
    let offers: Vec<Value> = hear(&mut BufReader::new(target.stdout.take().context("its output")?))?;
    let mut hands = hands::open(&rail, spec.game)?;
    let mut input = target.stdin.take().context("the target's input")?;
    writeln!(input, "{}", said(&hands)?)?;
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
    end(&mut hands, &mut target)?;
    let names = hands.iter().map(|hand| hand.name()).collect();
    let promises = hands.iter().map(|hand| hand.promises()).collect();
    let provider = format!("{} ({})", rail.provider, rail.domain);
    let outcome = Outcome { facts, provider, names, promises, rounds };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
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

fn end(hands: &mut Hands, target: &mut Child) -> Result<()> {
    hands[0].throw(OVER)?;
    loop {
        for hand in &mut *hands {
            hand.look()?;
        }
        if let Some(status) = target.try_wait()? {
            if !status.success() {
                bail!("the target ended with {status}");
            }
            return Ok(());
        }
    }
}

pub fn respond(spec: &Spec) -> Result<()> {
    let mut hands = hands::open(spec.rail.as_ref().context("no rail is named")?, spec.game)?;
    println!("{}", said(&hands)?);
    let offers: Vec<Value> = hear(&mut std::io::stdin().lock())?;
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

fn said(hands: &Hands) -> Result<String> {
    let offers: Vec<Value> = hands.iter().map(|hand| hand.offer()).collect::<Result<_>>()?;
    Ok(serde_json::to_string(&offers)?)
}

fn hear<T: DeserializeOwned>(lines: &mut impl BufRead) -> Result<T> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    serde_json::from_str(&line).context("what the other side offers")
}

fn join(hands: &mut Hands, offers: &[Value], first: bool) -> Result<()> {
    if hands.len() != offers.len() {
        bail!("{} ways to throw here, {} there", hands.len(), offers.len());
    }
    hands.iter_mut().zip(offers).try_for_each(|(hand, offer)| hand.join(offer, first))
}
