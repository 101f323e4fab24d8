"""Pages of one torch tensor on a GPU to pages of another one, without a copy in Python.

    pip install ./python && python3 examples-python/gpu_pages.py
"""
import sys

import torch  # type: ignore[import-not-found,unused-ignore]
import libweft

PAGES, PAGE = 128, 32768


def main() -> int:
    if not torch.cuda.is_available():
        print("SKIPPED: no GPU here")
        return 77
    source = torch.randn(PAGES, PAGE // 4, device="cuda:0")
    target = torch.zeros(PAGES, PAGE // 4, device=f"cuda:{torch.cuda.device_count() - 1}")
    order = torch.randperm(PAGES)
    with libweft.Endpoint() as sender, libweft.Endpoint() as receiver:
        peer = sender.connect(receiver.address).wait()
        remote = peer.import_memory(receiver.register(target).export())
        local = sender.register(source)
        torch.cuda.synchronize()  # the source is filled; docs/gpu.md orders a transfer with a stream instead
        done = sender.write_pages(local, remote, PAGE, remote=order, timeout=10).wait()
    assert torch.equal(target.cpu()[order], source.cpu())
    print(f"{PAGES} pages of {PAGE // 1024} KiB from {source.device} to {target.device}: {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
