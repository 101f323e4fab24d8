//! Draws cases: mostly valid, small and large, with a share of everything odd.

use crate::arena;
use crate::atomics::{Atomic, AtomicFlaw, Change};
use crate::case::*;
use crate::counters::{CountFlaw, CountOp, ExpectFlaw, Goal, COUNTERS};
use crate::lists::{Entry, KeptOp, ListFlaw, ListMove, Sort, UseFlaw, Way, What, KEPT};
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
            OwnCounter,
            CountWithoutCounter,
            CountReads,
        ][..],
    )
}

fn notify() -> impl Strategy<Value = Option<usize>> {
    weighted(0.4, prop_oneof![Just(0usize), Just(256usize), 1..256usize])
}

/// A counter, and whether each page raises it.
fn counter() -> impl Strategy<Value = Option<(usize, bool)>> {
    weighted(0.5, (0..COUNTERS, any::<bool>()))
}

fn way() -> impl Strategy<Value = Way> {
    (any::<bool>(), notify(), any::<bool>(), any::<bool>(), timeout(), any::<bool>()).prop_map(
        |(read, notify, urgent, each_peer, timeout_ns, second_queue)| Way {
            read,
            notify,
            urgent,
            each_peer,
            timeout_ns,
            second_queue,
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    let sort = select(&[Sort::Bytes, Sort::Bytes, Sort::Bytes, Sort::Bytes, Sort::Empty, Sort::Peer][..]);
    let rest = (any::<bool>(), weighted(0.4, 0..COUNTERS));
    (sort, slot(), slot(), single(), rest).prop_map(|(sort, local, remote, shape, (named, counter))| Entry {
        sort,
        local,
        remote,
        shape,
        named,
        counter,
    })
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    prop_oneof![4 => vec(entry(), 1..6), 1 => vec(entry(), 6..40)]
}

fn list_flaw() -> impl Strategy<Value = ListFlaw> {
    use ListFlaw::*;
    select(
        &[
            NoEndpoint,
            NoArgs,
            NoEntries,
            ManyEntries,
            NullEntries,
            OddEntries,
            NoLocal,
            NoRemote,
            StaleLocal,
            LocalIsRemote,
            OtherPeer,
            LocalRange,
            RemoteRange,
            LocalEnd,
            HugeOffset,
            HugeLen,
            OwnCounter,
            CountPages,
            UnknownFlag,
            Reserved,
            LongData,
            DataWithoutNotify,
            LongTimeout,
            QueueOfOther,
            NoSize,
            Terms,
        ][..],
    )
}

fn lists() -> impl Strategy<Value = Op> {
    (who(), entries(), way(), weighted(0.1, list_flaw()))
        .prop_map(|(who, entries, way, flaw)| Op::List(ListMove { who, entries, way, flaw }))
}

fn keeps() -> impl Strategy<Value = Op> {
    let pages = (paged(), slot(), slot(), any::<bool>())
        .prop_map(|(shape, local, remote, counted)| What::Pages(shape, local, remote, counted));
    let what = prop_oneof![pages, entries().prop_map(What::List)];
    (who(), 0..KEPT, what, any::<bool>(), weighted(0.1, list_flaw()))
        .prop_map(|(who, slot, what, urgent, flaw)| Op::Kept(who, KeptOp::Keep { slot, what, urgent, flaw }))
}

fn uses() -> impl Strategy<Value = Op> {
    use UseFlaw::*;
    let flaw = select(
        &[
            NoKept,
            NotKept,
            NoArgs,
            OwnCounter,
            CounterOfList,
            EachPeerOfPages,
            CountWithoutCounter,
            UnknownFlag,
            Reserved,
            LongTimeout,
            QueueOfOther,
            NoSize,
        ][..],
    );
    (who(), 0..KEPT, 1..4usize, way(), counter(), weighted(0.1, flaw)).prop_map(
        |(who, slot, times, way, counter, flaw)| {
            Op::Kept(who, KeptOp::Use { slot, times, way, counter, flaw })
        },
    )
}

fn counts() -> impl Strategy<Value = Op> {
    use CountFlaw::*;
    let flaw = weighted(0.2, select(&[Null, Zero, OfOther, NextGeneration][..]));
    let op = prop_oneof![
        3 => (0..COUNTERS).prop_map(|slot| CountOp::Create { slot }),
        1 => (0..COUNTERS).prop_map(|slot| CountOp::Destroy { slot }),
        4 => (0..COUNTERS, flaw).prop_map(|(slot, flaw)| CountOp::Read { slot, flaw }),
        6 => expects(),
    ];
    (who(), op).prop_map(|(who, op)| Op::Count(who, op))
}

fn expects() -> impl Strategy<Value = CountOp> {
    use ExpectFlaw::*;
    let goal = prop_oneof![
        1 => Just(Goal::Zero),
        2 => Just(Goal::Now),
        4 => Just(Goal::All),
        3 => (1..4u64).prop_map(Goal::More),
    ];
    let flaw = select(
        &[
            NoArgs,
            NoCounters,
            ManyCounters,
            NullCounters,
            NullValues,
            LargeValue,
            OfOther,
            UnknownFlag,
            Reserved,
            LongTimeout,
            QueueOfOther,
            NoSize,
        ][..],
    );
    (vec((0..COUNTERS, goal), 1..4), timeout(), any::<bool>(), weighted(0.1, flaw)).prop_map(
        |(goals, timeout_ns, second_queue, flaw)| CountOp::Expect { goals, timeout_ns, second_queue, flaw },
    )
}

fn atomics() -> impl Strategy<Value = Op> {
    use AtomicFlaw::*;
    let change = prop_oneof![
        any::<u64>().prop_map(Change::Add),
        (any::<bool>(), any::<u64>()).prop_map(|(right, operand)| Change::Swap(right, operand)),
    ];
    let flaw = select(
        &[
            NoEndpoint,
            NoArgs,
            NoRemote,
            RemoteIsLocal,
            QueueOfOther,
            RemoteRange,
            RemoteEnd,
            HugeOffset,
            Odd,
            AddCompares,
            UnknownFlag,
            Reserved,
            LongTimeout,
            NoSize,
        ][..],
    );
    let rest = (timeout(), any::<bool>(), weighted(0.1, flaw));
    (who(), slot(), change, 0..5usize, any::<u16>(), rest).prop_map(
        |(who, remote, change, range, place, (timeout_ns, second_queue, flaw))| {
            Op::Atomic(Atomic { who, remote, change, range, place, timeout_ns, second_queue, flaw })
        },
    )
}

fn moves() -> impl Strategy<Value = Op> {
    let shape = prop_oneof![2 => single(), 3 => paged()];
    let rest = (any::<bool>(), timeout(), any::<bool>(), weighted(0.1, flaw()), counter());
    (who(), any::<bool>(), slot(), slot(), shape, notify(), rest).prop_map(
        |(who, read, local, remote, shape, notify, (urgent, timeout_ns, second_queue, flaw, counter))| {
            // Counted pages are written, but for a few.
            let counter = counter.map(|(slot, pages)| (slot, pages && (!read || slot == 0)));
            Op::Move(Move {
                who,
                read,
                local,
                remote,
                shape,
                notify,
                counter,
                urgent,
                timeout_ns,
                second_queue,
                flaw,
            })
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
        30 => moves(),
        12 => lists(),
        6 => keeps(),
        8 => uses(),
        1 => (who(), 0..KEPT).prop_map(|(who, slot)| Op::Kept(who, KeptOp::Release { slot })),
        14 => counts(),
        8 => atomics(),
        12 => sends(),
        6 => (who(), 0..4usize).prop_map(|(who, back)| Op::Cancel { who, back }),
        4 => registers(),
        2 => (who(), slot()).prop_map(|(who, slot)| Op::Deregister { who, slot }),
        2 => imports(),
        3 => (who(), slot()).prop_map(|(who, slot)| Op::Release { who, slot }),
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
