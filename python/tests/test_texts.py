"""What is text and what is bytes."""

import unittest
from typing import Any

import libweft
from support import PAGE, Pair


class Texts(Pair):
    def test_what_the_library_says_is_text(self) -> None:
        rail, peer = self.here.rail_info(0), self.peer.info()
        for said in (rail.name, rail.fabric, peer.fabric, peer.reason, self.peer.lanes()[0].state):
            self.assertIsInstance(said, str)
            # As programs for 0.2 have it.
            self.assertTrue(said == said.encode() and said.encode() == said and not said != said.encode() and said != b"other")
            self.assertEqual((said.decode(), hash(said)), (str(said), hash(str(said))))
        self.assertIn(f"fabric={str(rail.fabric)!r}", repr(rail))

    def test_a_secret_may_be_text(self) -> None:
        with libweft.Endpoint(secret="sixteen letters, \u00e9") as here, libweft.Endpoint(secret="sixteen letters, \u00e9".encode()) as there:
            here.connect(there.address).wait(20)
        with self.assertRaisesRegex(libweft.UsageError, "16"):
            libweft.Endpoint(secret="short")

    def test_bytes_and_text_are_not_confused_in_silence(self) -> None:
        wrong: Any = b"host"
        text: Any = "text"
        for options in ({"fabric": wrong}, {"rails": wrong}, {"tcp_ports": wrong}, {"tcp_address": wrong}):
            with self.assertRaisesRegex(TypeError, f"{list(options)[0]} is of type bytes: it must be a str"):
                libweft.Endpoint(**options)
        with self.assertRaisesRegex(ValueError, "fabric is 'host.*null"):
            libweft.Endpoint("host\0tcp")
        with self.assertRaisesRegex(TypeError, "secret is of type int: it must be bytes, or a str"):
            libweft.Endpoint(secret=wrong[0])
        local, remote = self.memories(bytearray(PAGE), bytearray(PAGE))
        for said, call in (("address is of type str: it must be bytes", lambda: self.here.connect(text)),
                           ("descriptor is of type str: it must be bytes", lambda: self.peer.import_memory(text)),
                           ("notify_data is of type str: it must be bytes", lambda: self.here.write(local, remote, notify=1, notify_data=text)),
                           ("grant is of type str: it must be bytes", lambda: self.here.write(local, remote, grant=text)),
                           ("grant is of type str: it must be bytes", lambda: self.here.revoke(text)),
                           ("data is of type str, which has no bytes: encode it", lambda: self.peer.send(text)),
                           ("buffer 1 is of type str, which has no bytes: encode it", lambda: self.here.register([b"1", text]))):
            with self.subTest(said), self.assertRaisesRegex(TypeError, said):
                call()
        peer = self.here.connect(bytearray(self.there.address)).wait(20)  # type: ignore[arg-type,unused-ignore]
        self.assertEqual(peer.id, self.peer.id)


if __name__ == "__main__":
    unittest.main()
