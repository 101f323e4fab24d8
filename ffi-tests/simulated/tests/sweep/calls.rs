//! The calls: what each needs before, and what takes back what it made.

use super::world::{device_bytes, ok, open, sized, World, LEN};
use ::weft::capi::atomic::*;
use ::weft::capi::completion::*;
use ::weft::capi::counter::*;
use ::weft::capi::device::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::fence::*;
use ::weft::capi::grant::*;
use ::weft::capi::list::*;
use ::weft::capi::memory::*;
use ::weft::capi::message::*;
use ::weft::capi::op::*;
use ::weft::capi::peer::*;
use ::weft::capi::prepared::*;
use ::weft::capi::status::*;
use ::weft::capi::transfer::*;
use anyhow::Result;
use std::mem::zeroed;
use std::ptr::null;

pub struct Call {
    pub name: &'static str,
    /// Whether workers make progress.
    pub threads: bool,
    /// Whether it makes something, so that nothing is left if it fails. Otherwise it is to be called
    /// again.
    pub makes: bool,
    pub before: fn(&mut World) -> Result<()>,
    pub call: fn(&mut World) -> weft_status,
    pub after: fn(&mut World) -> Result<()>,
}

fn nothing(_: &mut World) -> Result<()> {
    Ok(())
}

const fn makes(
    name: &'static str,
    call: fn(&mut World) -> weft_status,
    after: fn(&mut World) -> Result<()>,
) -> Call {
    Call { name, threads: false, makes: true, before: nothing, call, after }
}

const fn ends(
    name: &'static str,
    before: fn(&mut World) -> Result<()>,
    call: fn(&mut World) -> weft_status,
) -> Call {
    Call { name, threads: false, makes: false, before, call, after: nothing }
}

/// The call, with what has to be there before.
const fn prepared(before: fn(&mut World) -> Result<()>, call: Call) -> Call {
    Call { before, ..call }
}

const fn threaded(call: Call) -> Call {
    Call { threads: true, ..call }
}

const CREATE: Call = makes("weft_endpoint_create", create, destroy);
const SHUTDOWN: Call =
    Call { after: destroy, ..ends("weft_endpoint_shutdown", create_with_memory, shutdown) };
const DESTROY: Call = ends("weft_endpoint_destroy", create_with_memory, |world| {
    // SAFETY: the endpoint was made before.
    unsafe { weft_endpoint_destroy(world.made.endpoint) }
});
const REGISTER: Call = makes("weft_memory_register", register, deregister_it);
const REGISTER_GRANTED: Call = makes("weft_memory_register, for grants", register_granted, deregister_it);
const REGISTER_ALLOCATED: Call = Call {
    before: allocate_it,
    ..makes("weft_memory_register, allocated", register_allocated, deregister_and_free)
};
const DEREGISTER: Call =
    ends("weft_memory_deregister", |world| ok("registering", register(world)), deregister);
const ALLOCATE: Call = makes("weft_memory_alloc", allocate, free);

