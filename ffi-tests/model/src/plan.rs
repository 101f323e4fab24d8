//! Draws cases: mostly valid, small and large, with a share of everything odd.

use crate::arena;
use crate::case::*;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;

fn who() -> impl Strategy<Value = Who> {
    (0..2usize).prop_map(Who)
}

fn slot() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..2usize, 1 => 0..SLOTS]
}

/// From a nanosecond to more than a test takes.
fn timeout() -> impl Strategy<Value = u64> {
    let short = select(&[1u64, 1_000, 50_000, 300_000, 2_000_000][..]);
    prop_oneof![12 => Just(0), 1 => short, 2 => Just(20_000_000_000)]
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        Just(Order::Absent),
        Just(Order::Ascending),
        Just(Order::Descending),
        any::<u64>().prop_map(Order::Shuffled),
        any::<u64>().prop_map(Order::Repeated),
    ]
}

fn layout() -> impl Strategy<Value = Layout> {
    let gap = prop_oneof![2 => Just(0u64), 1 => 1..5000u64];
    let layer_gap = prop_oneof![2 => Just(0u64), 1 => 1..3000u64];
    let place = prop_oneof![2 => Just(0u16), 1 => Just(u16::MAX), 3 => any::<u16>()];
    (gap, layer_gap, 0..3u32, 0..5u32, place, order()).prop_map(
        |(gap, layer_gap, range_step, first_range, place, order)| Layout {
            gap,
            layer_gap,
            range_step,
            first_range,
            place,
            order,
        },
    )
}

fn single() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![1 => Just(0u64), 1 => Just(1u64), 4 => 2..5000u64, 3 => 5000..260_000u64];
    (len, layout(), layout()).prop_map(|(page_len, mut local, mut remote)| {
        (local.order, remote.order) = (Order::Absent, Order::Absent);
        Shape { single: true, page_len, pages: 1, layers: 1, local, remote }
    })
}

fn paged() -> impl Strategy<Value = Shape> {
    let page_len = prop_oneof![1 => Just(1u64), 4 => 2..600u64, 3 => 600..9000u64, 2 => 9000..150_000u64, 1 => Just(4096u64)];
    let pages = prop_oneof![1 => Just(0u64), 2 => Just(1u64), 5 => 2..20u64, 1 => 20..300u64];
    let layers = prop_oneof![1 => Just(0u64), 3 => Just(1u64), 4 => 2..6u64, 1 => 6..40u64];
    (page_len, pages, layers, layout(), layout()).prop_map(|(page_len, pages, layers, local, remote)| Shape {
        single: false,
        page_len,
        pages,
        layers,
        local,
        remote,
    })
}

fn flaw() -> impl Strategy<Value = Flaw> {
    use Flaw::*;
    select(
        &[
            NoEndpoint,
            NoArgs,
            NoLocal,
            NoRemote,
            LocalIsRemote,
            StaleLocal,
            LocalOfOther,
            QueueOfOther,
            LocalRange,
            RemoteRange,
            LocalEnd,
            RemoteEnd,
            HugeStride,
            HugeOffset,
            NoPageLen,
            HugePageLen,
            ManyPages,
            ManyLayers,
            OddList,
            UnknownFlag,
            DataWithoutNotify,
            LongData,
            NullData,
            LongTimeout,
            NoSize,
            HugeSize,
            NewerStruct,
            Reserved,
        ][..],
    )
}

fn moves() -> impl Strategy<Value = Op> {
    let shape = prop_oneof![2 => single(), 3 => paged()];
    let notify = weighted(0.4, prop_oneof![Just(0usize), Just(256usize), 1..256usize]);
    let rest = (any::<bool>(), timeout(), any::<bool>(), weighted(0.1, flaw()));
    (who(), any::<bool>(), slot(), slot(), shape, notify, rest).prop_map(
        |(who, read, local, remote, shape, notify, (urgent, timeout_ns, second_queue, flaw))| {
            Op::Move(Move { who, read, local, remote, shape, notify, urgent, timeout_ns, second_queue, flaw })
        },
    )
}

fn sends() -> impl Strategy<Value = Op> {
    use SendFlaw::*;
    let len = prop_oneof![1 => Just(0usize), 6 => 1..2000usize, 2 => 2000..100_000usize, 1 => 100_000..=1usize << 20, 1 => Just(1usize << 20)];
    let flaw =
        weighted(0.08, select(&[TooLong, NullData, UnknownFlag, NoPeer, LongTimeout, QueueOfOther][..]));
    (who(), len, timeout(), any::<bool>(), flaw).prop_map(|(who, len, timeout_ns, second_queue, flaw)| {
        Op::Send { who, len, timeout_ns, second_queue, flaw }
    })
}

fn registers() -> impl Strategy<Value = Op> {
    use RegisterFlaw::*;
    let range = (0..arena::LEN, 1..arena::LEN / 4).prop_map(|(at, len)| (at, len.min(arena::LEN - at)));
    let access = select(&[0u32, 0, 0, 1, 2, 3, 4][..]);
    let rails = select(&[0u64, 0, 0, 1, 2, 5, 8, 15][..]);
    let flaw = weighted(
        0.1,
        select(&[NoRanges, EmptyRange, NullRange, LocalAndRemote, UnknownAccess, UnknownRail, NotThere][..]),
    );
    (who(), 0..SLOTS, vec(range, 1..6), access, rails, flaw).prop_map(
        |(who, slot, ranges, access, rails, flaw)| Op::Register { who, slot, ranges, access, rails, flaw },
    )
}

fn imports() -> impl Strategy<Value = Op> {
    use ImportFlaw::*;
    let flaw = prop_oneof![
        Just(Truncated),
        any::<u16>().prop_map(Damaged),
        Just(Empty),
        Just(OwnDescriptor),
        Just(NoPeer)
    ];
    (who(), slot(), weighted(0.4, flaw)).prop_map(|(who, slot, flaw)| Op::Import { who, slot, flaw })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        40 => moves(),
        12 => sends(),
        6 => (who(), 0..4usize).prop_map(|(who, back)| Op::Cancel { who, back }),
        4 => registers(),
        2 => (who(), slot()).prop_map(|(who, slot)| Op::Deregister { who, slot }),
        2 => imports(),
        1 => (who(), slot()).prop_map(|(who, slot)| Op::Release { who, slot }),
        8 => who().prop_map(|who| Op::Poll { who }),
        2 => who().prop_map(|who| Op::ReleaseMessages { who }),
        3 => Just(Op::Settle),
        1 => (who(), any::<bool>()).prop_map(|(who, wait)| Op::Disconnect { who, wait }),
        2 => who().prop_map(|who| Op::Connect { who }),
    ]
}

pub fn case() -> impl Strategy<Value = Case> {
    (0..4u32, 0..3u32, 0..4u32, any::<u64>(), any::<bool>(), vec(op(), 1..40)).prop_map(
        |(packing, idle, workers, seed, abrupt, ops)| Case { packing, idle, workers, seed, abrupt, ops },
    )
}
