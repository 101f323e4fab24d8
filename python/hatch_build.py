"""Puts what is not Python into the wheels, and names them after what it needs: into libweft's the library, headers, CMake
package and pkg-config file of a tarball of `make dist`, and the module of `build_native.py`; into libweft-nixl's the plugin;
into libweft-tools' weft-bench and its man page, of such a tarball.

libweft's wheel is for every Python 3: the module is for CPython 3.9 and later, and others, which do not find it, use ctypes.

WEFT_DIST names the tarball, or it is made from the folder above; WEFT_NIXL_PLUGIN names the plugin.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Dict, List

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CMAKE = "3.20"
MACHINES = {"x64": "x86_64", "AArch64": "aarch64"}


class Library(BuildHookInterface):  # type: ignore[type-arg]
    """The part of the wheel that is not Python."""

    def dependencies(self) -> List[str]:
        """What pip is to install for the build: CMake, which makes the tarball, where none is found that runs."""
        return [] if self.metadata.name == "libweft-nixl" or "WEFT_DIST" in os.environ or has_cmake() else [f"cmake>={CMAKE}"]

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        if version == "editable":
            return  # in which case WEFT_LIBRARY names the library
        self.scratch = Path(tempfile.mkdtemp())
        if self.metadata.name == "libweft-nixl":
            library = named("WEFT_NIXL_PLUGIN")
            build_data["force_include"][str(library)] = "libweft_nixl/plugins/libplugin_WEFT.so"
            libraries = [library]
        elif self.metadata.name == "libweft-tools":
            libraries = self.tools(build_data)
        else:
            libraries = self.libraries(build_data["force_include"])
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(*libraries)}"

    def finalize(self, version: str, build_data: Dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self.scratch)

    def libraries(self, include: Dict[str, str]) -> List[Path]:
        """Adds the files of the tarball but weft-bench, and the module. A wheel has no links: the library has the name that programs look
        for when they run, and the one that linkers look for is a script of theirs."""
        with tarfile.open(self.tarball()) as packed:
            files = [member for member in packed.getmembers() if member.isfile() and "weft-bench" not in member.name]
            packed.extractall(self.scratch, files)
        for file in files:
            inside = Path(*Path(file.name).parts[1:])
            if inside.name.startswith("libweft.so."):
                library, inside = self.scratch / file.name, Path("lib/libweft.so.0")
            include[str(self.scratch / file.name)] = f"libweft/{inside}"
        script = self.scratch / "libweft.so"
        script.write_text("INPUT(libweft.so.0)\n")
        include[str(script)] = "libweft/lib/libweft.so"
        headers, module = next(self.scratch.glob("weft-*/include")), self.scratch / "_native.abi3.so"
        subprocess.run([sys.executable, Path(self.root) / "build_native.py", headers, module], check=True)
        if not module.exists():
            return [library]
        include[str(module)] = f"libweft/{module.name}"
        return [library, module]

    def tools(self, build_data: Dict[str, Any]) -> List[Path]:
        """Adds weft-bench, its man page and the licences."""
        with tarfile.open(self.tarball()) as packed:
            packed.extractall(self.scratch, [member for member in packed.getmembers() if member.isfile()])
        root = next(self.scratch.glob("weft-*/"))
        build_data["shared_scripts"][str(root / "bin/weft-bench")] = "weft-bench"
        build_data["shared_data"][str(root / "share/man/man1/weft-bench.1")] = "share/man/man1/weft-bench.1"
        build_data["shared_data"][str(root / "share/doc/weft")] = "share/doc/weft-tools"
        return [root / "bin/weft-bench"]

    def tarball(self) -> Path:
        if "WEFT_DIST" in os.environ:
            return named("WEFT_DIST")
        source = next((above for above in Path(self.root).parents if (above / "Cargo.lock").exists()), None)
        if not source:
            raise SystemExit(f"no folder above {self.root} has a Cargo.lock: build the wheel within a checkout of Weft, "
                             "or name a tarball of make dist in WEFT_DIST")
        usual = Path.home() / ".cargo/bin/cargo"  # rustup's folder, which is not in PATH before the next login
        cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(usual)
        asked = dict(os.environ, CARGO=cargo, WEFT_NO_INSTALL="1", TOOLS="1" if self.metadata.name == "libweft-tools" else "")
        try:
            subprocess.run([source / "tools/need.sh", "dist"], env=asked, check=True)
            subprocess.run([sys.executable, Path(self.root) / "build_progress.py", source / "tools/dist.sh", self.scratch], env=asked, check=True)
        except subprocess.CalledProcessError:
            raise SystemExit("libweft.so could not be built: why is said above") from None
        return next(self.scratch.glob("weft-*.tar.xz"))


def has_cmake() -> bool:
    """Whether there is one, new enough. That of a virtual environment is found, but is a script that does not run where pip builds."""
    try:
        said = subprocess.run(["cmake", "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    found = re.search(r"(\d+)\.(\d+)", said)
    return found is not None and [int(part) for part in found.groups()] >= [int(part) for part in CMAKE.split(".")]


def named(variable: str) -> Path:
    """The file that a variable of the environment names."""
    file = Path(os.environ.get(variable) or "").resolve()
    if not file.is_file():
        raise SystemExit(f"{variable} is {os.environ.get(variable)}: no such file")
    return file


def platform_of(*libraries: Path) -> str:
    """The manylinux tag of the newest glibc that the libraries' symbols ask for."""
    newest = [2, 28]  # the oldest that wheels are built for
    for library in libraries:
        elf = ELFFile(io.BytesIO(library.read_bytes()))
        for section in elf.iter_sections():
            if not isinstance(section, GNUVerNeedSection):
                continue
            for _, versions in section.iter_versions():
                for version in versions:
                    name, _, number = version.name.partition("_")
                    if name == "GLIBC" and number[:1].isdigit():
                        newest = max(newest, [int(part) for part in number.split(".")])
    return f"manylinux_{newest[0]}_{newest[1]}_{MACHINES[elf.get_machine_arch()]}"