pub const ALL: &[Call] = &[
    CREATE,
    threaded(CREATE),
    SHUTDOWN,
    threaded(SHUTDOWN),
    DESTROY,
    threaded(DESTROY),
    REGISTER,
    threaded(REGISTER),
    REGISTER_GRANTED,
    threaded(REGISTER_GRANTED),
    REGISTER_ALLOCATED,
    threaded(REGISTER_ALLOCATED),
    DEREGISTER,
    threaded(DEREGISTER),
    ALLOCATE,
    Call { before: create_third, ..makes("weft_peer_connect", connect, disconnect_it) },
    Call {
        after: |world| world.drop_third(),
        ..ends("weft_peer_disconnect", connect_to_third, disconnect_third)
    },
    makes("weft_memory_export", export, nothing),
    makes("weft_remote_memory_import", World::import, release_it),
    ends("weft_remote_memory_release", |world| ok("importing", world.import()), release),
    makes("weft_queue_create", create_queue, destroy_queue),
    threaded(Call {
        before: |world| ok("making a queue", create_queue(world)),
        ..makes("weft_queue_arm", arm, destroy_queue)
    }),
    makes("weft_counter_create", create_counter, destroy_counter),
    prepared(
        |world| ok("making a counter", create_counter(world)),
        makes("weft_counter_expect", expect, destroy_counter_waited_for),
    ),
    makes("weft_watch_create", create_watch, destroy_watch),
    makes("weft_write", write, World::await_op),
    makes("weft_read", read, World::await_op),
    makes("weft_write_pages", write_pages, World::await_op),
    makes("weft_read_pages", read_pages, World::await_op),
    makes("weft_write_list", write_list, World::await_op),
    makes("weft_read_list", read_list, World::await_op),
    makes("weft_pages_prepare", prepare_pages, destroy_prepared),
    makes("weft_list_prepare", prepare_list, destroy_prepared),
    prepared(pages_prepared, makes("weft_write_prepared", write_prepared, await_and_destroy_prepared)),
    prepared(pages_prepared, makes("weft_read_prepared", read_prepared, await_and_destroy_prepared)),
    prepared(list_prepared, makes("weft_write_prepared, a list", write_prepared, await_and_destroy_prepared)),
    Call { after: destroy_counter_waited_for_in_vain, ..ends("weft_op_cancel", expect_of_its_own, cancel) },
    makes("weft_send", send, World::await_op),
    ends("weft_message_release", World::await_message, release_message),
    makes("weft_memory_register, of a device", register_device, deregister_it),
    ends("weft_memory_deregister, of a device", device_registered, deregister),
    prepared(device_registered, makes("weft_write, of a device", write_device, await_and_deregister)),
    prepared(device_registered, makes("weft_read, of a device", read_device, await_and_deregister)),
    makes("weft_peer_fence", fence, World::await_op),
    makes("weft_fetch_add", fetch_add, World::await_op),
    makes("weft_compare_swap", compare_swap, World::await_op),
    makes("weft_grant_create", grant, revoke_it),
    Call {
        after: World::await_op,
        ..ends("weft_grant_revoke", |world| ok("granting", grant(world)), revoke)
    },
];

fn pages_prepared(world: &mut World) -> Result<()> {
    ok("preparing", prepare_pages(world))
}

fn list_prepared(world: &mut World) -> Result<()> {
    ok("preparing", prepare_list(world))
}

fn device_registered(world: &mut World) -> Result<()> {
    ok("registering", register_device(world))
}

fn create(world: &mut World) -> weft_status {
    let (fabric, threads) = (world.fabric.clone(), world.threads);
    open(&fabric, threads, &mut world.made.endpoint)
}

fn destroy(world: &mut World) -> Result<()> {
    // SAFETY: the endpoint was made before.
    ok("destroying", unsafe { weft_endpoint_destroy(world.made.endpoint) })
}

fn create_with_memory(world: &mut World) -> Result<()> {
    ok("opening", create(world))?;
    let endpoint = world.made.endpoint;
    ok("registering", world.register_at(endpoint, 0, 0))
}

fn shutdown(world: &mut World) -> weft_status {
    // SAFETY: the endpoint was made before.
    let status = unsafe { weft_endpoint_shutdown(world.made.endpoint, 0) };
    // A NIC is open, and may still use the memory.
    assert!(status != WEFT_ERR_TIMED_OUT || deregister(world) != WEFT_OK);
    status
}

fn register(world: &mut World) -> weft_status {
    world.register_at(world.a, 0, 0)
}

fn register_granted(world: &mut World) -> weft_status {
    world.register_at(world.a, 0, WEFT_ACCESS_GRANTED)
}

fn deregister(world: &mut World) -> weft_status {
    // SAFETY: the memory was made before.
    unsafe { weft_memory_deregister(world.made.memory) }
}

