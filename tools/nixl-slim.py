#!/usr/bin/env python3
"""Takes of NIXL's wheel what its UCX backend needs to reach memory of GPUs.     tools/nixl-slim.py WHEEL FOLDER"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOTS = r"nixl_cu12/.*|nixl_cu12-[^/]*\.dist-info/METADATA|\.nixl_cu12\.mesonpy\.libs/plugins/libplugin_UCX\.so|nixl_cu12\.libs/ucx/lib(uct_cuda|ucm_cuda|uct_cma)\..*"


def needed(path):
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=False).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def main(wheel, folder):
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as packed:
        packed.extractall(scratch)
        names = packed.namelist()
        libraries = {Path(name).name: name for name in names if ".so" in name and "/plugins/" not in name and "/nixl/" not in name}
        take = [name for name in names if re.fullmatch(ROOTS, name)]
        for name in take:  # grows meanwhile
            if ".so" in name:
                take += [libraries[name] for name in needed(Path(scratch) / name) if name in libraries and libraries[name] not in take]
        size = 0
        for name in take:
            to = Path(folder) / name
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes((Path(scratch) / name).read_bytes())
            size += to.stat().st_size
    print(f"NIXL: {len(take)} of {len(names)} files, {size >> 20} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
