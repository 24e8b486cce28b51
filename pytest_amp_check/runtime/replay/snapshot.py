"""A training state: found from the training function, saved exactly, and restored in place."""

from __future__ import annotations

import ast
import collections
import collections.abc
import contextlib
import dis
import enum
import functools
import io
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

#: Packages whose objects hold no training state, or must not be rewound: fixtures of a test, loggers, locks, open
#: files.
_NOT_FOLLOWED = frozenset(sys.stdlib_module_names) | {
    "_pytest",
    "numpy",
    "pluggy",
    "pytest",
    "pytest_amp_check",
    "torch",
    "xdist",
}
#: Classes of torch whose objects are followed in spite of _NOT_FOLLOWED.
_KNOWN = (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler)
#: Classes that only hold values.
_BAGS = (types.SimpleNamespace,)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Named = tuple[str, Any]


class StateParts:
    """The parts of a training state, named as in the step."""

    def __init__(self, roots: Iterable[Named]) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.scalers: dict[str, torch.amp.GradScaler] = {}
        self.schedulers: dict[str, Any] = {}
        self.generators: dict[str, torch.Generator] = {}
        #: Names of iterators, whose position cannot be restored.
        self.iterators: list[str] = []
        #: Numbers and strings that the step holds, such as a counter.
        self.values: dict[str, Any] = {}
        inner: set[int] = set()
        torch_prefixes: tuple[str, ...] = ()
        for name, item in iter_reachable(roots):
            if isinstance(item, _KNOWN):
                torch_prefixes += (f"{name}.",)
            if isinstance(item, nn.Module):
                if id(item) not in inner:
                    _add_numbered(self.models, name or type(item).__name__, item)
                    inner.update(map(id, item.modules()))
            elif isinstance(item, torch.optim.Optimizer):
                _add_numbered(self.optimizers, name or "optimizer", item)
            elif isinstance(item, torch.amp.GradScaler):
                _add_numbered(self.scalers, name or "scaler", item)
            elif isinstance(item, torch.optim.lr_scheduler.LRScheduler):
                _add_numbered(self.schedulers, name or "scheduler", item)
            elif isinstance(item, torch.Generator):
                _add_numbered(self.generators, name or "generator", item)
            elif isinstance(item, collections.abc.Iterator) and not isinstance(item, (io.IOBase, itertools.count)):
                self.iterators.append(name)
            elif isinstance(item, (_NamedCell, _UsedGlobals, dict)) or holds_state(item):
                values = [pair for pair in _child_objects(name, item) if isinstance(pair[1], (bool, int, float, str))]
                self.values.update((key, value) for key, value in values if not key.startswith(torch_prefixes))
        # A module may have been found before its parent module.
        outer = {id(m) for model in self.models.values() for m in model.modules() if m is not model}
        self.models = {name: model for name, model in self.models.items() if id(model) not in outer}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return all trained parameters by name. The model's name is a prefix only if there are several models."""
        several = sum(any(True for _ in model.parameters()) for model in self.models.values()) > 1
        names: dict[str, nn.Parameter] = {}
        for model_name, model in self.models.items():
            for name, parameter in model.named_parameters():
                names[f"{model_name}.{name}" if several else name] = parameter
        known_ids = set(map(id, names.values()))
        for optimizer_name, optimizer in self.optimizers.items():
            other_params = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known_ids]
            names.update({f"{optimizer_name}, parameter {number}": p for number, p in enumerate(other_params)})
        return names


class Snapshot:
    """An exact copy of a training state. The objects stay the same, and :meth:`restore` resets their contents.

    The copy includes parameters, buffers, gradients and other tensors bit for bit. It includes attributes of modules,
    optimizers, scalers and schedulers; attributes created later are deleted on restore. It also includes plain
    containers and counters, and the random generators of torch, Python and numpy.
    """

    def __init__(self, roots: Iterable[Named]) -> None:
        self._random_states = random_state()
        storages: dict[int, Callable[[], None]] = {}
        # While memory is measured, the copies must not count as memory of the program.
        with _disable_current_modes():
            restorers = [_make_restorer(item, storages) for _, item in iter_reachable(roots)]
        self._restorers = [restorer for restorer in restorers if restorer is not None]
        self._restorers += storages.values()

    def restore(self) -> None:
        """Restore the whole state. May be called any number of times."""
        with torch.no_grad():
            for restorer in self._restorers:
                restorer()
        # An autocast region of the caller may have cached low-precision copies of the weights.
        torch.clear_autocast_cache()
        restore_random(self._random_states)


