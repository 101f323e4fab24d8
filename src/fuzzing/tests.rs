//! The entry points over the committed corpus, and over this many mutations of it.

use super::*;
use crate::clock::Sequence;
use crate::ids::RailIndex;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Target = fn(&[u8]);

/// With the targets' names in `fuzz/`.
const TARGETS: [(&str, Target); 12] = [
    ("address", address),
    ("descriptor", descriptor),
    ("frame", frame),
    ("handshake", handshake),
    ("channel", channel),
    ("immediates", immediates),
    ("request", request),
    ("tcp_frame", tcp_frame),
    ("tcp_stream", tcp_stream),
    ("session", session),
    ("tcp_twins", tcp_twins),
    ("endpoint", endpoint),
];

/// Mutations of each, and the time after which a slow machine stops with fewer.
const MUTATIONS: u64 = 20_000;
const TIME: Duration = Duration::from_millis(500);
const LONGEST: usize = 2048;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| fs::read(file).expect("it is read")).collect()
}

/// The target and number in WEFT_FUZZ_TARGET and WEFT_FUZZ_MUTATIONS, else some of all.
fn asked() -> (String, u64, Duration) {
    let target = std::env::var("WEFT_FUZZ_TARGET").unwrap_or_default();
    match std::env::var("WEFT_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok()) {
        Some(count) => (target, count, Duration::MAX),
        None => (target, MUTATIONS, TIME),
    }
}

/// One to four changes.
fn mutated(seeds: &[Vec<u8>], random: &mut Sequence) -> Vec<u8> {
    let pick = |random: &mut Sequence, below: usize| (random.next() % below.max(1) as u64) as usize;
    let mut data = seeds[pick(random, seeds.len())].clone();
    for _ in 0..1 + random.next() % 4 {
        let at = pick(random, data.len());
        match random.next() % 6 {
            0 => data.truncate(at),
            1 => data.insert(at, random.next() as u8),
            2 => {
                let other = &seeds[pick(random, seeds.len())];
                data.truncate(at);
                data.extend_from_slice(&other[pick(random, other.len() + 1)..]);
            }
            _ if data.is_empty() => data.push(random.next() as u8),
            3 => data[at] ^= 1 << (random.next() % 8),
            4 => data[at] = [0, 1, 0x7f, 0x80, 0xff][pick(random, 5)],
            _ => {
                let number = [0, 1, u64::MAX, 1 << 31, 1 << 63, random.next()][pick(random, 6)].to_le_bytes();
                let end = data.len().min(at + 8);
                data[at..end].copy_from_slice(&number[..end - at]);
            }
        }
    }
    data.truncate(LONGEST);
    data
}

#[test]
fn fuzz_input_is_answered_or_dropped() {
    let (only, mutations, time) = asked();
    for (name, target) in TARGETS.into_iter().filter(|(name, _)| name.contains(&only)) {
        let seeds = corpus(name);
        seeds.iter().for_each(|seed| target(seed));
        let (began, mut random) = (Instant::now(), Sequence(4711));
        let mut count = 0;
        while count < mutations && began.elapsed() < time {
            let data = mutated(&seeds, &mut random);
            target(&data);
            count += 1;
        }
        println!("{name}: {} seeds, {count} mutations", seeds.len());
    }
}

/// The first entries of the corpus have today's formats. After a change of format:
///
///     WEFT_FUZZ_WRITE=1 cargo test --lib the_corpus_is_up_to_date
#[test]
fn the_corpus_is_up_to_date() {
    let write = std::env::var_os("WEFT_FUZZ_WRITE").is_some();
    for (target, name, bytes) in seeds() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        if write {
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join(name), &bytes).expect("a file");
        }
        let committed = fs::read(folder.join(name)).ok();
        assert!(committed.as_ref() == Some(&bytes), "fuzz/corpus/{target}/{name} is of another format");
    }
}

fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    use crate::fabric::tcp::of_seed;
    use crate::wire::address::{Address, RailAddress};
    use crate::wire::frame::{self, HandshakeReply, HandshakeRequest, Header, Kind, HEADER};
    use crate::wire::tcp;

    let rail = |n: u8| RailAddress {
        fabric: "tcp".into(),
        network: format!("10.77.{n}.0/24"),
        address: vec![n; 16],
        other: None,
    };
    let address = Address::new(42, vec![rail(1), rail(2)]).encode();
    let request = |proven| HandshakeRequest {
        target: 1,
        token: 2,
        yours: 4,
        nonce: 3,
        begun: 6,
        epoch: 5,
        rail: RailIndex::at(0),
        your_rail: RailIndex::at(1),
        wire: frame::WIRE_HIGHEST,
        proven,
        address: &address,
    };
    let frame = |kind, body: &[u8]| {
        let mut bytes = vec![0; HEADER + body.len()];
        let header = Header { to: 7, ..Header::numbered(kind, 1) };
        header.write(&mut bytes, body, &[]);
        bytes
    };
    let proven = [&request(true).encode()[..], &[6; 32]].concat();
    let numbers = frame::numbers;
    // Both targets add the checksum themselves.
    let unsealed = |blob: &[u8]| blob[..blob.len() - 4].to_vec();
    let mut memory = b"WFTM\x01\x00".to_vec();
    memory.extend(numbers(&[42, 43, 44]));
    memory.extend([3, 2, 0, 2, 0, 0, 0]);
    memory.extend(numbers(&[4096, 64, 8192, 64]));
    memory.extend([1]);
    memory.extend(numbers(&[5, 6]));
    memory.extend([2]);
    let reply =
        HandshakeReply { nonce: 3, own: 8, token: 9, begun: 6, epoch: 5, probe_buffer: (4096, 78) }.encode();
    let steps =
        |bytes: &[(u8, u8)]| bytes.iter().flat_map(|(step, which)| [*step, *which]).collect::<Vec<u8>>();
    let tcp_write =
        tcp::Request { kind: tcp::Kind::Write, pieces: 1, len: 64, key: 7, immediate: None, address: 4096 };
    let tcp_handshake = tcp::Handshake { target: [1; 16], initiator: [2; 16], beside: false }.bytes();
    vec![
        ("address", "two_rails", unsealed(&address)),
        ("address", "sealed", address.clone()),
        ("descriptor", "two_ranges", memory),
        ("frame", "hello", frame(Kind::HandshakeRequest, &request(false).encode())),
        ("frame", "hello_proven", frame(Kind::HandshakeRequest, &proven)),
        ("frame", "welcome", frame(Kind::HandshakeReply, &reply)),
        ("frame", "sealed", [&frame(Kind::Close, &[])[..], &[5; 24]].concat()),
        ("frame", "refuse", frame(Kind::Refuse, &frame::refuse(crate::status::Status::Denied, "no"))),
        ("frame", "ready", frame(Kind::Ready, &frame::ready("tcp"))),
        ("frame", "import", frame(Kind::Import, &numbers(&[1, 2, 3]))),
        ("frame", "message", frame(Kind::Message, b"\x05\0\0\0\0\0\0\0hello")),
        ("frame", "stage", frame(Kind::Stage, &numbers(&[1, 0, 2, 3, 4, 0, 4096, 8, 1, 0, 9]))),
        ("frame", "staged", frame(Kind::Staged, &numbers(&[1, 1, 0]))),
        ("frame", "stored", frame(Kind::Stored, &numbers(&[1, 5, 6]))),
        ("frame", "fetched", frame(Kind::Fetched, &numbers(&[1, 5]))),
        ("frame", "atomic", frame(Kind::Atomic, &numbers(&[1, 1, 2, 0, 8, 5, 0]))),
        ("frame", "flush", frame(Kind::Flush, &numbers(&[1, 0, 0, 2]))),
        ("handshake", "proven", proven),
        ("handshake", "open", request(false).encode()),
        (
            "channel",
            "in_order",
            steps(&[(0, 0), (1, 0), (2, 0), (5, 0), (6, 0), (0, 0), (1, 0), (2, 1), (5, 1)]),
        ),
        (
            "channel",
            "reordered",
            steps(&[(0, 0), (0, 0), (1, 0), (1, 0), (2, 1), (4, 3), (2, 0), (5, 0), (7, 0)]),
        ),
        (
            "session",
            "notify_and_close",
            steps(&[
                (0, 0),
                (128, 0),
                (1, 1),
                (129, 1),
                (0, 2),
                (128, 2),
                (13, 0),
                (141, 0),
                (10, 0),
                (138, 0),
            ])
            .into_iter()
            .chain(steps(&[(13, 0), (141, 0), (13, 1), (141, 1), (6, 0), (13, 0), (141, 0), (7, 0), (8, 0)]))
            .chain(steps(&[(135, 0), (136, 0), (13, 0), (141, 0), (13, 0), (141, 0)]))
            .collect(),
        ),
        (
            "session",
            "reset_and_resume",
            steps(&[
                (0, 0),
                (128, 0),
                (2, 1),
                (130, 1),
                (2, 2),
                (130, 2),
                (13, 0),
                (141, 0),
                (10, 0),
                (138, 0),
            ])
            .into_iter()
            .chain(steps(&[(3, 0), (131, 0), (12, 20), (140, 20), (0, 0), (128, 0), (5, 0), (133, 0)]))
            .chain(steps(&[(12, 1), (13, 0), (141, 0), (141, 0), (13, 0), (13, 0), (141, 0), (11, 8)]))
            .collect(),
        ),
        ("immediates", "made_and_gone", vec![3, 0, 0, 0, 0, 2, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 1]),
        ("request", "write", numbers(&[1 | 1 << 32 | 1 << 48, 4096, 77, 4096, 0, 0, 0, 0])),
        ("request", "inline", numbers(&[1 | 1 << 32 | 8 << 40 | 1 << 48, 8, 77, 4096, 1, 2, 3, 4])),
        (
            "tcp_frame",
            "hello",
            tcp::Handshake { target: [1; 16], initiator: [2; 16], beside: false }.bytes().to_vec(),
        ),
        (
            "tcp_frame",
            "beside",
            tcp::Handshake { target: [1; 16], initiator: [2; 16], beside: true }.bytes().to_vec(),
        ),
        ("tcp_frame", "announced", tcp::Request::beside(&[3; 16]).bytes().to_vec()),
        ("tcp_frame", "two_pieces", {
            let request = tcp::Request { pieces: 2, ..tcp_write };
            let piece = tcp::Piece { address: 4096, len: 32 }.bytes();
            [&request.bytes()[..], &piece, &piece].concat()
        }),
        ("tcp_frame", "write", tcp_write.bytes().to_vec()),
        ("tcp_frame", "failed", tcp::Answer::Failed { number: 3, errno: 5 }.bytes().to_vec()),
        ("tcp_stream", "write", vec![2, 1, 0, 0, 64, 0, 0, 1, 4, 9, 0, 1]),
        ("tcp_stream", "two_pieces", vec![2, 1, 0, 1, 64, 0, 9, 0, 80, 0, 9, 0, 4, 9, 18, 0]),
        ("tcp_stream", "write_taken_back", vec![2, 1, 0, 0, 64, 0, 0, 1, 4, 9, 9, 0, 6, 0, 4, 9, 0, 1]),
        ("tcp_stream", "read", vec![2, 2, 1, 0, 64, 0, 0, 1, 6, 0]),
        ("tcp_stream", "message", vec![2, 7, 0, 1, 2, 0, 0, 0, 20, 0, 4, 5, 20, 0]),
        ("tcp_stream", "write_done", vec![3, 5, 0, 16, 0, 3, 0, 1, 0, 0]),
        ("tcp_stream", "read_disowned", vec![3, 5, 1, 16, 0, 3, 1, 0, 0, 4, 4, 7, 8, 0, 6, 1, 4, 7, 0, 4]),
        ("tcp_stream", "stranger", [&[0, 0, 48][..], &tcp_handshake].concat()),
        ("tcp_twins", "seed_1", of_seed(1)),
        ("tcp_twins", "seed_2", of_seed(2)),
        ("endpoint", "import", vec![5, 2, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("endpoint", "hello", vec![0, 4, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 9, 9, 9, 9, 9, 9, 9, 9, 7]),
        ("endpoint", "atomic", {
            let mut bytes = vec![14, 0, 32];
            bytes.extend(numbers(&[0, 8, 5, 0]));
            bytes.push(0);
            bytes
        }),
        ("endpoint", "message", [&[11, 0, 13][..], b"\x05\0\0\0\0\0\0\0hello", &[0]].concat()),
        ("endpoint", "leave", vec![16, 0, 0, 0]),
    ]
}
