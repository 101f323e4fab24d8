"""Names of the package whose type a checker has to guess, of what `pyright --verifytypes libweft --outputjson` prints.

Classes below those of ray, vLLM and torch are left out where these are not installed.
"""

import json
import sys

ELSEWHERE = ("libweft.ray.", "libweft.vllm_tier.", "libweft.checkpoint.dcp.")


def main() -> None:
    symbols = json.load(sys.stdin)["typeCompleteness"]["symbols"]
    guessed = [s["name"] for s in symbols if not (s["isTypeKnown"] and not s["isTypeAmbiguous"]) and not s["name"].startswith(ELSEWHERE)]
    print(*guessed, sep="\n")
    print(f"{len(guessed)} of {len(symbols)} names have a type that is guessed")
    sys.exit(bool(guessed) or len(symbols) < 500)


if __name__ == "__main__":
    main()