fn deregister_it(world: &mut World) -> Result<()> {
    ok("deregistering", deregister(world))
}

fn allocate(world: &mut World) -> weft_status {
    // SAFETY: the address is stored in the world.
    unsafe { weft_memory_alloc(world.a, LEN as u64, WEFT_NUMA_ANY, &mut world.made.address) }
}

fn allocate_it(world: &mut World) -> Result<()> {
    ok("allocating", allocate(world))
}

fn free(world: &mut World) -> Result<()> {
    // SAFETY: nobody uses the memory any longer.
    ok("freeing", unsafe { weft_memory_free(world.a, world.made.address) })
}

fn register_allocated(world: &mut World) -> weft_status {
    let range = weft_memory_range { address: world.made.address, len: LEN as u64 };
    let args: weft_memory_args = sized();
    // SAFETY: the range was allocated before.
    unsafe { weft_memory_register(world.a, &range, 1, &args, &mut world.made.memory) }
}

fn deregister_and_free(world: &mut World) -> Result<()> {
    deregister_it(world)?;
    free(world)
}

fn create_third(world: &mut World) -> Result<()> {
    ok("opening", create(world))?;
    world.third()
}

fn connect(world: &mut World) -> weft_status {
    match world.connect_third() {
        WEFT_OK => world.await_third(),
        failed => failed,
    }
}

fn connect_to_third(world: &mut World) -> Result<()> {
    create_third(world)?;
    ok("connecting", connect(world))
}

fn disconnect(world: &mut World) -> weft_status {
    // SAFETY: the endpoint is open.
    unsafe { weft_peer_disconnect(world.a, world.made.peer) }
}

/// Until the peer is gone, so that what follows from the call fails, too.
fn disconnect_third(world: &mut World) -> weft_status {
    match disconnect(world) {
        WEFT_OK => world
            .await_peer(world.made.peer, WEFT_COMPLETION_PEER_DOWN)
            .map_or(WEFT_ERR_TIMED_OUT, |()| WEFT_OK),
        failed => failed,
    }
}

fn disconnect_it(world: &mut World) -> Result<()> {
    ok("disconnecting", disconnect_third(world))?;
    world.drop_third()
}

fn export(world: &mut World) -> weft_status {
    let (mut bytes, mut len) = (vec![0; 65536], 0);
    // SAFETY: the buffer has this length.
    unsafe { weft_memory_export(world.local, bytes.as_mut_ptr().cast(), bytes.len(), &mut len) }
}

fn release(world: &mut World) -> weft_status {
    // SAFETY: the remote memory was imported before.
    unsafe { weft_remote_memory_release(world.made.remote) }
}

fn release_it(world: &mut World) -> Result<()> {
    ok("releasing", release(world))
}

fn create_queue(world: &mut World) -> weft_status {
    // SAFETY: the queue is stored in the world.
    unsafe { weft_queue_create(world.a, 64, &mut world.made.queue) }
}

fn destroy_queue(world: &mut World) -> Result<()> {
    // SAFETY: the queue was made before.
    ok("destroying a queue", unsafe { weft_queue_destroy(world.made.queue) })
}

fn arm(world: &mut World) -> weft_status {
    let mut fd = -1;
    // SAFETY: the queue was made before.
    unsafe { weft_queue_arm(world.made.queue, &mut fd) }
}

fn create_counter(world: &mut World) -> weft_status {
    // SAFETY: the counter is stored in the world.
    unsafe { weft_counter_create(world.a, &mut world.made.counter) }
}

fn destroy_counter(world: &mut World) -> Result<()> {
    // SAFETY: the endpoint is open.
    ok("destroying a counter", unsafe { weft_counter_destroy(world.a, world.made.counter) })
}

fn expect(world: &mut World) -> weft_status {
    // SAFETY: there is one counter and one value.
    unsafe { weft_counter_expect(world.a, &world.made.counter, &1, 1, null(), &mut world.made.op) }
}

