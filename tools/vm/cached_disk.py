#!/usr/bin/env python3
"""A disk with a volatile write cache, for QEMU, as a server of NBD: what was written since the last flush is held in memory,
and is dropped when the connection ends, as when a machine loses its power. One connection after the other.

    tools/vm/cached_disk.py SOCKET IMAGE BYTES

IMAGE is the stable part, a file. The first line of the output is the process's number, once the socket is there; then one
line for each connection: what was written, flushed and dropped.
"""
import mmap
import os
import socket
import struct
import sys

SECTOR = 512
OPTION_EXPORT_NAME, OPTION_ABORT, OPTION_INFO, OPTION_GO = 1, 2, 6, 7
REPLY_ACK, REPLY_INFO, REPLY_UNSUPPORTED = 1, 3, (1 << 31) + 1
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
FUA = 1  # flag of a command
EINVAL = 22
# It has flags, takes flushes, and takes writes that are stable at once.
FLAGS = 1 | 4 | 8


class Disk:
    def __init__(self, image: str, size: int):
        self.file = os.open(image, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self.file, size)
        self.size = size
        self.cache = mmap.mmap(-1, size)
        self.is_cached = bytearray(size // SECTOR)
        self.dirty: list[tuple[int, int]] = []
        self.counts = dict.fromkeys(("writes", "flushes", "fua", "dropped"), 0)

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(os.pread(self.file, length, offset))
        first, last = offset // SECTOR, (offset + length) // SECTOR
        begin = self.is_cached.find(1, first, last)
        while begin >= 0:
            end = self.is_cached.find(0, begin, last)
            end = last if end < 0 else end
            at = begin * SECTOR - offset
            data[at : at + (end - begin) * SECTOR] = self.cache[begin * SECTOR : end * SECTOR]
            begin = self.is_cached.find(1, end, last)
        return bytes(data)

    def mark(self, offset: int, length: int, cached: int) -> None:
        first, count = offset // SECTOR, length // SECTOR
        self.is_cached[first : first + count] = bytes([cached]) * count

    def write(self, offset: int, data: bytes, stable: bool) -> None:
        self.counts["writes"] += 1
        self.counts["fua"] += stable
        self.cache[offset : offset + len(data)] = data
        self.mark(offset, len(data), 1)
        if stable:
            os.pwrite(self.file, data, offset)
        else:
            self.dirty.append((offset, len(data)))

    def flush(self) -> None:
        self.counts["flushes"] += 1
        for offset, length in self.dirty:
            os.pwrite(self.file, self.cache[offset : offset + length], offset)
        self.forget()

    def forget(self) -> None:
        """The cache holds nothing that the image does not have."""
        self.is_cached = bytearray(len(self.is_cached))
        self.dirty.clear()

    def lose_power(self) -> dict[str, int]:
        counts = {**self.counts, "dropped": len(self.dirty)}
        self.forget()
        self.counts = dict.fromkeys(self.counts, 0)
        return counts


class Connection:
    def __init__(self, peer: socket.socket, disk: Disk):
        self.peer, self.disk = peer, disk

    def take(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            got = self.peer.recv_into(view)
            if got == 0:
                raise ConnectionResetError
            view = view[got:]
        return bytes(data)

    def reply_option(self, option: int, kind: int, data: bytes = b"") -> None:
        self.peer.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)

    def negotiate(self) -> bool:
        """False: the client asks for no more."""
        self.peer.sendall(b"NBDMAGIC" + b"IHAVEOPT" + struct.pack(">H", 3))
        no_zeroes = struct.unpack(">I", self.take(4))[0] & 2
        export = struct.pack(">QH", self.disk.size, FLAGS)
        while True:
            _, option, length = struct.unpack(">8sII", self.take(16))
            self.take(length)
            if option == OPTION_EXPORT_NAME:
                self.peer.sendall(export + (b"" if no_zeroes else bytes(124)))
                return True
            if option in (OPTION_INFO, OPTION_GO):
                self.reply_option(option, REPLY_INFO, struct.pack(">H", 0) + export)
                self.reply_option(option, REPLY_ACK)
                if option == OPTION_GO:
                    return True
            elif option == OPTION_ABORT:
                self.reply_option(option, REPLY_ACK)
                return False
            else:
                self.reply_option(option, REPLY_UNSUPPORTED)

    def serve(self) -> None:
        if not self.negotiate():
            return
        while True:
            _, flags, command, cookie, offset, length = struct.unpack(">IHHQQI", self.take(28))
            data, error = b"", 0
            sent = self.take(length) if command == WRITE else b""
            if command == DISCONNECT:
                return
            if (offset | length) % SECTOR or offset + length > self.disk.size:
                error = EINVAL
            elif command == READ:
                data = self.disk.read(offset, length)
            elif command == WRITE:
                self.disk.write(offset, sent, bool(flags & FUA))
            elif command == FLUSH:
                self.disk.flush()
            else:
                error = EINVAL
            self.peer.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + data)


def main() -> None:
    path, image, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    disk = Disk(image, size)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print(os.getpid(), flush=True)
    while True:
        peer, _ = listener.accept()
        with peer:
            try:
                Connection(peer, disk).serve()
            except OSError:
                pass
        print(*(f"{name} {count}" for name, count in disk.lose_power().items()), flush=True)


main()
