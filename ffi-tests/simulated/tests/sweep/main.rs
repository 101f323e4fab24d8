//! Every step that can fail below every call, made to fail once: afterwards nothing is held that was
//! not before, and the same call succeeds. WEFT_SWEEP: a part of the names, "weft_send" or "host"; with
//! WEFT_SWEEP_LOG each step is a line.

mod calls;
mod world;

use ::weft::capi::status::*;
use ::weft::simulated::failing;
use anyhow::{bail, ensure, Result};
use calls::Call;
use world::World;

/// Where the calls are made. The simulated NICs go by virtual time.
const FABRICS: &[&str] =
    &["sim:like=tcp", "sim:like=efa", "sim:like=efa-direct", "sim:like=verbs", "host", "tcp"];
/// A call that has left this much is given up: to see whether it goes takes seconds each time.
const ENOUGH: usize = 4;
/// A step between this many equal ones on either side is left out.
const RUN: isize = 2;

#[derive(Default)]
struct Swept {
    /// Steps that failed, over all calls.
    points: u64,
    /// What was still held, or went wrong otherwise, each in a line.
    leaks: Vec<String>,
    /// For each call, over all fabrics, how many steps failed.
    of_calls: Vec<(&'static str, u64)>,
}

/// `only`: a part of the names "call fabric".
fn sweep(only: &str) -> Result<Swept> {
    let mut swept = Swept::default();
    for fabric in FABRICS {
        for threads in [false, true] {
            let calls = calls::ALL.iter().filter(|call| call.threads == threads);
            let name =
                |call: &Call| format!("{} {fabric}{}", call.name, if threads { " threads" } else { "" });
            let devices = calls::has_devices(fabric);
            let calls = calls.filter(|call| devices || !call.name.ends_with("of a device"));
            let calls: Vec<_> = calls.filter(|call| name(call).contains(only)).collect();
            if calls.is_empty() {
                continue;
            }
            let open = || -> Result<World> {
                let mut world = World::open(fabric, threads)?;
                if devices && !threads {
                    calls::reach_device(&mut world)?;
                }
                Ok(world)
            };
            let mut world = open()?;
            for call in calls {
                let (before, leaks) = (swept.points, swept.leaks.len());
                if let Err(error) = sweep_call(&mut world, call, &name(call), &mut swept) {
                    swept.leaks.push(format!("{}: {error:#}", name(call)));
                }
                if swept.leaks.len() > leaks {
                    // What is left of it is not the next call's.
                    world = open()?;
                }
                let points = swept.points - before;
                match swept.of_calls.iter_mut().find(|(known, _)| *known == call.name) {
                    Some((_, known)) => *known += points,
                    None => swept.of_calls.push((call.name, points)),
                }
            }
            world.close()?;
        }
    }
    Ok(swept)
}

/// The steps to fail, counted from 1. Of many equal ones in a row the first and the last suffice.
fn chosen(names: &[&'static str]) -> Vec<u64> {
    let equal = |at: usize, with: isize| {
        let other = at.checked_add_signed(with).and_then(|other| names.get(other));
        other == Some(&names[at])
    };
    let inside = |at: usize| (-RUN..=RUN).all(|with| equal(at, with));
    (0..names.len()).filter(|at| !inside(*at)).map(|at| at as u64 + 1).collect()
}

fn sweep_call(world: &mut World, call: &Call, name: &str, swept: &mut Swept) -> Result<()> {
    let mut whole = |counts: bool| -> Result<Vec<&'static str>> {
        (call.before)(world)?;
        if counts {
            failing::begin(0);
        }
        let status = (call.call)(world);
        let names = failing::end();
        ensure!(status == WEFT_OK, "{}", world::said(status));
        (call.after)(world)?;
        world.at_rest();
        Ok(names)
    };
    // What is made once, and kept, is made here.
    whole(false)?;
    let steps = chosen(&whole(true)?);
    let base = world.at_rest();
    let (first, leaks) = (world.first.clone(), swept.leaks.len());
    for step in steps {
        if swept.leaks.len() >= leaks + ENOUGH {
            return Ok(());
        }
        (call.before)(world)?;
        let began = world.at_rest();
        failing::begin(step);
        let status = (call.call)(world);
        let failed = failing::end().get(step as usize - 1).copied();
        let text = world::said(status);
        let at_once = world.held();
        let Some(failed) = failed else {
            // With threads, there may be fewer than were counted.
            ensure!(status == WEFT_OK, "{text}");
            (call.after)(world)?;
            continue;
        };
        if std::env::var_os("WEFT_SWEEP_LOG").is_some() {
            eprintln!("{name} {step} {failed}: {text}");
        }
        swept.points += 1;
        let mut wrong = |what: String| {
            swept.leaks.push(format!("{name}, step {step} ({failed}), which gave {text}: {what}"))
        };
        if status != WEFT_OK {
            // A NIC may still use the memory: the call says so.
            let says = [WEFT_ERR_TIMED_OUT, WEFT_ERR_INTERNAL].contains(&status);
            if call.makes && !says && at_once.registrations() != began.registrations() {
                wrong("a NIC still has a registration".into());
            }
            if call.makes {
                let rest = world.at_rest_as(&began);
                if let Some(what) = rest.more_than(&began) {
                    wrong(what);
                }
            }
            let again = (call.call)(world);
            if again != WEFT_OK {
                wrong(format!("then the same call gave {}", world::said(again)));
                return Ok(());
            }
        }
        if let Err(error) = (call.after)(world) {
            wrong(format!("{error:#}"));
            return Ok(());
        }
        let rest = world.at_rest_as(&base);
        if let Some(what) = rest.more_than(&base) {
            wrong(what);
        }
    }
    // What was on its way out before is gone by now.
    let rest = world.at_rest_as(&first);
    rest.more_than(&first).map_or(Ok(()), |more| bail!("in the end: {more}"))
}

#[test]
fn no_step_that_fails_leaves_anything_held() {
    // Simulated NICs reach their memory, and the others have it copied.
    std::env::set_var("WEFT_DEVICES", "fake:hmem");
    let only = std::env::var("WEFT_SWEEP").unwrap_or_default();
    let swept = sweep(&only).expect("the worlds open");
    println!("sweep_points {}", swept.points);
    println!("sweep_leaks {}", swept.leaks.len());
    swept.of_calls.iter().for_each(|(call, points)| println!("{points:5} {call}"));
    assert!(swept.leaks.is_empty(), "{}", swept.leaks.join("\n"));
    assert!(swept.points >= 300 || !only.is_empty(), "{} steps failed", swept.points);
}
