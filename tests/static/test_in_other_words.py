"""Correct and wrong programs in Python constructs that no other table has: containers, cases, contexts, classes."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
#: Statements between backward and step, in a loop with the rest of a training.
BETWEEN: dict[str, str] = {
    "a list that is extended by a list": f"""\
steps = []
steps.extend([optimizer])
for each in steps:
    scaler.unscale_(each)
{CLIP}
""",
    "a list that is asked where something is in it": f"""\
steps = [optimizer]
steps.index(optimizer)
for each in steps:
    scaler.unscale_(each)
{CLIP}
""",
    "a list that something is put at the head of": f"""\
steps = [None]
steps.insert(0, optimizer)
scaler.unscale_(steps[0])
{CLIP}
""",
    "a list that something is put at the end of": f"""\
steps = [optimizer]
steps.insert(1, None)
scaler.unscale_(steps[0])
{CLIP}
""",
    "an entry that a dict is set to have": f"""\
held = {{}}
held.setdefault("step", optimizer)
scaler.unscale_(held["step"])
{CLIP}
""",
    "an entry that a dict has already": f"""\
held = {{"step": optimizer}}
held.setdefault("step", None)
scaler.unscale_(held["step"])
{CLIP}
""",
    "an entry that is got from a dict": """\
held = {"step": optimizer}
scaler.unscale_(held.get("step"))
for each in held.values():
    scaler.unscale_(each)  # AMP209
""",
    "a dict that another one is put into": f"""\
held = {{}}
held |= {{"step": optimizer}}
for each in held.values():
    scaler.unscale_(each)
{CLIP}
""",
    "a dict made of two": f"""\
held = {{"none": None}} | {{"step": optimizer}}
scaler.unscale_(held["step"])
{CLIP}
""",
    "an entry that is deleted": f"""\
held = {{"step": optimizer, "again": optimizer}}
del held["again"]
for each in held.values():
    scaler.unscale_(each)
{CLIP}
""",
    "a name that is deleted, and is that of the module again": f"""\
if len(limits) > 0:
    del limits
{CLIP}  # AMP201
""",
    "a comprehension whose name is that of a variable": f"""\
each = optimizer
norms = [each for each in limits]
scaler.unscale_(each)
{CLIP}
""",
    "a comprehension over a dict": f"""\
held = {{name: each for name, each in {{"step": optimizer}}.items()}}
scaler.unscale_(held["step"])
{CLIP}
""",
    "a dict of what a comprehension goes over": f"""\
held = {{each: 1 for each in [optimizer]}}
scaler.unscale_(optimizer)
{CLIP}
""",
    "a line that begins like an option": f"""\
name = "clip-%s" % phase
if name.startswith("clip"):
    {CLIP}  # AMP201
""",
    "both of two flags, and the first": f"""\
if clip and early:
    scaler.unscale_(optimizer)
if clip and early:
    {CLIP}
""",
    "both of two flags, and either": f"""\
if clip and early:
    scaler.unscale_(optimizer)
if clip or early:
    {CLIP}  # AMP201
""",
    "not both of two flags": f"""\
if not (clip and early):
    scaler.unscale_(optimizer)
if not clip or not early:
    {CLIP}
""",
    "either of two flags that are held": f"""\
either = clip or early
if either:
    scaler.unscale_(optimizer)
if clip:
    {CLIP}
""",
    "both of two flags that are held": f"""\
both = clip and early
if both:
    scaler.unscale_(optimizer)
if clip:
    {CLIP}  # AMP201
""",
    "three flags that are held": f"""\
all_of = clip and early and limits
if all_of:
    {CLIP}  # AMP201
""",
    "two conditions that are joined by a sign": f"""\
if (clip > 1) & (early > 2):
    scaler.unscale_(optimizer)
if (clip > 1) and (early > 2):
    {CLIP}
""",
    "one of two conditions that are joined by a sign": f"""\
if (clip > 1) | (early > 2):
    scaler.unscale_(optimizer)
if clip > 1:
    {CLIP}
""",
    "a chain of comparisons, and its half": f"""\
if 0 < clip < 1:
    scaler.unscale_(optimizer)
if 0 < clip:
    {CLIP}  # AMP201
""",
    "a chain of comparisons, twice": f"""\
if 0 < clip < 1:
    scaler.unscale_(optimizer)
if clip > 0 and clip < 1:
    {CLIP}
""",
    "a walrus": f"""\
if (limit := limits.get()) is not None:
    scaler.unscale_(optimizer)
if limit is not None:
    {CLIP}
""",
    "one word in another": f"""\
if "clip" in "clip-norm":
    {CLIP}  # AMP201
