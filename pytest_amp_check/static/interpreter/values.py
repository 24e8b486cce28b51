"""Abstract values: the value domain of the interpreter."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Items
from functools import reduce

from ...protocol.events import Anomaly, Forward, GradientAccess, Site, TrackedObject
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.torch_api import DTYPES, canonical_name
from .conditions import Formula
from .dtypes import NO_DTYPE_INFO, NUMBER_INFO, DtypeInfo, join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ..project.module import Class, Function, ImportedName, Module

    Same = TypeVar("Same", bound="TypedValue")

#: Shared empty set. Most values have several empty sets, and each new set would be a separate object.
EMPTY: frozenset[Any] = frozenset()

#: Names in ``callees``: ``FORWARD`` stands for a module of an unknown class, ``AUTOCAST_CALLEES`` for a module that
#: enters autocast itself.
FORWARD = "forward"
AUTOCAST_CALLEES = frozenset({"autocast"})

#: Limits of the structural identity of containers: nesting depth, and items of one container. Larger containers are
#: never equal.
MAX_KEY_DEPTH, MAX_KEY_ITEMS = 3, 16
#: Python value of a value that is no constant: no program holds this object.
NO_CONSTANT = object()


class Provenance(NamedTuple):
    """Provenance of a value: the modules and regions that may have computed the value.

    autocast_scope   "in", "out" or "unknown"; "" if nothing ran, "?" if the scope is not known
    callees          names of unanalyzed code; the consumer decides if a name may enter autocast
    region_dtypes    dtypes of the autocast regions, "?" for an unknown dtype
    """

    autocast_scope: str = ""
    callees: frozenset[str] = EMPTY
    region_dtypes: frozenset[str] = EMPTY


NO_PROVENANCE = Provenance()


class Value:
    """Abstract value of an expression.

    loops            keys of the loops that recreate the value in every iteration
    is_divided       the value was divided, so a product with the value may be an average
    microbatches     the value holds the micro-batches of one window
    """

    __slots__ = ("is_divided", "loops", "microbatches")

    #: Key of the value in the handler tables of calls, methods, attributes and contexts.
    kind: str = ""
    #: True if the protocol distinguishes two values of this kind.
    is_relevant: bool = False
    #: Dtype info of the value, seen as a tensor.
    dtype_info: DtypeInfo = NO_DTYPE_INFO
    #: Python value of a constant.
    value: object = NO_CONSTANT
    #: Formula of a value that is a condition.
    formula: Formula | None = None
    #: Role of a tracked object, the object, and the unknown value in which the object was recognized.
    role: str = ""
    tracked_object: TrackedObject | None = None
    recognized_from: UnknownValue | None = None
    #: Defaults of attributes that only unknown values set; see :class:`UnknownValue`.
    is_call_result: bool = False
    is_comparison_result: bool = False
    is_counter: bool = False
    is_iteration_count: bool = False
    is_data_size: bool = False
    first_value: int | None = None
    is_new_float32: bool = False
    is_from_gradient: bool = False
    is_loop_index: bool = False
    iterable_kind: str = ""
    offset: int = 0
    is_from_outside: bool = False
    remainder_operands: tuple[Value, Value] | None = None
    is_only_summed: bool = False
    is_sample_mean: bool = False
    may_be_one: bool = False
    #: Known beginning of a text whose rest is unknown.
    text_prefix: str = ""
    #: Events that read the gradients from which the value was computed.
    gradient_reads: tuple[GradientAccess, ...] = ()
    #: Modules and regions that computed the value.
    provenance: Provenance = NO_PROVENANCE

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        self.loops = loops
        self.is_divided = False
        self.microbatches = False

    def with_dtype_info(self, dtype_info: DtypeInfo) -> Value:
        """Return the value with this dtype info, or the same object if the kind has no dtype info."""
        return self

    def identity_key(self, unique_number: Callable[[Value], int], depth: int = 0) -> object:
        """Return a key that equal values share. ``unique_number`` gives a number that no other value has."""
        return unique_number(self)

    @property
    def offset_base(self) -> Value:
        """Value to which :attr:`offset` was added; without an offset, the same object."""
        return self

    def truth_condition(self) -> Formula | None:
        """Return the condition under which the value is true, or None if a new predicate is needed."""
        return True

    def item_at(self, index: Value) -> Value | None:
        """Return the item at an index, or None if the item is not known."""
        return None

    def loop_element(self) -> Value | None:
        """Return the value that a loop over this value assigns in each iteration, or None if it is not known."""
        return None

    def first_iteration_value(self) -> object:
        """Return the number that a loop counter holds in the first iteration, or None."""
        return None

    def varying_loops(self) -> frozenset[int]:
        """Return the keys of the loops that recreate the value or one of its items."""
        return self.loops

    def alternatives(self) -> list[Value]:
        """Return all values that this value may be."""
        return [self]

    def contained_values(self) -> Iterable[Value]:
        """Return the items of a container, or the options of a union."""
        return ()

    def as_stored(self) -> Value:
        """Return the value as a later iteration or call finds it in an attribute.

        A later iteration or call may find a newer value of the same kind there.
        """
        return self

    def tensors(self) -> list[TensorValue]:
        """Return the tensors that the value is or contains."""
        return []

    def gradients(self) -> list[GradValue]:
        """Return the gradients that the value is or contains, in order."""
        return []


class Aggregate(Value):
    """Value that contains other values, or is one of several values."""

    __slots__ = ()

    @property
    def provenance(self) -> Provenance:  # type: ignore[override]
        return join_provenance(self.contained_values())

    def tensors(self) -> list[TensorValue]:
        return [tensor for part in self.contained_values() for tensor in part.tensors()]


class TypedValue(Value):
    """Value with dtype info. A copy with other dtype info is equal in all other attributes."""

    __slots__ = ("dtype_info",)

    def copy(self: Same) -> Same:  # noqa: PYI019 - Python 3.10 has no Self
        """Return a copy with the same attributes, the identity key included."""
        kind = type(self)
        made = kind.__new__(kind)
        for name in (*Value.__slots__, "dtype_info", *kind.__slots__):
            setattr(made, name, getattr(self, name))
        return made

    def with_dtype_info(self: Same, dtype_info: DtypeInfo) -> Same:  # noqa: PYI019
        if dtype_info == self.dtype_info:
            return self
        made = self.copy()
        made.dtype_info = dtype_info
        return made


class Const(TypedValue):
    """Python constant."""

    kind = "constant"

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value
        self.dtype_info = NUMBER_INFO if type(value) in (int, float) else NO_DTYPE_INFO

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return ("const", repr(self.value))

    @property
    def is_relevant(self) -> bool:  # type: ignore[override]
        return self.value is None or isinstance(self.value, (str, bool))

    @property
    def formula(self) -> Formula | None:  # type: ignore[override]
        return self.value if isinstance(self.value, bool) else None

    def truth_condition(self) -> Formula:
        return bool(self.value)

    def first_iteration_value(self) -> object:
        return self.value if isinstance(self.value, (int, float)) else None


class UnknownValue(TypedValue):
    """Unknown value (top): only the identity is known. Equal expressions over equal values give the same ``key``.

    is_from_outside        the value came from a caller that is not analyzed
    is_argument            the value itself came from there, and is not a part of such a value
    is_counter             a loop counts this number; ``first_value`` is the first number, if known
    is_iteration_count     the counter is the number of iterations so far, except for a constant
    is_loop_index          the loop itself assigns the counter, as ``range`` does
    offset                 number added to ``offset_base``
    remainder_operands     the two operands of a ``%``
    gradient_reads         events that read the gradients from which the value was computed
    iterable_kind          kind of a loop helper such as "range", "enumerate" or "zip", else ""
    is_call_result         a call returned the value
    is_comparison_result   that call received the result of another call, as a criterion does
    is_from_gradient       the value was computed from the gradient of a tensor
    is_loop_element        a loop over an unknown value assigns the value
    item_origin            key of the unknown value that contains this item, and the name of the item or None
    is_new_float32         the value is a float32 tensor created here
    divisors               divisors of the value; ``factors`` are the identities of its factors
    is_data_size           the value is an amount of data: a size, a length, or a sum of sizes
    is_only_summed         ``is_divided`` holds only because the value was summed
    may_be_one             the value is the number one on some path
    owner_key              key of the unknown value that has this attribute, -1 for other values
    is_sample_mean         the value is a mean over the samples of a batch, so a further sum adds no samples
    scheduled_optimizer    key of the optimizer whose learning rate this scheduler moves, -1 for no scheduler
    text_prefix            known beginning of a text whose rest is unknown
    """

    kind = "unknown"

    __slots__ = (
        "_offset_base",
        "divisors",
        "factors",
        "first_value",
        "gradient_reads",
        "is_argument",
        "is_call_result",
        "is_comparison_result",
        "is_counter",
        "is_data_size",
        "is_from_gradient",
        "is_from_outside",
        "is_iteration_count",
        "is_loop_element",
        "is_loop_index",
        "is_new_float32",
        "is_only_summed",
        "is_sample_mean",
        "item_origin",
        "iterable_kind",
        "key",
        "may_be_one",
        "offset",
        "owner_key",
        "provenance",
        "remainder_operands",
        "scheduled_optimizer",
        "source_text",
        "text_prefix",
    )

    def __init__(
        self, key: int, source_text: object, loops: frozenset[int] = EMPTY, *, is_from_outside: bool = False
    ) -> None:
        super().__init__(loops)
        self.dtype_info = NO_DTYPE_INFO
        self.key = key
        self.source_text = source_text
        self.iterable_kind = ""
        self.is_from_outside = self.is_argument = is_from_outside
        self.is_counter = False
        self.first_value: int | None = None
        self.is_iteration_count = False
        self.is_loop_index = False
        self.offset = 0
        self.owner_key = -1
        self.may_be_one = False
        self._offset_base: Value | None = None
        self.remainder_operands: tuple[Value, Value] | None = None
        self.provenance = NO_PROVENANCE
        self.is_call_result = False
        self.is_comparison_result = False
        self.is_loop_element = False
        self.is_data_size = False
        self.is_new_float32 = False
        self.is_from_gradient = False
        self.text_prefix = ""
        self.is_only_summed = False
        self.is_sample_mean = False
        self.gradient_reads: tuple[GradientAccess, ...] = ()
        self.item_origin: tuple[int, str | None] | None = None
        self.divisors: frozenset[Divisor] = EMPTY
        self.factors: frozenset[object] = EMPTY
        self.scheduled_optimizer = -1

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.key

    @property
    def offset_base(self) -> Value:
        return self._offset_base or self

    @offset_base.setter
    def offset_base(self, value: Value) -> None:
        self._offset_base = value

    def truth_condition(self) -> None:
        return None

    def first_iteration_value(self) -> object:
        first = self.offset_base.first_value
        return first + self.offset if self.is_counter and first is not None else None

    @property
    def text(self) -> str:
        """Source text of the expression."""
        return str(self.source_text)

    def with_provenance(self, provenance: Provenance) -> UnknownValue:
        """Return the value with this provenance. The result is a copy if the value already has another provenance."""
        if self.provenance == provenance:
            return self
        same = self.copy() if any(self.provenance) else self
        same.provenance = provenance
        return same


class ExternalName(Value):
    """Object with a dotted name outside the project, such as ``torch.float16`` or ``os.environ``.

    version_fallback   the import stands where the code supports an older or newer torch
    unresolved         no import says to which object the name refers
    is_of_project      the name belongs to a file of the project that is not analyzed, and may be a setting
    dtype_conditions   for the first of several dtypes: the condition of each dtype, by name
    """

    kind = "named"
    is_relevant = True

    __slots__ = ("dtype_conditions", "is_of_project", "name", "unresolved", "version_fallback")

    def __init__(
        self, name: str, *, version_fallback: bool = False, unresolved: bool = False, is_of_project: bool = False
    ) -> None:
        super().__init__()
        self.is_of_project = is_of_project
        self.name = name
        self.version_fallback = version_fallback
        self.unresolved = unresolved
        self.dtype_conditions: dict[str, Formula] = {}

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.name

    @property
    def possible_dtypes(self) -> dict[str, Formula]:
        """Dtypes that the name may refer to, each with its condition; empty if the name is no dtype."""
        if self.dtype_conditions:
            return self.dtype_conditions
        dtype = DTYPES.get(canonical_name(self.name))
        return {} if dtype is None else {dtype: True}


class LazyImport(Value):
    """Imported name that is not resolved yet; ``version_fallback`` as in :class:`ExternalName`."""

    kind = "imported"

    __slots__ = ("origin", "version_fallback")

    def __init__(self, origin: ImportedName, *, version_fallback: bool) -> None:
        super().__init__()
        self.origin = origin
        self.version_fallback = version_fallback


class ModuleValue(Value):
    """Module of the project at an absolute ``path``, or a package without a file."""

    kind = "project module"

    __slots__ = ("module", "name", "path")

    def __init__(self, path: str, module: Module | None, name: str) -> None:
        super().__init__()
        self.path = path
        self.module = module
        self.name = name


class ObjectRef(Value):
    """Reference to a tracked object: a scaler, optimizer, module, autocast context or loss function.

    ``enabled`` is the condition under which a scaler or an autocast is enabled. ``recognized_from`` is the unknown
    value whose use revealed the object; such an object may also be None.
    """

    is_relevant = True

    __slots__ = ("enabled", "kind", "recognized_from", "role", "tracked_object")

    def __init__(
        self, tracked_object: TrackedObject, enabled: Formula = True, recognized_from: UnknownValue | None = None
    ) -> None:
        super().__init__()
        self.kind = self.role = tracked_object.role
        self.tracked_object: TrackedObject = tracked_object
        self.enabled = enabled
        self.recognized_from = recognized_from

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.tracked_object.key)

    def loop_element(self) -> Value | None:
        """Return the object itself if it stands for several objects."""
        return self if self.tracked_object.attributes.several else None


class UnwrappedOptimizer(ObjectRef):
    """Optimizer taken out of the wrapper of a framework: a step goes through no scaler."""

    __slots__ = ()


class ModuleContainer(ObjectRef):
    """Module that holds other modules in order, such as ``nn.Sequential``."""

    __slots__ = ("items",)

    def __init__(self, tracked_object: TrackedObject, items: list[Value]) -> None:
        super().__init__(tracked_object)
        self.items = items

    def item_at(self, index: Value) -> Value | None:
        position, size = index.value, len(self.items)
        return self.items[position] if isinstance(position, int) and -size <= position < size else None


class FrameworkEngine(ObjectRef):
    """Engine of a framework, which scales, unscales and steps. The tracked object is the engine's scaler.

    framework            key of the framework in the table
    enabled              condition under which the engine scales
    precision            value that decides about the scaling
    accumulation_steps   number by which the engine's backward divides losses, None if backward never divides
    optimizer            the optimizer that the engine wraps
    """

    __slots__ = ("accumulation_steps", "framework", "optimizer", "precision")

    def __init__(
        self,
        framework: str,
        tracked_object: TrackedObject,
        enabled: Formula = True,
        recognized_from: UnknownValue | None = None,
        precision: Value | None = None,
        accumulation_steps: Value | None = None,
        optimizer: Value | None = None,
    ) -> None:
        super().__init__(tracked_object, enabled, recognized_from)
        self.kind = "engine"
        self.framework = framework
        self.precision = precision or NONE
        self.accumulation_steps = accumulation_steps
        self.optimizer = optimizer


class Divisor(NamedTuple):
    """Divisor of a number: identity, source text and location.

    ``is_literal`` says that the divisor is written at that location. ``counter`` is the identity of the counter if the
    divisor counts the iterations so far, or None.
    """

    key: object
    source_text: object
    site: Site
    is_literal: bool
    counter: object = None


class FunctionValue(Value):
    """Function or method of the project, with its bound receiver and its decorators."""

    kind = "function"
    is_relevant = True

    __slots__ = ("frame", "function", "receiver", "wrappers")

    def __init__(
        self,
        function: Function,
        frame: Frame | None,
        receiver: Value | None = None,
        wrappers: tuple[Value, ...] = (),
    ) -> None:
        super().__init__()
        self.function = function
        self.frame = frame
        self.receiver = receiver
        self.wrappers = wrappers


class ClassValue(Value):
    """Class of the project."""

    kind = "class"
    is_relevant = True

    __slots__ = ("cls", "frame")

    def __init__(self, cls: Class, frame: Frame | None) -> None:
        super().__init__()
        self.cls = cls
        self.frame = frame


class Instance(Value):
    """Instance of a project class. The heap holds the attributes under ``key``.

    ``is_open`` says that a name known only at run time may set any attribute.
    """

    is_relevant = True

    __slots__ = ("cls", "is_open", "key", "kind", "tracked_object")

    def __init__(self, cls: Class, key: int, tracked_object: TrackedObject | None = None) -> None:
        super().__init__()
        self.cls = cls
        self.key = key
        self.tracked_object = tracked_object
        self.kind = "instance" if tracked_object is None else "module instance"
        self.is_open = False

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.key)


class SuperValue(Value):
    """Result of ``super()`` in a method: attributes come from the bases of ``cls``."""

    kind = "super"

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Value) -> None:
        super().__init__()
        self.cls = cls
        self.receiver = receiver


class TensorValue(TypedValue):
    """Tensor that is a loss, or part of a loss.

    scaler_key           key of the scaler that multiplied the tensor, -1 if none
    is_divided           the tensor was divided, or summed instead of averaged: the code may account for accumulation
    is_data_size         the tensor is a sum of data
    is_only_summed       ``is_divided`` holds only because the tensor was summed
    is_only_weighted     ``is_divided`` holds only because of a factor computed from this iteration's data alone
    is_only_share        ``is_divided`` holds only because of a factor that may be a share of the tensor
    is_sample_mean       the tensor is a mean over the samples of a batch, so a further sum adds no samples
    module_keys          keys of the modules whose forward the tensor depends on, None if not known
    autocast_scope       "in", "out" or "unknown": scope of those forwards; "?" if no scope is known
    callees              names of the unanalyzed code that computed the tensor
    in_region            the last function applied to the tensor ran in an autocast region
    region_dtypes        dtypes of those regions; "?" if a region may be disabled or the dtype is not known
    first_forward        event of the first of those forwards
    low_dtype            low-precision dtype of the tensor if those regions are enabled, "" if none, "?" if not known
    is_low_op_result     the tensor comes from an op that autocast runs in the low-precision dtype
    penalty_source       location at which gradients of a scaled loss were taken with the scale still in, the source
                         texts of that location, and True if an outdated scale divided the gradients
    is_from_outside      the tensor came from a caller that is not analyzed
    is_from_gradient     the tensor was computed from a gradient, or may hold a loss scale for another reason
    is_loss              a loss function returned the tensor
    has_custom_backward  an autograd.Function of the project without custom_bwd on its backward returned the tensor
    has_known_modules    every module that the tensor depends on is in the project and enters no autocast itself
    divisors             divisors of the tensor; ``factors`` are the identities of its factors
    forward_loops        keys of the loops in whose iterations those forwards ran
    has_several_scalers  the tensor is a sum of parts that several scalers scaled
    has_mixed_scales     the tensor is a sum; one part holds a loss scale and another part no scale or another scale
    has_unknown_reduction  the tensor is part of the result of unanalyzed code, with an unknown reduction
    """

    kind = "tensor"

    __slots__ = (
        "autocast_scope",
        "callees",
        "divisors",
        "factors",
        "first_forward",
        "forward_loops",
        "has_custom_backward",
        "has_known_modules",
        "has_mixed_scales",
        "has_several_scalers",
        "has_unknown_reduction",
        "in_region",
        "is_data_size",
        "is_from_gradient",
        "is_from_outside",
        "is_loss",
        "is_low_op_result",
        "is_only_share",
        "is_only_summed",
        "is_only_weighted",
        "is_sample_mean",
        "low_dtype",
        "module_keys",
        "penalty_source",
        "region_dtypes",
        "scaler_key",
    )

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        super().__init__(loops)
        self.dtype_info = NO_DTYPE_INFO
        self.scaler_key = -1
        self.has_several_scalers = False
        self.module_keys: frozenset[int] | None = None
        self.autocast_scope = "out"
        self.callees: frozenset[str] = EMPTY
        self.in_region = False
        self.region_dtypes: frozenset[str] = EMPTY
        self.first_forward: Forward | None = None
        self.low_dtype = ""
        self.is_low_op_result = False
        self.penalty_source: tuple[ast.AST, dict[str, object], bool] | None = None
        self.is_from_outside = False
        self.is_from_gradient = False
        self.is_loss = False
        self.has_custom_backward = False
        self.has_known_modules = False
        self.divisors: frozenset[Divisor] = EMPTY
        self.factors: frozenset[object] = EMPTY
        self.has_unknown_reduction = False
        self.is_data_size = False
        self.is_only_summed = False
        self.has_mixed_scales = False
        self.is_only_weighted = False
        self.is_only_share = False
        self.is_sample_mean = False
        self.forward_loops: frozenset[int] = frozenset()

    def tensors(self) -> list[TensorValue]:
        return [self]

    @property
    def provenance(self) -> Provenance:  # type: ignore[override]
        return Provenance(self.autocast_scope, self.callees, self.region_dtypes)

    @property
    def enters_autocast(self) -> bool:
        """True if a module that the tensor depends on enters autocast itself."""
        return not AUTOCAST_CALLEES.isdisjoint(self.callees)

    @property
    def is_relevant(self) -> bool:  # type: ignore[override]
        return self.scaler_key >= 0

    def truth_condition(self) -> None:
        return None

    def item_at(self, index: Value) -> TensorValue:
        part = self.copy()
        part.has_unknown_reduction = not self.is_loss
        return part

    def loop_element(self) -> TensorValue:
        return self.with_dtype_info(self.dtype_info.part_info)

    def copy(self) -> TensorValue:
        made = super().copy()
        # A result computed from the micro-batches of a window is no list of micro-batches.
        made.microbatches = False
        return made

    @staticmethod
    def join(parts: list[TensorValue]) -> TensorValue:
        """Return a tensor computed from several tensors."""
        made = parts[0].copy()
        made.dtype_info = NO_DTYPE_INFO
        made.scaler_key = max(part.scaler_key for part in parts)
        made.has_several_scalers = len({part.scaler_key for part in parts if part.scaler_key >= 0}) > 1 or any(
            p.has_several_scalers for p in parts
        )
        made.module_keys = join_keys(part.module_keys for part in parts)
        made.autocast_scope = join_autocast_scopes({part.autocast_scope for part in parts})
        for part in parts[1:]:
            for name in (
                "is_divided",
                "is_data_size",
                "has_known_modules",
                "is_only_share",
                "is_only_summed",
                "has_unknown_reduction",
                "is_only_weighted",
                "is_sample_mean",
            ):
                setattr(made, name, getattr(made, name) and getattr(part, name))
            for name in (
                "has_custom_backward",
                "first_forward",
                "is_from_gradient",
                "is_loss",
                "low_dtype",
                "is_low_op_result",
                "is_from_outside",
                "penalty_source",
                "has_mixed_scales",
            ):
                setattr(made, name, getattr(made, name) or getattr(part, name))
            for name in ("callees", "region_dtypes", "loops", "forward_loops"):
                setattr(made, name, getattr(made, name) | getattr(part, name))
        return made


def join_autocast_scopes(scopes: set[str]) -> str:
    """Join the scopes of several forwards, each "in", "out" or "unknown". "" means no forward, "?" an unknown scope."""
    # The names sort by how much they cover, with one exception: "in" together with "out" gives "in".
    last = max(scopes)
    return "in" if last == "out" and "in" in scopes else last


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

    def gradients(self) -> list[GradValue]:
        return [self]


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


class StateDict(Value):
    """Result of the call ``x.state_dict()`` at ``node``."""

    kind = "state"
    is_relevant = True

    __slots__ = ("node", "owner", "site")

    def __init__(self, owner: Value, node: ast.AST, site: Site) -> None:
        super().__init__()
        self.owner = owner
        self.node = node
        self.site = site


class SequenceValue(Aggregate):
    """List or tuple with known items; ``is_open`` if there may be more items."""

    kind = "sequence"
    is_relevant = True

    __slots__ = ("is_open", "items")

    def __init__(self, items: list[Value], *, is_open: bool = False) -> None:
        super().__init__()
        self.items = items
        self.is_open = is_open

    @property
    def gradient_reads(self) -> tuple[GradientAccess, ...]:  # type: ignore[override]
        return tuple(reading for item in self.items for reading in item.gradient_reads)

    def truth_condition(self) -> Formula | None:
        return True if self.items else None if self.is_open else False

    def item_at(self, index: Value) -> Value | None:
        position, size = index.value, len(self.items)
        if isinstance(position, int) and -size <= position < size:
            return self.items[position]
        return self.items[0] if size == 1 else None

    def loop_element(self) -> Value | None:
        if not self.items or isinstance(self.items[0], Const):
            return None
        tensors = [item for item in self.items if isinstance(item, TensorValue)]
        if len(tensors) == len(self.items):
            merged = TensorValue.join(tensors)
            merged.dtype_info = reduce(join, [tensor.dtype_info for tensor in tensors])
            return merged
        return self.items[0] if len(self.items) == 1 else None

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= MAX_KEY_DEPTH or self.is_open or len(self.items) > MAX_KEY_ITEMS:
            return number(self)
        return (self.kind, *[item.identity_key(number, depth + 1) for item in self.items])

    def varying_loops(self) -> frozenset[int]:
        return self.loops.union(*[item.loops for item in self.items])

    def contained_values(self) -> Iterable[Value]:
        return self.items

    def gradients(self) -> list[GradValue]:
        return [grad for item in self.items for grad in item.gradients()]


class MappingValue(Aggregate):
    """Dict with known items; ``is_open`` if there may be more items."""

    kind = "mapping"
    is_relevant = True

    __slots__ = ("is_open", "items")

    def __init__(self, items: Items[Any, Value], *, is_open: bool = False) -> None:
        super().__init__()
        self.items: dict[object, Value] = dict(items)
        self.is_open = is_open

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= MAX_KEY_DEPTH or self.is_open or len(self.items) > MAX_KEY_ITEMS:
            return number(self)
        return (self.kind, *[(key, item.identity_key(number, depth + 1)) for key, item in self.items.items()])

    def truth_condition(self) -> Formula | None:
        # A later iteration of a loop may add entries to an empty dict.
        return True if self.items else None

    def item_at(self, index: Value) -> Value | None:
        return self.items.get(index.value)

    def contained_values(self) -> Iterable[Value]:
        return self.items.values()


class PartialCall(Value):
    """Delayed call, such as ``functools.partial(f, ...)``."""

    kind = "partial"
    is_relevant = True

    __slots__ = ("args", "func", "keywords")

    def __init__(self, func: Value, args: Args, keywords: Keywords) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords


class BoundMethod(Value):
    """Method of a tracked object or a tensor, stored for a later call: ``step = optimizer.step``."""

    kind = "bound method"
    is_relevant = True

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name


class NullContext(Value):
    """Context that does not change autocast."""

    kind = "null context"
    is_relevant = True

    __slots__ = ()


class AnomalyMode(Value):
    """Anomaly detection that ``event`` enabled."""

    kind = "anomaly detection"
    is_relevant = True

    __slots__ = ("event",)

    def __init__(self, event: Anomaly) -> None:
        super().__init__()
        self.event = event


class GradMode(Value):
    """Context such as ``torch.no_grad()``."""

    kind = "grad mode"
    is_relevant = True

    __slots__ = ()


class NoSyncContext(Value):
    """Context ``model.no_sync()`` of a module whose gradients are averaged over processes."""

    kind = "no sync"
    is_relevant = True

    __slots__ = ()


class Float8Context(Value):
    """Region of TransformerEngine whose modules compute in float8 under the condition ``enabled``."""

    kind = "float8"
    is_relevant = True

    __slots__ = ("enabled",)

    def __init__(self, enabled: Formula) -> None:
        super().__init__()
        self.enabled = enabled


class StackContext(Value):
    """``ExitStack`` and its counts at entry.

    open_region_count   autocast regions that were open before
    no_sync_count       contexts without gradient averaging (``no_sync``) that were open before
    float8_count        TransformerEngine regions that were open before
    """

    kind = "stack"
    is_relevant = True
    open_region_count: int
    no_sync_count: int
    float8_count: int

    __slots__ = ("float8_count", "no_sync_count", "open_region_count")


class GeneratorContext(Value):
    """Call of a ``@contextmanager`` function: the function body runs around the body of the ``with``."""

    kind = "helper"
    is_relevant = True

    __slots__ = ("args", "func", "keywords", "node")

    def __init__(self, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords
        self.node = node


class GeneratorValue(Value):
    """Call of a generator function. No part of the body has run.

    A loop over the generator runs the body from yield to yield.

    yielded_values     yielded values, if known
    yield_predicates   one predicate key for each yield, true while the generator waits there; empty if the code between
                       the yields does not affect the protocol
    end_node           graph node at which the last analysis reached the end of the body
    """

    kind = "generator"
    is_relevant = True

    __slots__ = ("args", "end_node", "func", "keywords", "node", "yield_predicates", "yielded_values")

    def __init__(self, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords
        self.node = node
        self.yielded_values: list[Value] = []
        self.yield_predicates: list[int] = []
        self.end_node: int | None = None


class ConditionValue(TypedValue):
    """Value of a condition."""

    kind = "truth"

    __slots__ = ("formula",)

    def __init__(self, formula: Formula, loops: frozenset[int] = EMPTY) -> None:
        super().__init__(loops)
        self.dtype_info = NO_DTYPE_INFO
        self.formula: Formula = formula

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.formula)

    def truth_condition(self) -> Formula:
        return self.formula


class UnionValue(Aggregate):
    """One of several values, each under a condition. The conditions exclude one another."""

    kind = "choice"
    is_relevant = True

    __slots__ = ("options",)

    def __init__(self, options: list[tuple[Formula, Value]]) -> None:
        super().__init__()
        self.options = options

    @property
    def gradient_reads(self) -> tuple[GradientAccess, ...]:  # type: ignore[override]
        return tuple(reading for _, option in self.options for reading in option.gradient_reads)

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= MAX_KEY_DEPTH:
            return number(self)
        return (self.kind, *[(formula, option.identity_key(number, depth + 1)) for formula, option in self.options])

    def alternatives(self) -> list[Value]:
        return [option for _, option in self.options]

    def contained_values(self) -> Iterable[Value]:
        return self.alternatives()

    @property
    def dtype_info(self) -> DtypeInfo:  # type: ignore[override]
        return reduce(join, [option.dtype_info for option in self.alternatives()])


NONE = Const(None)

Vars = dict[str, Value]
#: Arguments of a call: positional values, and keyword values by name. "**" stands for unpacked arguments that are not
#: known.
Args = list[Value]
Keywords = dict[str, Value]
Heap = dict[tuple[int, str], Value]
#: Jump out of a loop or to its next iteration: graph node, variables and heap.
Jump = tuple[int, Vars, Heap]
#: Return of a function: graph node, condition, returned value and heap.
Return = tuple[int, Formula, Value, Heap]


class Frame:
    """Frame of a call under analysis: the variables of a function and its returns."""

    __slots__ = (
        "caller",
        "cls",
        "function",
        "is_class_body",
        "module",
        "on_yield",
        "parent",
        "path_base",
        "receiver",
        "returns",
        "unwind_base",
        "vars",
        "yields_microbatches",
    )

    def __init__(
        self, function: Function | None, parent: Frame | None, caller: Site | None, module: Module | None = None
    ) -> None:
        home = function.module if function is not None else parent.module if parent is not None else module
        assert home is not None
        self.module: Module = home
        self.function = function
        self.parent = parent
        self.caller = caller
        self.vars: Vars = {}
        self.receiver: Value | None = None
        self.cls: Class | None = None
        self.returns: list[Return] = []
        self.unwind_base = 0
        self.path_base = 0
        self.is_class_body = False
        self.yields_microbatches = False
        self.on_yield: Callable[[Value], None] | None = None

    @property
    def name(self) -> str:
        return self.function.qualified_name if self.function else "<module>"


def join_provenance(values: Iterable[Value]) -> Provenance:
    """Join the provenance of several values."""
    provenances = [part.provenance for part in values]
    known = [provenance for provenance in provenances if provenance is not NO_PROVENANCE and any(provenance)]
    if len(known) < 2:
        return known[0] if known else NO_PROVENANCE
    callees, dtypes = (EMPTY.union(*sets) for sets in ([x.callees for x in known], [x.region_dtypes for x in known]))
    return Provenance(join_autocast_scopes({provenance.autocast_scope for provenance in known}), callees, dtypes)


def are_data_sizes(values: Iterable[Value]) -> bool:
    """Return True if all values except constants are amounts of data, with at least one such value."""
    measured = [value for value in values if value.value is NO_CONSTANT]
    return bool(measured) and all(value.is_data_size for value in measured)


def as_one_of_many(value: Value) -> Value:
    """Return a value as an item of a list of such values: each item may be the loss of one sample of the batch."""
    if not isinstance(value, TensorValue) or not value.is_sample_mean:
        return value
    made = value.copy()
    made.is_sample_mean = False
    return made


def merge_into(mapping: MappingValue, value: Value) -> None:
    """Apply ``mapping.update(value)``; ``value`` may be a dict, a list of pairs or an unknown value."""
    inner = value.is_open if isinstance(value, (MappingValue, SequenceValue)) else True
    if inner:
        mapping.is_open = True
        # An unknown value may hold any key, so a constant of the mapping is only a default.
        mapping.items = {key: item for key, item in mapping.items.items() if not isinstance(item, Const)}
    if isinstance(value, MappingValue):
        mapping.items.update(value.items)
        return
    pairs = value.items if isinstance(value, SequenceValue) else [value]
    for pair in pairs:
        if isinstance(pair, SequenceValue) and len(pair.items) == 2 and isinstance(pair.items[0], Const):
            mapping.items[pair.items[0].value] = pair.items[1]
        else:
            mapping.is_open = True


def join_keys(parts: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """Return the union of all key sets, or None if one set is not known."""
    every: frozenset[int] = frozenset()
    for part in parts:
        if part is None:
            return None
        every |= part
    return every


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
