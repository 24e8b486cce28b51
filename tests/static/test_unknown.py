"""Unanalyzed code is ordinary: a call has the effects that its name suggests, and such findings are possible."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source
from pytest_amp_check.static.engine import check_paths

#: Programs with a mistake at the marked lines.
WRONG: dict[str, str] = {}
#: Correct programs.
RIGHT: dict[str, str] = {}

WRONG["an optimizer that was handed to a schedule of another package is not stepped by it"] = """\
import torch
from elsewhere import make_optimizer, warm_up

def train(model, loader, criterion, args):
    optimizer = make_optimizer(args, model)
    schedule = warm_up(optimizer, args.steps)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        loss.backward()  # AMP203
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
"""
WRONG["a generator with a loop that makes an iterator in its first iteration"] = """\
import torch
from torch.nn.utils import clip_grad_norm_

def steps(model, loader, optimizer, scaler):
    iterator = None
    while True:
        if iterator is None:
            iterator = iter(loader)
        x, y = next(iterator)
        with torch.autocast("cuda"):
            loss = model(x, y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        yield loss
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.zero_grad()
        optimizer.zero_grad()
        optimizer.zero_grad()
        optimizer.zero_grad()
        optimizer.zero_grad()
        optimizer.zero_grad()
        optimizer.zero_grad()
    for loss in steps(model, loader, optimizer, scaler):
        print(loss)
"""
RIGHT["a loss that is an attribute of what a model gives is divided there"] = """\
import math
import torch

def train(task, loader, optimizer, config, n):
    accumulated = 0
    for batch in loader:
        result = task.train_step(**batch)
        result.loss /= config.Trainer.gradient_accumulate_steps
        result.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(task.parameters(), math.inf)
        if math.isnan(norm):
            optimizer.zero_grad()
            accumulated = 0
        else:
            accumulated += 1
            if accumulated == config.Trainer.gradient_accumulate_steps:
                optimizer.step()
                optimizer.zero_grad()
                accumulated = 0
            print(result)
"""
WRONG["a loss that is an attribute of what a model gives is divided nowhere"] = """\
import math
import torch

def train(task, loader, optimizer, config, n):
    accumulated = 0
    for batch in loader:
        result = task.train_step(**batch)
        result.loss.backward()  # AMP301
        norm = torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)  # AMP304
        if math.isnan(norm):
            optimizer.zero_grad()
            accumulated = 0
        else:
            accumulated += 1
            if accumulated == config.Trainer.gradient_accumulate_steps:
                optimizer.step()
                optimizer.zero_grad()
                accumulated = 0
            print(result)
"""
RIGHT["a loss of a copy of the model feeds no optimizer that was there before"] = """\
from copy import deepcopy
import torch

def attack(model, image):
    model = deepcopy(model)
    model.eval()
    image.requires_grad = True
    out = model(image)
    target = -out.detach()
    loss2 = torch.nn.MSELoss()(out, target)
    loss2.backward()
    return image.grad.sign()

