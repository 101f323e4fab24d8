//! A parameter server on tokio. Workers write their gradients into the server's memory, each into a place of its own; the
//! server averages them and writes the new weights into the memory of all. Workers come and go.
//!
//!     parameter_server                        all of it in one process: a server and three workers, of which one leaves
//!     parameter_server serve ADDRESS [ROUNDS] a server alone, as on 0.0.0.0:7070
//!     parameter_server work ADDRESS GOAL      a worker of it, which pulls all weights towards GOAL
//!
//! What cannot travel by Weft before there is a connection, addresses and descriptors, goes over a TCP connection first.

use libweft::futures::{Completions, Dispatcher, OpFuture};
use libweft::{
    Access, Category, Completion, Endpoint, EndpointConfig, Memory, MemoryArgs, OpOptions, Peer, RemoteMemory,
};
use std::collections::HashMap;
use std::io;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

const WEIGHTS: usize = 1 << 16;
const BYTES: u64 = (WEIGHTS * size_of::<f32>()) as u64;
const RATE: f32 = 0.5;
/// One that says nothing does not stop the others for longer.
const PATIENCE: Duration = Duration::from_secs(5);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// An endpoint whose queue a task of the runtime polls: it waits for the event fd, and dispatches.
fn open() -> Result<(Endpoint, Dispatcher)> {
    let endpoint = Endpoint::open(&EndpointConfig::new())?;
    let dispatcher = Dispatcher::new(&endpoint.queue())?;
    // SAFETY: the dispatcher keeps its event fd open.
    let fd = unsafe { AsyncFd::register(dispatcher.clone()) }?;
    tokio::spawn(async move {
        while fd.get_ref().dispatch().is_ok() {
            match fd.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => break, // The runtime ends.
            }
        }
    });
    Ok((endpoint, dispatcher))
}

/// The end of an endpoint: writes that are under way get this long, and its peers a `PeerDown` with `PeerClosed`. It
/// blocks, so a thread of its own does it.
async fn close(endpoint: Endpoint) -> Result<()> {
    Ok(tokio::task::spawn_blocking(move || endpoint.shutdown(Duration::from_secs(1))).await??)
}

/// Awaits an operation for some time, then cancels it, and awaits that: until it has ended, its buffer is in use. (Dropping
/// the future would discard the completion that says so.)
async fn ended(endpoint: &Endpoint, mut operation: OpFuture) -> libweft::Result<Completion> {
    match timeout(PATIENCE, &mut operation).await {
        Ok(ended) => ended,
        Err(_) => {
            // Fails if it has just completed.
            let _ = operation.op().map(|op| endpoint.cancel(op));
            operation.await
        }
    }
}

