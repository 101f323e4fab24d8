//! Requests and answers as messages: in order per peer, each once; a peer that does not read holds back its senders.
//!
//!     cargo run -p libweft --example messages

use libweft::{Completion, Endpoint, EndpointConfig, Message, OpOptions, Peer, Result, Status};
use std::collections::VecDeque;
use std::time::Duration;

/// Sends if the limits allow it now; false: room comes as completions are polled, so poll, and send again.
fn send(endpoint: &Endpoint, peer: Peer, text: &[u8]) -> Result<bool> {
    match endpoint.send(peer, text, &OpOptions::new()) {
        Ok(_) => Ok(true),
        Err(error) if error.status == Status::Again => Ok(false),
        Err(error) => Err(error),
    }
}

/// Answers every message with its text in reverse, until the peer is gone.
fn serve(endpoint: Endpoint) -> Result<u64> {
    let (queue, mut answered) = (endpoint.queue(), 0);
    let mut requests: VecDeque<Message> = VecDeque::new();
    loop {
        match queue.wait(Duration::MAX)? {
            Some(Completion::Message(message)) => requests.push_back(message),
            Some(Completion::PeerDown(down)) => {
                println!("server: {:?} ended: {:?}", down.peer, down.status);
                return Ok(answered);
            }
            _ => {} // The peer came up; answers are sent.
        }
        while let Some(request) = requests.front() {
            let answer: Vec<u8> = request.iter().rev().copied().collect();
            if !send(&endpoint, request.peer, &answer)? {
                break;
            }
            requests.pop_front(); // Dropping it releases the bytes of the request.
            answered += 1;
        }
    }
}

fn main() -> Result<()> {
    // One operation at once, so that this example reaches the limit.
    let config = EndpointConfig::new().fabric("host").timeout(Duration::from_secs(10)).max_transfers(1);
    let (client, server) = (Endpoint::open(&config)?, Endpoint::open(&config)?);
    let peer = client.connect(server.address())?;
    let server = std::thread::spawn(move || serve(server));

    let requests = ["stressed", "drawer", "repaid"];
    let (queue, mut sent, mut answers) = (client.queue(), 0, 0);
    while answers < requests.len() {
        while sent < requests.len() && send(&client, peer, requests[sent].as_bytes())? {
            sent += 1;
        }
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