def random_state() -> dict[str, Any]:
    """Return the state of every used global random generator, by the generator's name."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["torch.cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["torch.mps"] = torch.mps.get_rng_state()
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy.random"] = numpy.random.get_state()
    return state


def restore_random(state: dict[str, Any]) -> None:
    """Restore the state that :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["random"])
    if "torch.cuda" in state:
        torch.cuda.set_rng_state_all(state["torch.cuda"])
    if "torch.mps" in state:
        torch.mps.set_rng_state(state["torch.mps"])
    if "numpy.random" in state:
        sys.modules["numpy"].random.set_state(state["numpy.random"])


def seed_all(seed: int) -> None:
    """Seed the global generators of torch (on every device), of Python, and of NumPy if loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


class _NamedCell:
    """A closure variable of a function."""

    def __init__(self, name: str, cell: types.CellType) -> None:
        self.name, self.cell = name, cell


class _UsedGlobals:
    """The globals of a module that a function uses."""

    def __init__(self, namespace: dict[str, Any], names: Iterable[str], prefix: str = "") -> None:
        self.namespace, self.prefix = namespace, prefix
        self.names = sorted(name for name in names if name in namespace and not name.startswith("__"))


class UnfollowedFunction:
    """A function whose own variables are rewound, but whose objects are not followed."""

    def __init__(self, function: object) -> None:
        self.function = function


def iter_reachable(roots: Iterable[Named]) -> Iterator[Named]:
    """Yield every object that may hold state once, with the name under which the object was found first."""
    seen: dict[Any, object] = {}
    pending = [(name, item) for name, item in roots][::-1]
    while pending:
        name, item = pending.pop()
        key: Any = id(item)
        if isinstance(item, _NamedCell):
            key = ("cell", id(item.cell))
        elif isinstance(item, _UsedGlobals):
            key = ("globals", id(item.namespace), *item.names)
        if key in seen or isinstance(item, (*_PLAIN, type)):
            continue
        # The object is kept alive; otherwise another object could get its id.
        seen[key] = item
        yield name, item
        pending += list(_child_objects(name, item))[::-1]


def _child_objects(name: str, item: Any) -> Iterable[Named]:
    """Return the objects that an object refers to, with the names that a user would write."""
    if isinstance(item, Tensor):
        return [(f"{name}.grad", item.grad)] if item.is_leaf and item.grad is not None else []
    if isinstance(item, dict):
        # The keys of an optimizer's state are parameters, and their repr is slow.
        keys = [repr(key) if isinstance(key, (str, int)) else "..." for key in item]
        return [(f"{name}[{key}]", value) for key, value in zip(keys, item.values(), strict=True)]
    if isinstance(item, (list, tuple, set, collections.deque)):
        return [(f"{name}[{number}]", value) for number, value in enumerate(item) if not isinstance(value, _PLAIN)]
    if isinstance(item, functools.partial):
        keywords = list(item.keywords.items())
        return [(name, item.func), *((name, value) for value in item.args), *keywords]
    if isinstance(item, types.MethodType):
        return [("", item.__self__), ("", item.__func__)]
    if isinstance(item, types.FunctionType):
        return _function_children(item)
    if isinstance(item, _NamedCell):
        try:
            return [(item.name, item.cell.cell_contents)]
        except ValueError:
            return []
    if isinstance(item, _UsedGlobals):
        return [(item.prefix + key, item.namespace[key]) for key in item.names if key in item.namespace]
    if isinstance(item, UnfollowedFunction):
        return _own_plain_cells(item.function)
    if holds_state(item):
        inner = [(f"{name}.{key}" if name else key, value) for key, value in _state_attributes(item).items()]
        return [*inner, *(("", function) for function in _user_methods(type(item)))]
    return []


def _function_children(function: types.FunctionType) -> list[Named]:
    """Return the variables, defaults and globals that a function reads."""
    children: list[Named] = [
        (name, _NamedCell(name, cell))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    ]
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        children.append(("", wrapped))
    if _is_library_function(function):
        # A library decorator leads to the user's function, but the library's globals are not training state.
        return children
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    children += zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    children += (function.__kwdefaults__ or {}).items()
    names = _used_names(function.__code__, "GLOBAL", "NAME")
    children.append(("", _UsedGlobals(function.__globals__, names)))
    for name in sorted(names):
        module = function.__globals__.get(name)
        if isinstance(module, types.ModuleType) and not _is_foreign_module(module.__name__):
            attributes = _used_names(function.__code__, "ATTR", "METHOD")
            children.append((name, _UsedGlobals(vars(module), attributes, f"{name}.")))
    return children


def _own_plain_cells(function: object) -> list[Named]:
    """Return the function's own closure variables with plain values. Used if a list gives the state."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, _NamedCell(name, cell)) for name, cell in cells if _is_plain(cell)]


