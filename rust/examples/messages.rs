//! Requests and answers as messages: in order per peer, each once; a peer that does not read holds back its senders.
//!
//!     cargo run -p libweft --example messages

use libweft::{Completion, Endpoint, EndpointConfig, OpOptions, Result, Status};
use std::time::Duration;

/// Answers every message with its text in reverse, until the peer is gone.
fn serve(endpoint: Endpoint) -> Result<u64> {
    let (queue, mut answered) = (endpoint.queue(), 0);
    loop {
        match queue.wait(Duration::MAX)? {
            Some(Completion::Message(message)) => {
                let answer: Vec<u8> = message.iter().rev().copied().collect();
                // Dropping `message` releases the bytes of the request.
                endpoint.send(message.peer, &answer, &OpOptions::new())?;
                answered += 1;
            }
            Some(Completion::PeerDown(down)) => {
                println!("server: {:?} ended: {:?}", down.peer, down.status);
                return Ok(answered);
            }
            _ => {} // The peer came up; answers are sent.
        }
    }
}

fn main() -> Result<()> {
    let config = EndpointConfig::new().fabric("host").timeout(Duration::from_secs(10));
    let (client, server) = (Endpoint::open(&config)?, Endpoint::open(&config)?);
    let peer = client.connect(server.address())?;
    let server = std::thread::spawn(move || serve(server));

    let requests = ["stressed", "drawer", "repaid"];
    for (number, request) in (1u64..).zip(requests) {
        match client.send(peer, request.as_bytes(), &OpOptions::new().user_data(number)) {
            Ok(_) => {}
            // The limit is reached: poll, and try again.
            Err(error) if error.status == Status::Again => continue,
            Err(error) => return Err(error),
        }
    }
    let (queue, mut answers) = (client.queue(), 0);
    while answers < requests.len() {
        match queue.wait(Duration::from_secs(10))? {
            Some(Completion::Message(answer)) => {
                println!("client: {} -> {}", requests[answers], String::from_utf8_lossy(&answer));
                answers += 1;
            }
            Some(Completion::Send(done)) => done.result()?,
            Some(_) => {}
            None => panic!("no answer within 10 seconds"),
        }
    }
    client.disconnect(peer)?;
    let answered = server.join().expect("the server does not panic")?;
    println!("server: {answered} requests answered");
    Ok(())
}
