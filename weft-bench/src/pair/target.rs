//! The target: offers its pool through every engine, then polls the one that the initiator names.

use super::control::{Control, Order};
use super::Case;
use crate::engines::{self, Kind, Place, Rail, Receiver};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::process::{hear, say, write_line};
use crate::processors;
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

/// For one engine: what the sender needs, or why it is unavailable.
pub type Opened = std::result::Result<Value, String>;

pub fn serve(spec: Spec) -> Result<()> {
    // SAFETY: the initiator made it, and this process inherited it.
    let control = unsafe { Control::open(spec.control_fd) }.context("the shared page")?;
    spec.case.processors.iter().for_each(|(_, other)| processors::keep_on_only(*other));
    let mut pool = engines::pool(&spec.case)?;
    let place = Place { case: &spec.case, rail: &spec.rail };
    let open = |kind: &Kind| match engines::receiver(*kind, &place, &pool)
        .and_then(|receiver| Ok((receiver.offer()?, receiver)))
    {
        Ok((offer, engine)) => (Some(engine), Ok(offer)),
        Err(error) => (None, Err(format!("{error:#}"))),
    };
    let (mut engines, offers): (Vec<Option<Box<dyn Receiver>>>, Vec<Opened>) =
        spec.kinds.iter().map(open).unzip();
    say(&offers)?;
    let answers: Vec<Value> = hear().context("the initiator's answers")?;
    for (engine, answer) in engines.iter_mut().zip(&answers) {
        if let Some(engine) = engine.as_mut().filter(|_| !answer.is_null()) {
            engine.accept(answer)?;
        }
    }
    dispatch(&control, &mut engines, &mut pool, spec.case.pages)
}

fn dispatch(
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
        match Order::decode(word) {
            Some(Order::Poll(engine)) => {
                let engine = engines.get_mut(engine as usize).and_then(Option::as_mut);
                let engine = engine.context("an engine that is not open")?;
                engine.poll()?;
                control.answer(word);
                while control.word() == word {
                    engine.poll()?;
                }
            }
            Some(Order::Wipe) if is_new => pool.wipe(),
            Some(Order::Verify) if is_new => {
                let lists = Lists::random(control.seed(), pages, pool.pages);
                write_line(&mut std::io::stdout(), &pool.verify(&lists))?;
            }
            Some(Order::Quit) => {
                control.answer(word);
                return Ok(());
            }
            _ => std::thread::sleep(Duration::from_micros(20)),
        }
        control.answer(word);
    }
}
