"""Effects of the rules' bad and good examples on CUDA, compared with their measured effects on the CPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import harm
import torch

from gpu.places import measured_place, on
from gpu.results import Row
from pytest_amp_check.protocol.measured_harm import MEASURED
from pytest_amp_check.protocol.rules import RULES

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from moved import to_cuda

#: Harm that does not occur on CUDA, and the reason.
OTHERWISE = {"AMP217": "the scaler is for CUDA, so that it is on where there is CUDA"}


def rows(*, dry: bool) -> Iterator[Row]:
    place = measured_place(dry=dry)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with on(place):
            try:
                yield
            finally:
                # A program moved to CUDA sets the default device.
                torch.set_default_device(None)

    for code in MEASURED:
        bad, good = (
            harm.run(to_cuda(source), around) for source in (RULES[code].bad_example, RULES[code].good_example)
        )
        sentence = harm.sentence(bad, good)
        yield {
            "kind": "harm",
            "what": code,
            "agrees": bool(sentence) != (code in OTHERWISE),
            "seen": sentence or OTHERWISE.get(code, f"nothing differs ({bad.error or 'no error'})"),
            "on the CPU": MEASURED[code],
        }