fn destroy_counter_waited_for(world: &mut World) -> Result<()> {
    destroy_counter(world)?;
    world.await_end()
}

fn create_watch(world: &mut World) -> weft_status {
    // SAFETY: watch and word are stored in the world.
    unsafe { weft_watch_create(world.a, &mut world.made.watch, &mut world.made.word) }
}

fn destroy_watch(world: &mut World) -> Result<()> {
    // SAFETY: the watch was made before.
    ok("destroying a watch", unsafe { weft_watch_destroy(world.made.watch) })
}

fn write(world: &mut World) -> weft_status {
    let options: weft_op_options = sized();
    // SAFETY: both memories are registered.
    unsafe { weft_write(world.a, world.local, 0, world.remote, 0, 4096, &options, &mut world.made.op) }
}

fn read(world: &mut World) -> weft_status {
    let mut options: weft_op_options = sized();
    options.flags = WEFT_NOTIFY;
    // SAFETY: both memories are registered.
    unsafe { weft_read(world.a, world.local, 0, world.remote, 0, 4096, &options, &mut world.made.op) }
}

fn pages() -> weft_pages {
    let mut pages: weft_pages = sized();
    (pages.page_len, pages.page_count, pages.layer_count) = (512, 8, 2);
    (pages.local.range_step, pages.remote.range_step) = (1, 1);
    pages
}

fn write_pages(world: &mut World) -> weft_status {
    let mut options: weft_op_options = sized();
    options.flags = WEFT_NOTIFY;
    // SAFETY: both memories have the pages.
    unsafe { weft_write_pages(world.a, world.local, world.remote, &pages(), &options, &mut world.made.op) }
}

fn read_pages(world: &mut World) -> weft_status {
    // SAFETY: both memories have the pages.
    unsafe { weft_read_pages(world.a, world.local, world.remote, &pages(), null(), &mut world.made.op) }
}

/// Two entries for the other endpoint, and an empty one.
fn entries(world: &World) -> [weft_list_entry; 3] {
    // SAFETY: the struct has only integers and pointers.
    let empty: weft_list_entry = unsafe { zeroed() };
    let whole = weft_list_entry { local: world.local, remote: world.remote, len: 4096, ..empty };
    let other = weft_list_entry { local_range: 1, remote_range: 1, ..whole };
    [whole, other, weft_list_entry { peer: world.peer, ..empty }]
}

fn write_list(world: &mut World) -> weft_status {
    let list = entries(world);
    // SAFETY: the list has three entries.
    unsafe { weft_write_list(world.a, list.as_ptr(), 3, null(), &mut world.made.op) }
}

/// (Of a read an entry has bytes.)
fn read_list(world: &mut World) -> weft_status {
    let list = entries(world);
    // SAFETY: the list has two entries, and more.
    unsafe { weft_read_list(world.a, list.as_ptr(), 2, null(), &mut world.made.op) }
}

fn prepare_pages(world: &mut World) -> weft_status {
    // SAFETY: both memories have the pages.
    unsafe { weft_pages_prepare(world.a, world.local, world.remote, &pages(), 0, &mut world.made.prepared) }
}

fn prepare_list(world: &mut World) -> weft_status {
    let list = entries(world);
    // SAFETY: the list has three entries.
    unsafe { weft_list_prepare(world.a, list.as_ptr(), 3, 0, &mut world.made.prepared) }
}

fn destroy_prepared(world: &mut World) -> Result<()> {
    // SAFETY: it was prepared before.
    ok("destroying what was prepared", unsafe { weft_prepared_destroy(world.made.prepared) })
}

fn write_prepared(world: &mut World) -> weft_status {
    // SAFETY: it was prepared before.
    unsafe { weft_write_prepared(world.a, world.made.prepared, null(), &mut world.made.op) }
}

fn read_prepared(world: &mut World) -> weft_status {
    // SAFETY: it was prepared before.
    unsafe { weft_read_prepared(world.a, world.made.prepared, null(), &mut world.made.op) }
}

