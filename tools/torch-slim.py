#!/usr/bin/env python3
"""Makes the registry's torch importable without the gigabytes of CUDA libraries that it names, where no GPU is used: libraries
of these names whose functions all answer "no device".

    target/torch/bin/python tools/torch-slim.py     with the Python that has torch; into its folder nvidia
"""

import re
import subprocess
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
#: Those of CUDA; the driver's is not needed.
OF_CUDA = re.compile(r"(lib)?(cu|nccl|nv)(?!da\.so)")
#: torch looks for these by itself.
MORE = ("libnvJitLink.so.13", "libnvrtc-builtins.so.13")


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make(path, version, symbols):
    source, script = path.with_suffix(".c"), path.with_suffix(".map")
    source.write_text("".join(f"int {symbol}(void) {{ return 100; }}\n" for symbol in sorted(symbols)))
    script.write_text(f"{version or 'ANY'} {{ global: *; }};\n")
    said("cc", "-w", "-fno-builtin", "-shared", f"-Wl,-soname,{path.name},--version-script,{script}", "-o", str(path), str(source))
    source.unlink()
    script.unlink()


def main():
    parts = sorted((SITE / "torch/lib").glob("*.so*"))
    needed, versions, symbols = set(MORE), {}, {}
    for part in parts:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-d", str(part)))) - {p.name for p in parts}
        for name, version in re.findall(r"File: (\S+) .*\n.*Name: (\S+)", said("readelf", "-VW", str(part))):
            versions[name] = version
        for symbol, _, version in re.findall(r" [Uw] ([^@\s]+)(@+(\S+))?$", said("nm", "-D", "--undefined-only", str(part)), re.M):
            symbols.setdefault(version, set()).add(symbol)
    into = SITE / "nvidia/cu13/lib"
    into.mkdir(parents=True, exist_ok=True)
    for name in filter(OF_CUDA.match, needed):
        make(into / name, versions.get(name), symbols.get(versions.get(name), set()))
    # A function without a version may be of any of them.
    make(into / "libcurand.so.10", None, set(filter(OF_CUDA.match, symbols[""])))


if __name__ == "__main__":
    main()
