"""Moves a program for the CPU to CUDA without moving its lines."""

from __future__ import annotations

import io
import tokenize

#: Stands behind the first import of torch, so that tensors are there too.
_DEVICE = '; torch.set_default_device("cuda")'
#: Generators are the CPU's unless they are told, and so is the one that a DataLoader makes to shuffle: the default
#: device refuses to draw from them.
_DRAWS = (
    ("torch.Generator()", 'torch.Generator("cuda")'),
    ("shuffle=True)", 'shuffle=True, generator=torch.Generator("cuda"))'),
)


def to_cuda(source: str) -> str:
    """A program with the device "cuda" where it says "cpu", and as the device of tensors for which it says none.

    What is loaded is loaded to the CPU where the program says so: the state of its generator has to be.
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
