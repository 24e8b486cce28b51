"""What an expression may stand for: the abstract values that the interpreter computes with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Items
from functools import reduce

from ...protocol.events import Event, Site, Thing
from ...protocol.named import NamedTuple
from ...protocol.surface import DTYPES, canonical
from .conditions import Formula
from .dtypes import A_NUMBER, NOTHING, Fact, joined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ..project.module import Class, Function, Imported, Module

    Same = TypeVar("Same", bound="Knowable")

#: An empty set: most values have several, and each made anew would be an object of its own.
EMPTY: frozenset[Any] = frozenset()

#: Among the names of what was called: a module of a class that is not known, and one that enters autocast by itself.
FORWARD = "forward"
CASTS = frozenset({"autocast"})

#: Containers within containers, and items of one, up to which two that hold the same are taken for equal.
KEYED, KEYED_ITEMS = 3, 16
#: What stands for the Python value of what is no constant: no program has it.
UNREAD = object()


class Past(NamedTuple):
    """What ran that a value came from, which may be a model: where, what, and in which dtypes.

    ``autocast`` is "in", "out" or "unknown", "" where nothing ran, "?" where nobody knows; ``callees`` are names of
    what could not be read: who asks them knows whether one may enter autocast; ``dtypes`` those of the regions, "?"
    where one is not known.
    """

    autocast: str = ""
    callees: frozenset[str] = EMPTY
    dtypes: frozenset[str] = EMPTY


NO_PAST = Past()


class Value:
    """An abstract value.

    ``loops`` are the loops in which it is made anew on every turn; ``divided`` says that it came from a division, so
    that what it is multiplied into may be an average; ``pieces`` that it holds the micro-batches of one window.
    """

    __slots__ = ("divided", "loops", "pieces")

    #: By what the handlers of calls, methods, attributes and contexts know it.
    kind: str = ""
    #: Whether the protocol cares which of two values it is.
    matters: bool = False
    #: What is known of its dtype, as that of a tensor.
    fact: Fact = NOTHING
    #: What a constant is.
    value: object = UNREAD
    #: The formula of a value that is a condition.
    formula: Formula | None = None
    #: A thing of the protocol with its role, and the unknown value that it was recognised in.
    role: str = ""
    thing: Thing | None = None
    source: Opaque | None = None
    #: What only unknown values are; see :class:`Opaque`.
    called: bool = False
    compares: bool = False
    counter: bool = False
    extent: bool = False
    first: int | None = None
    full: bool = False
    graded: bool = False
    index: bool = False
    iterates: str = ""
    offset: int = 0
    parameter: bool = False
    remainder: tuple[Value, Value] | None = None
    summed: bool = False
    #: How a text begins of which the rest is not known.
    head: str = ""
    #: The events that read the gradients from which it was computed.
    readings: tuple[Event, ...] = ()
    #: What ran that it came from.
    past: Past = NO_PAST

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        self.loops = loops
        self.divided = False
        self.pieces = False

    def knowing(self, fact: Fact) -> Value:
        """The same value, of which this is known; itself where nothing can be."""
        return self

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        """A key that equal values share; ``number`` gives one that no other value has."""
        return number(self)

    @property
    def base(self) -> Value:
        """What :attr:`offset` was added to: itself, where nothing was."""
        return self

    def truth(self) -> Formula | None:
        """The condition under which it is true, None where that must be asked."""
        return True

    def item(self, index: Value) -> Value | None:
        """What an index leads to, None where that is not known."""
        return None

    def element(self) -> Value | None:
        """What a loop over it is given in each turn, None where that is not known."""
        return None

    def at_first(self) -> object:
        """The number that it is in the first turn of the loop that counts it, or None."""
        return None

    def turns(self) -> frozenset[int]:
        """The loops in which it, or something that it holds, is made anew."""
        return self.loops

    def alternatives(self) -> list[Value]:
        """Each of the values that it may be."""
        return [self]

    def parts(self) -> Iterable[Value]:
        """What it holds, or may be."""
        return ()

    def kept(self) -> Value:
        """The same where it is kept for later turns or calls, which may find another one of its kind there."""
        return self

    def tensors(self) -> list[Tensor]:
        """The tensors that it is, or holds."""
        return []

    def gradients(self) -> list[Grad]:
        """The gradients that it is, or holds in order."""
        return []


class Holder(Value):
    """A value that holds others, or is one of them."""

    __slots__ = ()

    @property
    def past(self) -> Past:  # type: ignore[override]
        return past_of(self.parts())

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.parts() for tensor in part.tensors()]


class Knowable(Value):
    """A value of which a fact may be learnt: with it, it is another one that is like it in all else."""

    __slots__ = ("fact",)

    def copy(self: Same) -> Same:  # noqa: PYI019 - Python 3.10 has no Self
        """The same value, as whatever asks about it finds."""
        kind = type(self)
        made = kind.__new__(kind)
        for name in (*Value.__slots__, "fact", *kind.__slots__):
            setattr(made, name, getattr(self, name))
        return made

    def knowing(self: Same, fact: Fact) -> Same:  # noqa: PYI019
        if fact == self.fact:
            return self
        made = self.copy()
        made.fact = fact
        return made


class Const(Knowable):
    """A Python constant."""

    kind = "constant"

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value
        self.fact = A_NUMBER if type(value) in (int, float) else NOTHING

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return ("const", repr(self.value))

    @property
    def matters(self) -> bool:  # type: ignore[override]
        return self.value is None or isinstance(self.value, (str, bool))

    @property
    def formula(self) -> Formula | None:  # type: ignore[override]
        return self.value if isinstance(self.value, bool) else None

    def truth(self) -> Formula:
        return bool(self.value)

    def at_first(self) -> object:
        return self.value if isinstance(self.value, (int, float)) else None


class Opaque(Knowable):
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
        "_base",
        "argument",
        "called",
        "compares",
        "counter",
        "divisors",
        "each",
        "entry",
        "extent",
        "factors",
        "first",
        "full",
        "graded",
        "head",
        "index",
        "iterates",
        "key",
        "offset",
        "parameter",
        "past",
        "readings",
        "remainder",
        "schedules",
        "summed",
        "words",
    )

    def __init__(self, key: int, words: object, loops: frozenset[int] = EMPTY, *, parameter: bool = False) -> None:
        super().__init__(loops)
        self.fact = NOTHING
        self.key = key
        self.words = words
        self.iterates = ""
        self.parameter = self.argument = parameter
        self.counter = False
        self.first: int | None = None
        self.index = False
        self.offset = 0
        self._base: Value | None = None
        self.remainder: tuple[Value, Value] | None = None
        self.past = NO_PAST
        self.called = False
        self.compares = False
        self.each = False
        self.extent = False
        self.full = False
        self.graded = False
        self.head = ""
        self.summed = False
        self.readings: tuple[Event, ...] = ()
        self.entry: tuple[int, str | None] | None = None
        self.divisors: frozenset[Divisor] = EMPTY
        self.factors: frozenset[object] = EMPTY
        self.schedules = -1

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.key

    @property
    def base(self) -> Value:
        return self._base or self

    @base.setter
    def base(self, value: Value) -> None:
        self._base = value

    def truth(self) -> None:
        return None

    def at_first(self) -> object:
        first = self.base.first
        return first + self.offset if self.counter and first is not None else None

    @property
    def text(self) -> str:
        """The user's own words for it."""
        return str(self.words)

    def made(self, past: Past) -> Opaque:
        """The same value, which came from there: another object, where it came from elsewhere before."""
        if self.past == past:
            return self
        same = self.copy() if any(self.past) else self
        same.past = past
        return same


