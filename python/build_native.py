"""Compiles src/_native.c, where there are a C compiler (CC) and Python's headers: the calls that are made for each operation. Without
it the package does the same by ctypes.

    python3 build_native.py [INCLUDE [FILE]]     the folder of weft.h, and what to make; of the checkout, and in its package
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent


def build(include: Path, into: Path) -> bool:
    """Says so, and returns False, where it cannot."""
    command = [*shlex.split(os.environ.get("CC") or "cc"), "-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-s",
               "-Wl,--build-id=none", "-Wall", "-Wextra", "-Wno-missing-field-initializers", f"-I{include}",
               f"-I{sysconfig.get_path('include')}", "_native.c", "-o", str(into)]
    try:
        # In its folder, so that no other's name is in it.
        subprocess.run(command, cwd=HERE / "src", check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stdout", None) or str(error)).strip().splitlines()[0]
        print(f"libweft: the module of _native.c could not be compiled, ctypes does its calls ({why})", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    include = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "include").resolve()
    build(include, Path(sys.argv[2] if len(sys.argv) > 2 else HERE / "src/libweft/_native.abi3.so").resolve())