/// What nobody adds to.
fn expect_of_its_own(world: &mut World) -> Result<()> {
    ok("making a counter", create_counter(world))?;
    ok("expecting", expect(world))
}

fn cancel(world: &mut World) -> weft_status {
    // SAFETY: the endpoint is open.
    unsafe { weft_op_cancel(world.a, world.made.op) }
}

fn destroy_counter_waited_for_in_vain(world: &mut World) -> Result<()> {
    world.await_end()?;
    destroy_counter(world)
}

fn release_message(world: &mut World) -> weft_status {
    // SAFETY: the message was polled before.
    unsafe { weft_message_release(world.a, world.made.op) }
}

fn register_device(world: &mut World) -> weft_status {
    let range = weft_memory_range { address: device_bytes(), len: LEN as u64 };
    let mut args: weft_memory_args = sized();
    args.kind = WEFT_MEMORY_CUDA;
    // SAFETY: the range is of the device.
    unsafe { weft_memory_register(world.a, &range, 1, &args, &mut world.made.memory) }
}

/// libfabric's tcp knows no memory of devices.
pub fn has_devices(fabric: &str) -> bool {
    fabric != "sim:like=tcp"
}

/// What a world makes for devices once, and keeps, is made here.
pub fn reach_device(world: &mut World) -> Result<()> {
    for moves in [write_device, read_device] {
        ok("registering", register_device(world))?;
        ok("moving", moves(world))?;
        await_and_deregister(world)?;
    }
    world.first = world.at_rest();
    Ok(())
}

fn write_device(world: &mut World) -> weft_status {
    // SAFETY: both memories are registered.
    unsafe { weft_write(world.a, world.made.memory, 0, world.remote, 0, 4096, null(), &mut world.made.op) }
}

fn read_device(world: &mut World) -> weft_status {
    // SAFETY: both memories are registered.
    unsafe { weft_read(world.a, world.made.memory, 0, world.remote, 0, 4096, null(), &mut world.made.op) }
}

fn await_and_deregister(world: &mut World) -> Result<()> {
    world.await_op()?;
    deregister_it(world)
}

fn await_and_destroy_prepared(world: &mut World) -> Result<()> {
    world.await_op()?;
    destroy_prepared(world)
}

fn send(world: &mut World) -> weft_status {
    // SAFETY: the text has five bytes.
    unsafe { weft_send(world.a, world.peer, c"hello".as_ptr().cast(), 5, null(), &mut world.made.op) }
}

fn fence(world: &mut World) -> weft_status {
    // SAFETY: the endpoint is open.
    unsafe { weft_peer_fence(world.a, world.peer, null(), &mut world.made.op) }
}

fn fetch_add(world: &mut World) -> weft_status {
    // SAFETY: the remote memory is imported.
    unsafe { weft_fetch_add(world.a, world.remote, 0, 1, null(), &mut world.made.op) }
}

fn compare_swap(world: &mut World) -> weft_status {
    // SAFETY: the remote memory is imported.
    unsafe { weft_compare_swap(world.a, world.remote, 0, 0, 1, null(), &mut world.made.op) }
}

/// Of all of the memory, with a place for a notification.
fn grant(world: &mut World) -> weft_status {
    let mut args: weft_grant_args = sized();
    (args.flags, args.notify, args.timeout_ns) = (WEFT_NOTIFY_FAILURE, 7, 3_600_000_000_000);
    // SAFETY: the memory is registered, and the peer connected.
    unsafe { weft_grant_create(world.local, world.peer, &args, &mut world.made.token) }
}

fn revoke(world: &mut World) -> weft_status {
    // SAFETY: the token is of a grant.
    unsafe { weft_grant_revoke(world.a, &world.made.token, null(), &mut world.made.op) }
}

fn revoke_it(world: &mut World) -> Result<()> {
    ok("revoking", revoke(world))?;
    world.await_op()
}