class Named(Value):
    """Something reachable by a dotted name outside the project: ``torch.float16``, ``os.environ``.

    ``shim`` says that it was imported where an older or newer torch is provided for, ``bare`` that no import says what
    the name stands for. Where it is the first of several
    dtypes, ``ways`` holds them by name, each with its condition.
    """

    kind = "named"
    matters = True

    __slots__ = ("bare", "name", "shim", "ways")

    def __init__(self, name: str, *, shim: bool = False, bare: bool = False) -> None:
        super().__init__()
        self.name = name
        self.shim = shim
        self.bare = bare
        self.ways: dict[str, Formula] = {}

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.name

    @property
    def dtypes(self) -> dict[str, Formula]:
        """The dtypes that it may be, each with its condition: none, where it is no dtype."""
        if self.ways:
            return self.ways
        dtype = DTYPES.get(canonical(self.name))
        return {} if dtype is None else {dtype: True}


class ImportedValue(Value):
    """What an import gives a name to, not looked at yet; ``shim`` as in :class:`Named`."""

    kind = "imported"

    __slots__ = ("origin", "shim")

    def __init__(self, origin: Imported, *, shim: bool) -> None:
        super().__init__()
        self.origin = origin
        self.shim = shim


class ModuleValue(Value):
    """A module of the project at an absolute ``path``, or a package without a file of its own."""

    kind = "project module"

    __slots__ = ("module", "name", "path")

    def __init__(self, path: str, module: Module | None, name: str) -> None:
        super().__init__()
        self.path = path
        self.module = module
        self.name = name


