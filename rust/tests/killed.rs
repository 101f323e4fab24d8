//! The end of a peer's process is noticed while nothing is in flight.

use libweft::testing::{config, wait};
use libweft::*;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Run by the other test, in a process of its own.
#[test]
#[ignore]
fn peer_that_is_killed() {
    let mut address = Vec::new();
    std::io::stdin().read_to_end(&mut address).expect("an address");
    if address.is_empty() {
        return; // It was not run by that test.
    }
    let endpoint = Endpoint::open(&config()).expect("an endpoint");
    endpoint.connect(&address).expect("it begins");
    std::thread::sleep(Duration::from_secs(60));
}

fn noticed_after() -> Duration {
    let endpoint = Endpoint::open(&config()).expect("an endpoint");
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "peer_that_is_killed"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    child.stdin.take().expect("a pipe").write_all(endpoint.address()).expect("it reads");
    let queue = endpoint.queue();
    wait(&queue, |completion| matches!(completion, Completion::PeerUp(_)).then_some(())).expect("it is up");
    // The next keep-alive comes a second after one.
    let frames = || endpoint.rail_statistics(0).expect("the rail").frames_sent;
    std::thread::sleep(Duration::from_millis(300));
    let before = frames();
    while frames() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    let killed = Instant::now();
    child.kill().expect("it runs");
    let down = wait(&queue, |completion| match completion {
        Completion::PeerDown(down) => Some(down.status),
        _ => None,
    });
    let after = killed.elapsed();
    child.wait().expect("it has ended");
    assert_eq!(down.expect("the peer is down"), Status::PeerLost);
    println!("noticed after {after:?}");
    after
}

/// A busy machine may be late, and without a look at the connection all of these would be.
#[test]
fn killed_idle_peer_is_lost_before_a_keep_alive_fails() {
    assert!((0..3).any(|_| noticed_after() < Duration::from_millis(800)));
}