""",
    "one word that is not in another": f"""\
if "value" in "clip-norm":
    {CLIP}
""",
    "what is in a list of options": f"""\
if phase in ("warm", "main"):
    scaler.unscale_(optimizer)
if phase in ("warm", "main"):
    {CLIP}
""",
    "what is not in a list of options": f"""\
if phase not in limits:
    scaler.unscale_(optimizer)
if phase in limits:
    {CLIP}  # AMP201
""",
    "the opposite of what is in a list of options": f"""\
if phase not in limits:
    scaler.unscale_(optimizer)
if not (phase in limits):
    {CLIP}
""",
    "a number that is negated": f"""\
limit = -1
if limit > 0:
    {CLIP}
""",
    "a number that is negated twice": f"""\
limit = -(-1)
if limit > 0:
    {CLIP}  # AMP201
""",
    "a power": f"""\
if 2 ** 3 == 8:
    {CLIP}  # AMP201
""",
    "a rest": f"""\
if 7 % 4 == 3 and 7 // 4 == 1 and 7 - 4 < 4:
    {CLIP}  # AMP201
""",
    "a division by zero is nothing that is known": f"""\
limit = 1 // 0 if early else 3
if limit > 2:
    {CLIP}  # AMP201
""",
    "an assertion that leaves nothing else": f"""\
assert clip
if not clip:
    {CLIP}
""",
    "an assertion that says the opposite": f"""\
assert not clip
if not clip:
    {CLIP}  # AMP201
""",
    "a match by a word": f"""\
match phase:
    case "warm":
        scaler.unscale_(optimizer)
        {CLIP}
    case "main":
        {CLIP}  # AMP201
    case _:
        pass
""",
    "a match, and an if, by the same word": f"""\
match phase:
    case "warm":
        scaler.unscale_(optimizer)
if phase == "warm":
    {CLIP}
""",
    "a match by None": f"""\
match clip:
    case None:
        pass
    case _:
        scaler.unscale_(optimizer)
if clip is not None:
    {CLIP}
""",
    "a match with a guard": f"""\
match phase:
    case "warm" if clip:
        scaler.unscale_(optimizer)
if phase == "warm" and clip:
    {CLIP}
""",
    "a match that takes what is left": f"""\
match limits:
    case [first, *rest]:
        scaler.unscale_(optimizer)
        for each in rest:
            print(each, first)
        {CLIP}
    case {{"clip": value, **others}}:
        print(value, others)
        {CLIP}  # AMP201
    case other:
        print(other)
""",
    "a match with a star and a mapping goes by what is in them": f"""\
match limits:
    case {{**optimizer}}:
        pass
    case [*optimizer]:
        pass
{CLIP}  # AMP201
""",
    "a loop that is left in its only iteration": f"""\
for each in [optimizer]:
    scaler.unscale_(each)
    break
else:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a loop that continues in its only iteration": f"""\
for each in [optimizer]:
    if clip:
        continue
    scaler.unscale_(each)
if not clip:
    {CLIP}
""",
    "a loop with an else that is always read": f"""\
for each in [optimizer]:
    print(each)
else:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a while with an else": f"""\
while limits.more():
    limits.next()
else:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a while that is left past its else": f"""\
while limits.more():
    if limits.next():
        break
else:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "a nested function": """\
def clip_all(limit=1.0):
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
clip_all()
""",
    "a nested function with a flag that is off by default": """\
def clip_all(unscale=False, *, limit=1.0):
    if unscale:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
clip_all(unscale=True)
clip_all(limit=2.0)
""",
    "a nested function that returns early": f"""\
def unscale():
    if not clip:
        return
    scaler.unscale_(optimizer)
unscale()
if clip:
    {CLIP}
""",
    "a nested function that says whether it did": f"""\
def unscale():
    if clip:
        scaler.unscale_(optimizer)
        return True
    return False
if unscale():
    {CLIP}
""",
    "a nested function that says the opposite of what it did": f"""\
def unscale():
    if clip:
        scaler.unscale_(optimizer)
        return False
    return True
if unscale():
    {CLIP}  # AMP201
""",
    "a function that gives nothing": f"""\
def unscale():
    scaler.unscale_(optimizer)
done = unscale()
if done is None:
    {CLIP}
""",
    "a function that gives nothing is nothing": f"""\
def unscale():
    pass
done = unscale()
if done is not None:
    {CLIP}
""",
    "a lambda": f"""\
unscale = lambda: scaler.unscale_(optimizer)
unscale()
{CLIP}
""",
    "a lambda that is not called": f"""\
unscale = lambda: scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "a context of one's own": f"""\
import contextlib
@contextlib.contextmanager
def unscaled():
    scaler.unscale_(optimizer)
    yield
