"""Base classes of events, and the values that events use."""

from __future__ import annotations

from ..fast_namedtuple import NamedTuple
from ..sites import Site, TraceFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import ClassVar

    from typing_extensions import dataclass_transform

    #: Source texts for messages (converted by ``str``), or values bound to a signature.
    Names = Mapping[str, object]
else:

    def dataclass_transform(**options: object) -> object:
        """Do nothing: only type checkers read the transform."""
        return lambda cls: cls


# Effect of an event on a state, as the worth of remembering its guards: a predicate is remembered only if the predicate
# decides events that may lead to a violation.
UNTESTED = 0  # no effect, or no effect worth remembering a predicate for
SELDOM = 1  # an effect that rarely depends on the predicate
MOVES = 2

# Possible effects of unanalyzed code on gradients, according to its name.
CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS = "clears", "unscales", "divides", "steps", "feeds"
ALL_EFFECTS = frozenset({CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS})

# Loops that run backward in every iteration and leave the step to later code: any loop, and loops over the microbatches
# of one window.
LOOSE = "loose"
MICRO = "micro"


class Symbol(str):
    """A value known by name only: ``Symbol("torch.float16")``."""

    __slots__ = ()


class Flag(Symbol):
    """A value that is True or False, known by its source text."""

    __slots__ = ()


#: An unknown value.
UNKNOWN = Symbol("?")

#: No source texts, and no arguments.
NO_NAMES: Names = {}
#: Predicates, each with its truth.
Guards = tuple[tuple[int, bool], ...]
#: Value of a field, before the class declares its type.
FieldValue = object


class KindTraits(NamedTuple):
    """Constants that all events of a kind have in common.

    - ``predicate_worth``: effect on a state: UNTESTED, SELDOM or MOVES.
    - ``description``: description of the event in a trace. ``scaled_description`` is the description if the subject is
      a scaler.
    - ``has_optimizer``: True if the object, or the subject of a construction, is one optimizer.
      ``establishes_optimizer`` means that the object is then known to be an optimizer; an object that is merely stepped
      may be a scheduler.
    - ``may_violate``: True if one such event suffices for an order-dependent violation. A graph without such events is
      not explored, except for backwards and steps.
    - ``has_loops``: True if a rule needs the loop iteration.
    - ``is_structural``: True if the event corresponds to no call of the program.
    - ``deciding_fields``: fields that, with the objects, decide the effect on a state without regions. The same event
      in the same state of a run has the same effect. None if the effect depends on more than the fields.
    """

    predicate_worth: int = UNTESTED
    description: str = ""
    scaled_description: str = ""
    has_optimizer: bool = False
    establishes_optimizer: bool = False
    may_violate: bool = False
    has_loops: bool = False
    is_structural: bool = False
    deciding_fields: tuple[str, ...] | None = None


@dataclass_transform(kw_only_default=True)
class _Declared:
    """Base class that makes type checkers read the annotated class attributes as the fields of an event."""

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        """Accept the options that type checkers read, and refuse constants outside of ``traits``."""
        if misplaced := [name for name in KindTraits._fields if name in vars(cls)]:
            raise TypeError(f"event {cls.__name__}: declare {', '.join(misplaced)} in `traits = KindTraits(...)`")


class Event(_Declared, kw_only=False):
    """One AMP event. Each kind of event is a class, and declares its fields as annotated class attributes.

    A field without a default must be passed by keyword. All events of the kind share its ``traits``.
    """

    traits: ClassVar[KindTraits] = KindTraits()

    site: Site
    #: Keys of tracked objects. The documentation of a kind names the subject first, then the object.
    subject: int | None = None
    object: int | None = None
    names: Names = NO_NAMES
    #: The predicates around the event in source; a run has none.
    guards: Guards = ()
    #: Keys of guards of which one of several is enough.
    alternative_guards: frozenset[int] = frozenset()
    #: Keys of the enclosing loops in source, outermost first, if the kind ``has_loops``.
    loops: tuple[int, ...] | None = None
    #: The event rests on a guess, so a violation with the event is only possible.
    guessed: bool = False
    #: Locations that a message about the event presupposes, as the region or the cast that made a tensor low.
    premises: TraceFacts = ()
    #: Locations where the remedy of a finding about the event needs another edit, with what to write there.
    edits: TraceFacts = ()

    def __init__(
        self,
        site: Site,
        subject: int | None = None,
        object: int | None = None,
        names: Names = NO_NAMES,
        guards: Guards = (),
        **fields: FieldValue,
    ) -> None:
        self.site = site
        self.subject = subject
        self.object = object
        self.names = names
        self.guards = guards
        if fields:
            self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"<{name_of_kind(type(self))} {self.subject} {self.object} @{self.site}>"


#: A kind of event.
EventKind = type[Event]


def name_of_kind(kind: EventKind) -> str:
    """Return the name of a kind of event in lower case with hyphens, such as ``grad-read``."""
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in kind.__name__).lstrip("-")


# Events that several kinds have in common.


class OwnedEvent(Event):
    """An event on the gradients or states of some optimizers."""

    #: Keys of the optimizers, None if unknown.
    owners: Collection[int] | None = None


class GradientAccess(OwnedEvent):
    """An access to gradients beside torch's own step."""

    #: The program checks the result and skips, or takes the loss scale into account itself.
    undone: bool = False


class ScaledLoss(Event):
    """A loss that is scaled or runs backward."""

    #: Region dtypes of the forward.
    dtypes: Collection[str] = frozenset()
    #: The event of the forward.
    forward: Event | None = None
    #: The loss is already scaled.
    twice: bool = False


class LowPrecisionEffect(Event):
    """An effect of low precision on values."""

    #: "half" for either low dtype.
    dtype: str = "half"
