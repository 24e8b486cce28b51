"""Programs that distinguish each branch of the interpreter from similar branches: containers, names, contexts."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
#: Statements between backward and step, in a loop with the rest of a training.
BETWEEN: dict[str, str] = {
    "a list to which a list is added in place holds its items once": f"""\
steps = []
steps += [optimizer]
for each in steps:
    scaler.unscale_(each)
{CLIP}
""",
    "one question of two flags, joined by a bar": f"""\
if early | clip:
    scaler.unscale_(optimizer)
if early | clip:
    {CLIP}
""",
    "two questions of two flags, joined by a bar": f"""\
if early | clip:
    scaler.unscale_(optimizer)
if early | limits:
    {CLIP}  # AMP201
""",
    "what the condition of a comprehension does": f"""\
[each for each in limits if scaler.unscale_(optimizer) is None]
{CLIP}
""",
    "what the second loop of a comprehension goes over does": f"""\
[one for each in limits for one in (scaler.unscale_(optimizer), each)]
{CLIP}
""",
    "a remainder by one is nothing": f"""\
if i % 1 == 0:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a remainder by one is never one": f"""\
if i % 1 == 1:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "what a way that returns has set is nothing to the other": f"""\
really = False
if early:
    really = True
    return
if not really:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "what a way that goes on has set beside one that returns": f"""\
really = False
if early:
    really = True
else:
    return
if not really:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "eight words of one name are distinguished": f"""\
{"".join(f'{"if" if k == 0 else "elif"} limits == {k}:{chr(10)}    mode = "m{k}"{chr(10)}' for k in range(7))}\
else:
    mode = "m7"
if mode == "m7":
    scaler.unscale_(optimizer)
if limits not in (0, 1, 2, 3, 4, 5, 6) and mode != "m3":
    if mode == "m7":
        {CLIP}
if limits == 3:
    {CLIP}  # AMP201
""",
    "an entry that is taken out of a dict is there no longer": f"""\
held = {{"step": optimizer, "again": optimizer}}
held.pop("again", None)
for each in held.values():
    scaler.unscale_(each)
{CLIP}
""",
    "an entry that is asked for is there yet": f"""\
held = {{"step": optimizer}}
held.get("step")
for each in held.values():
    scaler.unscale_(each)
{CLIP}
""",
    "what is taken out of a dict": f"""\
held = {{"step": optimizer}}
scaler.unscale_(held.pop("step"))
{CLIP}
""",
    "a dict that is emptied": f"""\
held = {{"again": optimizer}}
held.clear()
held["step"] = optimizer
for each in held.values():
    scaler.unscale_(each)
{CLIP}
""",
    "a copy of a dict has entries of its own": f"""\
held = {{"step": optimizer}}
other = held.copy()
held.clear()
for each in other.values():
    scaler.unscale_(each)
{CLIP}
""",
    "the keys of a dict": f"""\
held = {{"step": optimizer}}
for name in held.keys():
    scaler.unscale_(held[name])
{CLIP}
""",
    "an entry by the name of an argument": f"""\
held = {{}}
held.update(step=optimizer)
scaler.unscale_(held["step"])
{CLIP}
""",
    "an entry of a dict that is put into another": f"""\
held = {{"step": None}}
held.update({{"step": optimizer}})
scaler.unscale_(held["step"])
{CLIP}
""",
    "an item that is put at the head stands there": f"""\
steps = [None]
steps.insert(0, optimizer)
scaler.unscale_(steps[0])
{CLIP}
""",
    "a function by the name of its call": f"""\
def unscale():
    scaler.unscale_(optimizer)
unscale.__call__()
{CLIP}
""",
    "another method of a function is not its call": f"""\
def unscale():
    scaler.unscale_(optimizer)
unscale.__repr__()
{CLIP}  # AMP201
""",
    "what is unpacked into a call, of a list that is known": f"""\
def unscale(first, each):
    scaler.unscale_(each)
unscale(*[None, optimizer])
{CLIP}
""",
    "what is unpacked into a call by its names": f"""\
def unscale(first=False, really=False):
    if really:
        scaler.unscale_(optimizer)
unscale(**{{"really": True}})
{CLIP}
""",
    "what is unpacked into a call by other names": f"""\
def unscale(first=False, really=False):
    if really:
        scaler.unscale_(optimizer)
unscale(**{{"first": True}})
{CLIP}  # AMP201
""",
    "a manager that is not worth reading is left to read its block": f"""\
import contextlib
@contextlib.contextmanager
def around(name):
    first = name
    second = first
    third = second
    fourth = third
    fifth = fourth
    yield fifth
with around("clip"):
    {CLIP}  # AMP201
""",
    "a number in the place of the sign": f"""\
if -1 < 0:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "what is found for none of two": f"""\
held = {{}}
for each in limits:
    held[each] = None
    {CLIP}  # AMP201