class Ref(Value):
    """A thing of the protocol: a scaler, an optimizer, a module, an autocast context, a loss function.

    ``enabled`` is the condition under which a scaler or an autocast is enabled. ``source`` is the opaque value that the
    thing was recognised in by its use; such a thing may also be None.
    """

    matters = True

    __slots__ = ("enabled", "kind", "role", "source", "thing")

    def __init__(self, thing: Thing, enabled: Formula = True, source: Opaque | None = None) -> None:
        super().__init__()
        self.kind = self.role = thing.role
        self.thing: Thing = thing
        self.enabled = enabled
        self.source = source

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.thing.key)

    def element(self) -> Value | None:
        """What may be several stands for each of them."""
        return self if self.thing.facts.get("several") else None


class Bare(Ref):
    """An optimizer itself, taken out of what a framework has wrapped around it: its step goes through no scaler."""

    __slots__ = ()


class Container(Ref):
    """A module that holds others in order, as ``nn.Sequential`` does."""

    __slots__ = ("items",)

    def __init__(self, thing: Thing, items: list[Value]) -> None:
        super().__init__(thing)
        self.items = items

    def item(self, index: Value) -> Value | None:
        place, size = index.value, len(self.items)
        return self.items[place] if isinstance(place, int) and -size <= place < size else None


class Engine(Ref):
    """The object through which a framework scales, unscales and steps; its thing is the scaler that it holds.

    ``framework`` is its key in the table, ``enabled`` the condition under which it scales, ``precision`` the value that
    decides about it. ``steps`` is the number by which its backward divides losses, None where it never does;
    ``optimizer`` the one that it wraps.
    """

    __slots__ = ("framework", "optimizer", "precision", "steps")

    def __init__(
        self,
        framework: str,
        thing: Thing,
        enabled: Formula = True,
        source: Opaque | None = None,
        precision: Value | None = None,
        steps: Value | None = None,
        optimizer: Value | None = None,
    ) -> None:
        super().__init__(thing, enabled, source)
        self.kind = "engine"
        self.framework = framework
        self.precision = precision or NONE
        self.steps = steps
        self.optimizer = optimizer


class Divisor(NamedTuple):
    """What a number was divided by: its identity, the user's words for it, where, and whether it is written there."""

    key: object
    words: object
    site: Site
    written: bool


class FunctionValue(Value):
    """A function or method of the project with what it is bound to."""

    kind = "function"
    matters = True

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
    matters = True

    __slots__ = ("cls", "frame")

    def __init__(self, cls: Class, frame: Frame | None) -> None:
        super().__init__()
        self.cls = cls
        self.frame = frame


class Instance(Value):
    """An object of a class of the project; its attributes are in the heap under ``key``.

    ``open`` says that any of its attributes may be given a value by a name that only a run knows.
    """

    matters = True

    __slots__ = ("cls", "key", "kind", "open", "thing")

    def __init__(self, cls: Class, key: int, thing: Thing | None = None) -> None:
        super().__init__()
        self.cls = cls
        self.key = key
        self.thing = thing
        self.kind = "instance" if thing is None else "module instance"
        self.open = False

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.key)


class SuperValue(Value):
    """``super()`` in a method: attributes come from the bases of ``cls``."""

    kind = "super"

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Value) -> None:
        super().__init__()
        self.cls = cls
        self.receiver = receiver


