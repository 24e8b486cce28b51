"""What an expression may stand for: the abstract values that the interpreter computes with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Items
from functools import reduce

from ...protocol.events import Event, Site, TrackedObject
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.torch_api import DTYPES, canonical_name
from .conditions import Formula
from .dtypes import NO_DTYPE_INFO, NUMBER_INFO, DtypeInfo, join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ..project.module import Class, Function, ImportedName, Module

    Same = TypeVar("Same", bound="TypedValue")

#: An empty set: most values have several, and each made anew would be an object of its own.
EMPTY: frozenset[Any] = frozenset()

#: Among the names of what was called: a module of a class that is not known, and one that enters autocast by itself.
FORWARD = "forward"
AUTOCAST_CALLEES = frozenset({"autocast"})

#: Containers within containers, and items of one, up to which two that hold the same are taken for equal.
MAX_KEY_DEPTH, MAX_KEY_ITEMS = 3, 16
#: What stands for the Python value of what is no constant: no program has it.
NO_CONSTANT = object()


class Provenance(NamedTuple):
    """What ran that a value came from, which may be a model: where, what, and in which dtypes.

    ``autocast`` is "in", "out" or "unknown", "" where nothing ran, "?" where nobody knows; ``callees`` are names of
    what could not be read: who asks them knows whether one may enter autocast; ``dtypes`` those of the regions, "?"
    where one is not known.
    """

    autocast_scope: str = ""
    callees: frozenset[str] = EMPTY
    region_dtypes: frozenset[str] = EMPTY


NO_PROVENANCE = Provenance()


class Value:
    """An abstract value.

    ``loops`` are the loops in which it is made anew on every turn; ``divided`` says that it came from a division, so
    that what it is multiplied into may be an average; ``pieces`` that it holds the micro-batches of one window.
    """

    __slots__ = ("is_divided", "loops", "microbatches")

    #: By what the handlers of calls, methods, attributes and contexts know it.
    kind: str = ""
    #: Whether the protocol cares which of two values it is.
    is_relevant: bool = False
    #: What is known of its dtype, as that of a tensor.
    dtype_info: DtypeInfo = NO_DTYPE_INFO
    #: What a constant is.
    value: object = NO_CONSTANT
    #: The formula of a value that is a condition.
    formula: Formula | None = None
    #: A thing of the protocol with its role, and the unknown value that it was recognised in.
    role: str = ""
    tracked_object: TrackedObject | None = None
    recognized_from: UnknownValue | None = None
    #: What only unknown values are; see :class:`Opaque`.
    is_call_result: bool = False
    is_comparison_result: bool = False
    is_counter: bool = False
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
    #: How a text begins of which the rest is not known.
    text_prefix: str = ""
    #: The events that read the gradients from which it was computed.
    gradient_reads: tuple[Event, ...] = ()
    #: What ran that it came from.
    provenance: Provenance = NO_PROVENANCE

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        self.loops = loops
        self.is_divided = False
        self.microbatches = False

    def with_dtype_info(self, dtype_info: DtypeInfo) -> Value:
        """The same value, of which this is known; itself where nothing can be."""
        return self

    def identity_key(self, unique_number: Callable[[Value], int], depth: int = 0) -> object:
        """A key that equal values share; ``number`` gives one that no other value has."""
        return unique_number(self)

    @property
    def offset_base(self) -> Value:
        """What :attr:`offset` was added to: itself, where nothing was."""
        return self

    def truth_condition(self) -> Formula | None:
        """The condition under which it is true, None where that must be asked."""
        return True

    def item_at(self, index: Value) -> Value | None:
        """What an index leads to, None where that is not known."""
        return None

    def loop_element(self) -> Value | None:
        """What a loop over it is given in each turn, None where that is not known."""
        return None

    def first_iteration_value(self) -> object:
        """The number that it is in the first turn of the loop that counts it, or None."""
        return None

    def varying_loops(self) -> frozenset[int]:
        """The loops in which it, or something that it holds, is made anew."""
        return self.loops

    def alternatives(self) -> list[Value]:
        """Each of the values that it may be."""
        return [self]

    def contained_values(self) -> Iterable[Value]:
        """What it holds, or may be."""
        return ()

    def as_stored(self) -> Value:
        """The same where it is kept for later turns or calls, which may find another one of its kind there."""
        return self

    def tensors(self) -> list[TensorValue]:
        """The tensors that it is, or holds."""
        return []

    def gradients(self) -> list[GradValue]:
        """The gradients that it is, or holds in order."""
        return []


class Aggregate(Value):
    """A value that holds others, or is one of them."""

    __slots__ = ()

    @property
    def provenance(self) -> Provenance:  # type: ignore[override]
        return join_provenance(self.contained_values())

    def tensors(self) -> list[TensorValue]:
        return [tensor for part in self.contained_values() for tensor in part.tensors()]


class TypedValue(Value):
    """A value of which a fact may be learnt: with it, it is another one that is like it in all else."""

    __slots__ = ("dtype_info",)

    def copy(self: Same) -> Same:  # noqa: PYI019 - Python 3.10 has no Self
        """The same value, as whatever asks about it finds."""
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
    """A Python constant."""

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
    """A value of which only its identity is known: equal expressions over equal values are the same Opaque.

    ``parameter`` says that it came in from outside the code that is read, ``argument`` that it did so itself, and
    is no part of what did. ``counter`` marks a number that a loop counts, with ``first`` its first value where that
    is known; ``offset`` is what was added to it; ``index`` says that the loop itself hands it out. ``remainder``
    holds the two sides of a ``%``. ``readings`` are the events that read the gradients from which it was computed;
    ``iterates`` is "range" or "enumerate" for those. ``called`` says that a call gave it, ``compares`` that such a
    call was given what another one gave, as a criterion is; ``graded`` that it was computed from the gradient of a
    tensor; ``each`` that a loop over something unknown hands it out. ``entry`` is the key of the unknown value that
    it is an item of, and the name of the item where that is known. ``full`` says that it is a tensor of float32,
    made here. ``divisors`` is what it was divided by, ``factors`` the identities of what it was multiplied by.
    ``extent`` says that it is how much there is of some data: a size, a length, a sum of theirs; ``summed`` that it
    is ``divided`` only in so far as it was summed. ``schedules`` is the key of the optimizer whose learning rate it
    moves, -1 if it is no scheduler. ``head`` is how a text begins of which the rest is not known.
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
        "is_loop_element",
        "is_loop_index",
        "is_new_float32",
        "is_only_summed",
        "item_origin",
        "iterable_kind",
        "key",
        "offset",
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
        self.is_loop_index = False
        self.offset = 0
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
        self.gradient_reads: tuple[Event, ...] = ()
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
        """The user's own words for it."""
        return str(self.source_text)

    def with_provenance(self, provenance: Provenance) -> UnknownValue:
        """The same value, which came from there: another object, where it came from elsewhere before."""
        if self.provenance == provenance:
            return self
        same = self.copy() if any(self.provenance) else self
        same.provenance = provenance
        return same


