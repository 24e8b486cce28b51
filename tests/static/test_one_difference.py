"""Pairs of programs, one correct and one wrong, that differ in one word which the analyzer must distinguish."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
#: Statements between backward and step, in a loop with the rest of a training.
BETWEEN = {
    "a clip where an option is at least one, and one where it is any": f"""\
if clip >= 1:
    scaler.unscale_(optimizer)
if clip:
    {CLIP}  # AMP201
""",
    "a clip where an option is above zero, and one where it is any": f"""\
if clip > 0:
    scaler.unscale_(optimizer)
if clip:
    {CLIP}
""",
    "two names of one option": """\
if phase == "warm":
    scaler.unscale_(optimizer)
if phase == "main":
    scaler.unscale_(optimizer)
""",
    "a name of an option, and all but another": """\
if phase == "warm":
    scaler.unscale_(optimizer)
if phase != "main":
    scaler.unscale_(optimizer)  # AMP209
""",
    "what is not one name may be another": f"""\
if early:
    if phase == "main":
        print("early")
elif phase == "warm":
    print("warm")
elif phase == "main":
    {CLIP}  # AMP201
""",
    "two remainders of one number": """\
if i % 4 == 0:
    scaler.unscale_(optimizer)
if i % 4 == 1:
    scaler.unscale_(optimizer)
""",
    "one remainder of a number in two spellings": """\
if i % 4 == 1:
    scaler.unscale_(optimizer)
if (i + 3) % 4 == 0:
    scaler.unscale_(optimizer)  # AMP209
""",
    "remainders of two numbers": """\
if i % 4 == 0:
    scaler.unscale_(optimizer)
if i % 6 == 2:
    scaler.unscale_(optimizer)  # AMP209
""",
    "a loop over parameters that nothing leaves has an else": f"""\
for p in model.parameters():
    if p.grad is not None and not p.grad.isfinite().all():
        break
else:
    {CLIP}  # AMP201
""",
    "a loop over parameters that is left by its else alone": f"""\
for p in model.parameters():
    if not p.grad.isfinite().all():
        break
else:
    scaler.unscale_(optimizer)
    {CLIP}
""",
    "what stands behind a loop that every iteration leaves": f"""\
for limit in limits:
    scaler.unscale_(optimizer)
    break
else:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a list of one, made by a loop": f"""\
for each in [optimizer for _ in range(1)]:
    scaler.unscale_(each)
{CLIP}
""",
    "what an exception alone leaves is read to its end": f"""\
try:
    try:
        raise ValueError
    finally:
        {CLIP}  # AMP201
except ValueError:
    pass
""",
    "one of the parameters is a tensor": f"""\
parameters = list(model.parameters())
if isinstance(parameters[0], torch.Tensor):
    {CLIP}  # AMP201
""",
    "all of the parameters are no tensor": f"""\
parameters = list(model.parameters())
if isinstance(parameters, torch.Tensor):
    {CLIP}
""",
    "what is asked, and whether it is None": f"""\
if clip:
    scaler.unscale_(optimizer)
if clip is not None:
    {CLIP}  # AMP201
""",
    "whether it is None, and what is asked": f"""\
if clip is not None:
    scaler.unscale_(optimizer)
if clip:
    {CLIP}
""",
    "a comparison that is compared with True": f"""\
late = i > limits
if late == True:
    scaler.unscale_(optimizer)
if late:
    {CLIP}
""",
    "a comparison that is compared with False": f"""\
late = i > limits
if late == False:
    scaler.unscale_(optimizer)
if late:
    {CLIP}  # AMP201
""",
    "two constants of a class that is not known": """\
if phase == Phase.WARM:
    scaler.unscale_(optimizer)
if phase == Phase.MAIN:
    scaler.unscale_(optimizer)
""",
    "two attributes of something that is not known": """\
if phase == limits.warm:
    scaler.unscale_(optimizer)
if phase == limits.main:
    scaler.unscale_(optimizer)  # AMP209
""",
    "a line of dashes is something": f"""\
line = "-" * 40
if line:
    {CLIP}  # AMP201
""",
    "text that is filled in is something": f"""\
line = "%d" % 40
if line:
    {CLIP}  # AMP201
