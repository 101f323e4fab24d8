//! The initiator: starts the target, tunes the bare loop, then times each engine in turn on the
//! same pages.

use super::control::{Control, Order};
use super::target::{Opened, Spec};
use super::{Case, Event, Fabric, Outcome, Rival, Session, Tuned};
use crate::engines::throw::Game;
use crate::engines::{self, Kind, Place, Rail, Sender};
use crate::lab;
use crate::machine::Facts;
use crate::pages::Lists;
use crate::process::{say, Part, Process};
use crate::processors;
use anyhow::{anyhow, Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Rounds of the calibration: transfers of each tuning, and how many of the fastest tunings
/// continue. Later sessions only run the last round.
const ROUNDS: [(usize, usize); 3] = [(2, 24), (5, FINALISTS), (21, FINALISTS)];
const FINALISTS: usize = 6;

pub fn initiate(session: &Session) -> Result<()> {
    let case = &session.case;
    let network = (case.fabric == Fabric::Tcp).then(lab::enter);
    if case.lossy {
        lab::lose()?;
    }
    case.processors.iter().for_each(|(one, _)| processors::keep_on_only(*one));
    let mut facts = Facts::of_machine();
    let rail = engines::rail(case)?;
    facts.add("libfabric", &rail.libfabric);
    if let Some(network) = network {
        facts.add("tcp", &format!("{} on {network}", lab::congestion_control()));
    }
    let bare = [Kind::Bare { wait_fd: false }, Kind::Bare { wait_fd: true }];
    let kinds = match case.rival {
        Rival::Weft => vec![bare[0], bare[1], Kind::Weft],
        Rival::Itself => vec![bare[0], bare[1], bare[0], bare[1]],
        Rival::Socket => vec![Kind::Socket, Kind::Weft],
        Rival::Reads => vec![Kind::Weft, Kind::Reads],
        Rival::Encrypted => vec![Kind::Weft, Kind::Encrypted],
        Rival::Streams => vec![Kind::Weft, Kind::Streams],
        Rival::Memcpy => vec![Kind::Memcpy, Kind::Weft],
        Rival::Throw(game) => {
            let bare = [(false, false), (false, true), (true, false), (true, true)];
            let mut kinds = match (case.fabric, game) {
                (Fabric::Host, _) => Vec::new(),
                (_, Game::Words) => vec![Kind::SocketThrow],
                _ => bare.map(|(inject, wait_fd)| Kind::Throw { inject, wait_fd }).into(),
            };
            kinds.push(Kind::WeftThrow(game));
            kinds
        }
    };
    let provider = format!("{} ({})", rail.provider, rail.domain);
    let mut pair = Pair::start(session, rail, kinds)?;
    let (mut tuned, mut measured) = (Vec::new(), Vec::new());
    if matches!(case.rival, Rival::Weft | Rival::Itself | Rival::Socket) {
        // The fastest of these is measured.
        tuned = match session.tuned.is_empty() {
            true => pair.calibrate(
                pair.tunings(if case.rival == Rival::Socket { &[0][..] } else { &[0, 1] }),
                // For a line far slower than any tuning, one round suffices.
                if case.lossy { &ROUNDS[..1] } else { &ROUNDS },
            )?,
            false => pair.calibrate(session.tuned.clone(), &ROUNDS[ROUNDS.len() - 1..])?,
        };
        let best: &Tuned = tuned.first().context("no engine to tune")?;
        measured.push(best.engine);
        match case.rival {
            Rival::Weft => measured.push(2),
            Rival::Socket => measured.push(1),
            Rival::Itself => {
                measured.push(best.engine + 2);
                pair.sender(best.engine + 2)?.tune(best.tuning);
            }
            _ => {}
        }
    } else {
        measured.extend((0..pair.kinds.len()).filter(|engine| pair.senders[*engine].is_some()));
    }
    let times = pair.alternate(case.pairs, &measured)?;
    pair.verify(&measured)?;
    let tuning: Vec<String> =
        measured.iter().map(|engine| Ok(pair.sender(*engine)?.describe())).collect::<Result<_>>()?;
    let kinds = measured.iter().map(|engine| pair.kinds[*engine]).collect();
    pair.end()?;
    let bytes = case.pages * case.page_len * case.at_once;
    say(&Event::Done(Outcome {
        facts,
        provider,
        tuning: tuning.join("; "),
        kinds,
        bytes,
        lines: Vec::new(),
        times,
        tuned,
    }))
}

struct Pair {
    kinds: Vec<Kind>,
    senders: Vec<Option<Box<dyn Sender>>>,
    target: Process,
    control: Control,
    pages: usize,
    at_once: usize,
    cpu: bool,
    seed: u64,
    told: Instant,
}

impl Pair {
    fn start(session: &Session, rail: Rail, kinds: Vec<Kind>) -> Result<Pair> {
        let case: &Case = &session.case;
        let control = Control::create().context("making a shared page")?;
        let mut pool = engines::pool(case)?;
        pool.fill();
        let part = Part::PairTarget(Spec {
            case: case.clone(),
            rail: rail.clone(),
            kinds: kinds.clone(),
            control_fd: control.fd(),
        });
        let mut target = Process::start(&mut part.command()?)?;
        let offers: Vec<Opened> = target.lines.hear().context("the target's offers")?;
        let place = Place { case, rail: &rail };
        let (mut senders, mut answers) = (Vec::new(), Vec::new());
        for (kind, offer) in kinds.iter().zip(offers) {
            let opened = offer
                .map_err(|error| anyhow!("the target: {error}"))
                .and_then(|offer| engines::sender(*kind, &place, &pool, &offer));
            match opened {
                Ok(sender) => {
                    answers.push(sender.answer()?);
                    senders.push(Some(sender));
                }
                Err(_) if kind.may_be_missing() => {
                    senders.push(None);
                    answers.push(Value::Null);
                }
                Err(error) => return Err(error.context(format!("opening {}", kind.name()))),
            }
        }
        target.lines.say(&answers)?;
        let (pages, at_once, cpu, told) = (case.pages, case.at_once, case.cpu, Instant::now());
        let mut pair = Pair { kinds, senders, target, control, pages, at_once, cpu, seed: 1, told };
        let mut order: Vec<usize> = (0..pair.senders.len()).collect();
        if session.number % 2 == 1 {
            order.reverse();
        }
        for engine in order {
            if pair.senders[engine].is_some() {
                pair.give_turn(engine)?;
                let kind = pair.kinds[engine].name();
                pair.sender(engine)?.connect().with_context(|| format!("connecting {kind}"))?;
            }
        }
        Ok(pair)
    }

    fn sender(&mut self, engine: usize) -> Result<&mut Box<dyn Sender>> {
        self.senders.get_mut(engine).and_then(Option::as_mut).context("an engine that is not open")
    }

    fn order(&mut self, order: Order) -> Result<()> {
        let (control, target) = (&self.control, &mut self.target);
        let mut calls = 0u32;
        control.order(order, || {
            calls += 1;
            if calls % 4096 == 0 {
                target.lives()
            } else {
                Ok(())
            }
        })
    }

    /// From now on the target polls only this engine.
    fn give_turn(&mut self, engine: usize) -> Result<()> {
        self.order(Order::Poll(engine as u8))
    }

    fn next_list(&mut self) -> Lists {
        self.seed += 1;
        Lists::random(self.seed, self.pages, self.pages * 2)
    }

    fn next_lists(&mut self) -> Lists {
        let mut all = self.next_list();
        for _ in 1..self.at_once {
            let Lists { source, target } = self.next_list();
            all.source.extend(source);
            all.target.extend(target);
        }
        all
    }

    /// Nanoseconds of one transfer.
    fn transfer(&mut self, engine: usize, lists: &Lists) -> Result<u64> {
        self.give_turn(engine)?;
        let kind = self.kinds[engine].name();
        self.sender(engine)?.settle()?;
        let (begun, used) = (Instant::now(), self.cpu_ns());
        self.sender(engine)?.write(lists).with_context(|| format!("a transfer by {kind}"))?;
        Ok(if self.cpu { self.cpu_ns() - used } else { begun.elapsed().as_nanos() as u64 })
    }

    /// CPU time of both processes.
    fn cpu_ns(&self) -> u64 {
        let target = self.target.child.id() as libc::pid_t;
        let cpu_ns = |pid| {
            let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
            // SAFETY: the buffers hold the results. The time is 0 for all alike where the system
            // has no such clock.
            unsafe {
                libc::clock_getcpuclockid(pid, &mut clock);
                libc::clock_gettime(clock, &mut time);
            }
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        cpu_ns(0) + cpu_ns(target)
    }

    fn tunings(&self, engines: &[usize]) -> Vec<Tuned> {
        let of_one = |engine: &usize| {
            let engine = *engine;
            let sender = self.senders.get(engine).and_then(Option::as_ref);
            let count = sender.map_or(0, |sender| sender.tunings());
            (0..count).map(move |tuning| Tuned { engine, tuning })
        };
        engines.iter().flat_map(of_one).collect()
    }

    /// Tries these tunings, and sets the fastest; it is the first of the returned ones.
    fn calibrate(&mut self, mut left: Vec<Tuned>, rounds: &[(usize, usize)]) -> Result<Vec<Tuned>> {
        for (repeat, keep) in rounds {
            let mut times: Vec<Vec<u64>> = vec![Vec::new(); left.len()];
            for _ in 0..*repeat {
                let lists = self.next_lists();
                for (tuned, times) in left.iter().zip(&mut times) {
                    self.sender(tuned.engine)?.tune(tuned.tuning);
                    times.push(self.transfer(tuned.engine, &lists)?);
                }
            }
            let mut ranked: Vec<(u64, Tuned)> =
                times.iter_mut().map(|times| middle(times)).zip(left).collect();
            ranked.sort_by_key(|(time, _)| *time);
            left = ranked.into_iter().take(*keep).map(|(_, tuned)| tuned).collect();
        }
        if let Some(best) = left.first() {
            self.sender(best.engine)?.tune(best.tuning);
        }
        Ok(left)
    }

    /// Moves pages through each engine in turn, in a different order each time.
    fn alternate(&mut self, rounds: usize, engines: &[usize]) -> Result<Vec<Vec<u64>>> {
        let warm_up = rounds.div_ceil(20);
        let mut all = Vec::with_capacity(rounds);
        for round in 0..warm_up + rounds {
            let lists = self.next_lists();
            let mut times = vec![0; engines.len()];
            for i in 0..engines.len() {
                let i = if round % 2 == 0 { i } else { engines.len() - 1 - i };
                times[i] = self.transfer(engines[i], &lists)?;
            }
            if round < warm_up {
                self.tell_progress(0, rounds)?;
            } else {
                all.push(times);
                self.tell_progress(all.len(), rounds)?;
            }
        }
        Ok(all)
    }

    fn tell_progress(&mut self, done: usize, all: usize) -> Result<()> {
        if done == all || self.told.elapsed() > Duration::from_millis(250) {
            self.told = Instant::now();
            say(&Event::At(done as u64))?;
        }
        Ok(())
    }

    /// One more transfer by each engine, into wiped pages, which are verified byte by byte.
    fn verify(&mut self, engines: &[usize]) -> Result<()> {
        let kinds = self.kinds.clone();
        for engine in engines.iter().copied().filter(|engine| kinds[*engine].moves_pages()) {
            let list = self.next_list();
            self.order(Order::Wipe)?;
            self.transfer(engine, &list)?;
            self.control.set_seed(self.seed);
            self.order(Order::Verify)?;
            let kind = kinds[engine].name();
            self.target.lines.hear::<()>().with_context(|| format!("{kind} moved wrong bytes"))?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        for engine in 0..self.senders.len() {
            if self.senders[engine].is_some() {
                self.give_turn(engine)?;
                self.senders[engine] = None;
            }
        }
        self.order(Order::Quit)?;
        self.target.end()
    }
}

/// The median; of two values, the faster.
fn middle(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[(times.len() - 1) / 2]
}
