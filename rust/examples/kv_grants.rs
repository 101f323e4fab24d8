//! A paged KV cache: for each request the decoder grants the prefiller access to pages of all
//! layers, gets them written, and revokes the grant, whatever the prefiller does.
//!
//!     cargo run -p libweft --example kv_grants

use libweft::{
    Access, Completion, Endpoint, EndpointConfig, GrantArgs, MemoryArgs, Op, OpOptions, PageSide, Pages,
    Queue, Result, Status,
};
use std::time::Duration;

const LAYERS: u32 = 8;
const PAGE: u64 = 16384;
const PAGES: usize = 64;

/// Waits for one operation; other completions are only shown.
fn wait(queue: &Queue, op: Op) -> Result<Completion> {
    loop {
        match queue.wait(Duration::MAX)? {
            Some(completion) if completion.op() == Some(op) => return Ok(completion),
            Some(other) => println!("  {other:?}"),
            None => {}
        }
    }
}

/// The peer that connected.
fn accepted(queue: &Queue) -> Result<libweft::Peer> {
    loop {
        if let Some(Completion::PeerUp(up)) = queue.wait(Duration::MAX)? {
            return up.result().map(|()| up.peer);
        }
    }
}

fn main() -> Result<()> {
    let config = EndpointConfig::new().fabric("host").timeout(Duration::from_secs(10));
    let (prefill, decode) = (Endpoint::open(&config)?, Endpoint::open(&config)?);
    let layers = || vec![vec![0; PAGES * PAGE as usize]; LAYERS as usize];

    // Reached only under grants: a prefiller writes nowhere else.
    let cache = decode.register_with(layers(), &MemoryArgs::new().access(Access::Granted))?;
    let computed = prefill.register_with(layers(), &MemoryArgs::new().access(Access::Local))?;
    let peer = prefill.connect(decode.address())?;
    let remote = prefill.import(peer, &cache.export()?)?; // Once, for all requests.
    let prefiller = accepted(&decode.queue())?;

    for request in 0..4u32 {
        // The decoder picks free pages, and grants them. Token and page numbers go to the prefiller
        // in a message.
        let free: Vec<u32> = (0..8).map(|i| (i * 7 + request * 3) % PAGES as u32).collect();
        let theirs = PageSide { pages: Some(&free), range_step: 1, ..PageSide::default() };
        let pages = Pages {
            layer_count: LAYERS,
            page_len: PAGE,
            page_count: free.len() as u64,
            local: PageSide { range_step: 1, ..PageSide::default() }, // The pages 0 to 7 that were computed.
            remote: theirs,
        };
        let token = cache.grant(prefiller, &GrantArgs::new().write().pages(pages))?;

        // The prefiller writes 8 pages of 8 layers in one call.
        let options = OpOptions::new().grant(token).notify(request.into());
        let write = prefill.write_pages(&computed, &remote, &pages, &options)?;
        let done = wait(&prefill.queue(), write)?;
        let bytes = done.done().map_or(0, |done| done.bytes);
        println!("request {request}: {bytes} bytes into pages {free:?} of {LAYERS} layers");

        // The decoder revokes the grant: from the completion on, nothing of this request can change
        // the pages.
        let revoke = decode.revoke(token, &OpOptions::new())?;
        wait(&decode.queue(), revoke)?;
        let late = prefill.write_pages(&computed, &remote, &pages, &options);
        let status = match late {
            Ok(op) => wait(&prefill.queue(), op)?.done().map_or(Status::Ok, |done| done.status),
            Err(error) => error.status,
        };
        assert_eq!(status, Status::Revoked);
        println!("request {request}: a late write is refused: {}", status.text());
    }
    Ok(())
}
