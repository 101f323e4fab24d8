"""Files as memory of agents (FILE_SEG): an agent's own, and those of other agents."""

import os
import re
import tempfile
import threading

import numpy as np
from support import Agent, Case, pattern

ENGINES = os.path.join(os.path.dirname(__file__), "../../../docs/engines.md")
PAGE = 4096
SIZE = 1 << 20


class Files(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name="pages", content=None):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(bytes(SIZE) if content is None else content.tobytes())
        return path

    def opened(self, path, flags=os.O_RDWR):
        fd = os.open(path, flags)
        self.addCleanup(os.close, fd)
        return fd

    def moved(self, here, operation, pages, ident, other, base=0):
        """Moves pages (from, to) between `here.bytes` and a file that stands behind `ident`; "DONE", or why not."""
        memory = here.descs([(here.base + m * PAGE, PAGE, 0) for m, _ in pages])
        file = here.nixl.get_xfer_descs([(base + f * PAGE, PAGE, ident) for _, f in pages], "FILE")
        handle = here.initialize_xfer(operation, memory, file, other)
        state = here.finish(handle)
        here.release_xfer_handle(handle)
        return state

    def check(self, here, ident, other, path, base=0):
        """Pages of a file (from `base` on) are written, and read back, in another order."""
        order = np.random.default_rng(1).permutation(64)
        here.bytes[:] = pattern(here.bytes.size, 2)
        wanted = here.bytes[: 64 * PAGE].reshape(64, PAGE).copy()
        self.assertEqual(self.moved(here, "WRITE", list(enumerate(order)), ident, other, base), "DONE")
        with open(path, "rb") as file:
            file.seek(base)
            there = np.frombuffer(file.read(64 * PAGE), dtype=np.uint8).reshape(64, PAGE)
        np.testing.assert_array_equal(there[order], wanted)
        here.bytes[:] = 0
        self.assertEqual(self.moved(here, "READ", list(enumerate(order)), ident, other, base), "DONE")
        np.testing.assert_array_equal(here.bytes[: 64 * PAGE].reshape(64, PAGE), wanted)

    def test_an_agent_copies_between_its_memory_and_its_file(self):
        here, path = Agent(SIZE), self.file()
        fd = self.opened(path)
        registered = here.nixl.register_memory([(0, SIZE, fd, "")], "FILE")
        self.check(here, fd, here.name, path)
        here.deregister_memory(registered)

    def test_a_path_is_opened_by_its_modes(self):
        here, path = Agent(SIZE), os.path.join(self.folder, "new")
        created = here.nixl.register_memory([(PAGE, SIZE, 1 << 40, f"rw,create,direct:{path}")], "FILE")
        self.check(here, 1 << 40, here.name, path, PAGE)
        here.deregister_memory(created)
        self.assertEqual(os.stat(path).st_size, 65 * PAGE)
        with self.assertRaises(Exception):
            here.nixl.register_memory([(0, PAGE, 7, f"rw:{path}.not")], "FILE")
        with self.assertRaises(Exception):  # these name no path, and no descriptor is open at that number
            here.nixl.register_memory([(0, PAGE, 1 << 20, f"rw,fast:{path}")], "FILE")

    def test_agents_write_and_read_pages_of_each_others_files(self):
        here, there = self.pair(SIZE)
        path = self.file()
        there.nixl.register_memory([(0, SIZE, 5, f"rw:{path}")], "FILE")
        here.meet(there.describe()[0])
        self.check(here, 5, there.name, path)

    def test_a_file_is_the_local_side(self):
        here, there = self.pair(SIZE)
        content = pattern(SIZE, 3)
        here.nixl.register_memory([(0, SIZE, 1, f"ro:{self.file('source', content)}")], "FILE")
        target = self.file("target")
        there.nixl.register_memory([(0, SIZE, 2, f"rw:{target}")], "FILE")
        here.meet(there.describe()[0])
        local = here.nixl.get_xfer_descs([(0, SIZE, 1)], "FILE")
        for remote in here.descs([(there.base, SIZE, 0)]), here.nixl.get_xfer_descs([(0, SIZE, 2)], "FILE"):
            handle = here.initialize_xfer("WRITE", local, remote, there.name, b"done")
            self.assertEqual(here.finish(handle), "DONE")
            self.assertEqual(there.notifications(1), [(here.name, b"done")])
        np.testing.assert_array_equal(there.bytes, content)
        with open(target, "rb") as file:
            self.assertEqual(file.read(), content.tobytes())

    def test_what_a_file_does_not_have_fails_the_request(self):
        here, path = Agent(SIZE), self.file()
        here.nixl.register_memory([(0, 2 * SIZE, 1, f"ro:{path}")], "FILE")
        self.assertEqual(self.moved(here, "READ", [(0, 0)], 1, here.name), "DONE")
        for operation, page in ("WRITE", 0), ("READ", SIZE // PAGE):  # its modes, and its end
            self.assertNotIn(self.moved(here, operation, [(0, page)], 1, here.name), ("DONE", "PROC"))
        self.assertEqual(self.moved(here, "READ", [(0, 1)], 1, here.name), "DONE")

    def test_a_number_stands_for_one_file(self):
        here, one, other = Agent(SIZE), self.file("one"), self.file("other")
        halves = [here.nixl.register_memory([(at, SIZE // 2, 1, f"rw:{one}")], "FILE") for at in (0, SIZE // 2)]
        with self.assertRaises(Exception):
            here.nixl.register_memory([(0, SIZE, 1, f"rw:{other}")], "FILE")
        self.check(here, 1, here.name, one)
        for half in halves:
            here.deregister_memory(half)
        here.nixl.register_memory([(0, SIZE, 1, f"rw:{other}")], "FILE")
        self.check(here, 1, here.name, other)

    def test_files_come_and_go_beside_transfers(self):
        here = Agent(SIZE, threads=True)
        failures = []

        def work(number):
            path = self.file(str(number))
            for _ in range(10):
                with open(path, "r+b") as file:
                    registered = here.nixl.register_memory([(0, SIZE, file.fileno(), "")], "FILE")
                    state = self.moved(here, "WRITE", [(number, number)], file.fileno(), here.name)
                    here.deregister_memory(registered)
                if state != "DONE":
                    failures.append(state)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(failures, [])

    def test_the_block_of_the_page_moves_pages(self):
        here, numbers = Agent(SIZE), list(range(15, -1, -1))
        here.bytes[:] = pattern(SIZE, 4)
        with open(ENGINES, encoding="utf-8") as page:
            block = next(code for code in re.findall(r"^```python\n(.*?)^```$", page.read(), re.M | re.S) if '"FILE"' in code)
        block = block.replace("/nvme", self.folder).replace("agent.initialize_xfer", "request = agent.initialize_xfer")
        made = {"agent": here, "memory": here.descs([(here.base + n * 65536, 65536, 0) for n in range(16)]), "numbers": numbers}
        exec(block, made)
        self.assertEqual(here.finish(made["request"]), "DONE")
        with open(os.path.join(self.folder, "pages"), "rb") as file:
            there = np.frombuffer(file.read(), dtype=np.uint8)
        np.testing.assert_array_equal(there.reshape(16, 65536)[numbers], here.bytes.reshape(16, 65536))

    def test_files_are_queried_by_path(self):
        here, path = Agent(SIZE), self.file()
        paths = [path, f"rw:{path}", path + ".not", ""]
        there, also, missing, empty = here.query_memory([(0, 0, 0, p) for p in paths], here.backend, mem_type="FILE")
        self.assertEqual((there["size"], also), (str(SIZE), there))
        self.assertEqual((missing, empty), (None, None))
