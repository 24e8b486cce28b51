"""Effects of Python constructs: in each program, a single construct decides if the gradients are unscaled."""

from __future__ import annotations

from textwrap import indent

from case_groups import check_each, in_groups
from marks import marks, places, shown

from pytest_amp_check import check_source
from pytest_amp_check.static.settings import Settings

#: The code before ``train``, and the code in ``train`` between backward and the clip.
Parts = tuple[str, str]

READY = """\
def ready(s, o):
    s.unscale_(o)
"""
HELD = """\
class Held:
    def __init__(self, given):
        self.held = given
        self.spare = None
"""
BASE = """\
class Base:
    def ready(self, s, o):
        s.unscale_(o)
"""
MAYBE = """\
def ready(s, o, really=True, *, again=0):
    if really and not again:
        s.unscale_(o)
"""
PAIR = """\
@dataclasses.dataclass
class Pair:
    s: object
    o: object = None
"""
EACH = """\
def each(*given):
    for one in given:
        yield one
"""
AROUND = """\
@contextlib.contextmanager
def around(s, o, late=False):
    if not late:
        s.unscale_(o)
    yield s
    if late:
        s.unscale_(o)
"""

PART = """\
class Part:
    late = False
    def ready(self, s, o):
        if not self.late:
            s.unscale_(o)
"""
#: Ten exits from a function, each after an unscale_.
MANY = "".join(f"    if n == {k}:\n        s.unscale_(o)\n        return {k}\n" for k in range(10))

