"""Checks Wasm modules against the rules for functions (spec/function.md, "Wasm"), with plain Python.

    check_module.py MODULE.wasm...

A module passes if it has no imports and no start function, one memory that is exported as "memory" without a maximum,
an exported function, and no bulk memory instruction, because those cannot access the window (the bytes over which a
function runs). Prints the exports of each module.
"""

import sys
from pathlib import Path

IMPORTS, FUNCTIONS, MEMORIES, EXPORTS, START, CODE = 2, 3, 5, 7, 8, 10
# Opcodes that are followed by one or by two integers. `skip_instruction` handles the others.
ONE_INTEGER = {0x02, 0x03, 0x04, 0x0C, 0x0D, 0x10, *range(0x20, 0x27), 0x3F, 0x40, 0x41, 0x42, 0xD0, 0xD2}
TWO_INTEGERS = {0x11, *range(0x28, 0x3F)}
BULK = {8: "memory.init", 9: "data.drop", 10: "memory.copy", 11: "memory.fill"}


class Bytes:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.data):
            raise ValueError("it ends too early")
        return self.data[self.at - count : self.at]

    def integer(self) -> int:
        """Reads a LEB128 number. Its sign is ignored."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def text(self) -> str:
        return self.take(self.integer()).decode()


def skip_instruction(code: Bytes) -> str | None:
    """Skips an instruction. Returns its name if it is a bulk memory instruction, otherwise `None`."""
    op = code.take(1)[0]
    integers = 1 if op in ONE_INTEGER else 2 if op in TWO_INTEGERS else 0
    if op == 0x0E:  # br_table
        integers = code.integer() + 1
    elif op == 0x1C:  # select with types
        integers = code.integer()
    elif op == 0x43:
        code.take(4)
    elif op == 0x44:
        code.take(8)
    elif op == 0xFC:
        sub = code.integer()
        integers = 0 if sub <= 7 else 1 if sub in (9, 11, 13, 15, 16, 17) else 2
        if sub in BULK:
            return BULK[sub]
    elif op == 0xFD:
        sub = code.integer()
        if sub in (12, 13):
            code.take(16)
        elif 21 <= sub <= 34:
            code.take(1)
        elif sub <= 11 or 84 <= sub <= 93:
            integers = 2
            if 84 <= sub <= 91:
                integers = 3
    for _ in range(integers):
        code.integer()
    return None


def check(data: bytes) -> list[str]:
    """Returns the names of exported functions. Raises ValueError for the first rule that is broken."""
    module = Bytes(data)
    if module.take(8) != b"\0asm\1\0\0\0":
        raise ValueError("it is no core WebAssembly module")
    memories, exports = [], []
    while module.at < len(data):
        section, body = module.take(1)[0], Bytes(module.take(module.integer()))
        if section == START:
            raise ValueError("it has a start function")
        if section == IMPORTS and body.integer():
            body.integer()
            raise ValueError("it has imports")
        if section == MEMORIES:
            for _ in range(body.integer()):
                flags, pages = body.integer(), body.integer()
                memories.append((flags, pages))
                if flags:
                    raise ValueError(f"its memory has flags {flags:#x}: a maximum, shared or of 64 bits")
        if section == EXPORTS:
            exports = [(body.text(), body.take(1)[0], body.integer()) for _ in range(body.integer())]
        if section == CODE:
            for function in range(body.integer()):
                code = Bytes(body.take(body.integer()))
                for _ in range(code.integer()):
                    code.integer(), code.take(1)
                while code.at < len(code.data):
                    if bulk := skip_instruction(code):
                        raise ValueError(f"function {function} holds {bulk}, which does not reach the window")
    if len(memories) != 1 or ("memory", 2, 0) not in exports:
        raise ValueError(f'it must have one memory, exported as "memory"; it has {len(memories)}')
    functions = [name for name, kind, _ in exports if kind == 0]
    if not functions:
        raise ValueError("it exports no function")
    return functions


def main() -> int:
    failed = False
    for path in map(Path, sys.argv[1:]):
        data = path.read_bytes()
        try:
            print(f"{path.name}: {len(data):,} bytes, exports {', '.join(check(data))}")
        except ValueError as error:
            failed = True
            print(f"{path.name}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
