//! One page, written into the memory of another endpoint, which is notified when every byte has arrived.
//!
//!     cargo run -p libweft --example page_write
//!
//! Both endpoints are in this process. In two, address and descriptor travel by any means.

use libweft::{Completion, Endpoint, EndpointConfig, OpOptions, Result};
use std::time::Duration;

const PAGE: usize = 4096;

fn main() -> Result<()> {
    let config = EndpointConfig::new().fabric("host").timeout(Duration::from_secs(10));
    let (sender, receiver) = (Endpoint::open(&config)?, Endpoint::open(&config)?);

    // The receiver offers memory of 16 pages, the sender has one page to write.
    let cache = receiver.register(vec![0; 16 * PAGE])?;
    let page = sender.register(vec![7; PAGE])?;
    let peer = sender.connect(receiver.address())?;
    let remote = sender.import(peer, &cache.export()?)?;

    // Writes into page 3, and then notifies. No wait is needed before: the write waits for the
    // peer.
    let options = OpOptions::new().notify(42).notify_data(b"request 42, page 3");
    let write = sender.write(&page, 0, &remote, 3 * PAGE as u64, PAGE as u64, &options)?;

    let notified = std::thread::spawn(move || -> Result<()> {
        let queue = receiver.queue();
        while let Some(completion) = queue.wait(Duration::from_secs(10))? {
            if let Completion::Notification(notification) = completion {
                let mut bytes = vec![0; PAGE];
                cache.read_at(3 * PAGE as u64, &mut bytes)?;
                assert_eq!(bytes, vec![7; PAGE]);
                let text = String::from_utf8_lossy(notification.data());
                println!("notification {}: {text}; every byte is here", notification.notify);
                break;
            }
        }
        Ok(())
    });

    while let Some(completion) = sender.queue().wait(Duration::from_secs(10))? {
        match completion {
            Completion::Write(done) if done.op == write => {
                done.result()?;
                println!("{} bytes written in {} us", done.bytes, (done.done_ns - done.submit_ns) / 1000);
                break;
            }
            other => println!("{other:?}"),
        }
    }
    notified.join().unwrap_or(Ok(()))
}
