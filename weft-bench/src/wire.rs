//! What plain sockets carry, one per rail and all at once: whether a network is suitable for
//! measuring Weft.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Token buckets and congestion windows settle in the first part, which is not counted.
const SETTLE: Duration = Duration::from_millis(500);
const COUNTED: Duration = Duration::from_millis(1500);
const CHUNK: usize = 256 << 10;
const TRIES: u32 = 150;

/// One of the two ends.
#[derive(Serialize, Deserialize)]
pub struct Spec {
    /// It reads until the sender ends.
    pub receives: bool,
    pub addresses: Vec<SocketAddr>,
}

/// Gbps of all sockets, as counted by their receiver.
pub fn run(spec: &Spec) -> Result<f64> {
    let receives = spec.receives;
    let end = |address: SocketAddr| {
        thread::spawn(move || if receives { receive(address) } else { send(address).map(|()| 0.0) })
    };
    let threads: Vec<_> = spec.addresses.iter().map(|address| end(*address)).collect();
    let mut gbps = 0.0;
    for thread in threads {
        gbps += thread.join().map_err(|_| anyhow::anyhow!("a socket's thread panicked"))??;
    }
    Ok(gbps)
}

/// Gbps between the settling and the end of the counted time.
fn receive(address: SocketAddr) -> Result<f64> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    let (mut stream, _) = listener.accept()?;
    let mut chunk = vec![0; CHUNK];
    let begun = Instant::now();
    let (mut bytes, mut counting): (usize, Option<Instant>) = (0, None);
    let mut rate = 0.0;
    loop {
        let len = stream.read(&mut chunk)?;
        if len == 0 {
            return Ok(rate);
        }
        match counting {
            None if begun.elapsed() >= SETTLE => counting = Some(Instant::now()),
            Some(since) if since.elapsed() < COUNTED => {
                bytes += len;
                rate = bytes as f64 * 8.0 / since.elapsed().as_secs_f64() / 1e9;
            }
            _ => {}
        }
    }
}

fn send(address: SocketAddr) -> Result<()> {
    let mut tries = 0;
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            // The other side may not be listening yet.
            Err(error) if tries == TRIES => return Err(error).context(format!("connecting to {address}")),
            Err(_) => tries += 1,
        }
        thread::sleep(Duration::from_millis(20));
    };
    let chunk = vec![0; CHUNK];
    let begun = Instant::now();
    while begun.elapsed() < SETTLE + COUNTED + SETTLE {
        stream.write_all(&chunk)?;
    }
    Ok(())
}