with unscaled():
    {CLIP}
""",
    "a context of one's own that unscales as it is left": f"""\
import contextlib
@contextlib.contextmanager
def unscaled():
    yield
    scaler.unscale_(optimizer)
with unscaled():
    {CLIP}  # AMP201
""",
    "a context that gives what it was given": f"""\
import contextlib
@contextlib.contextmanager
def handed(each):
    yield each
with handed(optimizer) as each:
    scaler.unscale_(each)
{CLIP}
""",
    "a context for an error": f"""\
import pytest
with pytest.raises(RuntimeError):
    {CLIP}
""",
    "what may not be raised": f"""\
import contextlib
with contextlib.suppress(RuntimeError):
    {CLIP}  # AMP201
""",
    "what is unscaled where nothing is caught": f"""\
try:
    scaler.unscale_(optimizer)
finally:
    {CLIP}
""",
    "what was unscaled in a try": f"""\
try:
    limits.check()
    scaler.unscale_(optimizer)
except ValueError:
    raise
{CLIP}
""",
    "what is unscaled by the else of a try": f"""\
try:
    limits.check()
except ValueError:
    pass
else:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "what is named by an exception": f"""\
try:
    limits.check()
except ValueError as optimizer_error:
    print(optimizer_error)
scaler.unscale_(optimizer)
{CLIP}
""",
    "two ways on of three": f"""\
if phase == "warm":
    scaler.unscale_(optimizer)
elif phase == "main":
    scaler.unscale_(optimizer)
else:
    raise ValueError
{CLIP}
""",
    "one way on of three": f"""\
if phase == "warm":
    scaler.unscale_(optimizer)
elif phase == "main":
    pass
else:
    raise ValueError
{CLIP}  # AMP201
""",
    "a choice of two functions": f"""\
def yes():
    scaler.unscale_(optimizer)
def no():
    pass
prepare = yes if clip else no
prepare()
if clip:
    {CLIP}
""",
    "a choice of two functions, the other way round": f"""\
def yes():
    scaler.unscale_(optimizer)
def no():
    pass
prepare = yes if clip else no
prepare()
if not clip:
    {CLIP}  # AMP201
""",
    "a choice of a function and nothing": f"""\
def yes():
    scaler.unscale_(optimizer)
prepare = yes if clip else None
if prepare is not None:
    prepare()
    {CLIP}
""",
    "a function that is taken with its arguments": f"""\
import functools
unscale = functools.partial(scaler.unscale_, optimizer)
unscale()
{CLIP}
""",
    "a pair that is exchanged": f"""\
one, two = optimizer, None
one, two = two, one
scaler.unscale_(two)
{CLIP}
""",
    "a pair in a pair": f"""\
(one, two), three = (optimizer, None), 3
scaler.unscale_(one)
{CLIP}
""",
    "what is left of a list": f"""\
first, *others = [None, optimizer]
for each in others:
    scaler.unscale_(each)
{CLIP}
""",
    "two names of one": """\
one = two = optimizer
scaler.unscale_(one)
scaler.unscale_(two)  # AMP209
""",
    "an item by its place from the end": f"""\
held = [None, optimizer]
scaler.unscale_(held[-1])
{CLIP}
""",
    "an optimizer where there is one": f"""\
for each in filter(None, [optimizer]):
    scaler.unscale_(each)
{CLIP}
""",
    "enumerated": f"""\
for place, each in enumerate([optimizer], 1):
    if place == 1:
        scaler.unscale_(each)
{CLIP}
""",
    "enumerated from another number": f"""\
for place, each in enumerate([optimizer], 1):
    if place == 0:
        scaler.unscale_(each)
{CLIP}  # AMP201
""",
    "zipped": f"""\
for each, name in zip([optimizer], ["step"]):
    scaler.unscale_(each)
{CLIP}
""",
    "a dict that is emptied": f"""\
held = {{"step": optimizer}}
held.clear()
if not held:
    {CLIP}  # AMP201
""",
    "a dict that is not emptied": f"""\
held = {{"step": optimizer}}
if not held:
    {CLIP}
""",
    "a comprehension that leaves all out": f"""\
held = {{name: each for name, each in {{"step": optimizer}}.items() if False}}
if held:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "a nested function that is given many": f"""\
def unscale(*each, **named):
    scaler.unscale_(each[1])
    print(named)
unscale(None, optimizer, name=None)
{CLIP}
""",
    "a nested function that is given one by name": f"""\
