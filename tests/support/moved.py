"""Rewriting of CPU programs for CUDA without moving their lines."""

from __future__ import annotations

import io
import tokenize

#: Code after the first import of torch, which creates tensors on CUDA too.
_DEVICE = '; torch.set_default_device("cuda")'
#: Generators are on the CPU by default, including the generator that a DataLoader creates to shuffle. The default
#: device refuses to draw from CPU generators.
_DRAWS = (
    ("torch.Generator()", 'torch.Generator("cuda")'),
    ("shuffle=True)", 'shuffle=True, generator=torch.Generator("cuda"))'),
)


def to_cuda(source: str) -> str:
    """Replace the device "cpu" by "cuda" in a program, also as the default device of tensors.

    Loading with ``map_location="cpu"`` stays on the CPU, because the state of the program's generator must be there.
    """
    rows = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for place in range(len(tokens) - 1, 1, -1):
        token = tokens[place]
        if token.string in ('"cpu"', "'cpu'") and tokens[place - 2].string != "map_location":
            row, column = token.start
            line = rows[row - 1]
            rows[row - 1] = line[:column] + '"cuda"' + line[token.end[1] :]
    rows[rows.index("import torch\n")] = f"import torch{_DEVICE}\n"
    moved = "".join(rows)
    for before, after in _DRAWS:
        moved = moved.replace(before, after)
    return moved