class ExternalName(Value):
    """Something reachable by a dotted name outside the project: ``torch.float16``, ``os.environ``.

    ``shim`` says that it was imported where an older or newer torch is provided for, ``bare`` that no import says what
    the name stands for. Where it is the first of several
    dtypes, ``ways`` holds them by name, each with its condition.
    """

    kind = "named"
    is_relevant = True

    __slots__ = ("dtype_conditions", "name", "unresolved", "version_fallback")

    def __init__(self, name: str, *, version_fallback: bool = False, unresolved: bool = False) -> None:
        super().__init__()
        self.name = name
        self.version_fallback = version_fallback
        self.unresolved = unresolved
        self.dtype_conditions: dict[str, Formula] = {}

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.name

    @property
    def possible_dtypes(self) -> dict[str, Formula]:
        """The dtypes that it may be, each with its condition: none, where it is no dtype."""
        if self.dtype_conditions:
            return self.dtype_conditions
        dtype = DTYPES.get(canonical_name(self.name))
        return {} if dtype is None else {dtype: True}


class LazyImport(Value):
    """What an import gives a name to, not looked at yet; ``shim`` as in :class:`Named`."""

    kind = "imported"

    __slots__ = ("origin", "version_fallback")

    def __init__(self, origin: ImportedName, *, version_fallback: bool) -> None:
        super().__init__()
        self.origin = origin
        self.version_fallback = version_fallback


