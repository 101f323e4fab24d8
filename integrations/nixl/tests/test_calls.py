"""Every call that an agent of NIXL has: once as it succeeds, and once as it fails.

NIXL_CALLS: a file for the figure nixl_calls_passed.
"""

import os
import socket
import time

import numpy as np
from support import BACKEND, FABRIC, PATIENCE, Agent, Case, names, nixl

PAGE = 4096
NONE = None  # the call takes nothing that could be wrong, or the backend does not have it


def until(done):
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "hangs"
        time.sleep(0.001)
    return True


def fails_or_raises(call):
    try:
        return not call()
    except Exception:
        return True


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Calls(Case):
    def listening(self):
        """An agent that also exchanges metadata by NIXL's own sockets."""
        port, name = free_port(), next(names)
        agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[BACKEND], enable_listen_thread=True, listen_port=port))
        return agent, name, port

    def calls(self):
        """name: (what is true of it, what raises or gives nothing)"""
        here, there = self.pair()
        far = there.name
        one, other = [(here.base, PAGE, 0)], [(there.base, PAGE, 0)]
        beyond = [(there.base + there.bytes.size, PAGE, 0)]
        more = np.zeros(PAGE, dtype=np.uint8)
        new = here.nixl.get_reg_descs([(more.ctypes.data, PAGE, 0, "")], "DRAM")
        unknown = here.nixl.get_reg_descs([(PAGE, PAGE, 0, "")], "DRAM")
        silent, gone, limited = Agent(), Agent(), Agent(timeout_ms=5000)
        here.meet(gone.describe()[0])
        lost = here.request("WRITE", [one[0][:2]], [(gone.base, PAGE)], gone.name)
        assert here.finish(lost) == "DONE"
        gone.drop()
        mine, theirs = here.prep_xfer_dlist("", here.descs(one)), here.prep_xfer_dlist(far, here.descs(other))

        def request():
            return here.request("WRITE", [one[0][:2]], [other[0][:2]], far, b"note")

        def done(handle):
            assert here.finish(handle) == "DONE"
            return handle

        def notified(find):
            here.send_notif(far, b"note")
            return until(find)

        def released(call, handle):
            call(handle)
            return True

        def again():
            here.remove_remote_agent(far)
            return here.meet(there.describe()[0]) == far

        with_telemetry = nixl.nixl_agent(next(names), nixl.nixl_agent_config(backends=[BACKEND], capture_telemetry=True))
        kept = np.zeros(PAGE, dtype=np.uint8)
        with_telemetry.register_memory([(kept.ctypes.data, PAGE, 0, "")], "DRAM")

        def telemetry():
            with_telemetry.add_remote_agent(there.describe()[0])
            lists = (with_telemetry.get_xfer_descs(d, "DRAM") for d in ([(kept.ctypes.data, PAGE, 0)], other))
            handle = with_telemetry.initialize_xfer("WRITE", *lists, far)
            with_telemetry.transfer(handle)
            until(lambda: with_telemetry.check_xfer_state(handle) == "DONE")
            return with_telemetry.get_xfer_telemetry(handle).totalBytes == PAGE

        (first, first_name, first_port), (second, second_name, second_port) = self.listening(), self.listening()
        block = np.zeros(PAGE, dtype=np.uint8)
        described = first.register_memory([(block.ctypes.data, PAGE, 0, "")], "DRAM")

        def known(agent, name):
            return until(lambda: agent.check_remote_metadata(name))

        def sent(call, *arguments):
            call(*arguments, ip_addr="127.0.0.1", port=second_port)
            return known(second, first_name)

        def fetched():
            second.fetch_remote_metadata(first_name, "127.0.0.1", first_port)
            return known(second, first_name)

        def invalidated():
            sent(first.send_local_metadata)
            first.invalidate_local_metadata("127.0.0.1", second_port)
            return until(lambda: not second.check_remote_metadata(first_name))

        return {
            "get_plugin_list": (lambda: BACKEND in here.get_plugin_list(), NONE),
            "get_plugin_mem_types": (lambda: "DRAM_SEG" in here.get_plugin_mem_types(BACKEND), lambda: here.get_plugin_mem_types("none")),
            "get_plugin_params": (lambda: "secret_file" in here.get_plugin_params(BACKEND), lambda: here.get_plugin_params("none")),
            "get_backend_mem_types": (lambda: "DRAM_SEG" in here.get_backend_mem_types(BACKEND), lambda: here.get_backend_mem_types("none")),
            "get_backend_params": (lambda: limited.get_backend_params(BACKEND)["timeout_ms"] == "5000", lambda: here.get_backend_params("none")),
            "create_backend": (lambda: BACKEND in Agent().nixl.backends, lambda: Agent(fabric="none")),
            "get_reg_descs": (lambda: new.descCount() == 1, lambda: here.nixl.get_reg_descs([(PAGE, PAGE, 0, "")], "none")),
            "get_xfer_descs": (lambda: here.descs(one).descCount() == 1, lambda: here.nixl.get_xfer_descs(one, "none")),
            "get_serialized_descs": (lambda: len(here.get_serialized_descs(new)) > 0, lambda: here.get_serialized_descs(lambda: 0)),
            "deserialize_descs": (lambda: here.deserialize_descs(here.get_serialized_descs(new)) == new, lambda: here.deserialize_descs(b"")),
            "register_memory": (lambda: here.nixl.register_memory(new) is not None, lambda: here.nixl.register_memory(unknown)),
            "get_partial_agent_metadata": (
                lambda: len(here.get_partial_agent_metadata(new, True, [BACKEND])) > 0,
                lambda: here.get_partial_agent_metadata(unknown, True, [BACKEND])),
            "deregister_memory": (lambda: here.deregister_memory(new) is None, lambda: here.deregister_memory(unknown)),
            "query_memory": (
                lambda: here.query_memory([(0, 0, 0, __file__)], BACKEND, mem_type="FILE")[0]["size"] == str(os.stat(__file__).st_size),
                lambda: here.query_memory(new, BACKEND)),
            "get_agent_metadata": (lambda: len(here.get_agent_metadata()) > 0, NONE),
            "add_remote_agent": (lambda: here.meet(silent.describe()[0]) == silent.name, lambda: here.add_remote_agent(b"none")),
            "check_remote_metadata": (lambda: here.check_remote_metadata(far), lambda: here.check_remote_metadata("nobody")),
            "make_connection": (lambda: here.make_connection(far) is None, lambda: here.make_connection("nobody")),
            "prep_xfer_dlist": (lambda: mine is not theirs, lambda: here.prep_xfer_dlist("nobody", here.descs(other))),
            "make_prepped_xfer": (
                lambda: done(here.make_prepped_xfer("WRITE", mine, [0], theirs, [0])) is not None,
                lambda: here.make_prepped_xfer("WRITE", mine, [0], theirs, [7])),
            "initialize_xfer": (
                lambda: done(request()) is not None,
                lambda: here.initialize_xfer("WRITE", here.descs(one), here.descs(beyond), far)),
            "transfer": (lambda: here.transfer(request()) != "ERR", lambda: here.finish(lost) == "DONE"),
            "check_xfer_state": (lambda: here.check_xfer_state(done(request())) == "DONE", lambda: here.check_xfer_state(lost) == "DONE"),
            "query_xfer_backend": (lambda: here.query_xfer_backend(request()) == BACKEND, NONE),
            "estimate_xfer_cost": (NONE, lambda: here.estimate_xfer_cost(request())),
            "get_xfer_telemetry": (telemetry, lambda: here.get_xfer_telemetry(done(request()))),
            "release_xfer_handle": (lambda: released(here.release_xfer_handle, request()), NONE),
            "release_dlist_handle": (lambda: released(here.release_dlist_handle, mine), NONE),
            "send_notif": (lambda: here.send_notif(far, b"note") is None, lambda: here.send_notif("nobody", b"note")),
            "get_new_notifs": (lambda: notified(there.get_new_notifs), lambda: there.get_new_notifs(["none"])),
            "update_notifs": (lambda: notified(lambda: there.update_notifs().get(here.name)), lambda: there.update_notifs(["none"])),
            "check_remote_xfer_done": (
                lambda: notified(lambda: there.check_remote_xfer_done(here.name, b"no")),
                lambda: there.check_remote_xfer_done("nobody", b"no")),
            "remove_remote_agent": (again, lambda: here.remove_remote_agent("nobody")),
            "send_local_metadata": (lambda: sent(first.send_local_metadata), lambda: first.send_local_metadata()),
            "send_partial_agent_metadata": (
                lambda: sent(first.send_partial_agent_metadata, described, True, [BACKEND]),
                lambda: first.send_partial_agent_metadata(unknown, True, [BACKEND])),
            "invalidate_local_metadata": (invalidated, lambda: first.invalidate_local_metadata()),
            "fetch_remote_metadata": (fetched, lambda: second.fetch_remote_metadata(first_name)),
        }

    def test_every_call_succeeds_and_fails(self):
        calls, passed = self.calls(), 0
        here = nixl.nixl_agent
        every = {name for name in dir(here) if not name.startswith("_") and callable(getattr(here, name))}
        self.assertEqual(every - set(calls), set(), "calls without a case")
        for name, (succeeds, fails) in calls.items():
            with self.subTest(name):
                if succeeds:
                    self.assertTrue(succeeds())
                if fails:
                    self.assertTrue(fails_or_raises(fails), "it does not fail")
                passed += 1
        if path := os.environ.get("NIXL_CALLS"):
            with open(path, "a") as file:
                file.write(f"nixl_calls_passed {passed} of {len(every)} over {FABRIC}\n")