def _is_plain(cell: types.CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, (bool, int, float, str, type(None), itertools.count))
    except ValueError:
        return True


def _used_names(code: types.CodeType, *kinds: str) -> set[str]:
    """Return the names that code, including nested functions, reads or writes as globals or attributes."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname.endswith(kinds)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _used_names(constant, *kinds)
    return names


def _user_methods(kind: type) -> list[types.FunctionType]:
    """Return the methods of a user's class, because methods may use globals."""
    functions = []
    for each in kind.__mro__:
        if _is_foreign_module(each.__module__):
            continue
        for value in vars(each).values():
            plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(plain, types.FunctionType):
                functions.append(plain)
    return functions


def _is_library_function(function: types.FunctionType) -> bool:
    """Return True if a function belongs to a library. The names in such a function are not training state."""
    return _is_foreign_module(function.__module__ or "") or "site-packages" in function.__code__.co_filename


def _is_foreign_module(module: str) -> bool:
    return module.partition(".")[0] in _NOT_FOLLOWED


def holds_state(item: object) -> bool:
    """Return True if the attributes of an object are part of the state."""
    if isinstance(item, (*_KNOWN, *_BAGS)):
        return True
    excluded = (
        type,
        enum.Enum,
        BaseException,
        _NamedCell,
        _UsedGlobals,
        UnfollowedFunction,
        Tensor,
        dict,
        list,
        tuple,
        set,
        collections.deque,
    )
    return not (_is_foreign_module(type(item).__module__) or isinstance(item, excluded))


def _state_attributes(item: object) -> dict[str, Any]:
    """Return the attributes of an object from its dictionary and slots, without hooks, which are not state."""
    attributes = {
        key: value
        for key, value in getattr(item, "__dict__", {}).items()
        if not (isinstance(item, _KNOWN) and "_hooks" in key)
    }
    attributes.update((slot, getattr(item, slot)) for slot in _slot_names(item) if hasattr(item, slot))
    return attributes


def _slot_names(item: object) -> list[str]:
    """Return the attributes of an object that are not in its dictionary."""
    slots: list[str] = []
    for kind in type(item).__mro__:
        named = vars(kind).get("__slots__", ())
        slots += (named,) if isinstance(named, str) else named
    return [slot for slot in slots if not slot.startswith("__")]


def _make_restorer(item: Any, storages: dict[int, Callable[[], None]]) -> Callable[[], None] | None:
    """Return a function that restores an object's own contents, or None if the object has none."""
    numpy = sys.modules.get("numpy")
    if isinstance(item, Tensor):
        return _keep_tensor(item, storages)
    if isinstance(item, dict):
        return _keep_dict(item)
    if isinstance(item, (list, collections.deque)):
        return _keep_sequence(item)
    if isinstance(item, set):
        return _keep_set(item)
    if isinstance(item, _NamedCell):
        return _keep_cell(item.cell)
    if isinstance(item, _UsedGlobals):
        return _keep_globals(item)
    if isinstance(item, torch.Generator):
        return _keep_generator(item)
    if isinstance(item, random.Random):
        return functools.partial(item.setstate, item.getstate())
    if numpy is not None and isinstance(item, numpy.ndarray):
        return functools.partial(numpy.copyto, item, item.copy()) if item.flags.writeable else None
    if numpy is not None and isinstance(item, numpy.random.RandomState):
        return functools.partial(item.set_state, item.get_state())
    if numpy is not None and isinstance(item, numpy.random.Generator):
        return functools.partial(setattr, item.bit_generator, "state", item.bit_generator.state)
    if holds_state(item):
        return _keep_attributes(item)
    return None


def _keep_tensor(tensor: Tensor, storages: dict[int, Callable[[], None]]) -> Callable[[], None] | None:
    if not tensor.is_leaf or tensor.is_inference():
        # The result of a computation: the name may be rebound, but nothing writes to the tensor.
        return None
    gradient, trained = tensor.grad, tensor.requires_grad
    content = _keep_content(tensor, storages)

    def restore() -> None:
        content()
        if tensor.requires_grad is not trained:
            tensor.requires_grad_(trained)
        if tensor.grad is not gradient:
            tensor.grad = gradient

    return restore