""",
}
AROUND = """\
import torch
from elsewhere import Phase

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
WHOLE["a difference of two losses that are divided"] = """\
import torch

def train(model, loader, optimizer, scaler, k):
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            one, two = model(x)
            loss = one.mean() / k - two.mean() / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WHOLE["a difference of two losses, one of which is divided"] = """\
import torch

def train(model, loader, optimizer, scaler, k):
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            one, two = model(x)
            loss = one.mean() / k - two.mean()
        scaler.scale(loss).backward()  # AMP301
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WHOLE["a region that a break leaves"] = """\
import torch
from elsewhere import build

def train(model, loader, optimizer, flag, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
            if flag:
                break
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
WHOLE["a region that an iteration leaves to continue"] = """\
import torch
from elsewhere import build

def train(model, loader, optimizer, flag, k):
    scaler = torch.amp.GradScaler("cuda")
    loss = model(k).mean()
    for x in loader:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
            if flag:
                continue
        print(x)
"""
WHOLE["a region that a return leaves"] = """\
import torch

def forward(model, x, flag):
    with torch.autocast("cuda"):
        loss = model(x).mean()
        if flag:
            return loss
        return loss + model.penalty()

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(forward(model, x, flag)).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region that an exception leaves"] = """\
import torch
from elsewhere import build

def train(model, loader, optimizer, flag, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        try:
            with torch.autocast("cuda"):
                loss = model(x).mean()
                if flag:
                    raise ValueError
        except ValueError:
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a region in which a loop is left"] = """\
import torch
from elsewhere import build

def train(model, loader, optimizer, flag, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
            for part in x:
                if part:
                    break
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a function without gradients that was called before"] = """\
import torch

@torch.no_grad()
def evaluate(model, loader):
    return sum(model(x).sum() for x in loader)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    print(evaluate(model, loader))
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an optimizer that other code makes in each iteration"] = """\
import torch
from elsewhere import build

def train(model, loader, optimizer, flag, k):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer = build(model)
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["an optimizer that other code has made once"] = """\
import torch
from elsewhere import build

def train(model, loader, optimizer, flag, k):
    scaler = torch.amp.GradScaler("cuda")
    optimizer = build(model)
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()  # AMP215
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a generator that is closed"] = """\
import torch

def batches(loader):
    for x in loader:
        yield x

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    given = batches(loader)
    for x in given:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    given.close()
"""
WHOLE["what raises after a step has stepped"] = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        try:
            scaler.step(optimizer)  # AMP206
            loader.note(loss)
        except RuntimeError:
            scaler.step(optimizer)
        scaler.update()
"""
WHOLE["who catches what ends training starts anew"] = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    try:
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    except KeyboardInterrupt:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
WHOLE["methods that are called on their class"] = """\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201

    @staticmethod
    def finish(scaler, optimizer):
        scaler.step(optimizer)
        scaler.update()

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            Trainer.clip(self)
            Trainer.finish(self.scaler, self.optimizer)
"""
WHOLE["all that an object holds is saved"] = """\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def save(self):
        torch.save({"optimizer": self.optimizer.state_dict(), **self.__dict__}, "last.pt")  # AMP402

    def load(self):
        self.optimizer.load_state_dict(torch.load("last.pt")["optimizer"])

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""
WHOLE["a scaler that is known by its annotation"] = """\
import torch

def save(path, helper: torch.amp.GradScaler):
    torch.save({"helper": helper}, path)  # AMP402
"""
WHOLE["another object by the same name"] = """\
import torch

def save(path, helper: torch.optim.swa_utils.AveragedModel):
    torch.save({"helper": helper}, path)
"""
WHOLE["a context that is entered in itself"] = """\
import torch

context = torch.autocast("cuda")

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with context:
            with context:  # AMP102
                loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["behind an import that may fail nothing is provided for"] = """\
import torch

def train(model, loader, optimizer):
    try:
        import apex
    except ImportError:
        apex = None
    scaler = torch.cuda.amp.GradScaler()  # AMP901
    for x in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():  # AMP901
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a field with a default, of what is unpacked"] = """\
from dataclasses import dataclass

import torch

@dataclass
class Training:
    model: object
    optimizer: object
    scaler: object = None

def train(loader, given):
    state = Training(**given)
    for x in loader:
        state.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = state.model(x).mean()
        if state.scaler is None:
            loss.backward()
            state.optimizer.step()
        else:
            state.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)  # AMP201
            state.scaler.step(state.optimizer)
            state.scaler.update()
"""
WHOLE["a function that is called by its method"] = """\
import torch

def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        clip.__call__(model)
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["what the else of a try raises is not caught there"] = """\
import torch

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        try:
            loader.check(x)
        except RuntimeError:
            scaler.step(optimizer)
        else:
            scaler.step(optimizer)
            loader.note(x)
        scaler.update()
"""
WHOLE["an attribute that one method sets and another forgets"] = """\
import torch

class Trainer:
    def prepare(self):
        self.criterion = torch.nn.BCELoss()

    def forget(self):
        self.criterion = None

    def fit(self, loader, model, optimizer, scaler):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.criterion(model(x), y)  # AMP504
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
WHOLE["one of the losses that are scaled together"] = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            both = model(x).sum(1)
        one, two = scaler.scale(both)
        (one + two).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a limit that there is where a flag is set"] = """\
import torch

def train(model, loader, optimizer, flag, options):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        limit = None
        if flag:
            limit = options.clip
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if flag:
            scaler.unscale_(optimizer)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a limit that there is where another flag is set"] = (
    WHOLE["a limit that there is where a flag is set"]
    .replace("        if flag:\n            scaler", "        if options:\n            scaler")
    .replace("parameters(), 1.0)", "parameters(), 1.0)  # AMP201")
)
WHOLE["a generator whose region is lost goes on as it would"] = """\
import torch

@torch.autocast("cuda")  # AMP105
def losses(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        yield loss

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for loss in losses(model, loader, optimizer, scaler):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
#: A loss that the framework divides by ``k``, too.
DIVIDED = """\
from accelerate import Accelerator

