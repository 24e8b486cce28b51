"""Human-readable sizes in bytes."""

from __future__ import annotations

import re

#: Bytes of a unit: powers of 1000 as in SI, powers of 1024 as in IEC 80000-13.
UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = r"\s*(\d+(?:_\d+)*(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*"
#: Default limit in bytes above which a file is not parsed. Such a file is data in the form of Python, with a syntax
#: tree of more than a gigabyte.
LARGEST_FILE = 10_000_000


def parse_size(size: str | int) -> int:
    """Return the bytes of a size: an int is already in bytes, a str is a number and a unit, as in "1.5 GiB".

    KB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024; case does not matter. A fraction of
    a byte is dropped. Raise ValueError for anything else.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        if size < 0:
            raise ValueError(
                f"A size cannot be negative, but this one is {size}: give bytes, or text such as '1.5 GiB'."
            )
        return size
    match = re.fullmatch(_SIZE, size) if isinstance(size, str) else None
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        names = "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"
        raise ValueError(f"{size!r} is not a size: write a number and a unit ({names}), as in '1.5 GiB'.")
    whole, _, fraction = match[1].replace("_", "").partition(".")
    # Integers only: a float cannot represent every byte of a large size.
    thousandths: int = 10 ** len(fraction)
    return int(whole or 0) * unit + int(fraction or 0) * unit // thousandths


def format_size(size: int) -> str:
    """Return a number of bytes with two decimals and the largest unit of 1024 that fits, as in "1.50 GiB"."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"