def unscale(*each, **named):
    scaler.unscale_(named["one"])
unscale(one=optimizer, other=None)
{CLIP}
""",
    "a nested function that is given none": f"""\
def unscale(*each, **named):
    if each or named:
        scaler.unscale_(optimizer)
unscale()
{CLIP}  # AMP201
""",
    "two lists": f"""\
for each in [optimizer] + []:
    scaler.unscale_(each)
{CLIP}
""",
    "what is left of the middle of a list": f"""\
first, *others, last = [None, optimizer, None]
scaler.unscale_(others[0])
{CLIP}
""",
    "what is left of a list of one": f"""\
first, *others = [optimizer]
if not others:
    scaler.unscale_(first)
{CLIP}
""",
    "a remainder below one": f"""\
if i % 4 < 1:
    scaler.unscale_(optimizer)
if i % 4 == 0:
    {CLIP}
""",
    "a remainder of nothing at most": f"""\
if i % 4 <= 0:
    scaler.unscale_(optimizer)
if not i % 4:
    {CLIP}
""",
    "a remainder of one at least": f"""\
if i % 4 >= 1:
    scaler.unscale_(optimizer)
if i % 4:
    {CLIP}
""",
    "a remainder above one": f"""\
if i % 4 > 1:
    scaler.unscale_(optimizer)
if i % 4:
    {CLIP}  # AMP201
""",
    "a remainder of one at most": f"""\
if i % 4 <= 1:
    scaler.unscale_(optimizer)
if i % 4 == 0:
    {CLIP}  # AMP201
""",
    "an option of nothing at most": f"""\
if not clip <= 0:
    scaler.unscale_(optimizer)
if clip:
    {CLIP}
""",
    "a power that nobody works out": f"""\
if 9 ** 9 ** 9 > 1:
    {CLIP}  # AMP201
""",
    "a long list": f"""\
held = [optimizer, {"None, " * 63}]
scaler.unscale_(held[0])
{CLIP}
""",
    "a dict by another name": f"""\
held = {{}}
other = held
held |= {{"step": optimizer}}
scaler.unscale_(other["step"])
{CLIP}
""",
    "a list by another name": f"""\
held = []
other = held
held += [optimizer]
scaler.unscale_(other[0])
{CLIP}
""",
    "a name that a case gives to something else": f"""\
if clip:
    scaler.unscale_(optimizer)
match limits:
    case {{"clip": clip}}:
        print(clip)
if clip:
    {CLIP}  # AMP201
""",
    "code that is given the scaler and the optimizer": f"""\
limits.handle(scaler, optimizer)
{CLIP}
""",
    "code that is given the optimizer alone": f"""\
limits.handle(optimizer)
{CLIP}  # AMP201
""",
    "code that is given the optimizer alone, and speaks of clipping": f"""\
limits.clip(optimizer)
{CLIP}
""",
    "code that is given both in a list": f"""\
limits.handle([scaler, optimizer])
{CLIP}  # AMP201
""",
    "a generator of an optimizer and a number": f"""\
def steps():
    yield optimizer, 1
for each, number in steps():
    scaler.unscale_(each)
{CLIP}
""",
    "a generator of an optimizer at two places": f"""\
def steps():
    if clip:
        yield optimizer
    else:
        yield optimizer
for each in steps():
    scaler.unscale_(each)
{CLIP}
""",
    "a function that always raises": f"""\
def fail():
    raise ValueError
if clip:
    fail()
    {CLIP}
""",
    "a function that raises where a flag is set": f"""\
def fail():
    if clip:
        raise ValueError
fail()
if clip:
    {CLIP}
""",
    "an exception that is raised in a function is caught around its call": f"""\
def fail():
    raise ValueError
try:
    fail()
    scaler.unscale_(optimizer)
except ValueError:
    {CLIP}  # AMP201
""",
    "a loop of a function does not go on with that of its caller": f"""\
def skip():
    for each in limits:
        if each:
            continue
        break
skip()
scaler.unscale_(optimizer)
{CLIP}
""",
    "a variable of a function is its own": f"""\
def other():
    optimizer = limits.optimizer
    return optimizer
other()
scaler.unscale_(optimizer)
{CLIP}
""",
    "a variable of the function around": f"""\
done = False
def unscale():
    nonlocal done
    done = True
    scaler.unscale_(optimizer)
unscale()
{CLIP}
""",
    "arguments that are unpacked": f"""\
def unscale(scaler, optimizer):
    scaler.unscale_(optimizer)
unscale(*[scaler, optimizer])
{CLIP}
""",
    "arguments that are unpacked by name": f"""\