class Tensor(Knowable):
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
        "autocast",
        "callees",
        "custom",
        "deps",
        "divisors",
        "dtypes",
        "extent",
        "factors",
        "forward",
        "graded",
        "in_region",
        "is_loss",
        "low",
        "matmul",
        "module_read",
        "opaque",
        "penalty",
        "ran",
        "scaler",
        "several",
        "share",
        "summed",
        "uneven",
        "vague",
        "weighted",
    )

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        super().__init__(loops)
        self.fact = NOTHING
        self.scaler = -1
        self.several = False
        self.deps: frozenset[int] | None = None
        self.autocast = "out"
        self.callees: frozenset[str] = EMPTY
        self.in_region = False
        self.dtypes: frozenset[str] = EMPTY
        self.forward: Event | None = None
        self.low = ""
        self.matmul = False
        self.penalty: tuple[ast.AST, dict[str, object], bool] | None = None
        self.opaque = False
        self.graded = False
        self.is_loss = False
        self.custom = False
        self.module_read = False
        self.divisors: frozenset[Divisor] = EMPTY
        self.factors: frozenset[object] = EMPTY
        self.vague = False
        self.extent = False
        self.summed = False
        self.uneven = False
        self.weighted = False
        self.share = False
        self.ran: frozenset[int] = frozenset()

    def tensors(self) -> list[Tensor]:
        return [self]

    @property
    def past(self) -> Past:  # type: ignore[override]
        return Past(self.autocast, self.callees, self.dtypes)

    @property
    def casts(self) -> bool:
        """Whether a module that it depends on enters autocast itself."""
        return not CASTS.isdisjoint(self.callees)

    @property
    def matters(self) -> bool:  # type: ignore[override]
        return self.scaler >= 0

    def truth(self) -> None:
        return None

    def item(self, index: Value) -> Tensor:
        part = self.copy()
        part.vague = not self.is_loss
        return part

    def element(self) -> Tensor:
        return self.knowing(self.fact.part)

    def copy(self) -> Tensor:
        made = super().copy()
        # What is made of the pieces of a window is none.
        made.pieces = False
        return made

    @staticmethod
    def merge(parts: list[Tensor]) -> Tensor:
        """A tensor computed from others."""
        made = parts[0].copy()
        made.fact = NOTHING
        made.scaler = max(part.scaler for part in parts)
        made.several = len({part.scaler for part in parts if part.scaler >= 0}) > 1 or any(p.several for p in parts)
        made.deps = united(part.deps for part in parts)
        made.autocast = where({part.autocast for part in parts})
        for part in parts[1:]:
            for name in ("divided", "extent", "module_read", "share", "summed", "vague", "weighted"):
                setattr(made, name, getattr(made, name) and getattr(part, name))
            for name in ("custom", "forward", "graded", "is_loss", "low", "matmul", "opaque", "penalty", "uneven"):
                setattr(made, name, getattr(made, name) or getattr(part, name))
            for name in ("callees", "dtypes", "loops", "ran"):
                setattr(made, name, getattr(made, name) | getattr(part, name))
        return made


def where(places: set[str]) -> str:
    """Where forwards ran of which each ran "in", "out" or "unknown"; "" where none did, "?" where nobody knows."""
    # The words sort from what says least to what covers all others, but that some ran in a region is more than "out".
    last = max(places)
    return "in" if last == "out" and "in" in places else last


class Params(Value):
    """Parameters, or an iterable of them: of modules, or of optimizers; None where whose is not known.

    ``one`` says that it is a single parameter, ``groups`` that it is ``optimizer.param_groups`` or one of them.
    """

    kind = "parameters"
    matters = True

    __slots__ = ("groups", "modules", "one", "optimizers")

    def __init__(
        self,
        modules: frozenset[int] | None = None,
        optimizers: frozenset[int] | None = None,
        *,
        one: bool = False,
        groups: bool = False,
    ) -> None:
        super().__init__()
        self.modules = modules
        self.optimizers = optimizers
        self.one = one
        self.groups = groups

    def item(self, index: Value) -> Params | None:
        if self.groups and isinstance(index.value, str) and index.value != "params":
            # An option of the group: its learning rate.
            return None
        return Params(self.modules, self.optimizers, one=not self.groups)

    def element(self) -> Params:
        return Params(self.modules, self.optimizers, one=not self.groups, groups=self.groups)


class Grad(Value):
    """``p.grad`` of parameters.

    ``unscaled`` says that they were divided by the loss scale, ``by`` are the events that read the gradients from which
    a number was computed that they were multiplied by, or divided.
    """

    kind = "gradients"

    __slots__ = ("by", "params", "unscaled")

    def __init__(self, params: Params, *, unscaled: bool = False, by: tuple[Event, ...] = ()) -> None:
        super().__init__()
        self.params = params
        self.unscaled = unscaled
        self.by = by

    def element(self) -> Grad:
        return self

    def gradients(self) -> list[Grad]:
        return [self]


