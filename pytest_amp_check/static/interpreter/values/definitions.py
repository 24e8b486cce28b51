"""Names, functions, classes and instances of programs, delayed calls, and the frames of calls."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol.sites import Site
from ....protocol.torch_api import DTYPES, canonical_name
from ....protocol.tracked_objects import TrackedObject
from ...project.syntax_marks import is_constant_name
from ..conditions import Formula
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...project.module import Class, Function, ImportedName, Module

#: Beginnings of the names of torch and of Python, and of those among them that are settings.
_CODE_OF_TORCH = ("torch.", "builtins.")
_SETTINGS_OF_TORCH = ("torch.version.", "torch.backends.")


class ExternalName(Value):
    """Object with a dotted name outside the project, such as ``torch.float16`` or ``os.environ``.

    version_fallback   the import stands where the code supports an older or newer torch
    unresolved         no import says to which object the name refers
    is_of_project      the name belongs to a file of the project that is not analyzed
    is_member          the code reads the name as an attribute of another name
    dtype_conditions   for the first of several dtypes: the condition of each dtype, by name
    """

    kind = "named"
    is_relevant = True

    __slots__ = ("dtype_conditions", "is_member", "is_of_project", "name", "unresolved", "version_fallback")

    def __init__(
        self, name: str, *, version_fallback: bool = False, unresolved: bool = False, is_of_project: bool = False
    ) -> None:
        super().__init__()
        self.is_member = False
        self.is_of_project = is_of_project
        self.name = name
        self.version_fallback = version_fallback
        self.unresolved = unresolved
        self.dtype_conditions: dict[str, Formula] = {}

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return self.name

    @property
    def may_be_setting(self) -> bool:
        """True if the name may be a setting, which may be false or None. The names of torch are not, with exceptions.

        A name that is imported by itself is a module, class or function, unless it is written as a constant is.
        """
        if self.is_of_project:
            return True
        if self.name.startswith(_CODE_OF_TORCH) and not self.name.startswith(_SETTINGS_OF_TORCH):
            return False
        return self.is_member or is_constant_name(self.name.rpartition(".")[2])

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

    __slots__ = ("imported_name", "version_fallback")

    def __init__(self, imported_name: ImportedName, *, version_fallback: bool) -> None:
        super().__init__()
        self.imported_name = imported_name
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

    ``lineage`` are the class and its bases in the project. ``is_open`` says that a name known only at run time may set
    any attribute.
    """

    is_relevant = True

    __slots__ = ("cls", "is_open", "key", "kind", "lineage", "tracked_object")

    def __init__(self, lineage: list[Class], key: int, tracked_object: TrackedObject | None = None) -> None:
        super().__init__()
        self.cls = lineage[0]
        self.lineage = lineage
        self.key = key
        self.tracked_object = tracked_object
        self.kind = "instance" if tracked_object is None else "module instance"
        self.is_open = False

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.key)

    def is_changed(self, name: str) -> bool:
        """Return True if a method assigns an attribute, other than a constructor."""
        return any(name in cls.changed_attributes for cls in self.lineage)

    def counter_attributes(self) -> set[str]:
        """Return the names of the attributes that count up."""
        return set().union(*(cls.counter_attributes for cls in self.lineage))

    def counting_method(self, name: str) -> Function | None:
        """Return the method that counts an attribute, or None unless it is the only one."""
        methods = set().union(*(cls.counter_attributes.get(name, ()) for cls in self.lineage))
        return methods.pop() if len(methods) == 1 else None


class SuperValue(Value):
    """Result of ``super()`` in a method: attributes come from the bases of ``cls``."""

    kind = "super"

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Value) -> None:
        super().__init__()
        self.cls = cls
        self.receiver = receiver


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
        "call_chain",
        "caller",
        "cls",
        "function",
        "is_class_body",
        "module",
        "on_yield",
        "parent",
        "path_base",
        "rebound_names",
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
        #: Calls that led to this frame, the innermost first.
        self.call_chain = () if caller is None else caller.call_chain()
        self.vars: Vars = {}
        scope = home.tree if function is None else function.node
        #: Names that functions inside assign by ``global`` or ``nonlocal``.
        self.rebound_names = home.rebound_names.get(scope, ()) if home.rebound_names else ()
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
