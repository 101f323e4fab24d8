//! Two ends of a channel, and a network between them that loses, repeats, reorders and forges one
//! end's frames.

use super::Input;
use crate::ids::OpId;
use crate::session::channel::{Channel, Out, WINDOW};
use crate::wire::frame::Kind;

type Frame = (u32, Kind, Vec<u8>);

pub fn channel(data: &[u8]) {
    let mut input = Input(data);
    let (mut sender, mut receiver) = (Channel::default(), Channel::default());
    let (mut pushed, mut delivered, mut done) = (0u64, 0u64, 0u64);
    let mut sent: Vec<Frame> = Vec::new();
    let mut now = 1;
    while !input.is_empty() {
        now += 10_000;
        let (step, which) = (input.u8(), usize::from(input.u8()));
        match step % 8 {
            0 => {
                let body = pushed.to_le_bytes().to_vec();
                sender.push(Out { done: OpId::new(1 + pushed), ..Out::new(Kind::Message, body) });
                pushed += 1;
            }
            1 => {
                if let Some((number, out)) = sender.next() {
                    sent.push((number, out.kind, out.body.clone()));
                    sender.sent(now);
                }
            }
            2 | 3 if !sent.is_empty() => {
                let (number, kind, body) = &sent[which % sent.len()];
                receiver.receive(*number, *kind, body, now);
            }
            // A frame beyond every window.
            4 => {
                let number = receiver.delivered().wrapping_add(1 + WINDOW + which as u32);
                receiver.receive(number, Kind::Message, &[9; 8], now);
            }
            5 => {
                while let Some((_, body)) = receiver.deliverable() {
                    assert_eq!(body, delivered.to_le_bytes(), "out of order, or twice");
                    receiver.deliver(now, which % 2 == 0);
                    delivered += 1;
                }
                receiver.acknowledgement_due(now);
            }
            6 => {
                let number = receiver.delivered();
                for out in sender.acknowledge(number) {
                    assert_eq!(out.done, OpId::new(1 + done), "done twice, or out of order");
                    done += 1;
                }
                receiver.acknowledgement_sent_alone(now);
            }
            // An acknowledgement of a number that was never sent.
            _ => {
                let number = input.u64() as u32;
                let truly = number.wrapping_sub(done as u32) as usize;
                if truly == 0 || truly > sent.len() - done as usize {
                    assert_eq!(sender.acknowledge(number).count(), 0);
                }
            }
        }
        assert!(done <= delivered && delivered <= sent.len() as u64 && sent.len() as u64 <= pushed);
        assert!(sent.len() as u64 - done <= u64::from(WINDOW));
    }
}