def unscale(scaler, optimizer):
    scaler.unscale_(optimizer)
unscale(**{{"scaler": scaler, "optimizer": optimizer}})
{CLIP}
""",
    "an argument by its place and by its name": f"""\
def unscale(scaler, /, optimizer=None, *, really=False):
    if really:
        scaler.unscale_(optimizer)
unscale(scaler, optimizer, really=True)
{CLIP}
""",
    "a default that is given in the function": f"""\
def unscale(each=None):
    each = each or optimizer
    scaler.unscale_(each)
unscale()
{CLIP}
""",
    "a lambda with an argument": f"""\
unscale = lambda each, again=None: scaler.unscale_(each)
unscale(optimizer)
{CLIP}
""",
    "a function that is given another": f"""\
def twice(act):
    act(optimizer)
twice(scaler.unscale_)
{CLIP}
""",
    "a function that gives another": f"""\
def made():
    def unscale():
        scaler.unscale_(optimizer)
    return unscale
made()()
{CLIP}
""",
    "a function that gives two": f"""\
def both():
    return scaler, optimizer
one, two = both()
one.unscale_(two)
{CLIP}
""",
    "a function that gives one of two, asked for the other": f"""\
def either():
    if clip:
        return scaler
    return None
each = either()
if each is None:
    {CLIP}  # AMP201
""",
    "a decorator of one's own": f"""\
def logged(act):
    def wrapped():
        print("unscale")
        act()
    return wrapped
@logged
def unscale():
    scaler.unscale_(optimizer)
unscale()
{CLIP}
""",
    "a decorator that is not known": f"""\
@limits.logged
def unscale():
    scaler.unscale_(optimizer)
unscale()
{CLIP}
""",
    "a decorator that leaves its function out": f"""\
def never(act):
    def wrapped():
        print("never")
    return wrapped
@never
def unscale():
    scaler.unscale_(optimizer)
unscale()
{CLIP}  # AMP201
""",
    "a static method, and one of the class": f"""\
class Steps:
    @staticmethod
    def unscale(each):
        scaler.unscale_(each)
    @classmethod
    def done(cls, each):
        cls.unscale(each)
Steps.done(optimizer)
{CLIP}
""",
    "an attribute that is given one value, then another": f"""\
class Steps:
    pass
held = Steps()
held.each = None
held.each = optimizer
scaler.unscale_(held.each)
{CLIP}
""",
    "an attribute of a class, and of its object": f"""\
class Steps:
    really = False
held = Steps()
held.really = True
if held.really:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "getattr by a name": f"""\
getattr(scaler, "unscale_")(optimizer)
{CLIP}
""",
    "setattr by a name": f"""\
class Steps:
    pass
held = Steps()
setattr(held, "each", optimizer)
scaler.unscale_(held.each)
{CLIP}
""",
    "hasattr of what there is": f"""\
if hasattr(scaler, "unscale_"):
    scaler.unscale_(optimizer)
{CLIP}
""",
    "isinstance of what it is": f"""\
if isinstance(scaler, torch.amp.GradScaler):
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a bool of a flag": f"""\
if bool(clip):
    scaler.unscale_(optimizer)
if clip:
    {CLIP}
""",
    "all of some flags": f"""\
if all([clip, early]):
    scaler.unscale_(optimizer)
if clip:
    {CLIP}  # AMP201
""",
    "reversed": f"""\
for each in reversed([optimizer]):
    scaler.unscale_(each)
{CLIP}
""",
    "a list of a tuple": f"""\
for each in list((optimizer,)):
    scaler.unscale_(each)
{CLIP}
""",
    "a tuple of a dict's values": f"""\
for each in tuple({{"a": optimizer}}.values()):
    scaler.unscale_(each)
{CLIP}
""",
    "names of a dict": f"""\
held = {{"a": optimizer}}
for name in held:
    scaler.unscale_(held[name])
{CLIP}
""",
    "keys of a dict": f"""\
held = {{"a": optimizer}}
for name in held.keys():
    scaler.unscale_(held[name])
{CLIP}
""",
    "a comprehension for what it does": f"""\
[scaler.unscale_(each) for each in [optimizer]]
{CLIP}
""",
    "a conditional statement in one line": f"""\
scaler.unscale_(optimizer) if clip else None
if clip:
    {CLIP}
""",
    "a short circuit for what it does": f"""\
clip and scaler.unscale_(optimizer)
if clip:
    {CLIP}
""",
    "a short circuit for what it does not": f"""\
clip or scaler.unscale_(optimizer)
if not clip:
    {CLIP}
""",
}
AROUND = """\
import torch