def train(model, optimizer, loader, criterion, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer = accelerator.prepare(model, optimizer)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(x), y) / k{mark}
            {then}
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
WHOLE["a loss that is divided, and weighted"] = DIVIDED.format(mark="  # AMP302", then="loss = loss * 2")
WHOLE["a loss that is divided, and multiplied by the same"] = DIVIDED.format(mark="", then="loss = loss * k")
WHOLE["a loss that is multiplied, and divided by the same"] = DIVIDED.format(mark="", then="").replace(
    "y) / k", "y) * k / k"
)
WHOLE["an optimizer that a model makes"] = """\
import torch

model = torch.nn.Linear(2, 2).cuda()

def train(loader):
    scaler = torch.amp.GradScaler("cuda")
    optimizer = model.optimizer()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a version by another name"] = """\
import torch
from torch import __version__ as known

def train(model, loader, optimizer):
    if known >= "2.4":
        scaler = torch.amp.GradScaler("cuda")
    else:
        scaler = torch.cuda.amp.GradScaler()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a context on a stack ends with the stack"] = """\
import contextlib
import torch

def train(model, loader, optimizer, context):
    scaler = torch.amp.GradScaler("cuda")
    with contextlib.ExitStack() as stack:
        stack.enter_context(context)
        print(model(loader.first))
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()  # AMP110
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["the contexts of a stack move to another stack"] = """\
import contextlib
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cuda"))
        stays = stack.pop_all()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    stays.close()
"""
WHOLE["anomaly detection on a stack"] = """\
import contextlib
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.detect_anomaly())  # AMP213
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
WHOLE["anomaly detection on a stack that ends before backward"] = """\
import contextlib
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.detect_anomaly())
        print(model(loader.first))
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a comparison of versions by a name"] = """\
import torch

NEW = torch.__version__ >= "2.4"

def train(model, loader, optimizer):
    if NEW:
        scaler = torch.amp.GradScaler("cuda")
    else:
        scaler = torch.cuda.amp.GradScaler()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a comparison of versions in an attribute"] = """\
import torch
from torch import __version__ as known

class Options:
    def __init__(self):
        self.new = known >= "2.4"

options = Options()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda") if options.new else torch.cuda.amp.GradScaler()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["a scaler that only some versions have"] = """\
import torch

