"""Puts libweft.so into the wheel, and names the wheel after what the library needs.

The library is built by cargo from the folder above; or it is the file that WEFT_LIBRARY names.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Library(BuildHookInterface):  # type: ignore[type-arg]
    """The only part of the wheel that is not Python."""

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        if version == "editable":
            return  # in which case WEFT_LIBRARY names the library
        library = self.built()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(library)}"
        build_data["force_include"][str(library)] = "libweft/libweft.so"

    def built(self) -> Path:
        named = os.environ.get("WEFT_LIBRARY")
        if named:
            library = Path(named).resolve()
            if not library.is_file():
                raise SystemExit(f"WEFT_LIBRARY is {named}: no such file")
            return library
        source = Path(self.root).parent
        if not (source / "Cargo.toml").exists():
            raise SystemExit(f"{source} has no Cargo.toml: build the wheel within a checkout of Weft, "
                             "or name a libweft.so in WEFT_LIBRARY")
        target = Path(os.environ.get("CARGO_TARGET_DIR") or source / "target").resolve()
        usual = Path.home() / ".cargo/bin/cargo"  # rustup's folder, which is not in PATH before the next login
        cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(usual)
        asked = dict(os.environ, CARGO=cargo, WEFT_NO_INSTALL="1")
        try:
            subprocess.run([source / "tools/need.sh", "lib"], env=asked, check=True)
            subprocess.run([cargo, "build", "--release", "--locked", "-p", "weft", "--target-dir", str(target)],
                           cwd=source, check=True)
        except subprocess.CalledProcessError:
            raise SystemExit("libweft.so could not be built: why is said above") from None
        return target / "release" / "libweft.so"


def platform_of(library: Path) -> str:
    """The manylinux tag of the newest glibc that the library's symbols ask for."""
    newest = [2, 17]  # the oldest that has a tag of this form
    with open(library, "rb") as file:
        for section in ELFFile(file).iter_sections():
            if not isinstance(section, GNUVerNeedSection):
                continue
            for _, versions in section.iter_versions():
                for version in versions:
                    name, _, number = version.name.partition("_")
                    if name == "GLIBC" and number[:1].isdigit():
                        newest = max(newest, [int(part) for part in number.split(".")])
    return f"manylinux_{newest[0]}_{newest[1]}_{platform.machine()}"
