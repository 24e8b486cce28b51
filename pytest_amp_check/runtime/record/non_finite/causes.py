"""Causes of non-finite values: their labels, and the exemptions of causes that a scaler may handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.sites import Site
from .records import NonFiniteRecord

if TYPE_CHECKING:
    import torch

#: Exemptions: overflows that do not occur in float32, overflows of operands that are already large, and losses that the
#: program computes with an infinity, as tests of skipped steps do.
ONLY_LOW, OF_LARGE, INTENDED = "only low", "of large", "intended"
#: Labels of a learning rate that is too large, of weights that other state of the optimizer made too large, and of a
#: buffer that is not finite.
RATE, GROWN, STATISTIC = "rate", "grown", "statistic"
#: Label of a non-finite tensor that no op of the step produced.
INPUT = "input"
#: Labels of causes in an optimizer, which are located at its construction.
OPTIMIZER_CAUSES = frozenset({"state", RATE, GROWN})
#: Labels of causes in state that outlives the step, so that all later steps fail, too.
PERSISTENT_CAUSES = frozenset({"parameter", *OPTIMIZER_CAUSES})


class NonFiniteCause(NamedTuple):
    """The cause of a non-finite value: the label of a violation, location, values of the message, and trace."""

    label: str
    site: Site | None
    names: dict[str, str]
    trace: tuple[tuple[Site, str], ...]
    #: The reason why a scaler may handle the overflow of a scaled loss, or "".
    exemption: str = ""
    #: The non-finite tensor that the program passed in, if no op of the step produced it.
    given_tensor: torch.Tensor | None = None


#: Finds the cause of a non-finite value. None if there is no mistake.
Explain = Callable[[NonFiniteRecord], NonFiniteCause | None]