fn floats(memory: &Memory) -> Result<Vec<f32>> {
    let mut values = vec![0.0f32; WEIGHTS];
    memory.read_at(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    stream.write_u32(bytes.len().try_into()?).await?;
    Ok(stream.write_all(bytes).await?)
}

async fn receive(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let len = stream.read_u32().await?;
    if len > 1 << 20 {
        return Err("the other side does not speak our language".into());
    }
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// A worker, as the server has it: where it writes its gradient, and its weights.
struct Worker {
    gradient: Memory,
    weights: RemoteMemory,
}

struct Server {
    endpoint: Endpoint,
    dispatcher: Dispatcher,
    arrivals: Completions,
    weights: Memory,
    workers: HashMap<Peer, Worker>,
}

impl Server {
    /// Takes a worker in, and gives it the current weights: round 0 for it.
    async fn join(&mut self, mut stream: TcpStream) -> Result<()> {
        let both = async { Result::Ok((receive(&mut stream).await?, receive(&mut stream).await?)) };
        let (address, descriptor) = timeout(PATIENCE, both).await??;
        let gradient = self
            .endpoint
            .register_plain([vec![0.0f32; WEIGHTS]], &MemoryArgs::new().access(Access::RemoteWrite))?;
        let peer =
            self.dispatcher.connect(&self.endpoint, &address, OpOptions::new().timeout(PATIENCE))?.await?;
        timeout(PATIENCE, send(&mut stream, &gradient.export()?)).await??;
        let weights = self.endpoint.import(peer, &descriptor)?;
        self.workers.insert(peer, Worker { gradient, weights });
        println!("server: a worker came: {}", self.workers.len());
        self.spread(peer).await
    }

    /// Writes the weights to a worker. One that is lost is noticed by its `PeerDown`.
    async fn spread(&self, peer: Peer) -> Result<()> {
        let Some(worker) = self.workers.get(&peer) else { return Ok(()) };
        let write = self.dispatcher.submit(OpOptions::new().notify(1), |options| {
            self.endpoint.write(&self.weights, 0, &worker.weights, 0, BYTES, options)
        });
        if let Err(error) = async { ended(&self.endpoint, write?).await }.await {
            println!("server: a worker did not get the weights: {error}");
        }
        Ok(())
    }

    /// One step of all workers that are there, whose gradients have arrived.
    fn step(&self) -> Result<f64> {
        let mut weights = floats(&self.weights)?;
        let share = RATE / self.workers.len() as f32;
        let mut size = 0.0f64;
        for worker in self.workers.values() {
            for (weight, slope) in weights.iter_mut().zip(floats(&worker.gradient)?) {
                *weight -= share * slope;
                size += f64::from(slope.abs());
            }
        }
        self.weights.write_at(0, bytemuck::cast_slice(&weights))?;
        Ok(size / (WEIGHTS * self.workers.len()) as f64)
    }
}

/// Rounds begin once this many workers are there.
async fn serve(listener: TcpListener, rounds: u32, first: usize) -> Result<f32> {
    let mut begun = false;
    let (endpoint, dispatcher) = open()?;
    let weights = endpoint.register(vec![0; BYTES as usize])?;
    let arrivals = dispatcher.completions();
    let mut server = Server { endpoint, dispatcher, arrivals, weights, workers: HashMap::new() };
    let mut ready = Vec::new();
    let mut round = 0;
    while round < rounds {
        tokio::select! {
            joined = listener.accept() => {
                if let Err(error) = server.join(joined?.0).await {
                    println!("server: a worker could not join: {error}");
                }
            }
            arrived = server.arrivals.next() => match arrived {
                // Every byte of its gradient is there.
                Some(Completion::Notification(arrival)) => ready.push(arrival.peer),
                Some(Completion::PeerDown(down)) => {
                    // Its memory is freed once no NIC can write to it.
                    server.workers.remove(&down.peer);
                    println!("server: a worker left ({}): {}", down.status.text(), server.workers.len());
                }
                Some(_) => {}
                None => return Err("the endpoint was shut down".into()),
            }
        }
        ready.retain(|peer| server.workers.contains_key(peer));
        begun |= server.workers.len() >= first;
        if begun && !ready.is_empty() && ready.len() == server.workers.len() {
            round += 1;
            println!("server: round {round}: mean gradient {:.4}", server.step()?);
            for peer in ready.drain(..) {
                server.spread(peer).await?;
            }
        }
    }
    let weight = floats(&server.weights)?[0];
    close(server.endpoint).await?;
    Ok(weight)
}

/// Computes gradients until the server is gone, or for this many rounds.
async fn work(server: &str, goal: f32, rounds: u32) -> Result<()> {
    let (endpoint, dispatcher) = open()?;
    let mut arrivals = dispatcher.completions();
    let weights = endpoint.register(vec![0; BYTES as usize])?;
    let gradient =
        endpoint.register_plain([vec![0.0f32; WEIGHTS]], &MemoryArgs::new().access(Access::Local))?;

    let mut stream = TcpStream::connect(server).await?;
    send(&mut stream, endpoint.address()).await?;
    send(&mut stream, &weights.export()?).await?;
    let place = receive(&mut stream).await?;
    let mut remote: Option<RemoteMemory> = None;

    let mut round = 0;
    while round < rounds {
        match arrivals.next().await {
            Some(Completion::PeerUp(up)) => {
                up.result()?;
                remote = Some(endpoint.import(up.peer, &place)?);
            }
            // New weights are there.
            Some(Completion::Notification(_)) => {
                let slopes: Vec<f32> = floats(&weights)?.iter().map(|weight| weight - goal).collect();
                gradient.write_at(0, bytemuck::cast_slice(&slopes))?;
                let Some(remote) = &remote else { continue };
                round += 1;
                let write = dispatcher.submit(OpOptions::new().notify(1), |options| {
                    endpoint.write(&gradient, 0, remote, 0, BYTES, options)
                });
                match async { ended(&endpoint, write?).await }.await {
                    Err(error) if error.category() == Category::Peer => break,
                    sent => _ = sent?,
                }
            }
            Some(Completion::PeerDown(_)) | None => break,
            Some(_) => {}
        }
    }
    close(endpoint).await
}

/// Three workers, of which one leaves after five rounds: then the mean of two goals is left to reach.
async fn all_in_one() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let place = listener.local_addr()?.to_string();
    let (ended, mut ends) = mpsc::unbounded_channel();
    for (goal, rounds) in [(1.0, u32::MAX), (2.0, u32::MAX), (9.0, 5)] {
        let (place, ended) = (place.clone(), ended.clone());
        tokio::spawn(async move {
            // A worker that fails, as one whose server is through, has left.
            let _ = ended.send(work(&place, goal, rounds).await.map_err(|error| error.to_string()));
        });
    }
    let weight = serve(listener, 30, 3).await?;
    drop(ended);
    while ends.recv().await.is_some() {}
    println!("weights are {weight:.3}, between the goals 1 and 2");
    if (weight - 1.5).abs() < 0.01 {
        return Ok(());
    }
    Err("the weights are not where the workers pulled them".into())
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => all_in_one().await,
        ["serve", at] => serve(TcpListener::bind(at).await?, u32::MAX, 1).await.map(|_| ()),
        ["serve", at, rounds] => serve(TcpListener::bind(at).await?, rounds.parse()?, 1).await.map(|_| ()),
        ["work", at, goal] => work(at, goal.parse()?, u32::MAX).await,
        _ => {
            Err(io::Error::other("usage: parameter_server [serve ADDRESS [ROUNDS] | work ADDRESS GOAL]")
                .into())
        }
    }
}