def train(model, loader, optimizer):
    scaler = None
    if torch.__version__ >= "1.6":
        scaler = torch.cuda.amp.GradScaler()
    for x in loader:
        optimizer.zero_grad()
        if scaler is not None:
            with torch.cuda.amp.autocast():  # AMP901
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
WHOLE["a comparison of something else by a name"] = """\
import torch

NEW = torch.cuda.device_count() >= 2
VERSION = 1

def train(model, loader, optimizer):
    if NEW:
        scaler = torch.amp.GradScaler("cuda")
    else:
        scaler = torch.cuda.amp.GradScaler()  # AMP901
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["gradients of something that is not known are divided"] = """\
import torch

def train(loader, optimizer, scaler, k, weights, forward):
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = forward(x, weights).mean()
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            weights.grad = weights.grad / k
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WHOLE["a scaler that the class holds"] = """\
import torch

class Trainer:
    scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader, model, optimizer):
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            self.scaler.step(optimizer)
            self.scaler.update()
"""
WHOLE["what is raised behind an inner try is caught by the outer one"] = """\
import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        try:
            try:
                print(int(flag))
            except ValueError:
                print(flag)
            scaler.unscale_(optimizer)
            raise RuntimeError
        except RuntimeError:
            scaler.unscale_(optimizer)  # AMP209
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
WHOLE["behind a question for a version nothing is provided for"] = """\
import torch

def train(model, loader, optimizer):
    if hasattr(torch, "compile"):
        model = torch.compile(model)
    scaler = torch.cuda.amp.GradScaler()  # AMP901
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
#: A window whose condition is true at the first micro-batch, if no other condition prevents the step.
WINDOW = """\
import torch

def train(model, loader, optimizer, scaler, k):
    for i, x in enumerate(loader{start}):
        with torch.autocast("cuda"):
            loss = model(x).mean() / k
        scaler.scale(loss).backward()
        if {test}:{mark}
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WINDOWS = {
    ("", "i % k == 0"): True,
    ("", "i % k == 0 and i"): False,
    ("", "i % k == 0 and i > 0"): False,
    ("", "i % k == 0 and i >= 0"): True,
    ("", "i % k == 0 and i - 1 >= 0"): False,
    ("", "i % k == 0 and i + 1 > 1"): False,
    ("", "i % k == 0 and i + 1 >= 1"): True,
    ("", "i % k == 0 and 0 < i"): False,
    ("", "i % k == 0 and i != 0"): False,
    ("", "i % k == 0 and not i == 0"): False,
    ("", "(i + 1) % k == 0"): False,
    ("", "(i - 1) % k == 0"): False,
    ("", "(i + 1) % k == 1"): True,
    (", 1", "i % k == 0"): False,
    (", 1", "i % k == 1"): True,
    (", 1", "i % k == 1 and i > 1"): False,
    (", 1", "(i - 1) % k == 0"): True,
    (", 1", "(i - 1) % k == 0 and i - 1"): False,
    (", start=1", "i % k == 0"): False,
    (", start=1", "not (i - 1) % k"): True,
}
#: A generator that waits after a backward pass, and continues in the next iteration.
WAITING = """\
import torch

