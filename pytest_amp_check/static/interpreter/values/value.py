"""Base classes of abstract values, constants, and values of which only the identity is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....protocol.events import GradientAccess
from ....protocol.fast_namedtuple import NamedTuple
from ....protocol.sites import Site
from ....protocol.tracked_objects import TrackedObject
from ..conditions import Formula
from ..dtypes import NO_DTYPE_INFO, NUMBER_INFO, DtypeInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Same = TypeVar("Same", bound="TypedValue")


#: Shared empty set. Most values have several empty sets, and each new set would be a separate object.
EMPTY: frozenset[Any] = frozenset()

#: Names in ``callees``: ``FORWARD`` stands for a module of an unknown class, ``AUTOCAST_CALLEES`` for a module that
#: enters autocast itself.
FORWARD = "forward"
AUTOCAST_CALLEES = frozenset({"autocast"})
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


class Count(NamedTuple):
    """How a value counts iterations.

    is_counter           a loop counts this number; ``first_value`` is the first number, if known
    possible_start       first number of a program that does not resume, where the first number is not known
    counting_method      only method of its class that counts an attribute
    added_to_start       number that the code adds to an unknown first number, as in ``start=done + 1``
    is_iteration_count   the counter is the number of iterations so far, except for a constant
    is_loop_index        the loop itself assigns the counter, as ``range`` does
    offset               number added to ``base``, the value without an offset; None for the value itself
    remainder_operands   the two operands of a ``%``
    """

    is_counter: bool = False
    first_value: int | None = None
    possible_start: int | None = None
    counting_method: object = None
    added_to_start: int | None = None
    is_iteration_count: bool = False
    is_loop_index: bool = False
    offset: int = 0
    base: Value | None = None
    remainder_operands: tuple[Value, Value] | None = None


class Origin(NamedTuple):
    """Where a value comes from.

    is_from_outside        the value came from a caller that is not analyzed
    is_argument            the value itself came from there, and is not a part of such a value
    is_call_result         a call returned the value
    is_comparison_result   that call received the result of another call, as a criterion does
    is_loop_element        a loop over an unknown value assigns the value
    is_from_gradient       the value was computed from the gradient of a tensor, or may hold a loss scale for another
                           reason
    """

    is_from_outside: bool = False
    is_argument: bool = False
    is_call_result: bool = False
    is_comparison_result: bool = False
    is_loop_element: bool = False
    is_from_gradient: bool = False

    def join(self, other: Origin) -> Origin:
        """Return the origin of a value computed from two values."""
        return self if self is other else Origin._make(x or y for x, y in zip(self, other, strict=True))


class Normalization(NamedTuple):
    """How a value was divided, summed or averaged: the code may account for the accumulation of gradients.

    is_divided             the value was divided, or summed instead of averaged, so a product with the value may be an
                           average
    is_only_summed         ``is_divided`` holds only because the value was summed
    is_only_weighted       ``is_divided`` holds only because of a factor computed from this iteration's data alone
    is_only_share          ``is_divided`` holds only because of a factor that may be a share of the value
    is_only_by_number      ``is_divided`` holds only because of numbers that the code writes out
    is_sample_mean         the value is a mean over the samples of a batch, so a further sum adds no samples
    is_data_size           the value is an amount of data: a size, a length, or a sum of sizes
    is_zeros               the value is a new tensor of zeros: no loss, or one to which code adds terms
    may_be_one             the value is the number one on some path
    has_unknown_reduction  the value is part of the result of unanalyzed code, with an unknown reduction
    divisors               divisors of the value; ``factors`` are the identities of its factors
    """

    is_divided: bool = False
    is_only_summed: bool = False
    is_only_weighted: bool = False
    is_only_share: bool = False
    is_only_by_number: bool = False
    is_sample_mean: bool = False
    is_data_size: bool = False
    is_zeros: bool = False
    may_be_one: bool = False
    has_unknown_reduction: bool = False
    divisors: frozenset[Divisor] = EMPTY
    factors: frozenset[object] = EMPTY

    def join(self, other: Normalization) -> Normalization:
        """Return the normalization of a value computed from two values. Divisors are those of the first value."""
        if self is other:
            return self
        return Normalization(
            self.is_divided and other.is_divided,
            self.is_only_summed and other.is_only_summed,
            self.is_only_weighted and other.is_only_weighted,
            self.is_only_share and other.is_only_share,
            self.is_only_by_number and other.is_only_by_number,
            self.is_sample_mean and other.is_sample_mean,
            self.is_data_size and other.is_data_size,
            self.is_zeros and other.is_zeros,
            self.may_be_one and other.may_be_one,
            self.has_unknown_reduction and other.has_unknown_reduction,
            self.divisors,
            self.factors,
        )


NO_COUNT = Count()
NO_ORIGIN = Origin()
ARGUMENT = Origin(is_from_outside=True, is_argument=True)
NO_NORMALIZATION = Normalization()
DIVIDED = Normalization(is_divided=True)


class Value:
    """Abstract value of an expression.

    loops            keys of the loops that recreate the value in every iteration
    normalization    how the value was divided, summed or averaged
    microbatches     the value holds the micro-batches of one window
    """

    __slots__ = ("loops", "microbatches", "normalization")

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
    #: Role of a tracked object, and the object.
    role: str = ""
    tracked_object: TrackedObject | None = None
    #: How the value counts iterations, and where it comes from: only unknown values and tensors set these.
    count: Count = NO_COUNT
    origin: Origin = NO_ORIGIN
    #: Events that read the gradients from which the value was computed.
    gradient_reads: tuple[GradientAccess, ...] = ()
    #: Modules and regions that computed the value.
    provenance: Provenance = NO_PROVENANCE

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        self.loops = loops
        self.normalization = NO_NORMALIZATION
        self.microbatches = False

    def set_divided(self, *, is_divided: bool) -> None:
        """Set whether the value was divided."""
        if self.normalization.is_divided is not is_divided:
            self.normalization = self.normalization._replace(is_divided=is_divided, is_only_by_number=False)

    def with_dtype_info(self, dtype_info: DtypeInfo) -> Value:
        """Return the value with this dtype info, or the same object if the kind has no dtype info."""
        return self

    def identity_key(self, unique_number: Callable[[Value], int], depth: int = 0) -> object:
        """Return a key that equal values share. ``unique_number`` gives a number that no other value has."""
        return unique_number(self)

    def before_recognition(self) -> Value:
        """Return the unknown value whose use revealed a tracked object; without such a use, the same object."""
        return self

    @property
    def offset_base(self) -> Value:
        """Value to which the offset of :attr:`count` was added; without an offset, the same object."""
        return self.count.base or self

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

    def possible_start(self) -> int | None:
        """Return the number with which a count begins where the program does not resume, or None if it is unknown."""
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


class Aggregate(Value):
    """Value that contains other values, or is one of several values."""

    __slots__ = ()

    @property
    def provenance(self) -> Provenance:  # type: ignore[override]
        return join_provenance(self.contained_values())


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
        if dtype_info is self.dtype_info or dtype_info == self.dtype_info:
            return self
        made = self.copy()
        made.dtype_info = dtype_info
        return made


class Const(TypedValue):
    """Python constant."""

    kind = "constant"

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        # As in `Value.__init__`, without a call: most expressions are constants and unknown values.
        self.loops = EMPTY
        self.normalization = NO_NORMALIZATION
        self.microbatches = False
        self.value = value
        kind = type(value)
        self.dtype_info = NUMBER_INFO if kind is int or kind is float else NO_DTYPE_INFO

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

    def possible_start(self) -> int | None:
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None


class UnknownValue(TypedValue):
    """Unknown value (top): only the identity is known. Equal expressions over equal values give the same ``key``.

    count                  how the value counts iterations
    origin                 where the value comes from
    gradient_reads         events that read the gradients from which the value was computed
    iterable_kind          kind of a loop helper such as "range", "enumerate" or "zip", else ""
    is_loss_number         the value is the number of a loss that no scale multiplies
    item_origin            key of the unknown value that contains this item, and the name of the item or None
    is_new_float32         the value is a float32 tensor created here
    owner_key              key of the unknown value that has this attribute, -1 for other values
    scheduled_optimizer    key of the optimizer whose learning rate this scheduler moves, -1 for no scheduler
    text_prefix            known beginning of a text whose rest is unknown
    """

    kind = "unknown"

    __slots__ = (
        "count",
        "gradient_reads",
        "is_loss_number",
        "is_new_float32",
        "item_origin",
        "iterable_kind",
        "key",
        "origin",
        "owner_key",
        "provenance",
        "scheduled_optimizer",
        "source_text",
        "text_prefix",
    )

    def __init__(
        self, key: int, source_text: object, loops: frozenset[int] = EMPTY, *, is_from_outside: bool = False
    ) -> None:
        self.loops = loops
        self.normalization = NO_NORMALIZATION
        self.microbatches = False
        self.dtype_info = NO_DTYPE_INFO
        self.key = key
        self.source_text = source_text
        self.iterable_kind = ""
        self.count = NO_COUNT
        self.origin = ARGUMENT if is_from_outside else NO_ORIGIN
        self.owner_key = -1
        self.provenance = NO_PROVENANCE
        self.is_loss_number = False
        self.is_new_float32 = False
        self.text_prefix = ""
        self.gradient_reads: tuple[GradientAccess, ...] = ()
        self.item_origin: tuple[int, str | None] | None = None
        self.scheduled_optimizer = -1

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.key

    def truth_condition(self) -> None:
        return None

    def first_iteration_value(self) -> object:
        base, count = self.offset_base.count, self.count
        first = base.first_value if base.first_value is not None else base.possible_start
        return first + count.offset if count.is_counter and first is not None else None

    def possible_start(self) -> int | None:
        start = self.offset_base.count.possible_start
        return None if start is None else start + self.count.offset

    @property
    def text(self) -> str:
        """Source text of the expression."""
        return str(self.source_text)

    def with_provenance(self, provenance: Provenance) -> UnknownValue:
        """Return the value with this provenance. The result is a copy if the value already has another provenance."""
        if self.provenance is provenance or self.provenance == provenance:
            return self
        same = self.copy() if any(self.provenance) else self
        same.provenance = provenance
        return same


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


def join_autocast_scopes(scopes: set[str]) -> str:
    """Join the scopes of several forwards, each "in", "out" or "unknown". "" means no forward, "?" an unknown scope."""
    # The names sort by how much they cover, with one exception: "in" together with "out" gives "in".
    last = max(scopes)
    return "in" if last == "out" and "in" in scopes else last


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


NONE = Const(None)


def join_provenance(values: Iterable[Value]) -> Provenance:
    """Join the provenance of several values."""
    known = [provenance for part in values if (provenance := part.provenance) is not NO_PROVENANCE and any(provenance)]
    if len(known) < 2:
        return known[0] if known else NO_PROVENANCE
    callees, dtypes = (EMPTY.union(*sets) for sets in ([x.callees for x in known], [x.region_dtypes for x in known]))
    return Provenance(join_autocast_scopes({provenance.autocast_scope for provenance in known}), callees, dtypes)


def iterable_kind_of(value: Value) -> str:
    """Return the kind of a loop helper such as "range", "enumerate" or "zip", else ""."""
    return value.iterable_kind if isinstance(value, UnknownValue) else ""


def are_data_sizes(values: Iterable[Value]) -> bool:
    """Return True if all values except constants are amounts of data, with at least one such value."""
    measured = [value for value in values if value.value is NO_CONSTANT]
    return bool(measured) and all(value.normalization.is_data_size for value in measured)


def join_keys(parts: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """Return the union of all key sets, or None if one set is not known."""
    every: frozenset[int] = frozenset()
    for part in parts:
        if part is None:
            return None
        every |= part
    return every


def find_passed_iterable(args: Sequence[Value]) -> Value | None:
    """Return the first argument of unanalyzed code if it is an enumeration, or several iterables in step.

    Nothing but a loop uses these, so the result yields their items in the same order, as a progress bar does.
    """
    return args[0] if args and iterable_kind_of(args[0]) in ("enumerate", "zip") else None
