"""libweft.c is what a C compiler makes of weft.h."""

import ctypes
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from libweft import c

INCLUDE = Path(__file__).resolve().parents[2] / "include"


def lines_of(program: str) -> "list[list[str]]":
    """What a C program prints, in words."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "layout.c"), Path(folder, "layout")
        source.write_text(f'#include <stdio.h>\n#include "weft.h"\nint main(void) {{\n{program}}}\n')
        subprocess.run([os.environ.get("CC", "cc"), f"-I{INCLUDE}", str(source), "-o", str(built)], check=True)
        return [line.split() for line in subprocess.check_output([str(built)], text=True).splitlines()]


class Layout(unittest.TestCase):
    def test_every_struct_has_the_header_s_fields_at_their_places(self) -> None:
        program, expected = "", []
        for name, struct in c.STRUCTS.items():
            program += f'printf("{name} %zu\\n", sizeof({name}));\n'
            expected.append([name, str(ctypes.sizeof(struct))])
            for field, *_ in struct._fields_:
                member = f"(({name} *)0)->{field}"
                program += f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({member}));\n'
                place = getattr(struct, field)
                expected.append([f"{name}.{field}", str(place.offset), str(place.size)])
        self.assertEqual(lines_of(program), expected)

    def test_every_struct_of_the_header_is_there(self) -> None:
        import re

        named = set(re.findall(r"^} (weft_\w+);$", (INCLUDE / "weft.h").read_text(), re.M))
        self.assertEqual(named, set(c.STRUCTS))

    def test_every_constant_is_the_header_s(self) -> None:
        constants = {name: value for name, value in vars(c).items() if name.isupper() and isinstance(value, int)}
        self.assertGreater(len(constants), 60)
        program = "".join(f'printf("{name} %lld\\n", (long long)(WEFT_{name}));\n' for name in constants)
        signed = {name: value - 2**64 if value >= 2**63 else value for name, value in constants.items()}
        self.assertEqual(lines_of(program), [[name, str(value)] for name, value in signed.items()])

    def test_every_function_takes_as_many_parameters_and_returns_as_much(self) -> None:
        program = ""
        for name, (result, parameters) in c.FUNCTIONS.items():
            call = f"{name}({', '.join('0' for _ in parameters)})"  # not evaluated
            program += f'printf("{name} %zu\\n", sizeof({call}));\n'
        expected = [[name, str(ctypes.sizeof(result))] for name, (result, _) in c.FUNCTIONS.items()]
        self.assertEqual(lines_of(program), expected)


if __name__ == "__main__":
    unittest.main()
