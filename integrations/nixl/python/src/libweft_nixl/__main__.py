"""Says how NIXL is given the plugin of this wheel: python -m libweft_nixl"""

import importlib.util
import os
import pathlib

PLUGIN = pathlib.Path(__file__).resolve().parent / "plugins" / "libplugin_WEFT.so"


def folders_of_nixl() -> "list[pathlib.Path]":
    """Where NIXL's wheels beside this one have their plugins."""
    return sorted(PLUGIN.parents[2].glob(".nixl*.mesonpy.libs/plugins"))


def main() -> None:
    print(f"The plugin is {PLUGIN}.\n")
    print("WEFT beside NIXL's other backends, where NIXL's wheel is installed in the same folder:")
    for folder in folders_of_nixl() or ["SITE-PACKAGES/.nixl_cu12.mesonpy.libs/plugins (no wheel of NIXL is here)"]:
        print(f"    ln -sf {PLUGIN} {folder}")
    print(f"WEFT alone:\n    export NIXL_PLUGIN_DIR={PLUGIN.parent}")
    print('Then: agent.create_backend("WEFT", {}). Its parameters, also by the environment, are in docs/engines.md of Weft.')
    if importlib.util.find_spec("libweft") is None and "WEFT_LIBRARY" not in os.environ:
        print("libweft.so.0 is in the wheel libweft, which is missing: pip install libweft")


if __name__ == "__main__":
    main()
