//! A file as memory, which lives as long as it is registered.

use libweft::testing::{wait, wait_for};
use libweft::*;
use std::os::unix::fs::FileExt;

#[test]
fn file_is_written_and_read_by_a_peer_until_it_is_deregistered() -> Result<()> {
    const LEN: u64 = 100_000;
    let config = EndpointConfig::new().fabric("tcp").rails("lo");
    let (a, b) = (Endpoint::open(&config)?, Endpoint::open(&config)?);
    let peer = a.connect(b.address())?;
    wait(&a.queue(), |completion| matches!(completion, Completion::PeerUp(_)).then_some(()))?;
    let file = tempfile::tempfile().expect("a file");
    let theirs = b.register_file(&file, &[(0, 10_000), (50_000, LEN)], &MemoryArgs::new())?;
    let kept = file.try_clone().expect("a descriptor");
    drop(file);
    assert_eq!((theirs.range_count(), theirs.len(), theirs.as_ptr(0)), (2, 10_000 + LEN, None));
    assert_eq!(theirs.read_at(0, &mut [0]).map_err(|error| error.status), Err(Status::Unsupported));
    let local = a.register((0..LEN).map(|i| (i % 251) as u8).collect::<Vec<u8>>())?;
    let remote = a.import(peer, &theirs.export()?)?;
    let outcome = |op: Op| -> Result<Error> {
        match wait_for(&a, op)? {
            Completion::Write(done) | Completion::Read(done) => {
                Ok(done.result().err().unwrap_or_else(|| unreachable!()))
            }
            other => unreachable!("{other:?}"),
        }
    };
    let write = a.write(&local, 0, &remote, 10_000, LEN, &OpOptions::new())?;
    wait_for(&a, write)?;
    let mut bytes = vec![0; LEN as usize];
    kept.read_exact_at(&mut bytes, 50_000).expect("what was written");
    assert!(bytes.iter().zip(0..LEN).all(|(byte, i)| u64::from(*byte) == i % 251));
    kept.set_len(60_000).expect("shorter");
    let read = outcome(a.read(&local, 0, &remote, 10_000, LEN, &OpOptions::new())?)?;
    assert_eq!((read.status, read.provider_errno), (Status::File, libc::ENODATA));
    assert!(read.to_string().ends_with(&format!(" ({})", libc::ENODATA)), "{read}");
    let atomic = a.fetch_add(&remote, 0, 1, &OpOptions::new()).expect_err("a file has no atomics");
    assert_eq!(atomic.status, Status::Unsupported);
    assert!(atomic.message.contains("is a file"), "{atomic}");
    assert_eq!(theirs.deregister().map_err(|(_, error)| error.status), Ok(Vec::new()));
    // The importer may know by now, or learns it from the target.
    let late = match a.write(&local, 0, &remote, 0, 1, &OpOptions::new()) {
        Ok(op) => outcome(op)?.status,
        Err(error) => error.status,
    };
    assert_eq!(late, Status::MemoryGone);
    Ok(())
}
