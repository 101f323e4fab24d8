"""The emulated NICs by the package `efa` of the Python index: libibverbs and libefa, without libfabric and without Weft.

Runs below `efa.sh run`, with two devices: all kinds of operations and their errors, and the faults that a program can see
by an event. A line for each test.
"""

import ctypes
import mmap
import os
import select
import socket
import time

import efa

QKEY, LEN = 0x1234, 65536
ACCESS = efa.AccessFlags.LOCAL_WRITE | efa.AccessFlags.REMOTE_WRITE | efa.AccessFlags.REMOTE_READ


def tell(words):
    """A fault, to the emulator."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
        control.settimeout(30)
        control.bind("")
        control.sendto(words.encode(), os.environ["EFA_EMULATOR"] + "/control")
        answer = control.recv(1000).decode()
    assert not answer, f"{words}: {answer}"


class End:
    """One program's end: a device, a queue pair, a registered buffer."""

    def __init__(self, device, channel=False):
        self.context = efa.get_efa_device_list()[device].open()
        self.pd = self.context.alloc_pd()
        self.channel = self.context.create_comp_channel() if channel else None
        self.cq = self.context.create_cq(256, self.channel)
        caps = self.context.query_efa_device().device_caps
        ops = efa.QPExSendOpsFlags.SEND | efa.QPExSendOpsFlags.RDMA_READ
        self.writes = bool(caps & efa.EfaDeviceCaps.RDMA_WRITE)
        if self.writes:
            ops |= efa.QPExSendOpsFlags.RDMA_WRITE | efa.QPExSendOpsFlags.RDMA_WRITE_WITH_IMM
        self.qp = self.pd.create_qp(efa.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, send_ops_flags=ops)).prepare(qkey=QKEY)
        self.buffer = bytearray(LEN)
        self.mr = efa.reg_tensor(self.pd, Buffer(self.buffer), ACCESS)
        self.at = Buffer(self.buffer).data_ptr()
        self.info = efa.local_endpoint_info(self.qp, qkey=QKEY)

    def meet(self, other):
        self.peer = other.info.peer(self.pd)

    def post(self, other, opcode, key=None, sge=None, at=0):
        self.qp.post_send(efa.SendWR(wr_id=7, sg_list=[sge or self.mr.sge()], opcode=opcode, send_flags=efa.SendFlags.SIGNALED,
                                     remote_addr=other.at + at, rkey=other.mr.rkey if key is None else key, dest=self.peer))

    def completion(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for completion in self.cq.poll(1):
                return completion
        raise AssertionError("no completion")

    def event(self, seconds=10):
        assert select.select([self.context.async_fd], [], [], seconds)[0], "no event"
        return self.context.get_async_event()


class Buffer:
    """A bytearray as the bindings take it."""

    def __init__(self, data):
        self.view = (ctypes.c_char * len(data)).from_buffer(data)
        self.len = len(data)

    def data_ptr(self):
        return ctypes.addressof(self.view)

    def numel(self):
        return self.len

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True


def pair(**words):
    a, b = End(0, **words), End(1, **words)
    a.meet(b)
    b.meet(a)
    a.buffer[:] = bytes(os.urandom(256)) * (LEN // 256)
    return a, b


def both_devices_are_listed():
    assert len(efa.get_efa_device_list()) == 2
    port = efa.get_efa_device_list()[1].open().query_port()
    assert port.state == efa.PortState.ACTIVE, port


def messages_arrive():
    a, b = pair()
    b.qp.post_recv([efa.RecvWR(wr_id=5, sg_list=[b.mr.sge(offset=0, length=8000)])])
    a.post(b, efa.WROpcode.SEND, sge=a.mr.sge(offset=0, length=4000))
    a.completion().raise_for_status()
    got = b.completion()
    assert got.is_success and got.wr_id == 5 and got.byte_len == 4000 and b.buffer[:4000] == a.buffer[:4000]


def reads_and_writes_move_their_bytes():
    a, b = pair()
    b.post(a, efa.WROpcode.RDMA_READ)
    b.completion().raise_for_status()
    assert a.buffer == b.buffer
    if a.writes:
        a.buffer[:] = b"x" * LEN
        a.post(b, efa.WROpcode.RDMA_WRITE)
        a.completion().raise_for_status()
        assert a.buffer == b.buffer


def a_requester_that_is_not_known_is_refused():
    """The documentation of the bindings names the status: 0x0e."""
    a, b = End(0), End(1)
    a.meet(b)
    a.post(b, efa.WROpcode.RDMA_READ)
    got = a.completion()
    assert got.vendor_err == 0x0E, (got.status, got.vendor_err)


def a_wrong_key_and_a_wrong_range_are_refused():
    a, b = pair()
    for key, at in ((b.mr.rkey ^ 1 << 18, 0), (None, 1)):
        a.post(b, efa.WROpcode.RDMA_READ, key=key, at=at)
        got = a.completion()
        assert got.vendor_err == 7, (got.status, got.vendor_err)


def a_queue_pair_that_has_gone_is_named():
    a, b = pair()
    b.qp.close()
    a.post(b, efa.WROpcode.RDMA_READ)
    assert a.completion().vendor_err == 9


def memory_of_a_dmabuf_is_reached():
    a, b = pair()
    file = os.memfd_create("dmabuf")
    os.ftruncate(file, LEN)
    with mmap.mmap(file, LEN) as shared:
        shared[:] = b"d" * LEN
        remote = b.pd.reg_dmabuf_mr(4096, LEN - 4096, 0x10000, file, ACCESS)
        b.at, b.mr = 0x10000, remote
        a.post(b, efa.WROpcode.RDMA_READ, sge=a.mr.sge(offset=0, length=LEN - 4096))
        a.completion().raise_for_status()
        assert a.buffer[: LEN - 4096] == b"d" * (LEN - 4096) and a.buffer[LEN - 4096] != ord("d")


def lost_handles_are_made_anew():
    a, b = pair()
    tell("nic 0 lose-handles")
    a.post(b, efa.WROpcode.RDMA_READ)
    assert a.completion().vendor_err == 4
    a.meet(b)
    a.post(b, efa.WROpcode.RDMA_READ)
    a.completion().raise_for_status()


def a_queue_pair_in_error_flushes_and_says_so():
    a, b = pair()
    b.qp.post_recv([efa.RecvWR(wr_id=5, sg_list=[b.mr.sge(offset=0, length=8000)])])
    tell("nic 1 qp-error")
    assert b.completion().status == efa.WCStatus.WR_FLUSH_ERR
    event = b.event()
    b.context.ack_async_event(event)
    b.qp.close()
    a.post(b, efa.WROpcode.RDMA_READ)
    assert a.completion().vendor_err == 9


def registered_pages_are_bounded():
    a, _ = pair()
    tell("nic 0 max-pages 1")
    try:
        efa.reg_tensor(a.pd, Buffer(a.buffer), ACCESS)
        raise AssertionError("more pages than there may be")
    except (efa.EfaError, OSError):
        pass
    tell("nic 0 whole")
    efa.reg_tensor(a.pd, Buffer(a.buffer), ACCESS)


def a_device_that_was_reset_fails_and_can_be_opened_again():
    a, b = pair()
    tell("nic 0 reset")
    a.event()
    try:
        efa.reg_tensor(a.pd, Buffer(a.buffer), ACCESS)
        raise AssertionError("it registers")
    except (efa.EfaError, OSError):
        pass
    again = End(0)
    again.meet(b)
    b.meet(again)
    again.post(b, efa.WROpcode.RDMA_READ)
    again.completion().raise_for_status()


def main():
    failed = 0
    for test in (both_devices_are_listed, messages_arrive, reads_and_writes_move_their_bytes,
                 a_requester_that_is_not_known_is_refused, a_wrong_key_and_a_wrong_range_are_refused,
                 a_queue_pair_that_has_gone_is_named, memory_of_a_dmabuf_is_reached, lost_handles_are_made_anew,
                 a_queue_pair_in_error_flushes_and_says_so, registered_pages_are_bounded,
                 a_device_that_was_reset_fails_and_can_be_opened_again):
        try:
            test()
            print(f"{test.__name__}: ok", flush=True)
        except Exception as error:  # noqa: BLE001 - the next ones run all the same
            failed += 1
            print(f"{test.__name__}: FAILED: {error!r}", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
