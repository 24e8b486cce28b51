"""Tracked objects of a program: scalers, optimizers, modules, losses and autocast regions."""

from __future__ import annotations

from .events.event import NO_NAMES, FieldValue
from .fast_namedtuple import NamedTuple
from .sites import Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    #: Source texts for messages (converted by ``str``), or values bound to a signature.
    Names = Mapping[str, object]


class ScalerAttributes:
    """Attributes of a scaler."""

    #: Condition under which the scaler scales. After a program is analyzed: a boolean, or UNKNOWN.
    enabled: FieldValue = True
    #: Predicates of this condition. None for a scaler that nobody constructs here.
    enabling: frozenset[int] | None = None
    #: Class of the project from which the scaler derives.
    cls: FieldValue = None
    #: An instance of a class of the project that reimplements torch's scaler. Its details may differ from torch's.
    is_copy: bool = False
    #: Sharded over ranks.
    sharded: bool = False
    #: Framework that owns the scaler, None for a scaler of the program.
    framework: str | None = None
    #: Severity that the doubt leaves whether the framework scales, "" without a doubt.
    doubt: str = ""
    #: An engine that accumulates gradients in a context.
    accumulates: bool = False
    #: An instance of a class of the project holds the scaler.
    held: bool = False
    #: Only a local name of the function that constructs the scaler holds it, and the function does not take its state.
    is_local: bool = False
    #: The code expects None in its place: where precision is not mixed.
    may_be_none: bool = False
    #: Scalers of which the scaler is one, each constructed in another branch.
    members: frozenset[int] = frozenset()


class OptimizerAttributes:
    """Attributes of an optimizer."""

    #: Modules whose parameters the optimizer owns, None if unknown.
    owns: frozenset[int] | None = None
    #: Modules whose parameters a constructor received that is not analyzed, or a function that groups them.
    given_modules: frozenset[int] = frozenset()
    #: The code receives the optimizer from a caller.
    is_received: bool = False
    #: Other optimizers that own some of the parameters.
    shares: set[int] | None = None
    #: Stands for several optimizers. None if it is one.
    several: bool | None = None
    #: A class with its own ``step`` holds the optimizer.
    wrapped: bool = False
    #: The class of the optimizer copies low-precision parameters to float32, and updates the copies.
    keeps_float32_copies: bool = False
    #: A framework steps, and the number of microbatches of a window is not known to be above one.
    may_have_no_window: bool = False
    #: Hooks may see or change gradients before the step.
    hooked: bool = False
    #: Code elsewhere, or the learning rate, divides by the number of microbatches.
    divided: bool = False
    #: The fused implementation of torch.
    fused: bool = False
    #: The engine that steps the optimizer, with the guards of the path.
    engine: tuple[FieldValue, frozenset[tuple[int, bool]]] | None = None


_NO_WRAPPERS: dict[str, frozenset[tuple[int, bool]]] = {}


class ModuleDtypes(NamedTuple):
    """Dtypes of the parameters and of the forward of a module.

    - ``casts``: the module casts its inputs, or parameters, itself.
    - ``region``: dtype of the autocast region that the forward of the module enters on every path, "" if not known.
    - ``computes_in``: low dtype in which a policy makes the module compute, None without a policy.
    - ``low``: low dtype of the parameters, "" if in another dtype.
    - ``prepared``: a framework wraps the forward, and decides the dtype of the output.
    - ``prepared_in``: low dtype of the region that this framework enters around the forward, "" if not known.
    - ``copies``: level of apex that keeps float32 copies of the parameters.
    """

    casts: bool = False
    region: str = ""
    computes_in: str | None = None
    low: str = ""
    prepared: bool = False
    prepared_in: str = ""
    copies: str = ""

    def join(self, other: ModuleDtypes) -> ModuleDtypes:
        """Return the dtypes of a module that is one of two modules."""
        return ModuleDtypes._make(map(_first_known, self, other, _USUAL_DTYPES))


class ModuleTraining(NamedTuple):
    """Training of the parameters of a module.

    - ``frozen``, ``partly_frozen``: all parameters, or some parameters, are frozen.
    - ``trainer_float16``: True if a Trainer trains the module in float16, False if in another precision, None without a
      Trainer.
    - ``runs_with_gradients``: False if each known forward runs without gradients, None without a known forward.
    - ``adapters``: the object of added adapters, which are trained although the module is frozen.
    - ``frozen_under``: answers to predicates (key, truth) under each of which all parameters are frozen.
    """

    frozen: bool = False
    partly_frozen: bool = False
    trainer_float16: bool | None = None
    runs_with_gradients: bool | None = None
    adapters: int | None = None
    frozen_under: frozenset[tuple[int, bool]] = frozenset()

    def join(self, other: ModuleTraining) -> ModuleTraining:
        """Return the training of a module that is one of two modules."""
        return ModuleTraining._make(map(_first_known, self, other, _TRAINED))


