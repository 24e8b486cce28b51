"""Parameters, gradients and loss scales."""

from __future__ import annotations

from ....protocol.events import GradientAccess
from .containers import MappingValue, SequenceValue
from .value import Value, join_keys


class ParamsValue(Value):
    """Parameters of modules or of optimizers; None if the modules or optimizers are not known.

    ``is_single`` marks a single parameter, ``is_param_group`` stands for ``optimizer.param_groups`` or one group.
    """

    kind = "parameters"
    is_relevant = True

    __slots__ = ("is_param_group", "is_single", "modules", "optimizers")

    def __init__(
        self,
        modules: frozenset[int] | None = None,
        optimizers: frozenset[int] | None = None,
        *,
        is_single: bool = False,
        is_param_group: bool = False,
    ) -> None:
        super().__init__()
        self.modules = modules
        self.optimizers = optimizers
        self.is_single = is_single
        self.is_param_group = is_param_group

    def item_at(self, index: Value) -> ParamsValue | None:
        if self.is_param_group and isinstance(index.value, str) and index.value != "params":
            # An option of the group, such as its learning rate.
            return None
        return ParamsValue(self.modules, self.optimizers, is_single=not self.is_param_group)

    def add(self, others: ParamsValue) -> None:
        """Add parameters to a list of parameters."""
        self.modules = join_keys((self.modules, others.modules))
        self.optimizers = join_keys((self.optimizers, others.optimizers))

    def loop_element(self) -> ParamsValue:
        return ParamsValue(
            self.modules, self.optimizers, is_single=not self.is_param_group, is_param_group=self.is_param_group
        )


class GradValue(Value):
    """``p.grad`` of parameters.

    ``is_unscaled`` says that the gradients were divided by the loss scale. ``factor_reads`` are events that read
    gradients from which a factor or divisor of these gradients was computed.
    """

    kind = "gradients"

    __slots__ = ("factor_reads", "is_unscaled", "params")

    def __init__(
        self, params: ParamsValue, *, is_unscaled: bool = False, factor_reads: tuple[GradientAccess, ...] = ()
    ) -> None:
        super().__init__()
        self.params = params
        self.is_unscaled = is_unscaled
        self.factor_reads = factor_reads

    def loop_element(self) -> GradValue:
        return self


class ScaleValue(Value):
    """Loss scale as a number, or its inverse, taken in the loops ``loops``.

    ``may_be_outdated`` says that the holder of the number may have received a later scale.
    """

    kind = "scale"
    is_relevant = True

    __slots__ = ("is_inverse", "may_be_outdated", "scaler_key")

    def __init__(
        self, scaler_key: int, loops: frozenset[int], *, is_inverse: bool = False, may_be_outdated: bool = False
    ) -> None:
        super().__init__(loops)
        self.scaler_key = scaler_key
        self.is_inverse = is_inverse
        self.may_be_outdated = may_be_outdated

    def as_stored(self) -> ScaleValue:
        return ScaleValue(self.scaler_key, self.loops, is_inverse=self.is_inverse, may_be_outdated=True)


def gradients_in(value: Value) -> list[GradValue]:
    """Return the gradients that a value is or contains, in order."""
    if isinstance(value, GradValue):
        return [value]
    if isinstance(value, SequenceValue):
        return [grad for item in value.items for grad in gradients_in(item)]
    return []


def join_params(parts: list[ParamsValue]) -> ParamsValue:
    modules, optimizers = join_keys(part.modules for part in parts), join_keys(part.optimizers for part in parts)
    return ParamsValue(modules, optimizers, is_param_group=any(part.is_param_group for part in parts))


def modules_of_params(value: Value | None) -> frozenset[int] | None:
    """Return the keys of the modules whose parameters an optimizer receives, or None if not known."""
    if isinstance(value, ParamsValue):
        return value.modules
    if isinstance(value, SequenceValue) and value.items:
        return join_keys(
            modules_of_params(item.items.get("params") if isinstance(item, MappingValue) else item)
            for item in value.items
        )
    return None
