"""The transport for Ray, with actors in processes of their own. `make ray` installs Ray and runs it."""
# mypy: ignore-errors

import os
import signal
import time
import unittest
from typing import Any

try:
    import numpy as np
    import ray
    from libweft.ray import Transport, register_transport
except ImportError as missing:
    raise unittest.SkipTest(f"no Ray: {missing}") from None


class Quick(Transport):
    timeout = 20.0


register_transport(transport=Quick)


@ray.remote(enable_tensor_transport=True, num_cpus=0)
class Actor:
    @ray.method(tensor_transport="WEFT")
    def make(self, *arrays: Any) -> Any:
        """Arrays of (count, value)."""
        made = [np.full(count, value) for count, value in arrays]
        return made if len(made) != 1 else made[0]

    def total(self, *arrays: Any) -> float:
        return float(sum(np.sum(a) for group in arrays for a in (group if isinstance(group, list) else [group])))

    def process(self) -> int:
        return os.getpid()


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)

    @classmethod
    def tearDownClass(cls) -> None:
        ray.shutdown()

    def test_an_actor_reads_what_another_has_made(self) -> None:
        source, target = Actor.remote(), Actor.remote()
        self.assertEqual(ray.get(target.total.remote(source.make.remote((1 << 20, 2.0)))), 2 << 20)
        several = source.make.remote((1000, 1.0), (0, 1.0), (3, 5.0))
        for _ in range(3):
            self.assertEqual(ray.get(target.total.remote(several)), 1015)
        self.assertEqual(ray.get(target.total.remote(several, source.make.remote((1, 7.0)))), 1022)

    def test_four_actors_read_from_each_other(self) -> None:
        actors = [Actor.remote() for _ in range(4)]
        made = [a.make.remote((100_000, float(i + 1))) for i, a in enumerate(actors)]
        for i, target in enumerate(actors):
            others = [m for j, m in enumerate(made) if j != i]
            self.assertEqual(ray.get(target.total.remote(*others)), 100_000 * (10 - (i + 1)))

    def test_a_lost_source_ends_a_read_and_kills_nobody(self) -> None:
        source, target, other = Actor.remote(), Actor.remote(), Actor.remote()
        made = source.make.remote((16 << 20, 1.0))
        self.assertEqual(ray.get(target.total.remote(made)), 16 << 20)
        before = ray.get(target.process.remote())
        read = target.total.remote(made)
        os.kill(ray.get(source.process.remote()), signal.SIGKILL)
        began = time.monotonic()
        try:
            self.assertEqual(ray.get(read, timeout=60), 16 << 20)  # it was quicker
        except ray.exceptions.GetTimeoutError:
            self.fail("the read hangs")
        except Exception:
            pass
        with self.assertRaises(Exception):
            ray.get(target.total.remote(made), timeout=60)
        self.assertLess(time.monotonic() - began, 60)
        self.assertEqual(ray.get(target.total.remote(other.make.remote((10, 1.0))), timeout=60), 10)
        self.assertEqual(ray.get(target.process.remote()), before)
