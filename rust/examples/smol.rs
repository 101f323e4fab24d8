//! A connect, a write and its notification on smol: any reactor that watches a file descriptor drives the futures.
//!
//!     cargo run -p libweft --features futures --example smol

use libweft::futures::Dispatcher;
use libweft::{Completion, Endpoint, EndpointConfig, OpOptions};
use std::error::Error;

/// An endpoint whose queue a task polls: it waits for the event fd, and dispatches.
fn open() -> Result<(Endpoint, Dispatcher), Box<dyn Error>> {
    let endpoint = Endpoint::open(&EndpointConfig::new())?;
    let dispatcher = Dispatcher::new(&endpoint.queue())?;
    let fd = smol::Async::new_nonblocking(dispatcher.clone())?;
    smol::spawn(async move { while fd.get_ref().dispatch().is_ok() && fd.readable().await.is_ok() {} })
        .detach();
    Ok((endpoint, dispatcher))
}

fn main() -> Result<(), Box<dyn Error>> {
    smol::block_on(async {
        let (sender, sends) = open()?;
        let (receiver, receives) = open()?;
        let source = sender.register(b"hello over smol".to_vec())?;
        let target = receiver.register(vec![0; source.len() as usize])?;

        let peer = sends.connect(&sender, receiver.address(), OpOptions::new())?.await?;
        let remote = sender.import(peer, &target.export()?)?;
        let write = sends.submit(OpOptions::new().notify(7), |options| {
            sender.write(&source, 0, &remote, 0, source.len(), options)
        });

        let mut arrivals = receives.completions();
        while let Some(arrived) = arrivals.next().await {
            // Every byte of the write is there before its notification.
            if let Completion::Notification(arrived) = arrived {
                assert_eq!(arrived.notify, 7);
                break;
            }
        }
        write?.await?;
        let text = target.deregister().map_err(|(_, error)| error)?.remove(0);
        println!("{}", String::from_utf8_lossy(&text));
        Ok(())
    })
}