def train(model, loader, optimizer, phase, clip, early, limits):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{}        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
WHOLE: dict[str, str] = {}
WHOLE["a stack of contexts in a generator"] = """\
import contextlib
import torch

def batches(model, loader):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cuda"))
        for x in loader:
            yield model(x)  # AMP105
"""
WHOLE["a stack of no region in a generator"] = """\
import contextlib
import torch

def batches(model, loader):
    with contextlib.ExitStack() as stack:
        stack.enter_context(open("log"))
        for x in loader:
            yield model(x)
"""
WHOLE["a region that a stack leaves"] = """\
import contextlib
import torch

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast("cuda"))
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region that a stack holds"] = """\
import contextlib
import torch

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast("cuda"))
            loss = model(x).mean()
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region within one that may be none"] = """\
import contextlib
import torch

def train(model, loader, optimizer, scaler, flag):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            with contextlib.nullcontext() if flag else torch.autocast("cuda", enabled=False):
                x = x.float()
            loss = model(x).mean()
            if flag:
                scaler.scale(loss).backward()  # AMP103
        if not flag:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["weights of a model that was evaluated without gradients"] = """\
import torch
from torch import nn

def train(loader, x):
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.no_grad():
        with torch.autocast("cuda"):
            print(model(x))
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()  # AMP110
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a loss function after what was evaluated without gradients"] = """\
import torch
from torch import nn

def train(loader, x, y):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.no_grad():
        print(model(x))
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
            loss = nn.functional.binary_cross_entropy(out, y)  # AMP504
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a class that derives from a module by a name of torch.nn"] = """\
import torch

class Net(torch.nn.Linear):
    pass

def train(loader):
    model = Net(2, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()  # AMP110
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a class whose forward speaks of autocast and enters none"] = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.autocast_dtype = torch.float16
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)

def train(loader):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()  # AMP110
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a class whose forward enters autocast"] = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        with torch.autocast("cuda"):
            return self.linear(x)

def train(loader):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a class that inherits a forward that enters autocast"] = (
    WHOLE["a class whose forward enters autocast"]
    .replace(
        "def train",
        """class Deep(Net):
    def extra(self):
        return 1

def train""",
    )
    .replace("model = Net()", "model = Deep()")
)
WHOLE["a step that super gives"] = """\
import torch

class Base:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

class Trainer(Base):
    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
        super().step()

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            self.step()
"""
WHOLE["a step that super gives, by the class"] = WHOLE["a step that super gives"].replace(
    "super().step()", "Base.step(self)"
)
WHOLE["a step that unscales above"] = (
    WHOLE["a step that super gives"]
    .replace("        self.scaler.step(", "        self.scaler.unscale_(self.optimizer)\n        self.scaler.step(")
    .replace("1.0)  # AMP201", "1.0)  # AMP201")
)
WHOLE["a step that unscales first"] = (
    WHOLE["a step that super gives"]
    .replace("        torch.nn", "        self.scaler.unscale_(self.optimizer)\n        torch.nn")
    .replace("  # AMP201", "")
)
WHOLE["an object that is called"] = """\
import torch

class Step:
    def __init__(self, model, optimizer, scaler):
        self.model, self.optimizer, self.scaler = model, optimizer, scaler

    def __call__(self, loss):
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

def train(model, loader, optimizer):
    step = Step(model, optimizer, torch.amp.GradScaler("cuda"))
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        step(loss)
"""
WHOLE["an object that is entered"] = """\
import torch

class Scaled:
    def __init__(self, scaler, optimizer):
        self.scaler, self.optimizer = scaler, optimizer

    def __enter__(self):
        self.scaler.unscale_(self.optimizer)

    def __exit__(self, *error):
        self.scaler.step(self.optimizer)
        self.scaler.update()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        with Scaled(scaler, optimizer):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
WHOLE["an object that is entered and leaves unscaling out"] = (
    WHOLE["an object that is entered"]
    .replace("self.scaler.unscale_(self.optimizer)", "pass")
    .replace("1.0)", "1.0)  # AMP201")
)
WHOLE["a property"] = """\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self._scaler = torch.amp.GradScaler("cuda")

    @property
    def scaler(self):
        return self._scaler

    @classmethod
    def of(cls, model, optimizer):
        return cls(model, optimizer)

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""
WHOLE["a dataclass by its places"] = """\
from dataclasses import dataclass

import torch

@dataclass
class Training:
    model: object
    optimizer: object
    scaler: object

def train(loader, model, optimizer):
    state = Training(model, optimizer, torch.amp.GradScaler("cuda"))
    for x in loader:
        state.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = state.model(x).mean()
        state.scaler.scale(loss).backward()
        state.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        state.scaler.step(state.optimizer)
        state.scaler.update()
"""
WHOLE["a dataclass by its names"] = (
    WHOLE["a dataclass by its places"]
    .replace(
        'Training(model, optimizer, torch.amp.GradScaler("cuda"))',
        'Training(scaler=torch.amp.GradScaler("cuda"), optimizer=optimizer, model=model)',
    )
    .replace("        state.scaler.unscale_(optimizer)\n", "")
    .replace("1.0)", "1.0)  # AMP201")
)
WHOLE["an enumeration"] = """\
import enum

import torch

class Phase(enum.Enum):
    WARM = 1
    MAIN = 2

def train(model, loader, optimizer, phase):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if phase == Phase.WARM:
            scaler.unscale_(optimizer)
        if phase == Phase.MAIN:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an enumeration, twice the same"] = (
    WHOLE["an enumeration"].replace("phase == Phase.MAIN", "Phase.WARM == phase").replace("  # AMP201", "")
)
WHOLE["a generator whose iterator is asked for"] = """\
import torch