def train(model, loader, optimizer, criterion, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        if opt.adv > 0:
            adversarial = attack(model, x)
            with torch.autocast("cuda"):
                loss = loss + criterion(model(adversarial), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WRONG["a loss of the model itself feeds its optimizer"] = """\
import torch

def attack(model, image):
    model.eval()
    image.requires_grad = True
    out = model(image)
    target = -out.detach()
    loss2 = torch.nn.MSELoss()(out, target)
    loss2.backward()  # AMP203
    return image.grad.sign()

def train(model, loader, optimizer, criterion, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        if opt.adv > 0:
            adversarial = attack(model, x)
            with torch.autocast("cuda"):
                loss = loss + criterion(model(adversarial), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
CAST_BATCH = """\
import torch
from mine import make_model

def train(model, loader, optimizer, criterion, half):
    scaler = torch.amp.GradScaler("cuda")
    for image, target in loader:
        image = image.cuda()
        image = image.half() if half else image.float()
        image /= 255.0
        count, _, height, width = image.shape
        optimizer.zero_grad()
        loss = criterion(model(image), target)
        scaler.scale(loss).backward()  # AMP110
        scaler.step(optimizer)
        scaler.update()
"""
CAST_MODEL = """\
import torch
from mine import make_model

def train(model, loader, optimizer, criterion, half):
    net = make_model(model)
    net = net.half()
    scaler = torch.amp.GradScaler("cuda")
    for image, target in loader:
        image = image.cuda()
        image = image.half() if half else image.float()
        image /= 255.0
        count, _, height, width = image.shape
        optimizer.zero_grad()
        loss = criterion(model(image), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WRONG["a parameter that is cleared nowhere"] = """\
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP215
        scaler.step(optimizer)
        scaler.update()
"""
WRONG["an optimizer of a factory that a log was given"] = """\
import torch
from elsewhere import make_optimizer, log_rates

def train(model, loader, criterion, scaler):
    optimizer = make_optimizer(model)
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP215
        scaler.step(optimizer)
        scaler.update()
        log_rates(optimizer)
"""
WRONG["a scaler that is stepped and updated, and asked nothing else"] = """\
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        loss.backward()  # AMP203
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
GAN = """\
import torch

def train(maker, critic, maker_optimizer, critic_optimizer, scaler, loader, criterion):
    for x in loader:
        with torch.autocast("cuda"):
            made = maker(x)
            critic_loss = criterion(critic(made.detach()), critic(x))
        critic_optimizer.zero_grad()
        {critic}
        scaler.step(critic_optimizer)
        with torch.autocast("cuda"):
            maker_loss = criterion(critic(made))
        maker_optimizer.zero_grad()
        {maker}
        {step}
        scaler.update()
"""
WORDS = {
    "critic": "scaler.scale(critic_loss).backward()",
    "maker": "scaler.scale(maker_loss).backward()",
    "step": "scaler.step(maker_optimizer)",
}
RIGHT["two optimizers, each with a loss of its own"] = GAN.format(**WORDS)
WRONG["the first of two losses is not scaled"] = GAN.format(
    **{**WORDS, "critic": "critic_loss.backward()  # AMP203"},
)
WRONG["the second of two losses is not scaled"] = GAN.format(
    **{**WORDS, "maker": "maker_loss.backward()  # AMP203"},
)
WRONG["the second of two optimizers is stepped by itself"] = GAN.format(
    **{**WORDS, "step": "maker_optimizer.step()  # AMP204"},
)
ONE_LOSS = """\
import torch

def train(model, optimizer, centers, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        centers.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        {backward}
        scaler.step(optimizer)
        {step}
        scaler.update()
"""
RIGHT["one loss for two optimizers"] = ONE_LOSS.format(
    backward="scaler.scale(loss).backward()", step="scaler.step(centers)"
)
WRONG["one loss for two optimizers, which is not scaled"] = ONE_LOSS.format(
    backward="loss.backward()  # AMP203", step="scaler.step(centers)"
)
WRONG["one loss for two optimizers, one of which is stepped by itself"] = ONE_LOSS.format(
    backward="scaler.scale(loss).backward()", step="centers.step()  # AMP204"
)
RIGHT["one optimizer with a scaler, another in float32"] = """\
import torch

def train(model, probe, optimizer, probe_optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        probe_optimizer.zero_grad()
        with torch.autocast("cuda"):
            features = model(x)
            loss = criterion(features, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        probe_loss = criterion(probe(features.detach().float()), y)
        probe_loss.backward()
        probe_optimizer.step()
"""
RIGHT["the same, with both losses before both steps"] = """\
import torch

def train(model, probe, optimizer, probe_optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        probe_optimizer.zero_grad()
        with torch.autocast("cuda"):
            features = model(x)
            loss = criterion(features, y)
        probe_loss = criterion(probe(features.detach().float()), y)
        probe_loss.backward()
        scaler.scale(loss).backward()
        probe_optimizer.step()
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["a window for two optimizers"] = """\
import torch

def train(model, head, optimizer, head_optimizer, scaler, loader, criterion, k):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = criterion(head(model(x)), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.step(head_optimizer)
            scaler.update()
            optimizer.zero_grad()
            head_optimizer.zero_grad()
"""
RIGHT["an optimizer that is stepped less often than another of the same scaler"] = """\
import torch
from torch.nn.functional import mse_loss

class Agent:
    def __init__(self, actor, critic):
        self.actor, self.critic = actor, critic
        self.actor_optimizer = torch.optim.Adam(actor.parameters())
        self.critic_optimizer = torch.optim.Adam(critic.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def learn(self, loader, every):
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cuda"):
                loss = mse_loss(self.critic(self.actor(x)), y)
            self.critic_optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.critic_optimizer)
            if i % every == 0:
                with torch.autocast("cuda"):
                    loss = -self.critic(self.actor(x)).mean()
                self.actor_optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.actor_optimizer)
            self.scaler.update()
"""
RIGHT["a function whose name speaks of clearing"] = """\
import torch
from elsewhere import clear_gradients

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        clear_gradients(optimizer)
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["a function whose name speaks of unscaling"] = """\
import torch
from elsewhere import unscale_gradients

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        unscale_gradients(scaler, optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
CLIP = """\
import torch
import elsewhere

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        {unscale}
        norm = elsewhere.clip_grad_value(model.parameters(), None){mark}
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["a function whose name speaks of clipping, after unscale_"] = CLIP.format(
    unscale="scaler.unscale_(optimizer)", mark=""
)
WRONG["a function whose name speaks of clipping"] = CLIP.format(unscale="pass", mark="  # AMP201")
RIGHT["an optimizer that a test has chosen"] = """\
import torch

def train(model, scaler, loader, criterion, args):
    if args.opt == "adam":
        optimizer = torch.optim.Adam(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WRONG["an optimizer that a test has chosen, and nothing clears"] = (
    RIGHT["an optimizer that a test has chosen"]
    .replace("        optimizer.zero_grad()\n", "")
    .replace("backward()", "backward()  # AMP215")
)
RIGHT["a hard example is left out once the training has warmed up"] = """\
import torch

def train(model, optimizer, loader, criterion, scaler, args):
    seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        seen += 1
        if args.skip_hard and seen > 3 * args.warm_up and loss.item() > 0.4:
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["a clip of another file that looks whether it was given a tensor"] = """\
import torch

def clip(parameters, limit):
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    parameters = list(filter(lambda p: p.grad is not None, parameters))
    total = 0
    for p in parameters:
        total += p.grad.data.norm(2).item() ** 2
    return total

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(model.parameters(), None)
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["a loss that is computed where no gradient is wanted"] = """\
import torch

def train(model, optimizer, scaler, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def evaluate(model, loader):
    total = 0.0
    for x, y in loader:
        with torch.no_grad(), torch.autocast("cuda"):
            out = model(x)
        total += torch.nn.MSELoss()(out.view(-1), y.view(-1)).item()
    return total
"""
RIGHT["a loss that code which cannot be read has normalised"] = """\
import torch

class Trainer:
    def __init__(self, model, optimizer, k):
        self.model, self.optimizer, self.k = model, optimizer, k
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loader):
        for i, batch in enumerate(loader):
            with torch.autocast("cuda"):
                loss = self.model(batch.x, batch.y)
            loss = batch.normalize(loss, self.k)
            self.scaler.scale(loss).backward()
            if (i + 1) % self.k == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
"""
RIGHT["an optimizer whose class has a step of its own and a base that nobody knows"] = """\
import torch

def make(base):
    class Clipping(base):
        def step(self, closure=None):
            super().step(closure=closure)

    return Clipping

def train(model, loader, criterion):
    optimizer = make(torch.optim.SGD)(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["a step that is given the scaler"] = """\
import torch
from parts import compute

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def train_epoch(self, loader):
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = compute(self.model, x, y)
            scaler.scale(loss).backward()
            self.optimizer.step("discriminator", scaler=scaler)
"""
RIGHT["a backward of something that is given the loss by name"] = """\
import torch
from plugins import make_booster

def train(cfg, model, loader, optimizer, accumulation_steps):
    booster = make_booster(cfg)
    for step, (x, y) in enumerate(loader):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x, y)
        booster.backward(loss=(loss / accumulation_steps), optimizer=optimizer)
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_a_mistake_beside_what_cannot_be_read_is_found(source: str) -> None:
    findings = [f for f in check_source(source) if f.code not in ("AMP110", "AMP502")]
    assert places(findings) == marks(source), shown(findings)


def test_a_batch_that_is_cast_by_hand_excuses_no_forward_outside_of_autocast() -> None:
    assert places(check_source(CAST_BATCH)) == marks(CAST_BATCH)
    assert not check_source(CAST_MODEL)


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_a_right_program_beside_what_cannot_be_read_is_silent(source: str) -> None:
    findings = check_source(source)
    assert findings == [], shown(findings)


@pytest.mark.parametrize(
    "name",
    [
        "a parameter that is cleared nowhere",
        "an optimizer of a factory that a log was given",
        "the first of two losses is not scaled",
        "one loss for two optimizers, one of which is stepped by itself",
        "a function whose name speaks of clipping",
    ],
)
def test_what_rests_on_the_unknown_is_not_certain(name: str) -> None:
    assert not any(finding.certain for finding in check_source(WRONG[name]))


def flags(number: int, *, clear: bool) -> str:
    """Return a training function with a separate loss, optimizer and clip for each of ``number`` flags."""
    names = [f"part{n}" for n in range(number)]
    lines = [
        "import torch",
        "",
        "def train(models, optimizers, scaler, loader, criterion, args):",
        "    for x in loader:",
    ]
    for n, name in enumerate(names):
        lines += [f"        if args.{name}:", f"            o{n} = optimizers[{n}]", f"            o{n}.zero_grad()"]
        lines += ['            with torch.autocast("cuda"):', f"                loss = criterion(models[{n}](x))"]
        lines += ["            scaler.scale(loss).backward()"]
        lines += [f"            scaler.unscale_(o{n})"] if clear or n else []
    for n, name in enumerate(names):
        lines += [f"        if args.{name}:"]
        lines += [f"            torch.nn.utils.clip_grad_norm_(models[{n}].parameters(), 1.0)"]
        lines += [f"            scaler.step(o{n})"]
    return "\n".join([*lines, "        scaler.update()", ""])


@pytest.mark.parametrize("number", [2, 10])
def test_independent_flags_around_right_code_are_no_finding(number: int) -> None:
    assert check_source(flags(number, clear=True)) == []


CLIPPED = """\
import torch

def train(loader, model, optimizer, scaler, use_amp, loss_fn):
    {made}
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=use_amp):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if {test}:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("made", "test", "expected"),
    [
        pytest.param("pass", "use_amp", set(), id="the flag may be that of the scaler"),
        pytest.param('scaler = torch.amp.GradScaler("cuda")', "len(x) > 2", {"AMP201"}, id="a scaler that is live"),
        pytest.param("pass", "True", set(), id="always"),
    ],
)
def test_what_decides_about_unscale_may_decide_about_the_scaler(made: str, test: str, expected: set[str]) -> None:
    found = check_source(CLIPPED.format(made=made, test=test))
    assert {finding.code for finding in found} == expected


SET_LATER = """\
import torch

class Trainer:
    def __init__(self, network):
        self.network = network
        self.optimizer = None
        self.scaler = None

    def initialize(self):
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        {made}

    def run_iteration(self, x):
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = self.network(x).sum()
        self.scaler.scale(loss).backward()
        {clip}
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)"


def test_what_a_constructor_leaves_empty_is_set_by_another_method() -> None:
    made = 'self.scaler = torch.amp.GradScaler("cuda")'
    assert [f.code for f in check_source(SET_LATER.format(made=made, clip=CLIP))] == ["AMP201"]
    assert check_source(SET_LATER.format(made=made, clip="pass")) == []


ONE_CALL = """\
import torch

class Trainer:
    def __init__(self, network, scaler, optimizer):
        self.network, self.scaler, self.optimizer = network, scaler, optimizer

    def run_step(self, {given}):
        {clear}
        with torch.autocast("cuda"):
            {made}
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
MADE = "loss = self.network(x).sum()"


@pytest.mark.parametrize(
    ("given", "clear", "made", "expected"),
    [
        pytest.param("x", "pass", MADE, {("AMP215", False)}, id="cleared nowhere in sight"),
        pytest.param("x", "self.optimizer.zero_grad()", MADE, set(), id="cleared"),
        pytest.param("x", "self.clear_gradients()", MADE, set(), id="what it calls says that it clears"),
        pytest.param("loss", "pass", "pass", set(), id="who makes the loss clears before"),
    ],
)
def test_one_iteration_in_each_call(given: str, clear: str, made: str, expected: set[tuple[str, bool]]) -> None:
    found = check_source(ONE_CALL.format(given=given, clear=clear, made=made))
    assert {(finding.code, finding.certain) for finding in found if finding.code != "AMP110"} == expected


def test_another_file_may_clear_what_is_stepped_in_each_call(tmp_path: Path) -> None:
    trainer = ONE_CALL.format(given="x", clear="pass", made=MADE)
    (tmp_path / "trainer.py").write_text(trainer)
    (tmp_path / "loop.py").write_text("import torch\n\n\ndef clear(trainer):\n    trainer.optimizer.zero_grad()\n")
    assert [f.code for f in check_paths([str(tmp_path / "trainer.py")]).findings] == ["AMP215"]
    assert check_paths([str(tmp_path)]).findings == []


def test_a_test_asks_for_parameters_in_low_precision_on_purpose() -> None:
    source = """\
import torch

def test_three_steps():
    model = torch.nn.Linear(5, 5).half()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.rand(2, 5).half()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert not check_source(source, "test_steps.py")
    assert {f.code for f in check_source(source.replace("test_three_steps", "train"), "train.py")} == {"AMP501"}


#: A loop with an unanalyzed call on an optimizer, with a placeholder for its name.
NEVER_CLEARED = """\
import torch
import helpers

def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    helpers.{name}(optimizer)
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
NEVER_UPDATED = """\
import torch
import helpers

def train(model, x, y, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    helpers.{name}(scaler)
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
"""
CLIPPED_BEHIND = """\
import torch
import helpers

def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        helpers.{name}(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
CLIPPED_BY = CLIPPED_BEHIND.replace("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "pass\n").replace(
    "helpers.{name}(optimizer)", "helpers.{name}(model.parameters(), 1.0)"
)


def reported_by(source: str, name: str) -> list[str]:
    return [finding.code for finding in check_source(source.format(name=name))]


#: A name, and its assumed effects as flags: clear gradients, step and update, touch the gradients at all.
NAMES = {
    "zero": (True, False, True),
    "zero_all": (True, False, True),
    "clearGradients": (True, False, True),
    "unscale": (False, False, True),
    "clip": (False, False, True),
    "scale_all": (False, False, True),
    "amp": (False, False, True),
    "divide": (False, False, True),
    "normalize": (False, False, True),
    "normalise": (False, False, True),
    "average": (False, False, True),
    "step": (False, True, True),
    "update_all": (False, True, True),
    "minimize": (False, True, True),
    "minimise": (False, True, True),
    "backward": (False, False, True),
    "accumulate": (False, False, True),
    **{
        f"one_{word}": (True, True, True)
        for word in (
            "train",
            "trainer",
            "training",
            "fit",
            "optimize",
            "optimise",
            "optimization",
            "epoch",
            "iteration",
            "run",
            "loop",
            "engine",
        )
    },
    **{
        f"step_{word}": (False, False, False)
        for word in (
            "lr",
            "learning",
            "rate",
            "schedule",
            "scheduler",
            "sched",
            "ema",
            "log",
            "logger",
            "print",
            "save",
            "load",
        )
    },
    "zeroLR": (False, False, False),
    "show": (False, False, False),
    "stepper": (False, False, False),
}


@pytest.mark.parametrize("name", NAMES)
def test_code_that_is_not_read_does_what_its_name_speaks_of(name: str) -> None:
    clears, steps, touches = NAMES[name]
    assert reported_by(NEVER_CLEARED, name) == ([] if clears else ["AMP215"])
    assert reported_by(NEVER_UPDATED, name) == ([] if steps else ["AMP206"])
    assert reported_by(CLIPPED_BEHIND, name) == ([] if touches else ["AMP201"])


@pytest.mark.parametrize(
    ("name", "clips"),
    [
        ("clip", True),
        ("clip_all", True),
        ("clipGradients", True),
        ("unscale_and_clip", False),
        ("clip_and_step", False),
        ("clip_update", False),
        ("amp_clip", False),
        ("clip_scale", False),
        ("clipper", False),
        ("show", False),
    ],
)
def test_code_that_is_not_read_clips_where_its_name_says_no_more(name: str, clips: bool) -> None:
    assert reported_by(CLIPPED_BY, name) == (["AMP201"] if clips else [])
