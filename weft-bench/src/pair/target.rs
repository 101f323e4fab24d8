//! The target: offers its pool through every engine, then polls the one that the
//! initiator names.

use super::control::{decode, Control, Order};
use super::Case;
use crate::engines::{self, Kind, Place, Rail, Receiver};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub case: Case,
    pub rail: Rail,
    pub kinds: Vec<Kind>,
    pub control_fd: i32,
}

/// Of one engine: what the sender needs, or why there is nothing.
pub type Offer = std::result::Result<Value, String>;

pub fn run(spec: &str) -> Result<()> {
    let spec: Spec = serde_json::from_str(spec).context("the target's orders")?;
    // SAFETY: the initiator made it, and we inherited it.
    let control = unsafe { Control::open(spec.control_fd) }.context("the shared page")?;
    let mut pool = Pool::new(spec.case.page_len, spec.case.pages * 2)?;
    let place = Place { case: &spec.case, rail: &spec.rail };
    let mut engines: Vec<Option<Box<dyn Receiver>>> = Vec::new();
    let mut offers: Vec<Offer> = Vec::new();
    // The last first: that is Weft, which, when it is first opened, takes shm's segments of this
    // PID for those of a dead process, and removes them.
    for kind in spec.kinds.iter().rev() {
        let opened = engines::receiver(*kind, &place, &pool).and_then(|engine| Ok((engine.offer()?, engine)));
        let (engine, offer) = match opened {
            Ok((offer, engine)) => (Some(engine), Ok(offer)),
            Err(error) => (None, Err(format!("{error:#}"))),
        };
        engines.insert(0, engine);
        offers.insert(0, offer);
    }
    println!("{}", serde_json::to_string(&offers)?);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let answers: Vec<Value> = serde_json::from_str(&line).context("the initiator's answers")?;
    for (engine, answer) in engines.iter_mut().zip(&answers) {
        if let Some(engine) = engine.as_mut().filter(|_| !answer.is_null()) {
            engine.accept(answer)?;
        }
    }
    serve(&control, &mut engines, &mut pool, spec.case.pages)
}

fn serve(
    control: &Control,
    engines: &mut [Option<Box<dyn Receiver>>],
    pool: &mut Pool,
    pages: usize,
) -> Result<()> {
    let mut last = 0;
    loop {
        let word = control.word();
        let is_new = word != last;
        last = word;
        match decode(word) {
            Order::Poll(engine) => {
                let engine = engines.get_mut(engine as usize).and_then(Option::as_mut);
                let engine = engine.context("an engine that is not open")?;
                engine.poll()?;
                control.answer(word);
                while control.word() == word {
                    engine.poll()?;
                }
            }
            Order::Wipe if is_new => pool.wipe(),
            Order::Verify if is_new => {
                let lists = Lists::random(control.seed(), pages, pool.pages);
                println!("{}", serde_json::to_string(&pool.verify(&lists))?);
            }
            Order::Quit => {
                control.answer(word);
                return Ok(());
            }
            _ => std::thread::sleep(Duration::from_micros(20)),
        }
        control.answer(word);
    }
}
