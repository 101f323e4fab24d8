"""The WEFT backend of NIXL: `python -m libweft_nixl` says how to use it."""