class ModuleValue(Value):
    """A module of the project at an absolute ``path``, or a package without a file of its own."""

    kind = "project module"

    __slots__ = ("module", "name", "path")

    def __init__(self, path: str, module: Module | None, name: str) -> None:
        super().__init__()
        self.path = path
        self.module = module
        self.name = name


class ObjectRef(Value):
    """A thing of the protocol: a scaler, an optimizer, a module, an autocast context, a loss function.

    ``enabled`` is the condition under which a scaler or an autocast is enabled. ``source`` is the opaque value that the
    thing was recognised in by its use; such a thing may also be None.
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
        """What may be several stands for each of them."""
        return self if self.tracked_object.attributes.get("several") else None


class UnwrappedOptimizer(ObjectRef):
    """An optimizer itself, taken out of what a framework has wrapped around it: its step goes through no scaler."""

    __slots__ = ()


class ModuleContainer(ObjectRef):
    """A module that holds others in order, as ``nn.Sequential`` does."""

    __slots__ = ("items",)

    def __init__(self, tracked_object: TrackedObject, items: list[Value]) -> None:
        super().__init__(tracked_object)
        self.items = items

    def item_at(self, index: Value) -> Value | None:
        position, size = index.value, len(self.items)
        return self.items[position] if isinstance(position, int) and -size <= position < size else None


class FrameworkEngine(ObjectRef):
    """The object through which a framework scales, unscales and steps; its thing is the scaler that it holds.

    ``framework`` is its key in the table, ``enabled`` the condition under which it scales, ``precision`` the value that
    decides about it. ``steps`` is the number by which its backward divides losses, None where it never does;
    ``optimizer`` the one that it wraps.
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
    """What a number was divided by: its identity, the user's words for it, where, and whether it is written there."""

    key: object
    source_text: object
    site: Site
    is_literal: bool


class FunctionValue(Value):
    """A function or method of the project with what it is bound to."""

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
    """A class of the project."""

    kind = "class"
    is_relevant = True

    __slots__ = ("cls", "frame")

    def __init__(self, cls: Class, frame: Frame | None) -> None:
        super().__init__()
        self.cls = cls
        self.frame = frame


class Instance(Value):
    """An object of a class of the project; its attributes are in the heap under ``key``.

    ``open`` says that any of its attributes may be given a value by a name that only a run knows.
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
    """``super()`` in a method: attributes come from the bases of ``cls``."""

    kind = "super"

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Value) -> None:
        super().__init__()
        self.cls = cls
        self.receiver = receiver


class TensorValue(TypedValue):
    """A tensor that a loss is, or is made of.

    scaler      key of the scaler it was multiplied by, -1 if none
    divided     it was divided, or summed rather than averaged: accumulation may be accounted for
    extent      it is a sum of data; ``summed`` says that it is ``divided`` only in so far as it was summed
    deps        keys of the modules whose forward it depends on, None where that is not known
    autocast    "in", "out" or "unknown": where those forwards ran; "?" where nothing is known of any
    callees     names of what made it and could not be read
    in_region   the last function applied to it ran in an autocast region
    dtypes      dtypes of those regions; "?" where a region may be disabled or its dtype is not known
    forward     the event of the first of those forwards
    low         the low-precision dtype that it has where those regions are enabled, "" if none, "?" if not known
    matmul      it comes from an op that autocast runs in the low-precision dtype
    penalty     where the gradients that it holds of a scaled loss were taken, with the scale still in, the user's words
                for that, and whether they were divided by an outdated scale
    opaque      it came in from outside the code that is read
    graded      it was computed from the gradient of a tensor, or may hold a loss scale for another reason
    is_loss     a loss function made it
    custom      an autograd.Function of the project made it, whose backward is not decorated with custom_bwd
    module_read every module it depends on is in the project and enters no autocast itself
    divisors    what it was divided by; ``factors`` are the identities of what it was multiplied by
    ran         the loops in whose turns those forwards ran
    several     it is a sum of parts that several scalers have scaled
    uneven      it is a sum of which one part holds a loss scale and another none, or another scaler's
    vague       it is a part of what code that cannot be read gave, of which nobody knows how it was reduced
    weighted    it is ``divided`` only in so far as it was multiplied by what is known of this turn's data alone
    share       it is ``divided`` only in so far as it was multiplied by what may be a share of it
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
        self.first_forward: Event | None = None
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
        self.forward_loops: frozenset[int] = frozenset()

    def tensors(self) -> list[TensorValue]:
        return [self]

    @property
    def provenance(self) -> Provenance:  # type: ignore[override]
        return Provenance(self.autocast_scope, self.callees, self.region_dtypes)

    @property
    def enters_autocast(self) -> bool:
        """Whether a module that it depends on enters autocast itself."""
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
        # What is made of the pieces of a window is none.
        made.microbatches = False
        return made

    @staticmethod
    def join(parts: list[TensorValue]) -> TensorValue:
        """A tensor computed from others."""
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
    """Where forwards ran of which each ran "in", "out" or "unknown"; "" where none did, "?" where nobody knows."""
    # The words sort from what says least to what covers all others, but that some ran in a region is more than "out".
    last = max(scopes)
    return "in" if last == "out" and "in" in scopes else last