#: Programs whose gradients are unscaled.
UNSCALED: dict[str, Parts] = {
    # Functions.
    "a function": (READY, "ready(scaler, optimizer)"),
    "a function whose arguments go by name": (READY, "ready(o=optimizer, s=scaler)"),
    "a function that is given a list": (READY, "given = [scaler, optimizer]\nready(*given)"),
    "a function that is given a dict": (READY, 'ready(**{"o": optimizer, "s": scaler})'),
    "a function with a default": (MAYBE, "ready(scaler, optimizer)"),
    "a function with a default that is given": (MAYBE, "ready(scaler, optimizer, again=0, really=True)"),
    "arguments that are gathered": (
        "def ready(*given):\n    given[0].unscale_(given[-1])\n",
        "ready(scaler, model, optimizer)",
    ),
    "arguments that are gathered behind the first": (
        "def ready(s, *given):\n    (o,) = given\n    s.unscale_(o)\n",
        "ready(scaler, optimizer)",
    ),
    "arguments that are gathered by name": (
        'def ready(**given):\n    given["s"].unscale_(given["o"])\n',
        "ready(s=scaler, o=optimizer)",
    ),
    "arguments that are gathered by name beside one": (
        'def ready(s, **given):\n    s.unscale_(given["o"])\n',
        "ready(o=optimizer, s=scaler)",
    ),
    "a function in the function": ("", "def ready():\n    scaler.unscale_(optimizer)\nready()"),
    "a lambda": ("", "ready = lambda o: scaler.unscale_(o)\nready(optimizer)"),
    "a partial": (READY, "functools.partial(ready, scaler)(optimizer)"),
    "a partial by name": (READY, "functools.partial(ready, o=optimizer)(scaler)"),
    "a partial that is overruled": (MAYBE, "functools.partial(ready, really=False)(scaler, optimizer, really=True)"),
    "a method that is taken": ("", "ready = scaler.unscale_\nready(optimizer)"),
    "a function that returns early for others": (
        "def ready(s, o, n):\n    if n == 1:\n        return\n    s.unscale_(o)\n",
        "ready(scaler, optimizer, 2)",
    ),
    "a function that returns two": (
        "def both(s, o):\n    return o, s\n",
        "o, s = both(scaler, optimizer)\ns.unscale_(o)",
    ),
    "a function that returns one of two": (
        "def one(s, o, first):\n    if first:\n        return s\n    return o\n",
        "one(scaler, optimizer, True).unscale_(one(scaler, optimizer, False))",
    ),
    "a function that calls itself": (
        "def ready(s, o, n):\n    s.unscale_(o)\n    if n:\n        ready(None, None, n - 1)\n",
        "ready(scaler, optimizer, limits)",
    ),
    "a decorator that gives the function back": (
        f"def known(f):\n    return f\n\n@known\n{READY}",
        "ready(scaler, optimizer)",
    ),
    "a decorator that gives another function": (
        f"def logged(f):\n    def inner(*given):\n        return f(*given)\n    return inner\n\n@logged\n{READY}",
        "ready(scaler, optimizer)",
    ),
    "a function that is awaited": (
        "async def ready(s, o):\n    s.unscale_(o)\n\ndef train_all():\n    pass\n",
        "ready(scaler, optimizer)",
    ),
    # Generators and contexts.
    "a generator": (EACH, "for o in each(optimizer):\n    scaler.unscale_(o)"),
    "a generator of a generator": (
        f"{EACH}\ndef again(*given):\n    yield from each(*given)\n",
        "for o in again(optimizer):\n    scaler.unscale_(o)",
    ),
    "a generator that unscales before it yields": (
        "def steps(s, o):\n    s.unscale_(o)\n    yield o\n",
        "for _ in steps(scaler, optimizer):\n    pass",
    ),
    "the first of a generator": (
        "def steps(s, o):\n    s.unscale_(o)\n    yield o\n",
        "next(steps(scaler, optimizer))",
    ),
    "a context that unscales first": (AROUND, "with around(scaler, optimizer):\n    pass"),
    "a context that unscales last": (AROUND, "with around(scaler, optimizer, late=True):\n    pass"),
    "what a context gives": (
        "@contextlib.contextmanager\ndef lent(s):\n    yield s\n",
        "with lent(scaler) as s:\n    s.unscale_(optimizer)",
    ),
    "a context on a stack": (
        "",
        (
            "with contextlib.ExitStack() as stack:\n"
            "    stack.enter_context(torch.no_grad())\n"
            "    scaler.unscale_(optimizer)\n"
            "    stack.pop_all()"
        ),
    ),
    "an object that is entered": (
        (
            "class Ready:\n    def __init__(self, s, o):\n        self.s, self.o = s, o\n"
            "    def __enter__(self):\n        self.s.unscale_(self.o)\n"
            "    def __exit__(self, *error):\n        pass\n"
        ),
        "with Ready(scaler, optimizer):\n    pass",
    ),
    "an object that is left": (
        (
            "class Ready:\n    def __init__(self, s, o):\n        self.s, self.o = s, o\n"
            "    def __enter__(self):\n        pass\n"
            "    def __exit__(self, *error):\n        self.s.unscale_(self.o)\n"
        ),
        "with Ready(scaler, optimizer):\n    pass",
    ),
    # Classes.
    "a method": (BASE, "Base().ready(scaler, optimizer)"),
    "a method that is inherited": (f"{BASE}\nclass Part(Base):\n    pass\n", "Part().ready(scaler, optimizer)"),
    "the nearest of two methods": (
        (
            "class Far:\n    def ready(self, s, o):\n        pass\n\n"
            "class Near(Far):\n    def ready(self, s, o):\n        s.unscale_(o)\n\n"
            "class Part(Near):\n    pass\n"
        ),
        "Part().ready(scaler, optimizer)",
    ),
    "the method above": (
        f"{BASE}\nclass Part(Base):\n    def ready(self, s, o):\n        super().ready(s, o)\n",
        "Part().ready(scaler, optimizer)",
    ),
    "the method above, taken": (
        f"{BASE}\nclass Part(Base):\n    def ready(self, s, o):\n        act = super().ready\n        act(s, o)\n",
        "Part().ready(scaler, optimizer)",
    ),
    "a method of a class of a generic one": (
        (
            "T = typing.TypeVar('T')\n\nclass Base(typing.Generic[T]):\n"
            "    def ready(self, s, o):\n        s.unscale_(o)\n\n"
            "class Part(Base[int]):\n    pass\n"
        ),
        "Part().ready(scaler, optimizer)",
    ),
    "a method of a class on two ways": (
        f"{BASE}\nclass One(Base):\n    pass\n\nclass Two(Base):\n    pass\n\nclass Part(One, Two):\n    pass\n",
        "Part().ready(scaler, optimizer)",
    ),
    "a method of a class whose name was given away": (
        f"{BASE}\nclass Part(Base):\n    pass\n\nBase = Base()\n",
        "Part().ready(scaler, optimizer)",
    ),
    "a method that is a context": (
        (
            "class Tools:\n    @contextlib.contextmanager\n    def ready(self, s, o):\n"
            "        s.unscale_(o)\n        yield\n"
        ),
        "with Tools().ready(scaler, optimizer):\n    pass",
    ),
    "a member of an enumeration": (
        "class Phase(enum.Enum):\n    WARM = 1\n    MAIN = 2\n",
        "phase = Phase.MAIN\nif phase is Phase.MAIN:\n    scaler.unscale_(optimizer)",
    ),
    "a member of an enumeration that is none of the others": (
        "class Phase(enum.Enum):\n    WARM = 1\n    MAIN = 2\n",
        "phase = Phase.MAIN\nif phase != Phase.WARM:\n    scaler.unscale_(optimizer)",
    ),
    "a static method": (
        "class Part:\n    @staticmethod\n    def ready(s, o):\n        s.unscale_(o)\n",
        "Part().ready(scaler, optimizer)",
    ),
    "a static method, taken": (
        "class Part:\n    @staticmethod\n    def ready(s, o):\n        s.unscale_(o)\n",
        "part = Part()\npart.ready(scaler, optimizer)",
    ),
    "a class method": (
        "class Part:\n    @classmethod\n    def ready(cls, s, o):\n        s.unscale_(o)\n",
        "Part.ready(scaler, optimizer)",
    ),
    "a method of a method": (
        f"{BASE}    def all(self, s, o):\n        self.ready(s, o)\n",
        "Base().all(scaler, optimizer)",
    ),
    "a method that is taken from an object": (BASE, "act = Base().ready\nact(scaler, optimizer)"),
    "an object that is called": (
        "class Ready:\n    def __call__(self, s, o):\n        s.unscale_(o)\n",
        "Ready()(scaler, optimizer)",
    ),
    "a property": (
        f"{HELD}\n    @property\n    def scaler(self):\n        return self.held\n",
        "Held(scaler).scaler.unscale_(optimizer)",
    ),
    "an attribute": (HELD, "Held(scaler).held.unscale_(optimizer)"),
    "an attribute that is written from outside": (
        HELD,
        "given = Held(None)\ngiven.held = scaler\ngiven.held.unscale_(optimizer)",
    ),
    "an attribute that is a function": (HELD, "Held(scaler.unscale_).held(optimizer)"),
    "an attribute of the class": (
        "class Part:\n    act = torch.amp.GradScaler.unscale_\n    def ready(self, s, o):\n        s.unscale_(o)\n",
        "Part().ready(scaler, optimizer)",
    ),
    "an attribute by its name": (HELD, 'getattr(Held(scaler), "held").unscale_(optimizer)'),
    "the attributes as a dict": (HELD, 'Held(scaler).__dict__["held"].unscale_(optimizer)'),
    "the attributes by vars": (HELD, 'vars(Held(scaler))["held"].unscale_(optimizer)'),
    "the fields of a record by their places": (PAIR, "pair = Pair(scaler, optimizer)\npair.s.unscale_(pair.o)"),
    "the fields of a record by their names": (PAIR, "pair = Pair(o=optimizer, s=scaler)\npair.s.unscale_(pair.o)"),
    "the fields of a named tuple": (
        "class Pair(typing.NamedTuple):\n    s: object\n    o: object\n",
        'pair = Pair(scaler, optimizer)._asdict()\npair["s"].unscale_(pair["o"])',
    ),
    "a constructor above": (
        f"{HELD}\nclass Part(Held):\n    def __init__(self, given):\n        super().__init__(given)\n",
        "Part(scaler).held.unscale_(optimizer)",
    ),
    # Containers.
    "an item of a list": ("", "given = [model, scaler]\ngiven[1].unscale_(optimizer)"),
    "an item of a tuple from its end": ("", "given = scaler, model\ngiven[-2].unscale_(optimizer)"),
    "an item that was appended": ("", "given = [model]\ngiven.append(scaler)\ngiven[-1].unscale_(optimizer)"),
    "the one item of a list that a loop fills": (
        "",
        "every = []\nfor _ in limits:\n    every.append(optimizer)\nfor o in every:\n    scaler.unscale_(o)",
    ),
    "items by which a list was extended": (
        "",
        "given = [model]\ngiven.extend([optimizer, scaler])\ngiven[2].unscale_(given[1])",
    ),
    "a sum of lists": ("", "given = [model] + [scaler, optimizer]\ngiven[1].unscale_(given[2])"),
    "a list to which one was added": ("", "given = [model]\ngiven += [scaler]\ngiven[1].unscale_(optimizer)"),
    "a list of one, at a place that is not known": (
        "",
        "every = [optimizer for _ in limits]\nscaler.unscale_(every[limits[0]])",
    ),
    "names that are given at once": ("", "s, (m, o) = scaler, (model, optimizer)\ns.unscale_(o)"),
    "names that are swapped": ("", "s, o = optimizer, scaler\ns, o = o, s\ns.unscale_(o)"),
    "a name and the rest": ("", "first, *rest = optimizer, model\nscaler.unscale_(first)"),
    "a name that an expression gives": ("", "if (s := scaler) is not None:\n    s.unscale_(optimizer)"),
    "a name with an annotation": ("", "s: object = scaler\ns.unscale_(optimizer)"),
    "an entry of a dict": ("", 'given = {"s": scaler, "m": model}\ngiven["s"].unscale_(optimizer)'),
    "an entry that was written": ("", 'given = {}\ngiven["s"] = scaler\ngiven["s"].unscale_(optimizer)'),
    "an entry by get": ("", 'given = {"s": scaler}\ngiven.get("s").unscale_(optimizer)'),
    "an entry by pop": ("", 'given = {"s": scaler}\ngiven.pop("s").unscale_(optimizer)'),
    "an entry that was there": ("", 'given = {"s": scaler}\ngiven.setdefault("s", None).unscale_(optimizer)'),
    "an entry that was not there": ("", 'given = {}\ngiven.setdefault("s", scaler).unscale_(optimizer)'),
    "an entry of an update": ("", 'given = {"s": None}\ngiven.update({"s": scaler})\ngiven["s"].unscale_(optimizer)'),
    "an entry of an update by name": ("", 'given = {}\ngiven.update(s=scaler)\ngiven["s"].unscale_(optimizer)'),
    "an entry of an update by pairs": (
        "",
        'given = {}\ngiven.update([("s", scaler), ("o", optimizer)])\ngiven["s"].unscale_(given["o"])',
    ),
    "an entry of two dicts": ("", 'given = {"s": None} | {"s": scaler}\ngiven["s"].unscale_(optimizer)'),
    "an entry that was added": ("", 'given = {"o": None}\ngiven |= {"o": optimizer}\nscaler.unscale_(given["o"])'),
    "an entry that was unpacked": ("", 'given = {"m": model, **{"s": scaler}}\ngiven["s"].unscale_(optimizer)'),
    "an entry of a copy": ("", 'given = {"s": scaler}.copy()\ngiven["s"].unscale_(optimizer)'),
    "an entry of dict()": ("", 'given = dict(s=scaler)\ngiven["s"].unscale_(optimizer)'),
    "the values of a dict": ("", 'for o in {"o": optimizer}.values():\n    scaler.unscale_(o)'),
    "the entries of a dict": ("", 'for key, o in {"o": optimizer}.items():\n    scaler.unscale_(o)'),
    "a list of a comprehension": ("", "for o in [o for o in (optimizer,)]:\n    scaler.unscale_(o)"),
    "a dict of a comprehension": (
        "",
        'given = {key: o for key, o in [("o", optimizer)]}\nscaler.unscale_(given["o"])',
    ),
    "a dict of a comprehension with a test": (
        "",
        'given = {key: o for key, o in [("m", model), ("o", optimizer)] if key == "o"}\nscaler.unscale_(given["o"])',
    ),
    "the first of two lists": (
        "",
        "given = [scaler] if flag else [scaler, model]\ngiven[0].unscale_(optimizer)",
    ),
    "an entry of something that is not known": ("", 'limits["s"] = scaler\nlimits["s"].unscale_(optimizer)'),
    "an attribute of something that is not known": ("", "limits.held = scaler\nlimits.held.unscale_(optimizer)"),
    "objects that are zipped": ("", "for s, o in zip([scaler], [optimizer]):\n    s.unscale_(o)"),
    "objects that are numbered": ("", "for n, o in enumerate([optimizer]):\n    scaler.unscale_(o)"),
    "objects that are numbered, of which only the first is another": (
        "other = torch.optim.SGD([torch.zeros(3)], 0.1)\n",
        "for n, o in enumerate([other, optimizer], start=1):\n    if n == 2:\n        scaler.unscale_(o)",
    ),
    "objects that are numbered, however many there are": (
        "",
        "for n, o in enumerate([optimizer for _ in limits]):\n    scaler.unscale_(o)",
    ),
    # Control.
    "sums": ("", "if 2 + 3 == 5 and 5 - 3 == 2 and -2 + 3 == 1:\n    scaler.unscale_(optimizer)"),
    "products": ("", "if 3 * 2 == 6 and 2**3 == 8 and 1 / 2 == 0.5:\n    scaler.unscale_(optimizer)"),
    "remainders": ("", "if 7 // 2 == 3 and 7 % 4 == 3:\n    scaler.unscale_(optimizer)"),
    "orders": ("", "if 1 < 2 and 2 <= 2 and 2 > 1 and 2 >= 2 and 1 != 2:\n    scaler.unscale_(optimizer)"),
    "one of two functions, the other of which refuses": (
        f"{READY}\ndef refuse(s, o):\n    raise ValueError\n",
        "act = ready if flag else refuse\nact(scaler, optimizer)",
    ),
    "one of two functions, the first of which refuses": (
        f"{READY}\ndef refuse(s, o):\n    raise ValueError\n",
        "act = refuse if flag else ready\nact(scaler, optimizer)",
    ),
    "the first iteration of a loop over objects": (
        "",
        "for o in [optimizer, None]:\n    scaler.unscale_(o)\n    break",
    ),
    "a branch that is always gone": ("", "if True:\n    scaler.unscale_(optimizer)"),
    "a number that is none": ("", "n = 0\nif n:\n    pass\nelse:\n    scaler.unscale_(optimizer)"),
    "numbers that are compared": ("", "n = 3\nif 2 < n <= 3 != 4:\n    scaler.unscale_(optimizer)"),
    "text that is compared": ("", 'kind = "fp" + "16"\nif kind == "fp16":\n    scaler.unscale_(optimizer)'),
    "text in text": ("", 'if "16" in "fp16":\n    scaler.unscale_(optimizer)'),
    "one of two branches": (
        "",
        "if flag:\n    scaler.unscale_(optimizer)\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "what either of two gives": ("", "o = optimizer if flag else optimizer\nscaler.unscale_(o)"),
    "the first that is": ("", "o = None or optimizer\nscaler.unscale_(o)"),
    "an assertion of the flag": ("", "assert flag\nif flag:\n    scaler.unscale_(optimizer)"),
    "a way out for the others": (
        "",
        'if not flag:\n    raise ValueError("flag")\nif flag:\n    scaler.unscale_(optimizer)',
    ),
    "an iteration that continues for the others": (
        "",
        "if not flag:\n    continue\nif flag:\n    scaler.unscale_(optimizer)",
    ),
    "a loop of one iteration": ("", "while True:\n    scaler.unscale_(optimizer)\n    break"),
    "the end of a loop": ("", "for n in limits:\n    pass\nelse:\n    scaler.unscale_(optimizer)"),
    "what is done at last": ("", "try:\n    print(i)\nfinally:\n    scaler.unscale_(optimizer)"),
    "what is done where nothing is raised": (
        "",
        (
            "try:\n    n = int(flag)\nexcept ValueError:\n    scaler.unscale_(optimizer)\n"
            "else:\n    scaler.unscale_(optimizer)"
        ),
    ),
    "what is done whatever is raised": (
        "",
        "try:\n    raise ValueError\nexcept ValueError:\n    scaler.unscale_(optimizer)",
    ),
    "every case": (
        "",
        (
            'match limits:\n    case "a":\n        scaler.unscale_(optimizer)\n'
            "    case _:\n        scaler.unscale_(optimizer)"
        ),
    ),
    "a case that is known": (
        "",
        'kind = "b"\nmatch kind:\n    case "a":\n        pass\n    case "b":\n        scaler.unscale_(optimizer)',
    ),
    "a case of None": (
        "",
        "kind = None\nmatch kind:\n    case None:\n        scaler.unscale_(optimizer)\n    case other:\n        pass",
    ),
    "a name that a case gives": (
        "",
        (
            "match limits:\n    case other if flag:\n        scaler.unscale_(optimizer)\n"
            "    case other:\n        scaler.unscale_(optimizer)"
        ),
    ),
    "a name that is only annotated at first": ("", "s: object\ns = scaler\ns.unscale_(optimizer)"),
    "a loop over objects except one": (
        "",
        "for s in [None, scaler]:\n    if s is None:\n        continue\n    s.unscale_(optimizer)",
    ),
    "a loop over objects up to one": (
        "",
        "for o in [optimizer, None]:\n    scaler.unscale_(o)\n    if o is not None:\n        break",
    ),
    "the end of a loop over objects": (
        "",
        "for s in [scaler, None]:\n    if s is None:\n        continue\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "pairs that are gone over": ("", "for s, o in [(scaler, optimizer)]:\n    s.unscale_(o)"),
    "functions that are gone over": (
        f"{READY}\ndef leave(s, o):\n    pass\n",
        "for act in [leave, ready]:\n    act(scaler, optimizer)",
    ),
    "a way out of a context": (
        "def ready(s, o):\n    with torch.no_grad():\n        s.unscale_(o)\n        return o\n",
        "ready(scaler, optimizer)",
    ),
    "a way out that something is done at": (
        "def ready(s, o):\n    try:\n        return o\n    finally:\n        s.unscale_(o)\n",
        "ready(scaler, optimizer)",
    ),
    "a function that another one makes": (
        "def made(s):\n    def inner(o):\n        s.unscale_(o)\n    return inner\n",
        "made(scaler)(optimizer)",
    ),
    "a name that belongs to the function around": (
        "",
        "done = None\ndef give():\n    nonlocal done\n    done = scaler\ngive()\ndone.unscale_(optimizer)",
    ),
    "a name that belongs to the file": (
        "held = None\n\ndef give(s):\n    global held\n    held = s\n",
        "give(scaler)\nheld.unscale_(optimizer)",
    ),
    "a constant of the class": (PART, "Part().ready(scaler, optimizer)"),
    "a property that does it": (
        f"{HELD}    @property\n    def ready(self):\n        return self.held.unscale_\n",
        "Held(scaler).ready(optimizer)",
    ),
    "a lambda with a default": ("", "ready = lambda o, s=scaler: s.unscale_(o)\nready(optimizer)"),
    "what is chosen is called": ("", "(scaler.unscale_ if True else print)(optimizer)"),
    "two contexts at once": (AROUND, "with torch.no_grad(), around(scaler, optimizer):\n    pass"),
    "two contexts, of which the second knows the first": (
        f"{AROUND}\n@contextlib.contextmanager\ndef lent(s):\n    yield s\n",
        "with lent(scaler) as s, around(s, optimizer):\n    pass",
    ),
    "a generator that is left early": (
        "def steps(s, o):\n    s.unscale_(o)\n    yield o\n    yield s\n",
        "for _ in steps(scaler, optimizer):\n    break",
    ),
    "an item that was taken out": ("", "given = [model, scaler]\ngiven.pop().unscale_(optimizer)"),
    "an item of a slice": ("", "given = [model, scaler]\ngiven[1:][0].unscale_(optimizer)"),
    "objects in reverse order": ("", "for o in reversed([optimizer]):\n    scaler.unscale_(o)"),
    "an object that a method of its class makes": (
        f"{HELD}    @classmethod\n    def make(cls, given):\n        return cls(given)\n",
        "Held.make(scaler).held.unscale_(optimizer)",
    ),
    "a field by its place": (
        "class Pair(typing.NamedTuple):\n    s: object\n    o: object\n",
        "pair = Pair(scaler, optimizer)\npair[0].unscale_(pair[-1])",
    ),
    "fields that are unpacked": (
        "class Pair(typing.NamedTuple):\n    s: object\n    o: object\n",
        "s, o = Pair(o=optimizer, s=scaler)\ns.unscale_(o)",
    ),
    "fields of what a function gives": (
        (
            "class Pair(typing.NamedTuple):\n    s: object\n    o: object = None\n\n"
            "def both(s, o):\n    return Pair(s, o)\n"
        ),
        "s, o = both(scaler, optimizer)\ns.unscale_(o)",
    ),
    "an item that was put in": ("", "given = [model]\ngiven.insert(0, scaler)\ngiven[0].unscale_(optimizer)"),
    "an item behind which one was put in": (
        "",
        "given = [scaler]\ngiven.insert(0, model)\ngiven[1].unscale_(optimizer)",
    ),
    "a constant of the class that a class between has changed": (
        f"{PART}\nclass Late(Part):\n    late = True\n\nclass Early(Late):\n    late = False\n",
        "Early().ready(scaler, optimizer)",
    ),
    "an attribute of an attribute": (HELD, "Held(Held(scaler)).held.held.unscale_(optimizer)"),
    "an attribute that is written by its name": (
        HELD,
        'given = Held(None)\nsetattr(given, "held", scaler)\ngiven.held.unscale_(optimizer)',
    ),
    "one value for two names": ("", "one = another = scaler\nanother.unscale_(optimizer)"),
    "a method that another one of the object is given": (
        (
            f"{HELD}    def use(self, act, o):\n        act(o)\n"
            "    def ready(self, o):\n        self.use(self.held.unscale_, o)\n"
        ),
        "Held(scaler).ready(optimizer)",
    ),
    "an attribute that one method gives and another uses": (
        "class Two:\n    def give(self, s):\n        self.s = s\n    def ready(self, o):\n        self.s.unscale_(o)\n",
        "two = Two()\ntwo.give(scaler)\ntwo.ready(optimizer)",
    ),
    "an attribute that is given on both of two ways": (
        HELD,
        (
            "given = Held(None)\nif flag:\n    given.held = scaler\nelse:\n    given.held = scaler\n"
            "given.held.unscale_(optimizer)"
        ),
    ),
    "one of two objects that hold the same": (
        HELD,
        "given = Held(scaler) if flag else Held(scaler)\ngiven.held.unscale_(optimizer)",
    ),
    "one of two lists": ("", "given = [model, scaler] if flag else [limits, scaler]\ngiven[1].unscale_(optimizer)"),
    "one of two dicts": (
        "",
        'given = {"s": scaler} if flag else {"s": scaler, "m": model}\ngiven["s"].unscale_(optimizer)',
    ),
    "something or None, where it was asked": (
        "",
        "s = scaler if flag else None\nif s is None:\n    s = scaler\ns.unscale_(optimizer)",
    ),
    "something or None, by another question of the same": (
        "",
        "s = scaler if flag else None\nif flag:\n    s.unscale_(optimizer)\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "a function that gives it or None": (
        "def one(s, flag):\n    if flag:\n        return s\n    return None\n",
        "s = one(scaler, flag)\nif s is not None:\n    s.unscale_(optimizer)\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "a loop in a function that is left": (
        (
            "def ready(s, o, n):\n    for each in n:\n        if each:\n            s.unscale_(o)\n"
            "            return each\n    s.unscale_(o)\n"
        ),
        "ready(scaler, optimizer, limits)",
    ),
    "what is raised in a function and caught out of it": (
        "def refuse():\n    raise ValueError\n",
        "try:\n    refuse()\nexcept ValueError:\n    scaler.unscale_(optimizer)",
    ),
    "a set of one": ("", "for o in {optimizer}:\n    scaler.unscale_(o)"),
    "a type that is asked": ("", "if isinstance(scaler, torch.amp.GradScaler):\n    scaler.unscale_(optimizer)"),
    "an attribute that is asked": ("", 'if hasattr(scaler, "unscale_"):\n    scaler.unscale_(optimizer)'),
    "a function with many ways out": (
        f"def ready(s, o, n):\n{MANY}    s.unscale_(o)\n    return -1\n",
        "ready(scaler, optimizer, limits)",
    ),
    "numbers with signs": ("", "if -1 < 0 and not -2 > -1:\n    scaler.unscale_(optimizer)"),
    "a jump that something is done at": (
        "",
        "for _ in limits:\n    try:\n        break\n    finally:\n        scaler.unscale_(optimizer)",
    ),
}
#: Programs whose gradients may be scaled.
SCALED: dict[str, Parts] = {
    "a function that is not called": (READY, "act = ready"),
    "a function with a default that is overruled": (MAYBE, "ready(scaler, optimizer, False)"),
    "a function with a default that is overruled by name": (MAYBE, "ready(scaler, optimizer, again=1)"),
    "a partial that is not called": (READY, "act = functools.partial(ready, scaler, optimizer)"),
    "a partial that switches it off": (MAYBE, "functools.partial(ready, really=False)(scaler, optimizer)"),
    "a lambda that is not called": ("", "act = lambda: scaler.unscale_(optimizer)"),
    "a function that returns early": (
        "def ready(s, o, n):\n    if n == 1:\n        return\n    s.unscale_(o)\n",
        "ready(scaler, optimizer, 1)",
    ),
    "a function that may return early": (
        "def ready(s, o, n):\n    if n == 1:\n        return\n    s.unscale_(o)\n",
        "ready(scaler, optimizer, limits)",
    ),
    "a method of the function": (READY, 'ready.__doc__.strip("d")'),
    "a generator that nobody goes over": (
        "def steps(s, o):\n    s.unscale_(o)\n    yield o\n",
        "made = steps(scaler, optimizer)",
    ),
    "behind the yield of a generator that is asked once": (
        "def steps(s, o):\n    yield o\n    s.unscale_(o)\n",
        "next(steps(scaler, optimizer))",
    ),
    "a context that is not entered": (AROUND, "made = around(scaler, optimizer)"),
    "a context that does neither": (
        "@contextlib.contextmanager\ndef around(s, o):\n    if s is None:\n        s.unscale_(o)\n    yield\n",
        "with around(scaler, optimizer):\n    pass",
    ),
    "a method of a class that is nearer": (
        f"{BASE}\nclass Part(Base):\n    def ready(self, s, o):\n        pass\n",
        "Part().ready(scaler, optimizer)",
    ),
    "an object that is made": (
        "class Ready:\n    def __call__(self, s, o):\n        s.unscale_(o)\n",
        "made = Ready()",
    ),
    "an attribute that is None": (HELD, "if Held(scaler).spare is not None:\n    scaler.unscale_(optimizer)"),
    "a field that is not given": (PAIR, "pair = Pair(scaler)\nif pair.o:\n    pair.s.unscale_(pair.o)"),
    "a member of an enumeration that is not meant": (
        "class Phase(enum.Enum):\n    WARM = 1\n    MAIN = 2\n",
        "phase = Phase.MAIN\nif phase is Phase.WARM:\n    scaler.unscale_(optimizer)",
    ),
    "a dict of a comprehension without it": (
        "",
        'acts = {key: o for key, o in [("s", scaler)] if key != "s"}\nacts.get("s", limits).unscale_(limits)',
    ),
    "a sum": ("", "if 2 + 3 != 5 or 5 - 3 == 3:\n    scaler.unscale_(optimizer)"),
    "a product": ("", "if 3 * 2 == 5 or 2**3 == 6 or 1 / 2 == 0:\n    scaler.unscale_(optimizer)"),
    "a remainder": ("", "if 7 // 2 == 3.5 or 7 % 4 == 1:\n    scaler.unscale_(optimizer)"),
    "an order": ("", "if 2 < 2 or 3 <= 2 or 2 > 2 or 1 >= 2:\n    scaler.unscale_(optimizer)"),
    "a number that is too large": ("", "if 2**80 - limits:\n    scaler.unscale_(optimizer)"),
    "a number that is none": ("", "if limits and 1 // 0:\n    scaler.unscale_(optimizer)"),
    "one of two functions": (
        f"{READY}\ndef leave(s, o):\n    pass\n",
        "act = leave if flag else ready\nact(scaler, optimizer)",
    ),
    "a branch that is never gone": ("", "if False:\n    scaler.unscale_(optimizer)"),
    "a loop without iterations": ("", "while False:\n    scaler.unscale_(optimizer)"),
    "numbers that are compared": ("", "n = 3\nif 2 < n < 3:\n    scaler.unscale_(optimizer)"),
    "text that is compared": ("", 'kind = "fp" + "16"\nif kind != "fp16":\n    scaler.unscale_(optimizer)'),
    "text in text": ("", 'if "32" in "fp16":\n    scaler.unscale_(optimizer)'),
    "one of two branches": ("", "if flag:\n    scaler.unscale_(optimizer)"),
    "the other of two branches": ("", "if flag:\n    pass\nelse:\n    scaler.unscale_(optimizer)"),
    "the end of a loop that may be left": (
        "",
        "for n in limits:\n    if n:\n        break\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "an iteration that continues": (
        "",
        "for n in limits:\n    if n:\n        continue\n    scaler.unscale_(optimizer)\n    break",
    ),
    "what may be raised before": (
        "",
        "try:\n    scaler.unscale_(optimizer)\nexcept RuntimeError:\n    pass",
    ),
    "what is done where something is raised": (
        "",
        "try:\n    n = int(flag)\nexcept ValueError:\n    scaler.unscale_(optimizer)",
    ),
    "what is done where nothing is raised": (
        "",
        "try:\n    n = int(flag)\nexcept ValueError:\n    pass\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "one of the cases": (
        "",
        'match limits:\n    case "a":\n        scaler.unscale_(optimizer)\n    case _:\n        pass',
    ),
    "a case that is not": (
        "",
        'kind = "b"\nmatch kind:\n    case "a":\n        scaler.unscale_(optimizer)\n    case "b":\n        pass',
    ),
    "a case with a condition": (
        "",
        "match limits:\n    case other if flag:\n        scaler.unscale_(optimizer)\n    case other:\n        pass",
    ),
    "a case of a shape": (
        "",
        "match limits:\n    case [first, *rest]:\n        scaler.unscale_(optimizer)",
    ),
    "an entry of a dict that was cleared": (
        "",
        'acts = {"s": scaler.unscale_}\nacts.clear()\nacts.get("s", print)(optimizer)',
    ),
    "an entry that was taken out": (
        "",
        'acts = {"s": scaler.unscale_}\nacts.pop("s")\nacts.get("s", print)(optimizer)',
    ),
    "an entry that was deleted": (
        "",
        'acts = {"s": scaler.unscale_}\ndel acts["s"]\nacts.get("s", print)(optimizer)',
    ),
    "a comprehension that is not gone over": ("", "made = (scaler.unscale_ for _ in limits)"),
    "what may be None": (
        "",
        "limit = None\nif flag:\n    limit = limits\nif limit is not None:\n    scaler.unscale_(optimizer)",
    ),
    "a loop over objects up to None": (
        "",
        "for o in [None, optimizer]:\n    if o is None:\n        break\n    scaler.unscale_(o)",
    ),
    "the end of a loop over objects that is left": (
        "",
        "for s in [scaler, None]:\n    if s is not None:\n        break\nelse:\n    scaler.unscale_(optimizer)",
    ),
    "functions that are gone over and do nothing": (
        "def leave(s, o):\n    pass\n\ndef stay(s, o):\n    pass\n",
        "for act in [leave, stay]:\n    act(scaler, optimizer)",
    ),
    "a way out before it": (
        "def ready(s, o):\n    with torch.no_grad():\n        return o\n        s.unscale_(o)\n",
        "ready(scaler, optimizer)",
    ),
    "a function that another one makes and nobody calls": (
        "def made(s):\n    def inner(o):\n        s.unscale_(o)\n    return inner\n",
        "made(scaler)",
    ),
    "a constant of the class that is another": (
        PART.replace("False", "True"),
        "Part().ready(scaler, optimizer)",
    ),
    "a constant of the class that a part of it changes": (
        f"{PART}\nclass Late(Part):\n    late = True\n",
        "Late().ready(scaler, optimizer)",
    ),
    "a constant of the class that the object changes": (
        PART,
        "part = Part()\npart.late = True\npart.ready(scaler, optimizer)",
    ),
    "what is chosen is called": ("", "(scaler.unscale_ if False else print)(optimizer)"),
    "a generator that is made for a loop without iterations": (
        "def steps(s, o):\n    yield from ()\n    s.unscale_(o)\n",
        "next(steps(scaler, optimizer), None)",
    ),
    "one of two objects": (HELD, "given = Held(scaler.unscale_) if flag else Held(print)\ngiven.held(optimizer)"),
    "one of two items": ("", "given = [model, scaler.unscale_] if flag else [model, print]\ngiven[1](optimizer)"),
    "something or None": ("", "s = scaler if flag else None\nif s is not None:\n    s.unscale_(optimizer)"),
    "something or None, by a question about something else": (
        "",
        "s = scaler if flag else None\nif limits:\n    scaler.unscale_(optimizer)",
    ),
    "a function that gives it or None": (
        "def one(s, flag):\n    if flag:\n        return s\n    return None\n",
        "s = one(scaler, flag)\nif s is not None:\n    s.unscale_(optimizer)",
    ),
    "a loop in a function that is left": (
        "def ready(s, o, n):\n    for each in n:\n        if each:\n            return each\n    s.unscale_(o)\n",
        "ready(scaler, optimizer, limits)",
    ),
    "what is raised in a function before it": (
        "def ready(s, o):\n    raise ValueError\n    s.unscale_(o)\n",
        "try:\n    ready(scaler, optimizer)\nexcept ValueError:\n    pass",
    ),
    "numbers with signs": ("", "if -1 > 0 or +1 < 0 or -2 > -1:\n    scaler.unscale_(optimizer)"),
    "an attribute that is given on one of two ways": (
        HELD,
        "given = Held(print)\nif flag:\n    given.held = scaler.unscale_\ngiven.held(optimizer)",
    ),
    "a function with many ways out, one of which does nothing": (
        f"def ready(s, o, n):\n{MANY}    return -1\n",
        "ready(scaler, optimizer, limits)",
    ),
}
AROUND_IT = """\
import contextlib
import dataclasses
import enum
import functools
import typing

import torch

{head}
def train(model, loader, optimizer, flag, limits):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{body}        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
        scaler.step(optimizer)
        scaler.update()
"""


def checked(parts: Parts, mark: str) -> None:
    head, body = parts
    source = AROUND_IT.format(head=head, body=indent(body + "\n", "        "), mark=mark)
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@in_groups(UNSCALED)
def test_the_gradients_are_unscaled(cases: dict[str, Parts]) -> None:
    check_each(cases, lambda _, parts: checked(parts, ""))


@in_groups(SCALED)
def test_the_gradients_may_be_scaled_yet(cases: dict[str, Parts]) -> None:
    check_each(cases, lambda _, parts: checked(parts, "  # AMP201"))


def test_a_loop_that_defines_a_function_is_analyzed_like_any_other() -> None:
    """A loop that defines a function gets a dry run before the analysis of events."""
    source = """\
import torch
from torch import nn

def report():
    return None

model = nn.Sequential(nn.Embedding(1001, 128), nn.Linear(128, 1001))
words = torch.randint(1001, (4, 32))
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(words).sum()
    loss.backward()

    def report():
        return None
    report()
"""
    found = check_source(source, "train.py", Settings(select=frozenset({"AMP702"})))
    assert [(finding.code, finding.line) for finding in found] == [("AMP702", 7)]