class ScaleValue(Value):
    """A number that is the loss scale, or its inverse, read in the loops ``loops``.

    ``lasting`` says that who holds it may have been given a later one.
    """

    kind = "scale"
    matters = True

    __slots__ = ("inverse", "lasting", "scaler")

    def __init__(self, scaler: int, loops: frozenset[int], *, inverse: bool = False, lasting: bool = False) -> None:
        super().__init__(loops)
        self.scaler = scaler
        self.inverse = inverse
        self.lasting = lasting

    def kept(self) -> ScaleValue:
        return ScaleValue(self.scaler, self.loops, inverse=self.inverse, lasting=True)


class StateDict(Value):
    """``x.state_dict()``, taken by the call ``node`` at a place."""

    kind = "state"
    matters = True

    __slots__ = ("node", "of", "site")

    def __init__(self, of: Value, node: ast.AST, site: Site) -> None:
        super().__init__()
        self.of = of
        self.node = node
        self.site = site


class Sequence(Holder):
    """A list or tuple whose items are known."""

    kind = "sequence"
    matters = True

    __slots__ = ("items", "open")

    def __init__(self, items: list[Value], *, open: bool = False) -> None:
        super().__init__()
        self.items = items
        self.open = open

    @property
    def readings(self) -> tuple[Event, ...]:  # type: ignore[override]
        return tuple(reading for item in self.items for reading in item.readings)

    def truth(self) -> Formula | None:
        return True if self.items else None if self.open else False

    def item(self, index: Value) -> Value | None:
        place, size = index.value, len(self.items)
        if isinstance(place, int) and -size <= place < size:
            return self.items[place]
        return self.items[0] if size == 1 else None

    def element(self) -> Value | None:
        if not self.items or isinstance(self.items[0], Const):
            return None
        tensors = [item for item in self.items if isinstance(item, Tensor)]
        if len(tensors) == len(self.items):
            merged = Tensor.merge(tensors)
            merged.fact = reduce(joined, [tensor.fact for tensor in tensors])
            return merged
        return self.items[0] if len(self.items) == 1 else None

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= KEYED or self.open or len(self.items) > KEYED_ITEMS:
            return number(self)
        return (self.kind, *[item.identity(number, depth + 1) for item in self.items])

    def turns(self) -> frozenset[int]:
        return self.loops.union(*[item.loops for item in self.items])

    def parts(self) -> Iterable[Value]:
        return self.items

    def gradients(self) -> list[Grad]:
        return [grad for item in self.items for grad in item.gradients()]


class Mapping(Holder):
    """A dict whose items are known; ``open`` where it may hold more."""

    kind = "mapping"
    matters = True

    __slots__ = ("items", "open")

    def __init__(self, items: Items[Any, Value], *, open: bool = False) -> None:
        super().__init__()
        self.items: dict[object, Value] = dict(items)
        self.open = open

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= KEYED or self.open or len(self.items) > KEYED_ITEMS:
            return number(self)
        return (self.kind, *[(key, item.identity(number, depth + 1)) for key, item in self.items.items()])

    def truth(self) -> Formula | None:
        # What has no entries here may be given some by a later turn of a loop.
        return True if self.items else None

    def item(self, index: Value) -> Value | None:
        return self.items.get(index.value)

    def parts(self) -> Iterable[Value]:
        return self.items.values()


class Partial(Value):
    """``functools.partial(f, ...)``, or a lambda-like delay of a call."""

    kind = "partial"
    matters = True

    __slots__ = ("args", "func", "keywords")

    def __init__(self, func: Value, args: Args, keywords: Keywords) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords


class BoundMethod(Value):
    """A method of a thing or a tensor, taken to be called later: ``step = optimizer.step``."""

    kind = "bound method"
    matters = True

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name


class NullContext(Value):
    """A context that does nothing to autocast."""

    kind = "null context"
    matters = True

    __slots__ = ()


class Detection(Value):
    """Anomaly detection that was switched on, as ``event`` says."""

    kind = "anomaly detection"
    matters = True

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class GradMode(Value):
    """``torch.no_grad()`` and its like."""

    kind = "grad mode"
    matters = True

    __slots__ = ()


class NoSync(Value):
    """``model.no_sync()`` of a module whose gradients are averaged over processes."""

    kind = "no sync"
    matters = True

    __slots__ = ()


class Float8(Value):
    """A region of TransformerEngine, whose modules compute in float8; ``enabled`` where they do."""

    kind = "float8"
    matters = True

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
    matters = True
    opened: int
    apart: int
    float8: int

    __slots__ = ("apart", "float8", "opened")


