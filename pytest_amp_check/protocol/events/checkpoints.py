"""Events of checkpoints."""

from __future__ import annotations

from .event import SELDOM, Event, FieldValue, KindTraits, OwnedEvent


class ScalerState(Event):
    """``scaler.state_dict()``."""

    traits = KindTraits(description="the scaler's state is taken", may_violate=True)


class ScalerLoad(Event):
    """``scaler.load_state_dict()``."""

    traits = KindTraits(predicate_worth=SELDOM)

    #: Key in a checkpoint.
    entry: str | None = None
    #: No checkpoint here has the key.
    of_others: bool = False


class Save(OwnedEvent):
    """A checkpoint is written, with the states of optimizers and scalers, each by key or text."""

    traits = KindTraits(description="the checkpoint is written")

    optimizers: tuple[int | str, ...] = ()
    scalers: tuple[int | str | bool, ...] = ()
    #: Scaler objects themselves.
    whole_scalers: tuple[int | str, ...] = ()
    #: Scalers that step the saved optimizers.
    scope_scalers: tuple[str, ...] = ()
    #: Keys of the states in the checkpoint.
    optimizer_entries: frozenset[str] = frozenset()
    scaler_entries: frozenset[str] = frozenset()
    #: The checkpoint may contain the state of a scaler besides, or no scaler exists where it is written.
    open: bool = False
    #: The value that is saved has unknown parts.
    has_unknown_parts: bool = False
    #: The receiver of the objects saves the states.
    objects: bool = False
    #: The receiver is not analyzed, and named for saving.
    by_name: bool = False
    #: Key of the object of a framework that holds the scaler, and that saves its state in checkpoints of its own only.
    engine: int | None = None
    #: The file also saves or loads such checkpoints.
    is_beside_engine_state: bool = False


class OptimizerLoad(Event):
    """``optimizer.load_state_dict()``."""

    traits = KindTraits(description="the optimizer's state is loaded")

    #: The loaded object.
    source: int = -1
    #: Key in the loaded object.
    entry: str | None = None
    #: The source has a scaler state.
    holds_scaler: bool = False
    #: Names of the scalers that step the optimizer.
    scope_scalers: tuple[FieldValue, ...] = ()