def batches(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        yield loss
        scaler.step(optimizer)
        scaler.update()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for loss in iter(batches(model, loader, optimizer, scaler)):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
"""
WHOLE["a generator by its own iterator"] = WHOLE["a generator whose iterator is asked for"].replace(
    "iter(batches(model, loader, optimizer, scaler))", "batches(model, loader, optimizer, scaler).__iter__()"
)
WHOLE["a generator that yields from another"] = (
    WHOLE["a generator whose iterator is asked for"]
    .replace("iter(batches(model, loader, optimizer, scaler))", "through(model, loader, optimizer, scaler)")
    .replace("def train", "def through(*given):\n    yield from batches(*given)\n\ndef train")
)
WHOLE["two losses, one of which other code has made"] = """\
import torch

def train(model, loader, optimizer, scaler, penalty):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
            loss = loss + penalty
        scaler.scale(loss).backward()
        loss.backward()  # AMP203
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a loss that two scalers have scaled"] = """\
import torch

def train(model, loader, optimizer):
    scaler, other = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        other.scale(scaler.scale(loss)).backward()  # AMP205
        scaler.step(optimizer)  # AMP205
        scaler.update()
"""
WHOLE["two objects of which each holds its list"] = """\
import torch

class One:
    def __init__(self, optimizer):
        self.steps = [optimizer]

class Two:
    def __init__(self, optimizer):
        self.steps = [optimizer]

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    held = One(optimizer) if flag else Two(optimizer)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        for each in held.steps:
            scaler.unscale_(each)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
#: A model that is evaluated before it is trained.
EVALUATED = """\
import torch
from torch import nn

{before}
def train(loader, x):
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    {evaluate}
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["evaluated in a block"] = EVALUATED.format(before="", evaluate="with torch.no_grad():\n        print(model(x))")
WHOLE["evaluated in a block within another"] = EVALUATED.format(
    before="", evaluate="with torch.no_grad(), torch.inference_mode():\n        print(model(x))"
)
WHOLE["evaluated by a function"] = EVALUATED.format(
    before="@torch.no_grad()\ndef evaluate(model, x):\n    return model(x)\n", evaluate="print(evaluate(model, x))"
)
WHOLE["evaluated by two"] = EVALUATED.format(
    before="@torch.no_grad()\n@torch.autocast('cuda')\ndef evaluate(model, x):\n    return model(x)\n",
    evaluate="print(evaluate(model, x))",
)
WHOLE["an optimizer of one of two models"] = """\
import torch
from torch import nn

def train(loader, flag):
    one, two, three = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(one.parameters(), 0.1) if flag else torch.optim.Adam(two.parameters())
    other = torch.optim.SGD(three.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        other.zero_grad()
        with torch.autocast("cuda"):
            loss = two(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a scaler or none, asked in two ways"] = """\
import torch

def train(model, loader, optimizer, scaler=None):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=scaler is not None):
            loss = model(x).mean()
        if scaler:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
"""
WHOLE["a scaler or none, asked in two ways, the other way round"] = (
    WHOLE["a scaler or none, asked in two ways"]
    .replace("if scaler:", "if scaler is not None:")
    .replace("if scaler is None:", "if not scaler:")
)
WHOLE["a pair that is another in each iteration"] = """\
import torch

def train(model, loader, optimizer, limits):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # AMP209
        skip, reason = limits.pair
        if not skip:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
#: A backward that may run under no_sync, behind another context manager.
MAYBE_NO_SYNC = """\
import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, flag):
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with {context}:
            with {inner}:
                print(x)
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward(){mark}
        scaler.step(optimizer)
        scaler.update()
"""
#: A loss that the framework divides by ``k``, too.
DIVIDED = """\
from accelerate import Accelerator

def train(model, optimizer, loader, criterion, k, flag):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer = accelerator.prepare(model, optimizer)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = {made}
            {then}
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
#: Expressions of the loss, and its further use: True if it is divided twice.
LOSSES = ("criterion(model(x), y)", "criterion(x, y)", "flag.loss")
DIVISIONS = {
    "loss = loss / k": True,
    "loss = loss / k if flag else loss / k": True,
    "loss = loss / k if k > 1 else loss": True,
    "loss = loss if k == 1 else loss / k": True,
    "loss /= k": True,
    "loss = (loss / k) * 2": True,
    "loss = loss / k if flag else loss": False,
    "loss = loss": False,
    "loss = loss / 1": False,
    "loss = loss / 4": False,
    "loss = loss * k / k": False,
    "loss = loss / k * k": False,
}
#: A window with a manual counter.
COUNTED = """\
import torch

def train(model, loader, optimizer, scaler, k):
    count = 0
    for x in loader:
        count += 1
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward(){mark}
        if {test}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            {then}
"""
#: Conditions at the end of the window. False: the counter is small, and each step has one micro-batch.
COUNTS = {
    "count >= k": True,
    "count > k": True,
    "k <= count": True,
    "k < count": True,
    "count == k": True,
    "k == count": True,
    "not count <= k": True,
    "not k > count": True,
    "count <= k": False,
    "count < k": False,
    "k >= count": False,
    "k > count": False,
    "not count >= k": False,
}
#: Two optimizers in a dict, with a placeholder for the iteration over it.
IN_A_DICT = """\
import torch

def train(one, two, loader):
    scaler = torch.amp.GradScaler("cuda")
    first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)
    optimizers = {{"first": first, "second": second}}
    for x in loader:
        for name in optimizers:
            optimizers[name].zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean() + two(x).mean()
        scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_([*one.parameters(), *two.parameters()], 1.0){mark}
        for name in optimizers:
            scaler.step(optimizers[name])
        scaler.update()
"""
#: Iterations that unscale, and True if the clipped gradients are unscaled then.
GONE_OVER = {
    "for name in optimizers: scaler.unscale_(optimizers[name])": True,
    "for name in sorted(optimizers): scaler.unscale_(optimizers[name])": True,
    "for name in list(optimizers): scaler.unscale_(optimizers[name])": True,
    "for each in optimizers.values(): scaler.unscale_(each)": True,
    "for _, each in optimizers.items(): scaler.unscale_(each)": True,
    "for name in optimizers: print(name)": False,
    "for each in optimizers.values(): print(each)": False,
}


def agree(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_between_backward_and_step(between: str) -> None:
    agree(AROUND.format(indent(between, "        ")))


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    agree(source)


@pytest.mark.parametrize(
    "inner", ["torch.no_grad() if flag else contextlib.nullcontext()", "torch.no_grad()", "open('log')"]
)
@pytest.mark.parametrize(("context", "mark"), [("model.no_sync()", "  # AMP305"), ("contextlib.nullcontext()", "")])
def test_no_sync_lasts_as_long_as_its_context(context: str, inner: str, mark: str) -> None:
    agree(MAYBE_NO_SYNC.format(context=context, inner=inner, mark=mark))


@pytest.mark.parametrize("then", DIVISIONS)
@pytest.mark.parametrize("made", LOSSES)
def test_a_loss_that_a_framework_divides_too(made: str, then: str) -> None:
    agree(DIVIDED.format(made=made, then=f"{then}{'  # AMP302' if DIVISIONS[then] else ''}"))


@pytest.mark.parametrize("test", COUNTS)
def test_a_window_that_is_counted_by_hand(test: str) -> None:
    agree(COUNTED.format(test=test, mark="  # AMP301" if COUNTS[test] else "", then="count = 0"))


@pytest.mark.parametrize("unscale", GONE_OVER)
def test_optimizers_in_a_dict(unscale: str) -> None:
    agree(IN_A_DICT.format(unscale=unscale, mark="" if GONE_OVER[unscale] else "  # AMP201"))


@pytest.mark.parametrize("drawn", ["next(given)", "given.next()", "given.__next__()"])
def test_a_loop_that_draws_its_own_data_goes_over_micro_batches(drawn: str) -> None:
    agree(f"""\
import torch

def train(model, given, optimizer, scaler, steps, k):
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(k):
            x = {drawn}
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
""")
