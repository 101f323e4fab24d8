"""One rank of a training: offers its rows of the weights after each step, to one inference process.

    python3 trainer.py RANK RANKS [PORT]
"""

from __future__ import annotations

import socket
import sys

from libweft.weights import Source
from model import lines, rows, say, shards

STEPS = 3


def main(rank: int, ranks: int, port: int) -> None:
    mine = shards(rank, ranks)
    # Registered once; each pull reads what is there then.
    with Source(list(mine.values())) as source, socket.create_server(("127.0.0.1", port)) as server:
        print(f"trainer {rank} at {server.getsockname()[1]}", flush=True)
        connection, _ = server.accept()
        with connection:
            answers = lines(connection)
            say(connection, source.manifest().decode())
            for step in range(1, STEPS + 1):
                for name, shard in mine.items():
                    for at, row in enumerate(rows(name, rank, ranks)):
                        shard.buffer[at, :] = step * row  # "training"
                say(connection, step)
                if next(answers, None) != step:  # until then the weights must not change
                    sys.exit(f"trainer {rank}: the inference process has ended")
    print(f"trainer {rank}: {STEPS} versions were taken", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