class ModuleShape(NamedTuple):
    """Sides of the parameters of a module.

    - ``is_float32_parameter``, ``has_dimensions``: the module is a parameter in float32, or one with dimensions.
    - ``odd_sides``: source texts about sides that are slow on Tensor Cores.
    """

    is_float32_parameter: bool = False
    has_dimensions: bool = False
    odd_sides: Names | None = None

    def join(self, other: ModuleShape) -> ModuleShape:
        """Return the shape of a module that is one of two modules."""
        return ModuleShape._make(map(_first_known, self, other, _UNKNOWN_SHAPE))


def _first_known(one: FieldValue, other: FieldValue, unknown: FieldValue) -> FieldValue:
    return other if one == unknown else one


_USUAL_DTYPES, _TRAINED, _UNKNOWN_SHAPE = ModuleDtypes(), ModuleTraining(), ModuleShape()


class ModuleAttributes:
    """Attributes of a module, or of a parameter."""

    #: Submodules.
    parts: set[int] | None = None
    #: Name of the class of a module of the project.
    class_name: str | None = None
    #: The code of the forward is known. None if nobody has looked.
    read: bool | None = None
    #: Wrappers of the module, each with the predicates under which it wraps.
    wrappers: dict[str, frozenset[tuple[int, bool]]] = _NO_WRAPPERS
    #: Location where a wrapper shards the module.
    sharding_site: Site | None = None
    dtypes: ModuleDtypes = _USUAL_DTYPES
    training: ModuleTraining = _TRAINED
    shape: ModuleShape = _UNKNOWN_SHAPE
    #: Names of the functions that the methods of a module of the project call.
    callees: frozenset[str] = frozenset()
    #: A copy of another module.
    copied: bool = False
    compiled: bool = False
    deepspeed: bool = False

    def freeze(self) -> None:
        """Mark all parameters as frozen."""
        self.training = self.training._replace(frozen=True)

    def note_forward(self, *, with_gradients: bool) -> None:
        """Record a forward of the module."""
        known = bool(self.training.runs_with_gradients)
        self.training = self.training._replace(runs_with_gradients=known or with_gradients)

    def set_trainer(self, *, is_float16: bool) -> None:
        """Mark the module as trained by a Trainer, in float16 or in another precision."""
        self.training = self.training._replace(trainer_float16=is_float16)


class LossAttributes:
    """Attributes of a loss function that is an object."""

    #: The computation runs in the widest dtype of its inputs.
    promotes: bool = False
    reduction: FieldValue = None


class RegionAttributes:
    """Attributes of an autocast context."""

    dtype: str = "?"
    #: The code chooses the dtype, and float16 is one of the options.
    may_choose_float16: bool = False
    #: Source text of a dtype that the code chooses between bfloat16 and float16.
    low_choice: str = ""
    #: The region caches casts of weights.
    cache: bool = True
    #: A variable holds the context, so it may be entered again.
    stored: bool = False


class ObjectAttributes(ScalerAttributes, OptimizerAttributes, ModuleAttributes, LossAttributes, RegionAttributes):
    """Attributes of a tracked object. An object has those of its role, and those that several roles have."""

    #: Constructed by code that is analyzed.
    constructed: bool = False
    #: Name of the constructor.
    callable: str = ""
    arguments: Names = NO_NAMES
    #: Device type, "" if unknown.
    device: FieldValue = ""
    #: Kind of a module or loss.
    kind: str = ""
    #: Other code has the object.
    shared: bool = False
    #: The analyzed code constructs the object, and gives it to no other code.
    confined: bool = False

    def __init__(self, **attributes: FieldValue) -> None:
        self.__dict__.update(attributes)

    def set_to_either(self, one: ObjectAttributes, other: ObjectAttributes) -> None:
        """Set the attributes to those of either of two objects. The first object decides if both have an attribute."""
        vars(self).update({**vars(other), **vars(one)})
        if self.dtypes is not _USUAL_DTYPES:
            self.dtypes = one.dtypes.join(other.dtypes)
        if self.training is not _TRAINED:
            self.training = one.training.join(other.training)
        if self.shape is not _UNKNOWN_SHAPE:
            self.shape = one.shape.join(other.shape)


class TrackedObject:
    """An object of the protocol: a scaler, an optimizer, a module, an autocast region.

    ``key`` is the index in :attr:`Program.objects`.
    """

    __slots__ = ("attributes", "key", "name", "role", "site")

    def __init__(self, key: int, role: str, name: str, site: Site | None, attributes: ObjectAttributes) -> None:
        self.key = key
        self.role = role
        self.name = name
        self.site = site
        self.attributes = attributes

    def __repr__(self) -> str:
        return f"<{self.role} {self.key} {self.name}>"