class ParamsValue(Value):
    """Parameters, or an iterable of them: of modules, or of optimizers; None where whose is not known.

    ``one`` says that it is a single parameter, ``groups`` that it is ``optimizer.param_groups`` or one of them.
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
            # An option of the group: its learning rate.
            return None
        return ParamsValue(self.modules, self.optimizers, is_single=not self.is_param_group)

    def loop_element(self) -> ParamsValue:
        return ParamsValue(
            self.modules, self.optimizers, is_single=not self.is_param_group, is_param_group=self.is_param_group
        )


class GradValue(Value):
    """``p.grad`` of parameters.

    ``unscaled`` says that they were divided by the loss scale, ``by`` are the events that read the gradients from which
    a number was computed that they were multiplied by, or divided.
    """

    kind = "gradients"

    __slots__ = ("factor_reads", "is_unscaled", "params")

    def __init__(self, params: ParamsValue, *, is_unscaled: bool = False, factor_reads: tuple[Event, ...] = ()) -> None:
        super().__init__()
        self.params = params
        self.is_unscaled = is_unscaled
        self.factor_reads = factor_reads

    def loop_element(self) -> GradValue:
        return self

    def gradients(self) -> list[GradValue]:
        return [self]


class ScaleValue(Value):
    """A number that is the loss scale, or its inverse, read in the loops ``loops``.

    ``lasting`` says that who holds it may have been given a later one.
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
    """``x.state_dict()``, taken by the call ``node`` at a place."""

    kind = "state"
    is_relevant = True

    __slots__ = ("node", "owner", "site")

    def __init__(self, owner: Value, node: ast.AST, site: Site) -> None:
        super().__init__()
        self.owner = owner
        self.node = node
        self.site = site


class SequenceValue(Aggregate):
    """A list or tuple whose items are known."""

    kind = "sequence"
    is_relevant = True

    __slots__ = ("is_open", "items")

    def __init__(self, items: list[Value], *, is_open: bool = False) -> None:
        super().__init__()
        self.items = items
        self.is_open = is_open

    @property
    def gradient_reads(self) -> tuple[Event, ...]:  # type: ignore[override]
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
    """A dict whose items are known; ``open`` where it may hold more."""

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
        # What has no entries here may be given some by a later turn of a loop.
        return True if self.items else None

    def item_at(self, index: Value) -> Value | None:
        return self.items.get(index.value)

    def contained_values(self) -> Iterable[Value]:
        return self.items.values()


class PartialCall(Value):
    """``functools.partial(f, ...)``, or a lambda-like delay of a call."""

    kind = "partial"
    is_relevant = True

    __slots__ = ("args", "func", "keywords")

    def __init__(self, func: Value, args: Args, keywords: Keywords) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords


class BoundMethod(Value):
    """A method of a thing or a tensor, taken to be called later: ``step = optimizer.step``."""

    kind = "bound method"
    is_relevant = True

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name


class NullContext(Value):
    """A context that does nothing to autocast."""

    kind = "null context"
    is_relevant = True

    __slots__ = ()


class AnomalyMode(Value):
    """Anomaly detection that was switched on, as ``event`` says."""

    kind = "anomaly detection"
    is_relevant = True

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class GradMode(Value):
    """``torch.no_grad()`` and its like."""

    kind = "grad mode"
    is_relevant = True

    __slots__ = ()


class NoSyncContext(Value):
    """``model.no_sync()`` of a module whose gradients are averaged over processes."""

    kind = "no sync"
    is_relevant = True

    __slots__ = ()


class Float8Context(Value):
    """A region of TransformerEngine, whose modules compute in float8; ``enabled`` where they do."""

    kind = "float8"
    is_relevant = True

    __slots__ = ("enabled",)

    def __init__(self, enabled: Formula) -> None:
        super().__init__()
        self.enabled = enabled


class StackContext(Value):
    """An ``ExitStack``.

    Once it is entered, ``opened`` counts the regions that were open before, ``apart`` the contexts in which gradients
    stay apart, ``float8`` the regions of TransformerEngine.
    """

    kind = "stack"
    is_relevant = True
    open_region_count: int
    no_sync_count: int
    float8_count: int

    __slots__ = ("float8_count", "no_sync_count", "open_region_count")


class GeneratorContext(Value):
    """A call of a ``@contextmanager`` function: its body runs around the body of the ``with``."""

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
    """A call of a generator function, of which nothing has run yet: who goes over it runs it from yield to yield.

    ``gives`` is what it yields, where that is known. ``yields`` are the places where it does, each as the key of a test
    whether it waits there: none, where what it does between them is nothing to the protocol. ``ended`` is the place
    where the reading that was the last came to the end of its body.
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
    """The value of a condition."""

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
    """One of several values, each under its condition; the conditions exclude one another."""

    kind = "choice"
    is_relevant = True

    __slots__ = ("options",)

    def __init__(self, options: list[tuple[Formula, Value]]) -> None:
        super().__init__()
        self.options = options

    @property
    def gradient_reads(self) -> tuple[Event, ...]:  # type: ignore[override]
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
#: Arguments of a call, those with names by their names: "**" stands for what is unpacked and not known.
Args = list[Value]
Keywords = dict[str, Value]
Heap = dict[tuple[int, str], Value]
#: Where a jump leaves a loop, or goes on to its next turn, with what variables and objects hold there.
Jump = tuple[int, Vars, Heap]
#: Where a function returns, under which condition, what, and what objects hold there.
Return = tuple[int, Formula, Value, Heap]


class Frame:
    """A call that is being read: the variables of a function and where it returns to."""

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
    """What ran that values came from."""
    provenances = [part.provenance for part in values]
    known = [provenance for provenance in provenances if provenance is not NO_PROVENANCE and any(provenance)]
    if len(known) < 2:
        return known[0] if known else NO_PROVENANCE
    callees, dtypes = (EMPTY.union(*sets) for sets in ([x.callees for x in known], [x.region_dtypes for x in known]))
    return Provenance(join_autocast_scopes({provenance.autocast_scope for provenance in known}), callees, dtypes)


def merge_into(mapping: MappingValue, value: Value) -> None:
    """What ``mapping.update(value)`` does: a dict, or pairs, or something that is not known."""
    inner = value.is_open if isinstance(value, (MappingValue, SequenceValue)) else True
    if inner:
        mapping.is_open = True
        # What is not known may hold any of the keys: a constant of the first is a default.
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
    """The keys of all parts, None where those of one are not known."""
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
    """Keys of the modules whose parameters an optimizer is given."""
    if isinstance(value, ParamsValue):
        return value.modules
    if isinstance(value, SequenceValue) and value.items:
        return join_keys(
            modules_of_params(item.items.get("params") if isinstance(item, MappingValue) else item)
            for item in value.items
        )
    return None