def steps(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        for part in x:
            yield part
        scaler.unscale_(optimizer)
        yield loss
        scaler.step(optimizer)
        scaler.update()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    made = steps(model, loader, optimizer, scaler)
    for _ in range(100):
        next(made)
        next(made)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
"""
#: An unanalyzed call before the cause, and after it.
TUNED = """\
import torch
from elsewhere import tune

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        {before}
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        {between}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.update()
"""


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_between_backward_and_step(between: str) -> None:
    source = AROUND.format(indent(between, "        "))
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize(("start", "test"), WINDOWS)
def test_a_window_that_the_first_micro_batch_ends(start: str, test: str) -> None:
    mark = "  # AMP304" if WINDOWS[start, test] else ""
    source = WINDOW.format(start=start, test=test, mark=mark)
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


def test_the_condition_of_a_finding_is_about_its_own_optimizer() -> None:
    source = """\
import torch

def train(one, two, loader, opt_one, opt_two, first, second):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt_one.zero_grad()
        opt_two.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean()
        scaler.scale(loss).backward()
        if first:
            scaler.unscale_(opt_one)
        if second:
            scaler.unscale_(opt_two)
        torch.nn.utils.clip_grad_norm_(x.weights, 1.0)
        scaler.step(opt_one)
        scaler.step(opt_two)
        scaler.update()
"""
    (found,) = check_source(source)
    assert (found.line, found.code, found.condition) == (15, "AMP201", "when `first` is false")


def test_a_generator_waits_behind_scaled_gradients() -> None:
    (found,) = check_source(WAITING)
    assert places([found]) == marks(WAITING)
    assert found.certain
    assert "still multiplied by the loss scale" in found.message


@pytest.mark.parametrize(
    ("before", "between", "certain"), [("tune(optimizer)", "", True), ("", "tune(optimizer)", False)]
)
def test_who_was_given_the_optimizer_before_has_done_nothing_since(before: str, between: str, certain: bool) -> None:
    source = TUNED.format(before=before or "pass", between=between or "pass")
    (found,) = check_source(source)
    assert places([found]) == marks(source)
    assert found.certain == certain


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("criterion(combine(x))", "`loss` comes from unanalyzed code"),
        ("2 * criterion(combine(x))", "`loss` comes from unanalyzed code"),
        ("criterion(combine(x), combine(y))", "`loss` is summed over the micro-batches"),
        ("2 * criterion(combine(x), combine(y))", "`loss` is summed over the micro-batches"),
    ],
)
def test_a_loss_of_code_that_is_not_read_compares_what_other_code_gave(made: str, said: str) -> None:
    source = f"""\
import torch

def train(loader, optimizer, scaler, k, criterion, combine):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = {made}
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
    (found,) = check_source(source)
    assert (found.line, found.code) == (7, "AMP301")
    assert found.message.startswith(said)


@pytest.mark.parametrize(
    ("passes", "lines"), [(1, [16, 17, 19]), (4, [16, 17, 18, 19, 20, 22]), (9, [21, 22, 23, 24, 25, 27])]
)
def test_of_a_long_path_the_last_six_events_are_shown(passes: int, lines: list[int]) -> None:
    head = """\
import torch
from torch import nn

one, two = nn.Linear(3, 3).cuda(), nn.Linear(3, 3).cuda()
first = torch.optim.SGD(one.parameters(), 0.1)
second = torch.optim.SGD(two.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    first.zero_grad()
    second.zero_grad()
    with torch.autocast("cuda"):
        loss = one(x).mean()
        other = two(x).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(first)
"""
    tail = """\
    torch.nn.utils.clip_grad_norm_([*one.parameters(), *two.parameters()], 1.0)
    scaler.step(first)
    scaler.step(second)
    scaler.update()
"""
    (found,) = check_source(head + "    scaler.scale(other).backward(retain_graph=True)\n" * passes + tail)
    assert found.code == "AMP212"
    assert [step.site.line for step in found.trace] == lines


def test_of_a_long_expression_the_beginning_is_said() -> None:
    source = """\
import torch

def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            one, another, the_last_one_of_all_three = model(x)
        (0.25 * one + 0.25 * another + 0.5 * the_last_one_of_all_three).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    (found,) = check_source(source)
    assert (found.line, found.code) == (8, "AMP203")
    assert found.message.startswith("`0.25 * one + 0.25 * another + 0.5 * the_last_one_of_all_t...` is not scaled")


@pytest.mark.parametrize(
    ("divisor", "mean"),
    [
        ("x.shape[0]", True),
        ("len(x)", True),
        ("x.size(0)", True),
        ("x.numel()", True),
        ("(x.shape[0] * x.shape[1])", True),
        ("(x.shape[0] + y.shape[0])", True),
        ("(x.shape[0] * 2)", True),
        ("(2 + len(y))", True),
        ("k", False),
        ("n", False),
        ("(k * 2)", False),
        ("(x.shape[0] * k)", False),
        ("(k + len(x))", False),
        ("len(loader)", False),
    ],
)
def test_a_sum_over_how_much_there_is_of_the_batch_is_a_mean(divisor: str, mean: bool) -> None:
    source = f"""\
import torch
from torch.nn.functional import cross_entropy

def train(model, loader, optimizer, k, n):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = cross_entropy(model(x), y, reduction="sum") / {divisor}
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
    assert [(found.code, found.line) for found in check_source(source)] == ([("AMP301", 9)] if mean else [])
