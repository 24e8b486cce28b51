"""The dtypes of a recording: module outputs, parameters, gradients, loss, optimizer state and ops."""

from __future__ import annotations

import dataclasses
import difflib
import re
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from ..record.collector import Collector

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

#: One or several allowed dtypes in an expectation: "float16", "fp16", "half", torch.float16, or a collection of these
#: values.
Expected = str | torch.dtype | Collection[str | torch.dtype]

#: Common abbreviations of dtypes, in addition to torch's own names.
_SPELLINGS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
#: Components of module names that wrappers insert: torch.compile, FSDP, checkpoint_wrapper.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
#: Keys of an expectation that name a section; ``parameters:encoder.*`` is a pattern over the names in one section.
_SECTIONS = ("parameters", "gradients", "optimizer state", "ops")
_LOW = frozenset({torch.float16, torch.bfloat16})
#: A warning of torch when a compiled module is called while global hooks are registered: the hooks see its output
#: twice.
_TWICE = re.compile(r"Using `torch\.compile\(module\)` when there are global hooks on modules")
#: Largest depth to which a nested output is searched for tensors; the limit ends cycles.
_DEPTH = 8
#: Largest number of mismatches that a failed assertion lists.
_SHOWN = 10


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype without the prefix: "float16"."""
    return str(dtype).removeprefix("torch.")


def _join_names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted(map(dtype_name, dtypes)))


def _is_measured(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _iter_tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth == 0 or value is None or isinstance(value, (str, bytes, int, float)):
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _iter_tensors(part, depth - 1)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for part in value:
            yield from _iter_tensors(part, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _iter_tensors(getattr(value, field.name, None), depth - 1)


def _strip_wrappers(name: str) -> str:
    """Return the name of a module or parameter without the components that wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class ParameterNames:
    """The names of parameters and optimizers.

    A parameter of the model has its first name in the model. Any other parameter has the name that the optimizer was
    given (``named_parameters()``, torch 2.6), else its index: "group 0.param 3". An optimizer is named after its class,
    "Adam"; the second live optimizer of a class is "Adam 2".
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._labels: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[str, bool]] = weakref.WeakKeyDictionary()
        self.refresh()

    def refresh(self) -> None:
        """Read the names of the model's parameters again."""
        if self._model is not None:
            self._names = {id(p): (weakref.ref(p), _strip_wrappers(name)) for name, p in self._model.named_parameters()}

    def optimizer_label(self, optimizer: torch.optim.Optimizer) -> str:
        """Return the name of an optimizer."""
        return self._label_entry(optimizer)[0]

    def _label_entry(self, optimizer: torch.optim.Optimizer) -> tuple[str, bool]:
        """Return the name of an optimizer, and True if the optimizer was seen first.

        Parameter indices of the first optimizer need no optimizer name as prefix.
        """
        label = self._labels.get(optimizer)
        if label is None:
            kind = type(optimizer).__name__
            taken = {name for name, _ in self._labels.values()}
            name = next(name for n in count(1) if (name := kind if n == 1 else f"{kind} {n}") not in taken)
            label = self._labels[optimizer] = (name, not any(first for _, first in self._labels.values()))
        return label

    def named_parameters(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        """Return pairs (name, parameter) of an optimizer's parameters in their order."""
        if any(id(p) not in self._names for group in optimizer.param_groups for p in group["params"]):
            self.refresh()
        label, first = self._label_entry(optimizer)
        named: list[tuple[str, torch.Tensor]] = []
        for number, group in enumerate(optimizer.param_groups):
            given_names = group.get("param_names")
            for index, parameter in enumerate(group["params"]):
                entry = self._names.get(id(parameter))
                if entry is not None and entry[0]() is parameter:
                    name = entry[1]
                elif given_names is not None:
                    name = _strip_wrappers(given_names[index])
                else:
                    name = f"{'' if first else label + ' '}group {number}.param {index}"
                named.append((name, parameter))
        return named


class _OpDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts ops by the dtype of their first output, below autocast.

    Further outputs are ignored, because they are statistics such as a mean.
    """

    #: Attention variants and control flow are ops of a higher order. The counts list them by name like any other op.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, dict[torch.dtype, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensor = next(_iter_tensors(out), None)
        if tensor is not None and _is_measured(tensor.dtype):
            counts = self.counts.setdefault(str(getattr(func, "_overloadpacket", func)), {})
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
        return out


class _ModuleOutput:
    """The output dtypes of one module, each with autocast's dtype at the module's return, or None without autocast."""

    __slots__ = ("class_name", "parameter_dtypes", "seen_dtypes")

    def __init__(self) -> None:
        #: The class of the module without wrappers.
        self.class_name = ""
        #: The last dtypes of the module's own parameters. These dtypes explain an output that autocast did not produce.
        self.parameter_dtypes: set[torch.dtype] = set()
        self.seen_dtypes: set[tuple[torch.dtype, torch.dtype | None]] = set()

    def dtypes(self) -> set[torch.dtype]:
        return {dtype for dtype, _ in self.seen_dtypes}


def _autocast_dtype(device: str) -> torch.dtype | None:
    """Return the dtype to which autocast lowers on a device type, or None if autocast is off or missing there."""
    try:
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    except RuntimeError:
        return None


class Dtypes(Collector):
    """The dtypes of a recording; only floating-point and complex dtypes.

    ``model``: the module whose outputs, parameters and gradients are recorded by name. A module or parameter with
    several names is listed under each name. None: parameters and gradients of the optimizers that step, by index
    ("group 0.param 3"). ``ops``: also count the output dtypes of every op, forward and backward. Counting costs some
    microseconds for each op.

    The forward hook is global to torch, and the model itself gets no hook. So the model can be copied, saved and
    compiled during the recording, and ``TransformerEncoderLayer`` keeps its fast path. Code inside
    compiled functions is not recorded. For ``torch.compile(model)`` only the final output is recorded. For a model that
    is compiled in place or called from a compiled function, only parameters and gradients are recorded.
    """

    def __init__(self, model: nn.Module | None, *, ops: bool = False) -> None:
        self._model = model
        self._parameter_names = ParameterNames(model)
        self._outputs: dict[str, _ModuleOutput] = {}
        self._hooked_modules: dict[int, tuple[weakref.ref[nn.Module], list[_ModuleOutput]]] = {}
        self._watched_parameters: list[tuple[str, torch.Tensor]] = []
        self._parameter_dtypes: dict[str, set[torch.dtype]] = {}
        self._gradient_dtypes: dict[str, set[torch.dtype]] = {}
        self._state_dtypes: dict[str, set[torch.dtype]] = {}
        self._loss_dtypes: set[torch.dtype] = set()
        # Optimizers whose parameters were read before their first step, and optimizers whose state was read after the
        # first step.
        self._known_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._op_mode = _OpDtypes() if ops else None
        self._is_running = False
        self._hook_handle: RemovableHandle | None = None
        self._warning_filter: tuple[Any, ...] | None = None

    # Events.

    def start(self) -> None:
        """Register the hook for module outputs and, if ops are counted, enter the dispatch mode of this thread."""
        self._hook_model()
        self._read_model()
        if self._op_mode is not None:
            self._op_mode.__enter__()  # type: ignore[no-untyped-call]
        self._is_running = True

    def set_model(self, model: nn.Module) -> None:
        """Record this model from now on. Parameter data under other names is discarded."""
        self._unhook_model()
        self._model, self._parameter_names = model, ParameterNames(model)
        self._parameter_dtypes.clear()
        self._gradient_dtypes.clear()
        self._known_optimizers.clear()
        self._hook_model()
        self._read_model()

    def _hook_model(self) -> None:
        if self._model is not None:
            for name, module in self._model.named_modules(remove_duplicate=False):
                plain = _strip_wrappers(name)
                output = self._outputs.setdefault(plain, _ModuleOutput())
                output.class_name = type(module).__name__
                self._hooked_modules.setdefault(id(module), (weakref.ref(module), []))[1].append(output)
            # The warning is correct but irrelevant: an output that is seen twice has the same dtype twice. The filter
            # is inserted as plain data, because warnings.filterwarnings() would remove an equal filter of the user.
            self._warning_filter = ("ignore", _TWICE, UserWarning, None, 0)
            warnings.filters.insert(0, self._warning_filter)  # type: ignore[attr-defined]
            self._hook_handle = register_module_forward_hook(self._record_output)

    def _unhook_model(self) -> None:
        if self._hook_handle is not None:
            self._hook_handle.remove()
            self._hook_handle = None
            warnings.filters[:] = [f for f in warnings.filters if f is not self._warning_filter]  # type: ignore[index]
        self._hooked_modules.clear()

    def stop(self) -> None:
        """Remove the hook and the mode, and read the final dtypes."""
        if self._is_running and self._op_mode is not None:
            self._op_mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._is_running = False
        self._unhook_model()
        self._read_model()
        self._watched_parameters.clear()
        for optimizer in list(self._stepped_optimizers):
            self._read_state(optimizer)

    def record_loss_dtype(self, dtype: torch.dtype) -> None:
        """Record the dtype, before scaling, of a loss that starts a backward pass."""
        self._loss_dtypes.add(dtype)

    def after_backward(
        self, scaler: torch.amp.GradScaler | None, scale: float, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Read parameters and gradients of the model.

        Without a model, read the optimizers that the backward pass affects.
        """
        for name, parameter in self._watched_parameters:
            self._record_parameter(name, parameter)
        if self._model is None:
            for optimizer in optimizers:
                self._read_optimizer(optimizer)

    def before_step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scale: float) -> None:
        """Read the optimizer's parameters before its first step: some may be copies outside of the model."""
        if optimizer not in self._known_optimizers:
            self._known_optimizers.add(optimizer)
            self._read_optimizer(optimizer)

    def after_step(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, skipped: bool
    ) -> None:
        """Read the optimizer's state after its first step. The state is read once more at the end."""
        if not skipped and optimizer not in self._stepped_optimizers:
            self._stepped_optimizers.add(optimizer)
            self._read_state(optimizer)

    def _record_output(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        entry = self._hooked_modules.get(id(module))
        if entry is None or entry[0]() is not module:
            return
        for tensor in _iter_tensors(output):
            if _is_measured(tensor.dtype):
                pair = (tensor.dtype, _autocast_dtype(tensor.device.type))
                for out in entry[1]:
                    if pair not in out.seen_dtypes:
                        out.seen_dtypes.add(pair)
                        out.parameter_dtypes.update(p.dtype for p in module.parameters(recurse=False))

    def _read_model(self) -> None:
        """Read the model's parameters and keep the list, because listing parameters costs more than reading them."""
        if self._model is not None:
            self._watched_parameters = [
                (_strip_wrappers(name), p) for name, p in self._model.named_parameters(remove_duplicate=False)
            ]
            for name, parameter in self._watched_parameters:
                self._record_parameter(name, parameter)

    def _read_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for name, parameter in self._parameter_names.named_parameters(optimizer):
            self._record_parameter(name, parameter)

    def _record_parameter(self, name: str, parameter: torch.Tensor) -> None:
        dtype = parameter.dtype
        if dtype not in self._parameter_dtypes.get(name, ()) and _is_measured(dtype):
            self._parameter_dtypes.setdefault(name, set()).add(dtype)
        gradient = parameter.grad
        if (
            gradient is not None
            and gradient.dtype not in self._gradient_dtypes.get(name, ())
            and _is_measured(gradient.dtype)
        ):
            self._gradient_dtypes.setdefault(name, set()).add(gradient.dtype)

    def _read_state(self, optimizer: torch.optim.Optimizer) -> None:
        label = self._parameter_names.optimizer_label(optimizer)
        for state in list(optimizer.state.values()):
            if isinstance(state, dict):
                for key, value in state.items():
                    for tensor in _iter_tensors(value):
                        if _is_measured(tensor.dtype):
                            self._state_dtypes.setdefault(f"{label}.{key}", set()).add(tensor.dtype)

    # Results.

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with dtypes as "float16" or, if several were seen, "float16, float32".

        Keys: "modules", "parameters", "gradients" and "optimizer state" (name to dtype), "loss" (dtype or None) and
        "ops" (op to dtype to count, or None if ops were not recorded). The model itself is the module "".
        """
        ops = None
        if self._op_mode is not None:
            ops = {
                op: {dtype_name(dtype): n for dtype, n in sorted(counts.items(), key=lambda item: str(item[0]))}
                for op, counts in sorted(self._op_mode.counts.items())
            }
        return {
            "modules": {name: _join_names(out.dtypes()) for name, out in self._outputs.items() if out.seen_dtypes},
            "parameters": {name: _join_names(dtypes) for name, dtypes in self._parameter_dtypes.items()},
            "gradients": {name: _join_names(dtypes) for name, dtypes in self._gradient_dtypes.items()},
            "loss": _join_names(self._loss_dtypes) or None,
            "optimizer state": {name: _join_names(dtypes) for name, dtypes in self._state_dtypes.items()},
            "ops": ops,
        }


class _Mismatch:
    """One line of a failed assertion, and advice. Lines with equal advice are grouped under it."""

    __slots__ = ("advice", "line")

    def __init__(self, line: str, advice: str) -> None:
        self.line = line
        self.advice = advice


def assert_dtypes(dtypes: Dtypes | None, expected: Mapping[str, Expected]) -> None:
    """Fail if a recorded dtype differs from the expected dtype.

    Keys of ``expected``: glob patterns over module names ("encoder.*", "*"; "" or "model" is the output of the whole
    model), the words "loss", "parameters", "gradients" and "optimizer state", and patterns over the names in one
    section: "parameters:encoder.*", "gradients:*.bias", "optimizer state:*.exp_avg", "ops:aten.mm". Values: a dtype, or
    a collection of allowed dtypes; "float16", "fp16" and "half" are the same. If a key names a module exactly, patterns
    that also match the module ignore it.

    Raise AssertionError if a dtype differs, or if a key matches no recorded name. Raise ValueError if ``expected`` is
    empty, a value is no dtype, or the data for a key was not recorded at all.
    """
    if dtypes is None:
        raise ValueError("Dtypes were not recorded: ask for them with record(model, dtypes=True).")
    if not expected:
        raise ValueError('Nothing is expected: give assert_dtypes names with dtypes, such as {"loss": "float32"}.')
    wrong: list[_Mismatch] = []
    for key, value in expected.items():
        wanted = _allowed_dtypes(key, value)
        section, _, pattern = key.partition(":")
        if key == "loss":
            wrong += _check_loss(dtypes, wanted)
        elif section in _SECTIONS:
            wrong += _check_section(dtypes, section, pattern or "*", key, wanted)
        else:
            wrong += _check_modules(dtypes, key, wanted, expected)
    if wrong:
        raise AssertionError(_failure_message(wrong))


def _allowed_dtypes(key: str, value: Expected) -> frozenset[torch.dtype]:
    """Return the dtypes that are allowed for a key. Raise ValueError without any."""
    values = [value] if isinstance(value, (str, torch.dtype)) else list(value)
    if not values:
        raise ValueError(f"No dtype is allowed for {key!r}: name at least one.")
    return frozenset(_parse_dtype(key, one) for one in values)


def _parse_dtype(key: str, value: Any) -> torch.dtype:
    if isinstance(value, torch.dtype):
        return value
    name = value.strip().removeprefix("torch.").lower() if isinstance(value, str) else ""
    found = getattr(torch, _SPELLINGS.get(name, name), None) if name else None
    if isinstance(found, torch.dtype):
        return found
    known = [dtype_name(dtype) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]
    near = difflib.get_close_matches(name, sorted({*known, *_SPELLINGS}), n=1)
    hint = f"did you mean {near[0]!r}?" if near else 'write it as "float16", "bfloat16" or "float32".'
    raise ValueError(f"{value!r}, expected for {key!r}, is no dtype: {hint}")


def _join_with_or(dtypes: AbstractSet[torch.dtype]) -> str:
    return " or ".join(sorted(map(dtype_name, dtypes)))


def _failure_message(wrong: list[_Mismatch]) -> str:
    """Return the message for all mismatches, grouped by advice."""
    lines = [f"{len(wrong)} {'dtype is' if len(wrong) == 1 else 'dtypes are'} not as expected."]
    shown = wrong[:_SHOWN]
    for advice in dict.fromkeys(mismatch.advice for mismatch in shown):
        lines += [f"  {mismatch.line}" for mismatch in shown if mismatch.advice == advice]
        lines.append(f"    -> {advice}")
    if len(wrong) > len(shown):
        lines.append(f"  and {len(wrong) - len(shown)} more")
    return "\n".join(lines)


def _check_loss(dtypes: Dtypes, wanted: frozenset[torch.dtype]) -> Iterator[_Mismatch]:
    if not dtypes._loss_dtypes:
        yield _Mismatch("loss: none was seen", "Call backward() on the loss while recording.")
    elif not dtypes._loss_dtypes <= wanted:
        if dtypes._loss_dtypes & _LOW:
            advice = (
                "Compute the loss inside the autocast region with a loss that autocast runs in float32, "
                "or call .float() on what goes into it."
            )
        else:
            advice = "Autocast runs most losses in float32: expect that, or cast the loss."
        yield _Mismatch(f"loss is {_join_names(dtypes._loss_dtypes)}, should be {_join_with_or(wanted)}", advice)


def _check_section(
    dtypes: Dtypes, section: str, pattern: str, key: str, wanted: frozenset[torch.dtype]
) -> Iterator[_Mismatch]:
    dtypes_by_name: dict[str, set[torch.dtype]]
    if section == "ops":
        if dtypes._op_mode is None:
            raise ValueError(
                f"{key!r} cannot be checked, as ops were not recorded: record(model, dtypes=True, ops=True)."
            )
        dtypes_by_name = {op: set(counts) for op, counts in sorted(dtypes._op_mode.counts.items())}
    elif section == "parameters":
        dtypes_by_name = dtypes._parameter_dtypes
    else:
        dtypes_by_name = dtypes._gradient_dtypes if section == "gradients" else dtypes._state_dtypes
    matched = [name for name in dtypes_by_name if fnmatchcase(name, pattern)]
    if not matched:
        yield _Mismatch(f"{key!r} matches nothing", _suggest_names(pattern, dtypes_by_name, _NONE[section]))
    word = {"parameters": "parameter", "gradients": "gradient of", "optimizer state": "state", "ops": "op"}[section]
    for name in matched:
        if not dtypes_by_name[name] <= wanted:
            advice = _advice_on(section, dtypes_by_name[name], wanted)
            yield _Mismatch(
                f"{word} {name} is {_join_names(dtypes_by_name[name])}, should be {_join_with_or(wanted)}", advice
            )


#: Advice for a section without any entry.
_NONE = {
    "parameters": "No parameter was seen: give record() the model, or step an optimizer while recording.",
    "gradients": "No gradient was seen: run backward while recording.",
    "optimizer state": "No state was seen: the optimizer has none, or every step was skipped while recording.",
    "ops": "No op was seen: run the model while recording.",
}


def _advice_on(section: str, seen: AbstractSet[torch.dtype], wanted: AbstractSet[torch.dtype]) -> str:
    if section == "ops":
        if seen & _LOW:
            return "Autocast or its inputs lower this op: run it under autocast(enabled=False) on .float() inputs."
        return "Autocast was off for this op, runs it in float32, or its inputs decide: see Autocast Op Reference."
    if section == "gradients":
        return "A gradient has the dtype of its parameter: change that of the parameter."
    if section == "optimizer state":
        return "Optimizers make their state in the dtype of the parameters at the first step: see there."
    if seen & _LOW and not wanted & _LOW:
        return (
            "model.half(), .bfloat16() or .to(dtype) was called: leave parameters in float32 and let autocast lower "
            "the ops, or small updates are rounded away."
        )
    return "Nothing but model.to(dtype) changes parameters: autocast does not."


def _suggest_names(pattern: str, names: Collection[str], none: str) -> str:
    """Return a hint at names that are similar to a pattern. Return ``none`` if there are no names."""
    if not names:
        return none
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    if near:
        return f"Did you mean {', '.join(map(repr, near))}?"
    first = list(names)[:5]
    return f"The names are {', '.join(map(repr, first))}{' ...' if len(names) > len(first) else ''}."


def _module_pattern(key: str, outputs: Collection[str]) -> str:
    """Return a key as a pattern over module names. "model" is the model itself unless a module has that name."""
    return "" if key == "model" and "model" not in outputs else key


def _check_modules(
    dtypes: Dtypes, key: str, wanted: frozenset[torch.dtype], expected: Mapping[str, Expected]
) -> Iterator[_Mismatch]:
    outputs = dtypes._outputs
    if not outputs:
        raise ValueError(f"{key!r} is a pattern over module names, and no model was given: record(model, dtypes=True).")
    pattern = _module_pattern(key, outputs)
    if pattern in outputs:
        names = [pattern]
    else:
        exact_names = {_module_pattern(other, outputs) for other in expected}
        matched = [name for name in outputs if fnmatchcase(name, pattern)]
        names = [name for name in matched if name not in exact_names]
        if not matched:
            if any(fnmatchcase(name, key) for name in dtypes._parameter_dtypes):
                yield _Mismatch(f"{key!r} matches no module", f'It is a parameter: write "parameters:{key}".')
            else:
                module_names = [name for name in outputs if name]
                yield _Mismatch(
                    f"{key!r} matches no module", _suggest_names(key, module_names, 'The model has only itself: "".')
                )
    called_outputs = [(name, outputs[name]) for name in names if outputs[name].seen_dtypes]
    if names and not called_outputs:
        yield _Mismatch(
            f"{key!r} gave no floating-point output",
            "It was not called while recording, or only inside a compiled module: run the model inside record(), "
            "and assert on a compiled one as a whole.",
        )
    for name, output in called_outputs:
        if not output.dtypes() <= wanted:
            line = (
                f"{name or 'model'} ({output.class_name}) is {_join_names(output.dtypes())}, should be "
                f"{_join_with_or(wanted)}"
            )
            yield _Mismatch(line, _explain_output(output, wanted))


def _explain_output(output: _ModuleOutput, wanted: AbstractSet[torch.dtype]) -> str:
    """Return the reason why a module's output differs from the wanted dtypes, with a remedy."""
    dtype, autocast = min(((d, a) for d, a in output.seen_dtypes if d not in wanted), key=str)
    if dtype in _LOW and wanted & _LOW and autocast == dtype:
        return (
            f"Autocast lowers to {dtype_name(dtype)} there: call autocast(..., "
            f"dtype=torch.{_join_with_or(wanted & _LOW)})."
        )
    if dtype in _LOW and autocast == dtype:
        return (
            f"Autocast lowers it to {dtype_name(dtype)}: run it under autocast(enabled=False) with .float() on its "
            "inputs, or expect the lower dtype."
        )
    if dtype in _LOW and dtype in output.parameter_dtypes:
        return (
            f"Its parameters are {dtype_name(dtype)}: model.half(), .bfloat16() or .to(dtype) was called; leave "
            "them in float32 and let autocast lower the ops."
        )
    if dtype in _LOW:
        return f"Autocast was off there and its inputs are {dtype_name(dtype)}: cast them, or the output."
    if dtype == torch.float64:
        return "Its inputs or parameters are float64, which autocast leaves alone: make them float32."
    if not wanted & _LOW:
        return "Its inputs or parameters have that dtype: cast them."
    if autocast is None:
        return (
            "Autocast was off when it returned: the region does not cover it, a nested region disables it, or autocast "
            "disabled itself; call it inside `with torch.autocast(...)`."
        )
    if autocast not in wanted:
        return (
            f"Autocast lowers to {dtype_name(autocast)} there: call autocast(..., "
            f"dtype=torch.{_join_with_or(wanted & _LOW)})."
        )
    return (
        "Autocast was on: this is the output of an op that autocast runs in float32 or leaves to its inputs (softmax, "
        "norms, losses, in-place ops), or of a region inside that disables it; expect float32 there, or cast after it."
    )