def _keep_content(tensor: Tensor, storages: dict[int, Callable[[], None]]) -> Callable[[], None]:
    """Save the storage of a tensor and return a function that restores the tensor's geometry.

    Bytes are saved by storage for three reasons: views share a storage, expanded tensors cannot be written to, and NaNs
    keep their bits.
    """
    data = tensor.detach()
    try:
        storage = data.untyped_storage()
        address = storage.data_ptr()
    except (NotImplementedError, RuntimeError):
        # Sparse tensors and tensors of wrapper classes have no storage of their own.
        clone = data.clone()

        def refill() -> None:
            tensor.data = clone.clone()

        return refill
    if address and address not in storages:
        storages[address] = _keep_storage(storage)

    def rebind() -> None:
        current = tensor.detach()
        if current.untyped_storage().data_ptr() != address or (
            current.shape,
            current.stride(),
            current.storage_offset(),
        ) != (
            data.shape,
            data.stride(),
            data.storage_offset(),
        ):
            tensor.data = data

    return rebind


def _keep_storage(storage: torch.UntypedStorage) -> Callable[[], None]:
    saved = torch.UntypedStorage(storage.nbytes(), device=storage.device)  # type: ignore[no-untyped-call]
    saved.copy_(storage)

    def restore() -> None:
        if storage.nbytes() != saved.nbytes():
            storage.resize_(saved.nbytes())
        storage.copy_(saved)

    return restore


def _keep_generator(generator: torch.Generator) -> Callable[[], None]:
    saved = generator.get_state()

    def restore() -> None:
        generator.set_state(saved)

    return restore


def _keep_dict(container: dict[Any, Any]) -> Callable[[], None]:
    saved = dict(container)

    def restore() -> None:
        if not _is_unchanged(container, saved):
            container.clear()
            container.update(saved)

    return restore


def _is_unchanged(current: dict[Any, Any], saved: dict[Any, Any]) -> bool:
    return len(current) == len(saved) and all(
        key is saved_key and current[key] is value
        for key, (saved_key, value) in zip(current, saved.items(), strict=True)
    )


def _keep_sequence(container: list[Any] | collections.deque[Any]) -> Callable[[], None]:
    saved = list(container)

    def restore() -> None:
        container.clear()
        container.extend(saved)

    return restore


def _keep_set(container: set[Any]) -> Callable[[], None]:
    saved = set(container)

    def restore() -> None:
        container.clear()
        container.update(saved)

    return restore


def _keep_cell(cell: types.CellType) -> Callable[[], None]:
    try:
        value = _kept_value(cell.cell_contents)
    except ValueError:
        return functools.partial(_empty_cell, cell)

    def restore() -> None:
        cell.cell_contents = value()

    return restore


def _empty_cell(cell: types.CellType) -> None:
    with contextlib.suppress(ValueError):
        del cell.cell_contents


def _keep_globals(item: _UsedGlobals) -> Callable[[], None]:
    saved = {name: _kept_value(item.namespace[name]) for name in item.names}

    def restore() -> None:
        for name, value in saved.items():
            item.namespace[name] = value()

    return restore


def _keep_attributes(item: object) -> Callable[[], None]:
    slots = _slot_names(item)
    saved = {name: _kept_value(value) for name, value in _state_attributes(item).items()}

    def restore() -> None:
        for name in _state_attributes(item):
            if name not in saved:
                object.__delattr__(item, name)
        for name, value in saved.items():
            # Bypass the class, because nn.Module moves assigned parameters and modules to its own tables.
            if name in slots:
                object.__setattr__(item, name, value())
            else:
                item.__dict__[name] = value()

    return restore


def _kept_value(value: Any) -> Callable[[], Any]:
    """Return a function that returns the saved value. An ``itertools.count`` continues from the saved number."""
    if isinstance(value, itertools.count):
        # From Python 3.14 on, itertools.count can neither be copied nor pickled, but its repr holds the constructor
        # arguments.
        arguments = ast.literal_eval(repr(value).removeprefix("count"))
        return lambda: itertools.count(*(arguments if isinstance(arguments, tuple) else (arguments,)))
    return lambda: value


def _add_numbered(table: dict[str, Any], name: str, item: object) -> None:
    """Add an object under its name, or under the name with a number if the name is taken."""
    free_name = next(each for n in itertools.count(1) if (each := name if n == 1 else f"{name} ({n})") not in table)
    table[free_name] = item
