"""How torch is patched: rows that say which calls a recorder is notified of, and one way to install them.

Patches stand on classes, and on module globals that torch itself looks up when it is called, so that names which a
program has imported early (``from torch.nn.utils import clip_grad_norm_``) are seen as well. Where a program may keep
a bound method (``step = scaler.step``), which looks nothing up, the code of the function is exchanged. Each hands a
call on at once in threads that do not record.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from ..active import THREAD
from ..sites import is_inner

_MISSING = object()
_RUNTIME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_REDIRECTS = os.path.join(_RUNTIME, "emulate", "redirects.py")

#: Called with a recorder and the arguments of the call.
Before = Callable[..., object]
#: Called with a recorder, what the call returned or raised, and its arguments.
After = Callable[..., object]


class Patch(NamedTuple):
    """A function of torch, and how recorders are notified of its calls.

    ``before`` is called first, then the function, then ``after`` with the result or ``failed`` with the error.
    """

    owner: Any
    name: str
    before: Before | None = None
    after: After | None = None
    failed: After | None = None
    #: Whether torch's own calls are passed over.
    of_users: bool = False
    #: Whether code that is being compiled may call it, which is passed over.
    compiled: bool = False
    #: Makes what stands in its place, where that is more than telling of calls; none of the above counts then.
    around: Callable[[Any], Any] | None = None
    #: Whether a program may keep the method bound to its object.
    kept: bool = False


class Installed:
    """What is patched now."""

    def __init__(self) -> None:
        #: (object, name, what stood there, what stands there), in the order of installation.
        self._rows: list[tuple[Any, str, Any, Any]] = []
        #: Functions whose code is exchanged, and their own.
        self._exchanged: list[tuple[FunctionType, CodeType]] = []

    def install(self, patches: Iterable[Patch]) -> None:
        """Patch what exists in this version of torch."""
        for patch in patches:
            original = getattr(patch.owner, patch.name, None)
            if patch.kept and isinstance(original, FunctionType) and original.__closure__ is None:
                self._exchange(original, patch)
            elif original is not None:
                value = patch.around(original) if patch.around is not None else _notifying(original, patch)
                self._put(patch.owner, patch.name, functools.wraps(original)(value) if callable(value) else value)

    def has(self, owner: Any) -> bool:
        """Whether anything of a class or a module is patched."""
        return any(row[0] is owner for row in self._rows)

    def _exchange(self, function: FunctionType, patch: Patch) -> None:
        """Put other code into a function, which calls what stands in its place."""
        twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        twin.__kwdefaults__, twin.__annotations__ = function.__kwdefaults__, function.__annotations__
        value = _notifying(twin, patch, depth=3)
        self._exchanged.append((function, function.__code__))
        # It is what signatures are read from.
        function.__wrapped__ = twin  # type: ignore[attr-defined]
        # Code that is being compiled calls it as it calls what torch.compiler.disable has marked: not as a part of it.
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        consts = tuple(value if const == _VALUE else const for const in _hand_on.__code__.co_consts)
        function.__code__ = _hand_on.__code__.replace(co_consts=consts)
        never_compile(function)
        never_compile(value)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner).get(name, _MISSING)
        self._rows.append((owner, name, before, value))
        setattr(owner, name, value)
        never_compile(value)
        # TorchScript knows builtin functions by their identity: what stands there meanwhile is the same op.
        op = _script_ops().get(id(before))
        if op is not None:
            _script_ops()[id(value)] = op

    def remove(self) -> None:
        """Put back all, the latest first."""
        while self._exchanged:
            function, code = self._exchanged.pop()
            function.__code__ = code
            del function.__wrapped__, function._torchdynamo_disable  # type: ignore[attr-defined]
        while self._rows:
            owner, name, before, value = self._rows.pop()
            _script_ops().pop(id(value), None)
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


INSTALLED = Installed()


def _script_ops() -> dict[int, str]:
    """The functions that TorchScript knows, by their identities, and the ops that they are."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    return table


def never_compile(function: Any) -> None:
    """Have a function, and what it calls, run as they are where compiled code hands back what it cannot trace."""
    eval_frame: Any = torch._C._dynamo.eval_frame
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
    else:  # before torch 2.7
        eval_frame.skip_code(code)


#: A constant that no other piece of code has.
_VALUE: Any = "what stands in the place of a function"


def _hand_on(*args: Any, **kwargs: Any) -> Any:
    """What a function does whose code is exchanged: its constant is another function then."""
    value: Any = "what stands in the place of a function"
    return value(*args, **kwargs)


def _notifying(original: Any, patch: Patch, depth: int = 2) -> Callable[..., Any]:
    """A function that calls another one and notifies the recorders of this thread.

    ``depth`` is how many frames above what looks for it the caller is.
    """
    _, _, before, after, failed, of_users, compiled, _, _ = patch

    def patched(*args: Any, **kwargs: Any) -> Any:
        if compiled and torch.compiler.is_compiling():
            return original(*args, **kwargs)
        recorders = THREAD.active
        if not recorders or (of_users and from_torch(depth)):
            return original(*args, **kwargs)
        if before is not None:
            try:
                for recorder in recorders:
                    before(recorder, *args, **kwargs)
            except TypeError:
                # A listener raises nothing: the arguments do not fit, and torch is to say so itself.
                return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs) if kwargs else original(*args)
        except BaseException as error:
            if failed is not None:
                for recorder in recorders:
                    failed(recorder, error, *args, **kwargs)
            raise
        if after is not None:
            for recorder in recorders:
                after(recorder, result, *args, **kwargs)
        return result

    return patched


def from_torch(depth: int = 2) -> bool:
    """Whether the patched function was called by torch itself; what an emulation puts around it does not count."""
    frame = sys._getframe(depth)
    if frame.f_code.co_filename == _REDIRECTS and frame.f_back is not None:
        frame = frame.f_back
    return is_inner(frame.f_code.co_filename)