class HelperContext(Value):
    """A call of a ``@contextmanager`` function: its body runs around the body of the ``with``."""

    kind = "helper"
    matters = True

    __slots__ = ("args", "func", "keywords", "node")

    def __init__(self, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords
        self.node = node


class Generator(Value):
    """A call of a generator function, of which nothing has run yet: who goes over it runs it from yield to yield.

    ``gives`` is what it yields, where that is known. ``yields`` are the places where it does, each as the key of a test
    whether it waits there: none, where what it does between them is nothing to the protocol. ``ended`` is the place
    where the reading that was the last came to the end of its body.
    """

    kind = "generator"
    matters = True

    __slots__ = ("args", "ended", "func", "gives", "keywords", "node", "yields")

    def __init__(self, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST) -> None:
        super().__init__()
        self.func = func
        self.args = args
        self.keywords = keywords
        self.node = node
        self.gives: list[Value] = []
        self.yields: list[int] = []
        self.ended: int | None = None


class Truth(Knowable):
    """The value of a condition."""

    kind = "truth"

    __slots__ = ("formula",)

    def __init__(self, formula: Formula, loops: frozenset[int] = EMPTY) -> None:
        super().__init__(loops)
        self.fact = NOTHING
        self.formula: Formula = formula

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.formula)

    def truth(self) -> Formula:
        return self.formula


class Choice(Holder):
    """One of several values, each under its condition; the conditions exclude one another."""

    kind = "choice"
    matters = True

    __slots__ = ("options",)

    def __init__(self, options: list[tuple[Formula, Value]]) -> None:
        super().__init__()
        self.options = options

    @property
    def readings(self) -> tuple[Event, ...]:  # type: ignore[override]
        return tuple(reading for _, option in self.options for reading in option.readings)

    def identity(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= KEYED:
            return number(self)
        return (self.kind, *[(formula, option.identity(number, depth + 1)) for formula, option in self.options])

    def alternatives(self) -> list[Value]:
        return [option for _, option in self.options]

    def parts(self) -> Iterable[Value]:
        return self.alternatives()

    @property
    def fact(self) -> Fact:  # type: ignore[override]
        return reduce(joined, [option.fact for option in self.alternatives()])


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
        "module",
        "of_class",
        "on_yield",
        "parent",
        "path_base",
        "receiver",
        "returns",
        "unwind_base",
        "vars",
        "yields_pieces",
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
        self.of_class = False
        self.yields_pieces = False
        self.on_yield: Callable[[Value], None] | None = None

    @property
    def name(self) -> str:
        return self.function.qualified_name if self.function else "<module>"


def past_of(parts: Iterable[Value]) -> Past:
    """What ran that values came from."""
    pasts = [part.past for part in parts]
    known = [past for past in pasts if past is not NO_PAST and any(past)]
    if len(known) < 2:
        return known[0] if known else NO_PAST
    callees, dtypes = (EMPTY.union(*sets) for sets in ([x.callees for x in known], [x.dtypes for x in known]))
    return Past(where({past.autocast for past in known}), callees, dtypes)


def merge_into(mapping: Mapping, value: Value) -> None:
    """What ``mapping.update(value)`` does: a dict, or pairs, or something that is not known."""
    inner = value.open if isinstance(value, (Mapping, Sequence)) else True
    if inner:
        mapping.open = True
        # What is not known may hold any of the keys: a constant of the first is a default.
        mapping.items = {key: item for key, item in mapping.items.items() if not isinstance(item, Const)}
    if isinstance(value, Mapping):
        mapping.items.update(value.items)
        return
    pairs = value.items if isinstance(value, Sequence) else [value]
    for pair in pairs:
        if isinstance(pair, Sequence) and len(pair.items) == 2 and isinstance(pair.items[0], Const):
            mapping.items[pair.items[0].value] = pair.items[1]
        else:
            mapping.open = True


def united(parts: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """The keys of all parts, None where those of one are not known."""
    every: frozenset[int] = frozenset()
    for part in parts:
        if part is None:
            return None
        every |= part
    return every


def merge_params(parts: list[Params]) -> Params:
    modules, optimizers = united(part.modules for part in parts), united(part.optimizers for part in parts)
    return Params(modules, optimizers, groups=any(part.groups for part in parts))


def modules_of(value: Value | None) -> frozenset[int] | None:
    """Keys of the modules whose parameters an optimizer is given."""
    if isinstance(value, Params):
        return value.modules
    if isinstance(value, Sequence) and value.items:
        return united(
            modules_of(item.items.get("params") if isinstance(item, Mapping) else item) for item in value.items
        )
    return None
