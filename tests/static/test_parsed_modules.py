"""Parsed modules: the names, bindings, roles and facts that the analyzer reads from a file before it runs any code."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

import pytest

from pytest_amp_check.static.project.assignments import assigned_pairs, stored_names
from pytest_amp_check.static.project.module import Class, Function, ImportedName, Module, methods_called_on
from pytest_amp_check.static.project.name_index import build_module
from pytest_amp_check.static.project.relevance import mark_relevant, may_train


def parse(text: str) -> Module:
    text = textwrap.dedent(text)
    return build_module("a.py", text, ast.parse(text))


def function_of(text: str, name: str = "f") -> Function:
    (function,) = parse(text).functions_by_name[name]
    return function


def class_of(text: str, name: str = "A") -> Class:
    return next(cls for cls in parse(text).classes.values() if cls.name == name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a", {"a": ImportedName("a", "", 0)}),
        ("import a.b", {"a": ImportedName("a.b", "", 0)}),
        ("import a.b as c", {"c": ImportedName("a.b", "", 0)}),
        ("from a.b import c", {"c": ImportedName("a.b", "c", 0)}),
        ("from a import b as c, d", {"c": ImportedName("a", "b", 0), "d": ImportedName("a", "d", 0)}),
        ("from . import a", {"a": ImportedName("", "a", 1)}),
        ("from ..a import b", {"b": ImportedName("a", "b", 2)}),
        ("def f():\n    import a", {"a": ImportedName("a", "", 0)}),
        ("from a import *", {}),
    ],
)
def test_imported_names(text: str, expected: dict[str, ImportedName]) -> None:
    assert parse(text).imports == expected


def test_star_imports() -> None:
    found = parse("from a.b import *\nfrom .c import *\nfrom d import e").star_imports
    assert set(found) == {ImportedName("a.b", "", 0), ImportedName("c", "", 1)}


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("i % 4", "%"),
        ("i += 1", "%"),
        ("i - 4", ""),
        ("x = 65505", "#"),
        ("x = -1e9", "#"),
        ("x = 65504", ""),
        ("x = 65504.5", "#"),
        ("x = 1e-8", "~"),
        ("x = 1.6e-5", ""),
        ("x = 1.5e-5", "~"),
        ("x = 0", ""),
        ("x = 0.0", ""),
        ("x = True", ""),
        ("x = 1", ""),
        ("x = '100000'", ""),
        ("x[m] = -1e9", "#="),
        ("x[m] = 65505", "#="),
        ("x[m] = 65504", ""),
        ("x[m] = y[m] = -1e9", "#="),
        ("x[m] = -LOW", "="),
        ("x[m] = -values.LOW", "="),
        ("x[m] = -NO", ""),
        ("x[m] = LOW", ""),
        ("x[m] = -low", ""),
        ("x[m] = '100000'", ""),
        ("x.m = -1e9", "#"),
        ("(a @ b) * 3", "@"),
        ("3 * (a @ b)", "@"),
        ("(a @ b) / 3", "@"),
        ("a.matmul(b) * 3", "@"),
        ("torch.bmm(a, b) / 3", "@"),
        ("einsum('ij,jk', a, b) / 3", "@"),
        ("(a @ b) + 3", ""),
        ("(a * b) * 3", ""),
        ("a.mm(b) * 3", ""),
    ],
)
def test_marks_of_syntax(text: str, marks: str) -> None:
    assert set(parse(text).used_names) & set("%#=@~") == set(marks)
    # The marks of a function belong to the function, and to the identifiers of the file.
    inside = parse(f"def f(self):\n    {text}")
    assert inside.functions_by_name["f"][0].used_names & set("%#=@~") == set(marks)
    assert not inside.used_names & set("%#=@~")
    assert inside.identifiers & set("%#=@~") == set(marks)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.b(c)", {"a", "b", "c"}),
        ("x = a.b.c", {"x", "a", "b", "c"}),
        ("f('16-true')", {"f", "16-true"}),
        ("f('auto')", {"f", "auto"}),
        ("f('other')", {"f"}),
        ("import a.b", {"b"}),
        ("from a import b as c", {"b"}),
        # Another name for a function stands for the function.
        ("run = a.go\nrun()", {"run", "a", "go"}),
        ("def f():\n    pass\nrun = f\n", {"run", "f"}),
        ("run = partial(go, 1)\n", {"run", "partial", "go"}),
        ("run = lambda x: go(x)\n", {"run", "<lambda>", "go"}),
    ],
)
def test_used_names(text: str, names: set[str]) -> None:
    assert parse(text).used_names == names


@pytest.mark.parametrize(
    ("text", "reaches"),
    [
        ("run = a.go", True),
        ("run = go", True),
        ("run = go()", True),
        ("run = partial(go, 1)", True),
        ("run = lambda x: go(x)", True),
        ("run = lambda x: x.go(x)", True),
        ("run = lambda x: go", False),
        ("from a import go as run", True),
        ("one = go\nrun = one", True),
        ("run = two\ntwo = run\ntwo = go", True),
        ("def g(self):\n    self.run = go", True),
        ("def g(self):\n    self.run = self.go", True),
        ("def g(self):\n    self.run = lambda x: go(x)", True),
        # The attribute of an object is no other name for the arguments of a constructor.
        ("def g(self):\n    self.run = make(go)", False),
        ("run[0] = go", False),
        ("run = [go]", False),
        ("run = 3\ngo()", False),
        ("\n".join(f"run = go{number}" for number in range(63)) + "\nrun = go", True),
        ("\n".join(f"run = go{number}" for number in range(64)) + "\nrun = go", False),
    ],
)
def test_other_names_of_a_function(text: str, *, reaches: bool) -> None:
    assert ("go" in function_of(f"{text}\ndef f(self):\n    self.run()").used_names) is reaches


def test_names_belong_to_the_innermost_function_or_class() -> None:
    module = parse(
        """
        top()
        def f():
            outer()
            def inner():
                deep()
        class A(Base):
            field = made()
            def method(self):
                called()
        """
    )
    assert module.used_names == {"top"}
    names = {name: functions[0].used_names for name, functions in module.functions_by_name.items()}
    assert names == {"f": {"outer"}, "inner": {"deep"}, "method": {"called"}}
    (cls,) = module.classes.values()
    assert cls.used_names == {"Base", "field", "made"}
    assert module.identifiers == {"top", "outer", "deep", "Base", "field", "made", "called"}


def test_methods_and_nested_functions_of_a_class() -> None:
    text = """
        class A:
            def f(self):
                def g(): pass
            if True:
                def h(self): pass
        def k(): pass
        """
    assert set(class_of(text).methods) == {"f"}
    names = {each: function_of(text, each).qualified_name for each in "fghk"}
    assert names == {"f": "A.f", "g": "g", "h": "h", "k": "k"}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        # A class with instances stands for all methods, and so does a method that makes an instance.
        ("A()", True),
        ("A.other", True),
        ("A.plain(3)", False),
        ("A.make()", True),
        ("A.named()", False),
        ("A.through()", True),
        ("A.round()", False),
        ("A.enter()", False),
        ("a.plain(3)", False),
    ],
)
def test_a_class_of_which_a_function_uses_a_method(call: str, *, named: bool) -> None:
    text = f"""
        class A:
            @staticmethod
            def plain(x): return x
            @classmethod
            def make(cls): return cls()
            @classmethod
            def named(cls): return cls.named
            @classmethod
            def through(cls): return cls.make()
            @classmethod
            def round(cls): return cls.again()
            @classmethod
            def again(cls): return cls.round()
            @classmethod
            def enter(cls): return cls.round()
        def f(a):
            {call}
        """
    assert ("A" in function_of(text).used_names) is named


def test_a_method_that_calls_itself_through_its_class() -> None:
    text = "class A:\n    @classmethod\n    def f(cls):\n        A.f()\n        return cls()\ndef g():\n    A.f()\n"
    assert "A" not in function_of(text).used_names
    assert "A" in function_of(text, "g").used_names
    # Two classes of one name are not distinguished.
    assert "A" in function_of(f"{text}class A:\n    pass\n", "f").used_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inspect.signature(f).parameters", False),
        ("inspect.signature(model.f).parameters\nmodel.parameters()", True),
        ("model.parameters()", True),
        ("model.parameters", True),
    ],
)
def test_parameters_of_a_signature_are_none_of_a_model(text: str, *, expected: bool) -> None:
    assert ("parameters" in parse(text).used_names) is expected


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = 1", [1]),
        ("x = 1\nx = 2", [1, 2]),
        ("x: int = 1", [1]),
        ("x, y = 1, 2", [1]),
        ("import x", [1]),
        ("import x.y", [1]),
        ("from a import y as x", [1]),
        ("def x(): pass", [1]),
        ("async def x(): pass", [1]),
        ("class x: pass", [1]),
        ("with a:\n    x = 1", [2]),
        ("if a:\n    x = 1", [2]),
        ("if a:\n    x = 1\nelse:\n    x = 2", [2]),
        ("if a:\n    y = 1\nelse:\n    x = 2", [4]),
        ("try:\n    import x\nexcept ImportError:\n    x = None", [2]),
        ("try:\n    y = 1\nexcept ImportError:\n    x = None", [4]),
        ("try:\n    y = 1\nfinally:\n    x = None", [4]),
        ("try:\n    x = 1\nexcept ImportError:\n    pass\nelse:\n    x = 2", [2]),
        ("try:\n    y = 1\nexcept ImportError:\n    pass\nelse:\n    x = 2", [6]),
        ("def f():\n    x = 1", []),
        ("y = x", []),
        ("y.x = 1", []),
    ],
)
def test_statements_that_bind_a_name(text: str, lines: list[int]) -> None:
    assert [statement.lineno for statement in parse(text).bindings.get("x", [])] == lines


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ("except ImportError:", True),
        ("except ModuleNotFoundError:", True),
        ("except AttributeError:", True),
        ("except Exception as error:", True),
        ("except (ValueError, ImportError):", True),
        ("except:", True),
        ("except ValueError:", False),
        ("except errors.ImportError:", False),
    ],
)
def test_code_for_another_version_of_a_library(handler: str, *, expected: bool) -> None:
    module = parse(f"try:\n    from a import f\n{handler}\n    def f(): pass\n")
    (function,) = module.functions
    assert (function in module.fallback_nodes) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if hasattr(torch, 'amp'): pass", True),
        ("if torch.__version__ > '2': pass", True),
        ("from packaging import Version", True),
        ("x = 1", False),
    ],
)
def test_files_that_may_ask_for_a_version(text: str, *, expected: bool) -> None:
    assert parse(text).may_check_version is expected


def test_words_are_counted_with_comments_and_texts() -> None:
    module = parse("x = xs  # x\n'x' + y.x\n")
    assert [module.count_word(name) for name in ("x", "xs", "z")] == [4, 1, 0]


@pytest.mark.parametrize(
    ("line", "offset", "column"), [(1, 0, 0), (1, 4, 4), (2, 5, 5), (2, 7, 6), (2, 8, 7), (3, 8, 8), (9, 5, 5)]
)
def test_columns_are_counted_in_characters(line: int, offset: int, column: int) -> None:
    assert build_module("a.py", "x = 1\nx = 'é' + y", ast.parse("")).character_column(line, offset) == column
    assert build_module("a.py", "x = 1\nx = 'e' + y", ast.parse("")).character_column(line, offset) == offset


class TestFunctions:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("return x / n", True),
            ("x /= n", True),
            ("x.div(n)", True),
            ("x.div_(n)", True),
            ("return n / x.size(0)", False),
            ("return x / 3", False),
            ("return x // n", False),
            ("x.mul(n)", False),
            ("x *= n", False),
            ("return x / self.n", False),
            ("x.div(n, 2)", False),
        ],
    )
    def test_division_by_an_argument(self, body: str, *, expected: bool) -> None:
        assert function_of(f"def f(x, n, /, self):\n    {body}").divides_by_argument() is expected

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("self.a = 1", True),
            ("self[0] = 1", True),
            ("a = self.a[0]", False),
            ("self.a.b += 1", True),
            ("a = 1", False),
        ],
    )
    def test_values_that_objects_keep(self, body: str, *, expected: bool) -> None:
        assert function_of(f"def f(self):\n    {body}").stores_in_objects() is expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("@abstractmethod\ndef f(self): pass", True),
            ("@abc.abstractmethod\ndef f(self): return 1", True),
            ("def f(self): raise NotImplementedError", True),
            ("def f(self):\n    'What it does.'\n    raise NotImplementedError('later')", True),
            ("def f(self): raise ValueError", False),
            ("def f(self):\n    x = 1\n    raise NotImplementedError", False),
            ("def f(self): pass", False),
            ("def f(self): raise", False),
        ],
    )
    def test_functions_that_subclasses_implement(self, text: str, *, expected: bool) -> None:
        assert function_of(text).is_abstract() is expected

    def test_a_lambda_is_a_function_without_statements(self) -> None:
        function = function_of("x = lambda a, b: a", "<lambda>")
        assert (function.body, function.decorators, function.is_abstract()) == ([], [], False)
        assert [parameter.arg for parameter in function.parameters()] == ["a", "b"]

    @pytest.mark.parametrize(
        ("text", "manager", "generator"),
        [
            ("@contextmanager\ndef f(): yield", True, True),
            ("@contextlib.contextmanager\ndef f(): yield from g()", True, True),
            ("def f(): yield", False, True),
            ("def f(): return (x for x in y)", False, False),
            ("@other\ndef f(): pass", False, False),
        ],
    )
    def test_generators_and_context_managers(self, text: str, *, manager: bool, generator: bool) -> None:
        function = function_of(text)
        assert (function.is_context_manager, function.is_generator) == (manager, generator)
        assert ("yield" in function.used_names) is generator

    def test_names_of_decorators(self) -> None:
        function = function_of("@a.b\n@c(1)\n@d[0]\n@e\ndef f(): pass")
        assert list(function.decorator_names()) == ["b", "c", "e"]

    def test_attributes(self) -> None:
        function = function_of("def f(self):\n    self.a = self.b.c\n    self.d.e()\n    self.g\n    del self.h\n")
        assert function.attributes_filled() == {"a", "b", "d"}
        assert function.attributes_used() == {"a", "b", "c", "d", "e", "g", "h"}

    def test_methods_that_are_called_on_a_variable(self) -> None:
        function = function_of(
            "def f(a, b):\n    a.one()\n    a.two\n    b.three()\n    a.four.five()\n    a.one(a.six())\n"
        )
        assert methods_called_on(function, "a") == {"one", "six"}


@pytest.mark.parametrize(
    ("text", "names", "attributes"),
    [
        ("a = b", {"a"}, set()),
        ("a, (b, *c) = d", {"a", "b", "c"}, set()),
        ("a.b = c", set(), {"b"}),
        ("a.b.c = d", set(), {"c"}),
        ("a['b'] = c", set(), {"['b']"}),
        ("a['b']['c'] = d", set(), {"['c']"}),
        ("a[0] = c", set(), set()),
        ("x = a['b']", {"x"}, set()),
        ("del a", {"a"}, set()),
        ("for a in b:\n    c = 1", {"a", "c"}, set()),
        ("with a as b:\n    pass", {"b"}, set()),
        ("if (a := b):\n    pass", {"a"}, set()),
        ("def a():\n    b = 1", {"a"}, set()),
        ("async def a():\n    b = 1", {"a"}, set()),
        ("class a:\n    b = 1", {"a"}, set()),
        ("a = lambda: (b := 1)", {"a"}, set()),
        ("a(b)", set(), set()),
    ],
)
def test_names_and_attributes_that_statements_assign(text: str, names: set[str], attributes: set[str]) -> None:
    nodes = ast.parse(text).body
    for _ in range(2):
        stored = stored_names(nodes)
        assert (set(stored.names), set(stored.attributes)) == (names, attributes)


@pytest.mark.parametrize(
    ("text", "grown", "items"),
    [
        ("a.append(b)", {"a"}, set()),
        ("a.extend(b.append(c))", {"a", "b"}, set()),
        ("a.b.append(c)", set(), set()),
        ("a.pop()", set(), set()),
        ("a += [b]", {"a"}, set()),
        ("a.b += [c]", set(), set()),
        ("a['b'] = c", set(), {("a", "b")}),
        ("a['b'] += c", set(), {("a", "b")}),
        ("a[0] = c", set(), {("a", 0)}),
        ("a['b']['c'] = d", set(), set()),
        ("a[b] = c", set(), set()),
        ("b = a['b']", set(), set()),
        ("a.update(b=c, d=e)", set(), {("a", "b"), ("a", "d")}),
        ("a.update(b, **c)", set(), set()),
        ("a.update(b=c.append(d))", {"c"}, {("a", "b")}),
        ("def f():\n    a.append(b)\n    a[0] = b", set(), set()),
    ],
)
def test_containers_that_statements_change(text: str, grown: set[str], items: set[tuple[str, str | int]]) -> None:
    stored = stored_names(ast.parse(text).body)
    assert (set(stored.grown), set(stored.items)) == (grown, items)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a = b", ["a = b"]),
        ("a = b = c", ["a = c", "b = c"]),
        ("a: int = b", ["a = b"]),
        ("a: int", []),
        ("a += b", []),
        ("a, b = c, d", ["a = c", "b = d"]),
        ("a, b = c, d, e", ["(a, b) = (c, d, e)"]),
        ("a, b = c", ["(a, b) = c"]),
        ("a, b = f()", ["a = f()[0]", "b = f()[1]"]),
        ("a, *b, c = f()", ["a = f()[0]"]),
        ("*a, b = f()", []),
    ],
)
def test_pairs_of_targets_and_values(text: str, pairs: list[str]) -> None:
    (statement,) = ast.parse(text).body
    found = assigned_pairs(statement)
    assert [f"{ast.unparse(target)} = {ast.unparse(value)}" for target, value in found] == pairs


class TestClasses:
    @pytest.mark.parametrize(
        ("head", "body", "expected"),
        [
            ("@dataclass\nclass A:", "x: int", True),
            ("@dataclass(frozen=True)\nclass A:", "x: int", True),
            ("@attrs.define\nclass A:", "x: int", True),
            ("class A(NamedTuple):", "x: int", True),
            ("class A(typing.TypedDict):", "x: int", True),
            ("class A(pydantic.BaseModel):", "x: int", True),
            ("@dataclass\nclass A:", "def __init__(self): pass", False),
            ("class A:", "x: int", False),
            ("class A(Base):", "x: int", False),
        ],
    )
    def test_records(self, head: str, body: str, *, expected: bool) -> None:
        assert class_of(f"{head}\n    {body}").is_record() is expected

    def test_fields_of_a_record(self) -> None:
        cls = class_of(
            "class A:\n    b: int\n    a: str = ''\n    c = 3\n    d.e: int = 3\n    def f(self): g: int = 3\n"
        )
        assert cls.declared_fields() == ["b", "a"]

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("x = 3", {"x": True}),
            ("x = 3.5", {"x": True}),
            ("x: int = 3", {"x": True}),
            ("x = 1", {"x": False}),
            ("x = 0", {"x": False}),
            ("x = True", {"x": False}),
            ("x = None", {"x": False}),
            ("x = y", {"x": False}),
            ("x, y = 3, None", {"x": True, "y": False}),
            ("x: int", {}),
            ("x.y = 3", {}),
            ("x = 3\n    x = None", {"x": False}),
            ("def f(self): pass", {"f": False}),
            ("def __init__(self): self.x = 3", {"x": True}),
            ("x = 3\n    def f(self): self.x = None", {"x": False, "f": False}),
            ("x = None\n    def f(self): self.x = 3", {"x": False, "f": False}),
            ("def f(self): other.x = 3", {"f": False}),
        ],
    )
    def test_own_names_and_the_names_of_numbers(self, body: str, expected: dict[str, bool]) -> None:
        assert class_of(f"class A:\n    {body}").own_names() == expected

    @pytest.mark.parametrize(
        ("method", "statement", "changed", "counts"),
        [
            ("__init__", "self.n = 0", False, False),
            ("__init__", "self.n = self.n + 1", False, False),
            ("__init__", "self.n += 1", True, True),
            ("f", "self.n = 0", True, False),
            ("f", "self.n += 1", True, True),
            ("f", "self.n -= 1", True, False),
            ("f", "self.n *= 2", True, False),
            ("f", "self.n = self.n + 1", True, True),
            ("f", "self.n = 1 + self.n", True, True),
            ("f", "self.n = self.n - 1", True, False),
            ("f", "self.n = self.m + 1", True, False),
            ("f", "self.n = (self.n + 1) % k", True, True),
            ("f", "self.n = (self.n + 1) // k", True, False),
            ("f", "self.n = k % (self.n + 1)", True, False),
            ("f", "self.n, self.m = 0, 1", True, False),
            ("f", "if x: self.n = 0", True, False),
            ("f", "other.n = 0", False, False),
            ("f", "n = 0", False, False),
            ("f", "self.m.n = 0", False, False),
        ],
    )
    def test_attributes_that_change_and_count(
        self, method: str, statement: str, *, changed: bool, counts: bool
    ) -> None:
        cls = class_of(
            f"class A:\n    def {method}(self, other):\n        {statement}\n    @staticmethod\n    def g(): n = 0"
        )
        assert ("n" in cls.changed_attributes) is changed
        assert ("n" in cls.counter_attributes) is counts

    def test_assignments_to_an_attribute(self) -> None:
        cls = class_of(
            "class A:\n    def __init__(me, x):\n        me.a = x\n        me.b, me.a = 1, 2\n    def f(self, me):\n"
            "        self.a = y\n        me.a = z\n"
        )
        found = {name: [(f.name, ast.unparse(v)) for f, v in each] for name, each in cls.assignments.items()}
        assert found == {"a": [("__init__", "x"), ("__init__", "2"), ("f", "y")], "b": [("__init__", "1")]}

    @pytest.mark.parametrize(
        ("statement", "expected"),
        [
            ("setattr(self, name, x)", True),
            ("setattr(self, self.name, x)", True),
            ("setattr(self, names[0], x)", True),
            ("setattr(self, name(), x)", True),
            ("setattr(self, 'name', x)", False),
            ("setattr(self, f'{name}_x', x)", False),
            ("setattr(other, name, x)", False),
            ("self.__dict__.update(x)", True),
            ("other.__dict__.update(x)", False),
            ("self.__dict__.get(x)", False),
            ("vars(self).update(x)", True),
            ("vars(other).update(x)", False),
            ("vars(self).get(x)", False),
            ("self.name = x", False),
        ],
    )
    def test_attributes_with_names_that_only_a_run_knows(self, statement: str, *, expected: bool) -> None:
        text = "class A:\n    def f(self, name, x):\n        if x:\n            {}\n    def g(self): self.y = 1\n"
        assert class_of(text.format(statement)).is_open is expected


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("s.unscale_(o)", {"s": "scaler", "o": "optimizer"}),
        ("s.scale(loss).backward()", {"s": "scaler"}),
        ("a.s.scale(loss).backward()\nb.s.update()", {"a.s": "scaler", "b.s": "scaler"}),
        ("a.s.scale(loss).backward()\nb.s.scale(x)", {"a.s": "scaler", "b.s": "scaler"}),
        ("a.s.scale(loss).backward()\nb.s.step()", {"a.s": "scaler"}),
        ("a.s.scale(loss).backward()\nb.t.update()", {"a.s": "scaler"}),
        ("s.scale(x)\ns.step(o)", {"s": "scaler", "o": "optimizer"}),
        ("s.update()\ns.step(o)", {}),
        ("s.update()\ns.step(o)\no.zero_grad()", {"s": "scaler", "o": "optimizer"}),
        ("o.zero_grad()", {"o": "module"}),
        ("o.zero_grad()\no.step()", {"o": "optimizer"}),
        ("o.zero_grad()\no.param_groups", {"o": "optimizer"}),
        ("o.step()", {}),
        ("o.param_groups", {}),
        ("o.step()\no.param_groups", {}),
        ("s.unscale_(a.o)\nb.o.zero_grad()", {"s": "scaler", "a.o": "optimizer", "b.o": "optimizer"}),
        ("s.unscale_(a.o)\nb.o.zero_grad()\nb.o.train()", {"s": "scaler", "a.o": "optimizer", "b.o": "module"}),
        (
            "s.unscale_(a.o)\nb.o.zero_grad()\nb.o.param_groups",
            {"s": "scaler", "a.o": "optimizer", "b.o": "optimizer"},
        ),
        ("m.parameters()", {"m": "module"}),
        ("m.named_parameters()", {"m": "module"}),
        ("m.train()\nm.eval()", {"m": "module"}),
        ("m.train()", {}),
        ("m.eval()", {}),
        ("self.parameters()", {}),
        ("self.m.parameters()", {"self.m": "module"}),
        ("m = a.m\na.m.to(device)\nm.parameters()", {"m": "module", "a.m": "module"}),
        ("m = a.m\na.m.half()\nm.parameters()", {"m": "module", "a.m": "module"}),
        ("m = a.m\na.m.cpu()\nm.parameters()", {"m": "module"}),
        ("m = a.m\na.m.to(device)\nm.step()", {}),
        ("m = n = a.m\na.m.to(device)\nm.parameters()", {"m": "module"}),
        ("loss_scaler(loss, o)\no.step()\no.zero_grad()", {"loss_scaler": "timm", "o": "optimizer"}),
        ("loss_scaler(loss, optim)", {"loss_scaler": "timm", "optim": "optimizer"}),
        ("loss_scaler(loss, o)", {}),
        ("scalers[0](loss, optim)", {"scalers[0]": "timm", "optim": "optimizer"}),
        ("make_scaler()(loss, optim)", {}),
        ("scaler.x[0](loss, optim)", {}),
        ("s.scale(x)\ns.step(make())", {}),
        ("make().scale(loss).backward()", {}),
        ("e.backward(loss)\ne.setup_dataloaders(d)", {"e": "fabric"}),
        ("e.backward(loss)\ne.accumulate(m)", {"e": "accelerate"}),
        ("e.backward(loss)\ne.step()", {}),
        ("e.setup_dataloaders(d)", {}),
    ],
)
def test_roles_of_objects_by_their_use(text: str, roles: dict[str, str]) -> None:
    module = parse(text)
    assert module.role_by_text == roles
    assert module.role_names == {name.rpartition(".")[2] for name in roles}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss.backward()", True),
        ("manual_backward(loss)", True),
        ("GradScaler()", True),
        ("ShardedGradScaler()", True),
        ("opt.zero_grad()", True),
        ("s.unscale_(opt)", True),
        ("s.update()\ns.step(o)\no.zero_grad()", True),
        ("grad_scaler.step(o)", True),
        ("Trainer(model.half())", True),
        ("Trainer(model, torch_dtype='auto')", True),
        ("Trainer(model)", False),
        ("model.half()", False),
        ("clip_grad_norm_(p)", True),
        ("clip_grad_value_(p)", True),
        ("def training_step(self): pass", False),
        ("self.training_step(batch)", True),
        ("torch.optim", True),
        ("save(opt.state_dict())", True),
        ("save(self.opt.state_dict())", True),
        ("save(scaler.state_dict())", True),
        ("save(trainer.state_dict())", True),
        ("save(learner.state_dict())", True),
        ("save(model.state_dict())", False),
        ("save(option.state_dict())", False),
        ("save(optimized.state_dict())", False),
        ('"""The optimizer."""\nsave(model.state_dict())', False),
        ("optimizer = load()", False),
        ("opt.step()", False),
    ],
)
def test_files_that_may_train(text: str, *, expected: bool) -> None:
    assert may_train(parse(text)) is expected


def relevant(text: str, *foreign: str) -> Function:
    """Return the first function of a file after the search for relevant functions."""
    module = parse(text)
    mark_relevant(module, frozenset(foreign))
    return next(iter(module.functions.values()))


@pytest.mark.parametrize(
    ("body", "foreign", "expected"),
    [
        # The object of another file may hold the scaler.
        ("scaler.update()\n    m.backward()\n    o.step()", ["m"], True),
        ("grad_scaler.update()\n    m.backward()\n    o.step()", ["m"], True),
        ("a.grad_scaler.update()\n    m.backward()\n    o.step()", ["m"], True),
        # Its methods may be those of a scaler, whatever the names of the others are.
        ("rescaler.update()\n    m.backward()\n    o.step()", ["m"], True),
        ("scaler.update()\n    m.backward()\n    o.step()", ["other"], True),
        ("scaler.update()\n    m.backward()\n    o.step()", [], False),
        ("scaler.update()\n    m.backward()", ["m"], False),
        # The state of an optimizer is saved beside a scaler of another file.
        ("save(optimizer.state_dict())", ["m"], True),
        ("save(opt.state_dict())", ["m"], True),
        ("save(a.sgd.state_dict())\n    b.sgd.step()\n    b.sgd.zero_grad()", ["m"], True),
        ("save(a.sgd.state_dict())\n    b.sgd.step()", ["m"], False),
        ("save(model.state_dict())", ["m"], False),
        ("optimizer.load_state_dict(load())", ["m"], True),
        ("save(optimizer.state_dict())", [], False),
        ("save(model.state_dict())\n    GradScaler", [], True),
        # Another file may do the rest of a training.
        ("m.backward()\n    if i % 4: return", ["m"], True),
        ("m()\n    if i % 4: return", ["m"], True),
        ("m()\n    x.half()", ["m"], True),
        ("m()", ["m"], False),
        ("m.backward()\n    if i % 4: return", [], False),
        ("optim\n    m()", ["m"], True),
        ("optim\n    m()", [], False),
    ],
)
def test_functions_of_a_training_over_several_files(body: str, foreign: list[str], *, expected: bool) -> None:
    assert relevant(f"def f():\n    {body}\n", *foreign).is_entry_point is expected


@pytest.mark.parametrize("order", [range(6), range(5, -1, -1), (0, 3, 1, 5, 2, 4), (4, 2, 5, 1, 3, 0)])
@pytest.mark.parametrize(("last", "expected"), [("with autocast(): pass", True), ("pass", False)])
def test_a_long_chain_of_calls(order: Sequence[int], last: str, *, expected: bool) -> None:
    bodies = [*(f"f{number + 1}()" for number in range(5)), last]
    text = "\n".join(f"def f{number}():\n    {bodies[number]}" for number in order)
    module = parse(f"{text}\nloss.backward()\n")
    mark_relevant(module, frozenset())
    assert module.functions_by_name["f0"][0].is_entry_point is expected
    assert module.functions_by_name["f3"][0].used_names == ({"f4"} if expected else set())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(loss):\n    loss.backward()", True),
        ("def f(o):\n    o.step()", True),
        ("def f(p):\n    clip_grad_norm_(p)", True),
        ("def f(p):\n    clip_grad_value_(p)", True),
        ("def f(p):\n    print(p)", False),
    ],
)
def test_methods_beside_a_method_with_a_scaler(text: str, *, expected: bool) -> None:
    siblings = "    def g(self):\n        autocast()\n        x.backward()\n"
    method = "    " + text.replace("\n", "\n    ") + "\n"
    assert relevant("class A:\n" + method + siblings).has_scaler_siblings is expected
    assert not relevant("class A:\n" + method + "class B:\n" + siblings).has_scaler_siblings
    assert not relevant(
        text + "\n" + siblings.replace("    def", "def").replace("        ", "    ")
    ).has_scaler_siblings


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ("self.x = 1", False),
        ("scaler.step(o)", False),
        ("self.scaler.step(o)", True),
        ("self.region = autocast()", True),
        ("self.region = make()", True),
        ("setattr(self, name, autocast())", True),
    ],
)
def test_methods_of_tests_share_only_attributes(kept: str, *, expected: bool) -> None:
    text = (
        "def make():\n    return autocast()\n"
        "class A:\n    def f(self):\n        loss.backward()\n"
        f"    def g(self):\n        autocast()\n        {kept}\n"
    )
    for path, found in (("test_a.py", expected), ("a.py", True)):
        module = build_module(path, text, ast.parse(text))
        mark_relevant(module, frozenset())
        assert module.functions_by_name["f"][0].has_scaler_siblings is found


@pytest.mark.parametrize(
    ("text", "expected"),
    [("class A:\n    x = autocast()\n", True), ("class A(B):\n    x = 1\n", True), ("class A:\n    x = 1\n", False)],
)
def test_classes_of_tests_keep_attributes_of_their_bodies_and_bases(text: str, *, expected: bool) -> None:
    text += "    def f(self): loss.backward()\n    def g(self): autocast()\n"
    module = build_module("test_a.py", text, ast.parse(text))
    mark_relevant(module, frozenset({"B"}))
    assert module.functions_by_name["f"][0].has_scaler_siblings is expected


@pytest.mark.parametrize(
    ("text", "loss", "checkpoint", "fragile"),
    [
        ("def f(x):\n    return F.mse_loss(x)", True, False, False),
        ("def f(x):\n    return g(x)\ndef g(x):\n    return F.mse_loss(x)", False, False, False),
        ("def f(x):\n    return g(x)\ndef g(x):\n    return F.mse_loss(x)\nx.backward()", True, False, False),
        ("def f(x):\n    return F.mse_loss(x)\nx.backward()", True, False, False),
        ("def f(x):\n    torch.save(x.state_dict())", False, True, False),
        ("def f(x):\n    torch.save(x)", False, False, False),
        ("def f(x):\n    x.state_dict()", False, False, False),
        ("def f(x):\n    return x.log()", False, False, True),
        ("def f(x):\n    return x\nEPS = 1e-8", False, False, True),
        ("def f(x):\n    return x\ny.log()", False, False, False),
        (
            "class A:\n    def f(self): pass\n    def g(self):\n        self.register_buffer(arange(3))",
            False,
            False,
            True,
        ),
        (
            "class A:\n    def f(self): pass\nclass B:\n    def g(self):\n        register_buffer(arange(3))",
            False,
            False,
            False,
        ),
        ("def f(x):\n    return x\ndef g(self):\n    register_buffer(arange(3))", False, False, False),
    ],
)
def test_what_a_function_may_do_beside_its_training(text: str, *, loss: bool, checkpoint: bool, fragile: bool) -> None:
    function = relevant(text)
    assert function.may_compute_loss is loss
    assert function.may_save_checkpoint is checkpoint
    assert function.may_lose_precision is fragile


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("import torch", True),
        ("import paddle", False),
        ("from jax import x", False),
        ("import paddle, torch", True),
        ("from .paddle import x", True),
    ],
)
def test_a_framework_with_the_names_of_torch(head: str, *, expected: bool) -> None:
    assert relevant(f"{head}\ndef f(x):\n    with autocast(): pass\n").is_entry_point is expected


def test_names_that_other_files_inline() -> None:
    text = """
        def f(x):
            enter(x).step(masked_fill(x))
        def enter(x):
            return autocast(x)
        class A:
            def g(self):
                mse_loss(x)
        """
    module = parse(text)
    mark_relevant(module, frozenset())
    names = {name: (set(f.used_names), set(f.context_names)) for name, (f,) in module.functions_by_name.items()}
    assert names["f"] == ({"enter", "step", "masked_fill"}, {"enter", "masked_fill"})
    assert names["enter"] == ({"autocast"}, {"autocast"})
    assert names["g"] == ({"mse_loss"}, set())
    (cls,) = module.classes.values()
    assert (set(cls.used_names), set(cls.context_names)) == ({"mse_loss"}, set())


@pytest.mark.parametrize(
    ("base", "method", "body", "expected"),
    [
        ("LightningModule", "training_step", "x.backward()\n        o.step()", True),
        ("LightningModule", "training_step", "x.backward()\n        m()", False),
        ("LightningModule", "training_step", "m()", False),
        ("LightningModule", "validation_step", "return binary_cross_entropy(x)", True),
        ("LightningModule", "other", "return binary_cross_entropy(x)", False),
        ("LightningModule", "training_step", "return mse_loss(x)", False),
        ("LightningModule", "on_after_backward", "clip_grad_norm_(p)", True),
        ("LightningModule", "on_after_backward", "p.grad.clamp_(-1, 1)", True),
        ("LightningModule", "on_after_backward", "print(p)", False),
        ("Other", "training_step", "x.backward()\n        o.step()", False),
        ("Other", "on_after_backward", "clip_grad_norm_(p)", False),
        ("Other", "compute_loss", "return x.half()", True),
        ("Other", "compute_loss", "return x", False),
        ("Other", "compute", "return x.half()", False),
    ],
)
def test_methods_that_a_trainer_runs(base: str, method: str, body: str, *, expected: bool) -> None:
    text = f"class A({base}):\n    def {method}(self):\n        {body}\nzero_grad\n"
    assert relevant(text, "m").is_entry_point is expected
    assert not relevant(
        f"def {method}(self):\n    {body.replace('        ', '    ')}\nLightningModule\nzero_grad\n"
    ).is_entry_point