""",
    "a walrus within a question": f"""\
if really := limits > 3:
    scaler.unscale_(optimizer)
if really:
    {CLIP}
""",
    "a chain of comparisons asks for both": f"""\
if 0 < limits < 10:
    scaler.unscale_(optimizer)
if 0 < limits:
    {CLIP}  # AMP201
""",
    "a chain of comparisons has each of its parts": f"""\
if 0 < limits:
    scaler.unscale_(optimizer)
if 0 < limits < 10:
    {CLIP}
""",
    "one of two, of which the first is none": f"""\
each = None or optimizer
scaler.unscale_(each)
{CLIP}
""",
    "one of two, of which the first may be none": f"""\
each = (optimizer if early else None) or optimizer
scaler.unscale_(each)
{CLIP}
""",
    "a word in a word": f"""\
if "clip" in "clip_norm":
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a word that is in no other": f"""\
if "clip" in "norm":
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "what is unpacked with a rest": f"""\
first, *rest = None, 1, optimizer
scaler.unscale_(rest[1])
{CLIP}
""",
    "what is unpacked behind a rest": f"""\
*rest, last = None, 1, optimizer
scaler.unscale_(last)
{CLIP}
""",
    "what is unpacked around a rest": f"""\
first, *rest, last = optimizer, last_of, None
scaler.unscale_(first)
{CLIP}
""",
    "a rest that is empty": f"""\
first, *rest = [optimizer]
rest.append(optimizer)
for each in rest:
    scaler.unscale_(each)
{CLIP}
""",
    "a flag that is the answer to a question, asked for what it is": f"""\
really = limits > 3
if really == True:
    scaler.unscale_(optimizer)
if limits > 3:
    {CLIP}
""",
    "a flag that is the answer to a question, asked for what it is not": f"""\
really = limits > 3
if really == False:
    scaler.unscale_(optimizer)
if limits > 3:
    {CLIP}  # AMP201
""",
    "an answer, or none at all, asked for what it is": f"""\
really = limits > 3 if early else None
if really == True:
    scaler.unscale_(optimizer)
if early and limits > 3:
    {CLIP}
""",
    "an answer, or none at all, asked for what it is not": f"""\
really = limits > 3 if early else None
if really == False:
    scaler.unscale_(optimizer)
if early and limits > 3:
    {CLIP}  # AMP201
""",
    "what a class has from nobody knows where may do what is left out": f"""\
class Tools:
    name = "tools"
Tools.unscale(scaler, optimizer)
{CLIP}
""",
    "a manager that is a property of an object": f"""\
import contextlib
class Tools:
    @property
    @contextlib.contextmanager
    def unscaled(self):
        scaler.unscale_(optimizer)
        yield
with Tools().unscaled:
    {CLIP}
""",
    "a manager that an object is when it is called": f"""\
import contextlib
class Tools:
    @contextlib.contextmanager
    def __call__(self, each):
        scaler.unscale_(each)
        yield
tools = Tools()
with tools(optimizer):
    {CLIP}
""",
    "an object that says nothing of entering it": f"""\
class Tools:
    def __exit__(self, *given):
        scaler.unscale_(optimizer)
with Tools():
    {CLIP}  # AMP201
{CLIP}
""",
    "an object that says nothing of leaving it": f"""\
class Tools:
    def __enter__(self):
        scaler.unscale_(optimizer)
with Tools():
    {CLIP}
""",
    "a call of an object that has none": f"""\
class Tools:
    name = "tools"
tools = Tools()
tools(optimizer)
{CLIP}  # AMP201
""",
    "a region that is entered or not is left behind its block": """\
import contextlib
with torch.autocast("cuda") if early else contextlib.nullcontext():
    other = model(x).mean()
scaler.scale(other).backward()
""",
    "what is computed without gradients ends with its block": f"""\
with torch.no_grad():
    print(model(x))
with torch.autocast("cuda"):
    other = model(x).mean()
scaler.scale(other).backward()
scaler.unscale_(optimizer)
{CLIP}
""",
    "a list that is made by two loops": f"""\
steps = [each for group in [[optimizer]] for each in group]
for each in steps:
    scaler.unscale_(each)
{CLIP}
""",
    "a list that may leave out what it is made of": f"""\
steps = [each for each in [optimizer] if early]
for each in steps:
    scaler.unscale_(each)
if early:
    {CLIP}
""",
    "a dict that leaves out what is none": f"""\
steps = {{name: each for name, each in [("none", None), ("step", optimizer)] if each is not None}}
for each in steps.values():
    scaler.unscale_(each)
{CLIP}
""",
    "a name of a comprehension is its own": f"""\
really = False
table = {{really: 1 for really in (True,)}}
table = [really for really in (True,)]
if not really:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a dict that is made by two loops": f"""\
steps = {{name: each for name in limits for each in [optimizer]}}
for each in steps.values():
    print(each)
{CLIP}  # AMP201
""",
    "the first of two, where it is not none": f"""\
mode = ("warm" if early else None) or "main"
if mode == "warm":
    scaler.unscale_(optimizer)
if early:
    {CLIP}
""",
    "the second of two, where the first is none": f"""\
mode = ("warm" if early else None) or "main"
if mode == "main":
    scaler.unscale_(optimizer)
if early:
    {CLIP}  # AMP201
""",
    "a function that returns out of a loop, or behind it": f"""\
def found():
    for each in limits:
        return True
    return False
if found():
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "a short function is read for what it gives": f"""\
def ready(n):
    first = n > 3
    second = first
    third = second
    return third
if ready(limits):
    scaler.unscale_(optimizer)
if limits > 3:
    {CLIP}
""",
    "two answers, both of which are asked for": f"""\
really = (limits > 3) & (clip > 3)
if really:
    scaler.unscale_(optimizer)
if limits > 3 and clip > 3:
    {CLIP}
if limits > 3 or clip > 3:
    {CLIP}  # AMP201
""",
    "two answers, one of which is asked for": f"""\
really = (limits > 3) | (clip > 3)
if really:
    scaler.unscale_(optimizer)
if limits > 3 and clip > 3:
    {CLIP}
if limits > 3 or clip > 3:
    {CLIP}
""",
}
#: The same for called code that is analyzed and does nothing to gradients: so the clip after it is a definite mistake.
NOTHING_DONE: dict[str, str] = {
    "a function by the name of its call": """\
def ready(each):
    print(each)
ready.__call__(optimizer)
""",
    "what is unpacked into a call": """\
def ready(first, each):
    print(each)
ready(*[scaler, optimizer])
""",
    "what is unpacked into a call by its names": """\
def ready(first, each):
    print(each)
ready(**{"first": scaler, "each": optimizer})
""",
    "a function in a dict": """\
def ready(each):
    print(each)
acts = {"ready": ready}
acts["ready"](optimizer)
""",
    "one function of two": """\
def ready(each):
    print(each)
def done(each):
    print("done", each)
act = ready if early else done
act(optimizer)
""",
    "a function with some of its arguments": """\
import functools
def ready(first, each):
    print(each)
functools.partial(ready, scaler)(each=optimizer)
""",
    "a lambda": """\
ready = lambda each: print(each)
ready(optimizer)
""",
    "an object that is called": """\
class Tools:
    def __call__(self, each):
        print(each)
tools = Tools()
tools(optimizer)
""",
    "a method of a class": """\
class Tools:
    @classmethod
    def ready(cls, each):
        print(each)
Tools.ready(optimizer)
""",
    "a function of a class": """\
class Tools:
    @staticmethod
    def ready(each):
        print(each)
Tools.ready(optimizer)
Tools().ready(optimizer)
""",
    "a forward of what is no module": """\
class Tools:
    def forward(self, each):
        print(each)
Tools().forward(optimizer)
""",
    "a method that a class has from another one": """\
class Base:
    def ready(self, each):
        print(each)
class Tools(Base):
    def ready(self, each):
        super().ready(each)
Tools().ready(optimizer)
""",
    "a method that a class has from the last of three": """\
class First:
    def ready(self, each):
        print(each)
class Second(First):
    limit = 1
class Tools(Second):
    limit = 2
Tools().ready(optimizer)
""",
    "a method that two bases have": """\
class First:
    def ready(self, each):
        print(each)
class Second:
    def ready(self, each):
        scaler.unscale_(each)
class Tools(First, Second):
    limit = 1
Tools().ready(optimizer)
""",
    "a function that an object is given": """\
class Tools:
    limit = 1
def ready(each):
    print(each)
tools = Tools()
tools.ready = ready
tools.ready(optimizer)
""",
    "a property that gives a function": """\
class Tools:
    @property
    def ready(self):
        return print
Tools().ready(optimizer)
""",
    "a context of an object": """\
class Tools:
    def __enter__(self):
        return self
    def __exit__(self, *given):
        print(given)
with Tools() as tools:
    print(tools)
""",
    "a context that a generator is": """\
import contextlib
@contextlib.contextmanager
def ready(each):
    yield each
with ready(optimizer) as each:
    print(each)
""",
    "a stack of contexts": """\
import contextlib
@contextlib.contextmanager
def ready(each):
    yield each
with contextlib.ExitStack() as stack:
    each = stack.enter_context(ready(optimizer))
    print(each)
""",
    "a generator that is gone through": """\
def ready(each):
    yield each
    yield each
for each in ready(optimizer):
    print(each)
""",
    "a function that calls itself": """\
def ready(each, left=3):
    if left > 0:
        ready(each, left - 1)
ready(optimizer)
""",
    "an entry that a dict is asked for, or else": """\
held = {"step": optimizer}
print(held.get("step"), held.get("none", optimizer), held.setdefault("step", None))
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
WHOLE["loaders that anybody may give"] = f"""\
import torch

def train(model, optimizer, scaler, *loaders):
    for loader in loaders:
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            {CLIP}  # AMP201
            scaler.step(optimizer)
            scaler.update()
"""
WHOLE["loaders that anybody may give by their names"] = WHOLE["loaders that anybody may give"].replace(
    "*loaders):\n    for loader in loaders:", "**loaders):\n    for loader in loaders.values():"
)
WHOLE["a state that is copied entry by entry"] = """\
import torch

def train(model, loader, optimizer, path):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {name: value for name, value in scaler.state_dict().items()}
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": state}, path)
"""
WHOLE["an attribute that another method gives what this object has"] = f"""\
import torch

class Trainer:
    def prepare(self):
        self.ready = self.unscale

    def unscale(self, scaler, optimizer):
        scaler.unscale_(optimizer)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    trainer = Trainer()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        trainer.ready(scaler, optimizer)
        {CLIP}
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an attribute that other methods change is another one in the next iteration"] = f"""\
import torch

class Trainer:
    def __init__(self):
        self.even = True

    def tick(self):
        self.even = not self.even

    def train(self, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            if self.even:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
            else:
                {CLIP}  # AMP201
                scaler.step(optimizer)
                scaler.update()
            self.tick()
"""
WHOLE["a forward that is called by its name is one of its module"] = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.body(x).mean()

def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = net.forward(x)  # AMP110
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a forward of what is no module is a method like any other"] = f"""\
import torch

class Steps:
    def forward(self, scaler, optimizer):
        scaler.unscale_(optimizer)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    steps = Steps()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        steps.forward(scaler, optimizer)
        {CLIP}
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an optimizer that owns one of two models, and a third one's"] = """\
import torch

def train(one, two, three, loader, flag):
    first = torch.optim.SGD(one.parameters(), 0.1) if flag else torch.optim.SGD(two.parameters(), 0.1)
    other = torch.optim.SGD(three.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        first.zero_grad()
        other.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean() + two(x).mean() + three(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        torch.nn.utils.clip_grad_norm_(three.parameters(), 1.0)  # AMP201
        scaler.step(first)
        scaler.step(other)
        scaler.update()
"""
WHOLE["an optimizer that owns one of two models"] = """\
import torch

def train(one, two, loader, flag):
    first = torch.optim.SGD(one.parameters(), 0.1) if flag else torch.optim.SGD(two.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        first.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean() + two(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)  # AMP201
        scaler.step(first)
        scaler.update()
"""
WHOLE["what a generator yields one by one is one of several"] = """\
import torch

def batches(loader, model):
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        yield loss
        yield None

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for loss in batches(loader, model):
        if loss is None:
            continue
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region of a stack ends with its block"] = """\
import contextlib

import torch

def train(model, loader, optimizer, criterion, y):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast("cuda"))
            out = model(x)
        loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a device with a number, put into a text"] = """\
import torch

def evaluate(model, x, rank):
    with torch.autocast("cuda:%d" % rank):  # AMP109
        first = model(x)
    with torch.autocast("cuda:" + str(rank)):  # AMP109
        second = model(x)
    with torch.autocast(f"cuda:{rank}"):  # AMP109
        third = model(x)
    return first, second, third
"""
WHOLE["a gradient of something that is divided in place"] = """\
import torch

def train(model, loader, optimizer, k, weight):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            weight.grad /= k
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WHOLE["a gradient of something that is not divided in place"] = """\
import torch

def train(model, loader, optimizer, k, weight):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()  # AMP301
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            weight.grad += k
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WHOLE["constants of one unanalyzed class exclude one another, those of two classes do not"] = """\
import torch
from phases import Phase, Stage

def train(model, loader, optimizer, phase):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if phase == Phase.WARM:
            scaler.unscale_(optimizer)
        if phase == Phase.MAIN:
            scaler.unscale_(optimizer)
        if phase == Stage.FIRST:
            scaler.unscale_(optimizer)  # AMP209
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
WHOLE["a schedule that goes on where the scale did not fall"] = """\
import torch

def train(model, loader, optimizer, schedule):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
"""
WHOLE["an accelerator that is made in one of two ways"] = """\
import torch
from accelerate import Accelerator

def train(model, loader, optimizer, criterion, flag):
    one, two = Accelerator(mixed_precision="fp16"), Accelerator(mixed_precision="fp16", log_with="all")
    accelerator = one if flag else two
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        optimizer.step()
"""
WHOLE["an accelerator that is made in one of two ways, and clips"] = """\
import torch
from accelerate import Accelerator

def train(model, loader, optimizer, criterion, flag):
    accelerator = Accelerator(mixed_precision="fp16") if flag else Accelerator(mixed_precision="no")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
WHOLE["parameters of one of two models"] = """\
import torch

def train(one, two, loader, flag):
    scaler = torch.amp.GradScaler("cuda")
    first = torch.optim.SGD(one.parameters(), 0.1)
    second = torch.optim.SGD(two.parameters(), 0.1)
    for x in loader:
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean() + two(x).mean()
        scaler.scale(loss).backward()
        parameters = one.parameters() if flag else two.parameters()
        scaler.unscale_(first)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)  # AMP212
        scaler.step(first)
        scaler.step(second)
        scaler.update()
"""
WHOLE["a norm that is computed in one of two ways, and divided by the scale"] = """\
import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if flag:
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        else:
            norm = torch.stack([p.grad.norm(1) for p in model.parameters()]).sum()
        norm = norm / scaler.get_scale()
        print(norm)
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a norm that is computed in one of two ways"] = """\
import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if flag:
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # AMP202
        else:
            norm = torch.stack([p.grad.norm(1) for p in model.parameters()]).sum()  # AMP202
        print(norm)
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an argument that is not given"] = """\
import torch

def scaled(scaler, loss, optimizer):
    return scaler.scale(loss)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaled(scaler, loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region of another library, or none"] = """\
import torch
import transformer_engine.pytorch as te
import contextlib

def train(model, loader, optimizer, flag, criterion, y):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with te.fp8_autocast(enabled=True) if flag else contextlib.nullcontext():
            out = model(x)
        loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a class of a function knows its variables"] = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    class Tools:
        def __enter__(self):
            scaler.unscale_(optimizer)
        def __exit__(self, *given):
            pass
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        with Tools():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
WHOLE["a class that does nothing there knows them, too"] = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    class Tools:
        def __enter__(self):
            print(scaler, optimizer)
        def __exit__(self, *given):
            pass
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        with Tools():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
WHOLE["a class of a function that derives from another one"] = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")

    class Base:
        def ready(self):
            scaler.unscale_(optimizer)

        @property
        def late(self):
            return scaler.update()

    class Tools(Base):
        def ready(self):
            super().ready()

    tools = Tools()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        tools.ready()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        tools.late
"""
WHOLE["arguments that are said to be what they are"] = """\
import torch

def train(model, loader, one: torch.optim.Optimizer, helper: torch.amp.GradScaler):
    for x in loader:
        one.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        helper.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        helper.step(one)
        helper.update()
"""
WHOLE["a class whose base goes by a name that is an object by now"] = """\
import torch

class Steps:
    def ready(self, scaler, optimizer):
        print(scaler, optimizer)

class Tools(Steps):
    name = "tools"

Steps = Steps()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    tools = Tools()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        tools.ready(scaler, optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["autocast, or no context, by one name"] = """\
import contextlib

import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda", enabled=flag)
    context = torch.autocast if flag else contextlib.nullcontext
    for x in loader:
        optimizer.zero_grad()
        with context("cuda"):
            loss = model(x).mean()
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["no context, or autocast, by one name"] = """\
import contextlib

import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda", enabled=flag)
    context = contextlib.nullcontext if not flag else torch.autocast
    for x in loader:
        optimizer.zero_grad()
        with context("cuda"):
            loss = model(x).mean()
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["parts of a batch, each of which is taken"] = """\
import torch

def train(model, loader, optimizer, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        for part in [part for part in x.chunk(k)]:
            with torch.autocast("cuda"):
                loss = model(part).mean()
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["parts of a batch, each of which is taken, by two loops"] = """\
import torch

def train(model, loader, optimizer, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        for part in [part for each in (x,) for part in each.chunk(k)]:
            with torch.autocast("cuda"):
                loss = model(part).mean()
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["what nobody knows, each of which is taken"] = """\
import torch

def train(model, loader, optimizer, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        for part in [part for part in x.kinds]:
            with torch.autocast("cuda"):
                loss = model(part).mean()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["the parameters of a module by a name of their own"] = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.body(x).mean()

def train(loader):
    one, two = Net(), Net()
    first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    given, others = one.parameters, two.parameters
    for x in loader:
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x) + two(x)
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        torch.nn.utils.clip_grad_norm_(given(), 1.0)
        torch.nn.utils.clip_grad_norm_(others(), 1.0)  # AMP201
        scaler.step(first)
        scaler.step(second)
        scaler.update()
"""
WHOLE["a module that enters autocast, and ran without gradients before"] = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 1)

    def forward(self, x):
        with torch.autocast("cuda"):
            return self.body(x).mean()

def train(loader):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            print(net(x))
        loss = net(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region that an object opens is closed with it"] = """\
import torch

class Region:
    def __enter__(self):
        self.context = torch.autocast("cuda")
        self.context.__enter__()

    def __exit__(self, *given):
        self.context.__exit__(*given)

def train(model, loader, optimizer, criterion, y):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with Region():
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region that an object opens holds while it lasts"] = """\
import torch

class Region:
    def __enter__(self):
        self.context = torch.autocast("cuda")
        self.context.__enter__()

    def __exit__(self, *given):
        self.context.__exit__(*given)

def train(model, loader, optimizer, criterion, y):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with Region():
            loss = model(x).mean()
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an attribute that begins as none, and that another method sets"] = """\
import torch

class Trainer:
    def __init__(self):
        self.ready = None

    def arm(self):
        self.ready = True

    def train(self, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            if self.ready:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()

Trainer().train(make_model(), make_loader(), make_optimizer())
"""
WHOLE["an attribute that is none for good"] = """\
import torch

class Trainer:
    def __init__(self):
        self.ready = None

    def train(self, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            if self.ready:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

Trainer().train(make_model(), make_loader(), make_optimizer())
"""
WHOLE["a context that may be no_sync lasts no longer than its block"] = """\
import contextlib

import torch

def train(net, loader, flag):
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with model.no_sync() if flag else contextlib.nullcontext():
            print("once")
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an attribute that another method gives what does nothing"] = """\
import torch

class Trainer:
    def prepare(self):
        self.ready = self.log

    def log(self, scaler, optimizer):
        print(scaler, optimizer)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    trainer = Trainer()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        trainer.ready(scaler, optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["names of an argument list are not those of the module"] = """\
import torch

limits = None
options = None

def train(model, loader, optimizer, scaler, *limits, **options):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if limits is None or options is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if limits:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        if "clip" in options:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
LEFT = """\
import torch

def train(net, loader):
    scaler = torch.amp.GradScaler("cuda")
    one, two = torch.optim.SGD(net.body.parameters(), 0.1), torch.optim.SGD(net.head.parameters(), 0.1)
    for x in loader:
        one.zero_grad()
        two.zero_grad()
        with torch.autocast("cuda"):
            loss = net(x).mean()
        scaler.scale(loss).backward()
        for each in [each for each in [one, None, two] if {test}]:
            scaler.unscale_(each)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0){mark}
        scaler.step(one)
        scaler.step(two)
        scaler.update()
"""
WHOLE["optimizers of which those are left out that are none"] = LEFT.format(test="each is not None", mark="")
WHOLE["optimizers of which none is left"] = LEFT.format(test="each is None", mark="  # AMP201")
WHOLE["optimizers of which some are left out by what nobody knows"] = LEFT.format(
    test="each is not None and each.defaults['fused']", mark=""
)


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_between_backward_and_step(between: str) -> None:
    source = AROUND.format(indent(between, "        "))
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("between", NOTHING_DONE.values(), ids=NOTHING_DONE)
def test_what_is_read_and_does_nothing_leaves_a_certain_mistake(between: str) -> None:
    findings = check_source(AROUND.format(indent(f"{between}{CLIP}\n", "        ")))
    assert [(finding.code, finding.certain) for finding in findings] == [("AMP201", True)], shown(findings)
