"""Detection rate of non-finite values: forty values planted in six small trainings, and the findings of each run.

    python benchmarks/not_finite.py [--seed 0] [--only NAME] [--cost] [--others]

The trainings run in float16 under ``emulate_cuda()``. For each planted value, the script prints if the run noticed it,
and if module, step and line are correct. Then it prints the findings of the same trainings without the value. With
--cost, it prints the cost of watching for a step of 20 ms without errors, as the median of paired ratios with and
without watching. --others runs the same trainings under other tools, as far as they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import other_tools
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp_check import emulate_cuda, record
from pytest_amp_check.runtime.run import Run

#: Steps of each training, and the first step with a planted value: the loss scale has settled by then.
STEPS, FIRST = 9, 4
ROWS = 8


class Spot(nn.Module):
    """Identity module with switchable errors: forward returns the input until the module is armed with a trap name."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = ""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        if self.armed == "log":
            x = x + (x.float() * 0.0).log().mean()  # log
        elif self.armed == "sqrt":
            x = x + (-x.float().abs() - 1.0).sqrt().mean()  # sqrt
        elif self.armed == "division":
            x = x / (x * 0.0)  # division
        elif self.armed == "exp":
            x = x + (x.float() * 0.0 + 200.0).exp()  # exp
        elif self.armed == "half":
            x = (x.float() * 0.0 + 7e4).half()  # half
        elif self.armed == "square":
            wide = x.half() * 0.0 + 400.0
            x = wide * wide  # square
        elif self.armed == "product":
            wide = x.flatten(1) * 0.0 + 300.0
            x = x + torch.mm(wide, wide.t()).mean()  # product
        elif self.armed == "acos":
            x = x + (x.float() * 0.0 + 1.5).acos()  # acos
        elif self.armed == "masked":
            scores = torch.full_like(x.float(), float("-inf"))
            x = x * scores.softmax(-1)  # masked
        elif self.armed == "root":
            x = x + (x.float() * 0.0).sqrt()  # root
        elif self.armed == "norm":
            x = x + (x.float() * 0.0).pow(0.5).sum()  # norm
        elif self.armed == "trap":
            x = torch.where(x.float() > -1e9, x.float(), (x.float() * 0.0).log() * 0.0)  # trap
        elif self.armed == "edge":
            x = x + (x.float() * 0.0 + 1.0).acos()  # edge
        return x


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.spot, self.second, self.head = nn.Linear(16, 32), Spot(), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(functional.relu(self.second(self.spot(functional.gelu(self.first(x))))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), Spot(), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out, self.spot = nn.Linear(width, 3 * width), nn.Linear(width, width), Spot()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.out(self.spot(weights @ v))
        return x + self.down(functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Layer(16) for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.spot, self.head = nn.Embedding(20, 16), nn.GRU(16, 16), Spot(), nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Any:
        states, _ = self.rnn(self.embedding(tokens).transpose(0, 1))
        return self.head(self.spot(states[-1]))


class Gan(nn.Module):
    """The generator and the discriminator of one training."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), Spot(), nn.Linear(32, 16))
        self.discriminator = nn.Sequential(nn.Linear(16, 32), Spot(), nn.LeakyReLU(0.2), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Any:
        return self.discriminator(self.generator(x))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.middle = nn.Sequential(Spot(), nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.leave = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        entered = self.enter(x)
        risen = self.up(self.middle(self.down(entered)))
        return self.leave(torch.cat([entered, risen], 1)).mean((2, 3))


def images() -> Tensor:
    return torch.randn(ROWS, 3, 8, 8)


def vectors() -> Tensor:
    return torch.randn(ROWS, 16)


def tokens() -> Tensor:
    return torch.randint(0, 20, (ROWS, 6))


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (Mlp, vectors),
    "cnn": (Cnn, images),
    "transformer": (Transformer, tokens),
    "rnn": (Rnn, tokens),
    "gan": (Gan, vectors),
    "unet": (Unet, images),
}


class Place(NamedTuple):
    """The location of a planted value: architecture, kind, target, and use of a scaler."""

    architecture: str
    kind: str
    what: str
    scaler: bool

    def __str__(self) -> str:
        scaled = "scaler" if self.scaler else "no scaler"
        return f"{self.architecture:12} {self.kind:11} {self.what:16} {scaled}"


#: Kind of location -> names of planted values.
KINDS = {
    "op": ("log", "sqrt", "division", "exp", "acos"),
    "loss": ("loss-log", "loss-division", "loss-sqrt"),
    "backward": ("root", "norm", "trap", "edge"),
    "dtype": ("half", "square", "product"),
    "statistic": ("running_var", "running_mean"),
    "input": ("nan", "inf"),
    "weight": ("nan", "inf"),
    "embedding": ("nan", "inf"),
    "state": ("exp_avg", "exp_avg_sq"),
    "rate": ("1e30", "inf"),
    "mask": ("masked",),
}
WITH_STATISTICS = ("cnn",)
WITH_EMBEDDINGS = ("transformer", "rnn")
WITH_BATCHES = ("mlp", "cnn", "gan", "unet")
#: Number of locations of each kind. The sum is forty.
COUNTS = {
    "op": 8,
    "loss": 5,
    "backward": 6,
    "dtype": 5,
    "statistic": 2,
    "input": 3,
    "weight": 3,
    "embedding": 2,
    "state": 2,
    "rate": 2,
    "mask": 2,
}


def places(seed: int) -> list[Place]:
    """Draw forty locations, so that each architecture and each kind has its share."""
    draw = random.Random(seed)  # noqa: S311 - a benchmark
    chosen: list[Place] = []
    for kind, count in COUNTS.items():
        only = {"statistic": WITH_STATISTICS, "embedding": WITH_EMBEDDINGS, "input": WITH_BATCHES}.get(kind)
        names = list(only or ARCHITECTURES)
        draw.shuffle(names)
        for number in range(count):
            what = KINDS[kind][number % len(KINDS[kind])]
            scaler = kind in ("op", "loss", "dtype", "input", "mask") and draw.random() < 0.5
            chosen.append(Place(names[len(chosen) % len(names)], kind, what, scaler))
    return chosen


class Training:
    """One training, with a value planted at a location in one step, or without a planted value."""

    def __init__(self, architecture: str, place: Place | None, seed: int, *, scaler: bool) -> None:
        torch.manual_seed(seed)
        make, batch = ARCHITECTURES[architecture]
        self.model = make().cuda()
        self.batch = batch
        self.place = place
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=scaler)
        draw = random.Random(seed)  # noqa: S311 - a benchmark
        self.step = draw.randrange(FIRST, STEPS - 2)
        self.spot = draw.choice([m for m in self.model.modules() if isinstance(m, Spot)])
        self.module: str | None = self.name_of(self.spot)
        self.draw = draw

    def name_of(self, module: nn.Module) -> str:
        return next(str(name) for name, each in self.model.named_modules() if each is module)

    def run(self) -> Run:
        with record() as run:
            for number in range(STEPS):
                self.train(number)
        return run

    def train(self, number: int) -> float:
        now = self.place if number == self.step else None
        x, y = self.batch().cuda(), torch.randint(0, 4, (ROWS,)).cuda()
        if now is not None:
            x = self.plant(now, x)
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = self.model(x)
            loss = functional.cross_entropy(out, y)
            if now is not None and now.what == "loss-log":
                loss = loss + (out.float() * 0.0).log().mean()  # loss-log
            elif now is not None and now.what == "loss-division":
                loss = (loss * 0.0) / (loss * 0.0)  # loss-division
            elif now is not None and now.what == "loss-sqrt":
                loss = loss + (-out.float().abs() - 1.0).sqrt().mean()  # loss-sqrt
        self.spot.armed = ""
        torch.autograd.backward(self.scaler.scale(loss))
        if now is not None and now.kind == "state":
            self.spoil_state(now)
        for group in self.optimizer.param_groups:
            group["lr"] = float(now.what) if now is not None and now.kind == "rate" else 1e-3
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return float(loss.detach())

    def plant(self, place: Place, x: Tensor) -> Tensor:
        if place.kind in ("op", "backward", "dtype", "mask"):
            self.spot.armed = place.what
        elif place.kind == "loss":
            self.module = None
        elif place.kind == "input":
            x[self.draw.randrange(ROWS)] = float(place.what)
            self.module = next(
                str(name) for name, module in self.model.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))
            )
        elif place.kind in ("weight", "embedding"):
            self.spoil_weight(place)
        elif place.kind == "statistic":
            norm = self.draw.choice([m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)])
            getattr(norm, place.what).fill_(float("nan"))
            self.module = self.name_of(norm)
        return x

    def spoil_weight(self, place: Place) -> None:
        kinds = (nn.Embedding,) if place.kind == "embedding" else (nn.Linear, nn.Conv2d)
        module = self.draw.choice([m for m in self.model.modules() if isinstance(m, kinds)])
        assert isinstance(module.weight, Tensor)
        module.weight.data.fill_(float(place.what))
        self.module = self.name_of(module)

    def spoil_state(self, place: Place) -> None:
        module = self.draw.choice([m for m in self.model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))])
        key = place.what
        self.optimizer.state[module.weight][key].fill_(float("nan"))
        self.module = self.name_of(module)


class Verdict(NamedTuple):
    noticed: bool
    module: bool
    step: bool
    line: bool | None
    said: str


def line_of(what: str) -> int | None:
    """Return the line of this file that makes a planted value, or None."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith(f"  # {what}")), None)


def checked(training: Training, run: Run) -> Verdict:
    """Compare the first finding of a run about non-finite values with the planted value."""
    place = training.place
    assert place is not None
    found = [finding for finding in run.findings if finding.code in ("AMP802", "AMP801")]
    line = line_of(place.what)
    if not found or run.failure is not None:
        return Verdict(False, False, False, None if line is None else False, repr(run.failure or ""))
    first = min(found, key=lambda finding: int(finding.names.get("step", "0")))
    names = first.names
    reported = names.get("where", "")
    if training.module is None:
        module = "outside" in reported
    elif place.kind == "rate":
        # All modules have weights of the same step: the finding names one of them, and the planted rate.
        rate = f"learning rate is {float(place.what):g}"
        module = any(reported.startswith(f"`{name}`") for name, _ in training.model.named_modules() if name)
        module = module and rate in first.message
    elif place.kind == "input":
        # The batch is the model's input; the finding names the first module that reads the batch.
        module = names.get("first") == "input" and reported.startswith(f"`{training.module}`")
    else:
        module = reported.startswith(f"`{training.module}`")
    step = int(names.get("since" if place.kind == "rate" else "step", "-1")) == training.step
    right = None if line is None else (first.site.path == __file__ and first.line == line)
    return Verdict(True, module, step, right, f"{first.line}: {first.message}")


def others(seed: int, only: str) -> Iterator[str]:
    """Yield rows about other tools on the same trainings: their own reports, and results as strict as ours."""
    for name, (package, ask) in other_tools.TOOLS.items():
        version = other_tools.installed(package)
        if version is None:
            yield f"{name}: not installed"
            continue
        noticed = module = step = line = lines = failed = count = 0
        for number, place in enumerate(places(seed)):
            if only not in str(place):
                continue
            count += 1
            training, seen, error = asked(ask, place.architecture, place, seed + number, scaler=place.scaler)
            failed += error is not None
            due = line_of(place.what)
            lines += due is not None
            if seen is not None:
                noticed += 1
                module += seen.module is not None and seen.module == training.module
                # Weights that a step has made non-finite show in the next step.
                step += seen.step == training.step + (place.kind in ("state", "rate"))
                line += due is not None and seen.line == (__file__, due)
        clean = [
            asked(ask, architecture, None, seed, scaler=scaler)
            for architecture in ARCHITECTURES
            for scaler in (True, False)
        ]
        loud = sum(seen is not None for _, seen, _ in clean)
        failures = sum(error is not None for _, _, error in clean) + failed
        yield (
            f"{name} ({package} {version}): noticed {noticed}, module right {module}, step right {step} of {count}; "
            f"line right {line} of {lines}; alarms in {loud} of {len(clean)} clean trainings; {failures} ended in an "
            "exception of the tool"
        )


def asked(
    ask: other_tools.Tool, architecture: str, place: Place | None, seed: int, *, scaler: bool
) -> tuple[Training, other_tools.Seen | None, Exception | None]:
    """Return a training with the report of a tool about the training, or with the exception that ended it."""
    with emulate_cuda(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        training = Training(architecture, place, seed, scaler=scaler)
        given = other_tools.Training(training.model, training.optimizer, STEPS, training.train)
        try:
            return training, ask(given), None
        except Exception as error:  # noqa: BLE001 - a tool that cannot watch a training is counted as such
            return training, None, error


def cost(pairs: int = 24, milliseconds: float = 20.0) -> Iterator[str]:
    """Yield rows about the cost of watching without errors, on a network whose step takes ``milliseconds``."""
    torch.set_num_threads(1)
    for scaled in (True, False):
        torch.manual_seed(0)
        width = 64
        while True:
            blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(12)]
            model = nn.Sequential(*blocks, nn.Linear(width, 10))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            scaler = torch.amp.GradScaler("cpu", enabled=scaled)
            x, y = torch.randn(64, width), torch.randint(0, 10, (64,))

            def step() -> None:
                optimizer.zero_grad()  # noqa: B023 - called before the next iteration
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = functional.cross_entropy(model(x), y)  # noqa: B023
                torch.autograd.backward(scaler.scale(loss))  # noqa: B023
                scaler.step(optimizer)  # noqa: B023
                scaler.update()  # noqa: B023

            seconds(step, 4)
            if seconds(step, 8) * 1000 >= milliseconds:
                break
            width += 64
        ratios = [ratio(step) for _ in range(pairs)]
        low, _, high = statistics.quantiles(ratios, n=4)
        how = "with a scaler" if scaled else "without"
        spread = f"quartiles {low:.3f} to {high:.3f}, {pairs} pairs, width {width}"
        yield f"{how}: {statistics.median(ratios):.3f} ({spread})"


def ratio(step: Callable[[], None]) -> float:
    recording: Any = record()
    recording._recorder.nonfinite_reports.explain = None
    with recording:
        seconds(step, 4)
        without = seconds(step, 16)
    with record():
        seconds(step, 4)
        return seconds(step, 16) / without


def seconds(step: Callable[[], None], times: int) -> float:
    """Return the processor time of a step, which depends less on other processes than wall-clock time."""
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the places, the steps and the weights")
    parser.add_argument("--only", default="", help="places whose line holds these words")
    parser.add_argument("--cost", action="store_true", help="also time a step of 20 ms")
    parser.add_argument("--others", action="store_true", help="also put the places to other tools")
    options = parser.parse_args()
    torch.set_num_threads(1)
    verdicts = []
    for number, place in enumerate(places(options.seed)):
        if options.only not in str(place):
            continue
        with emulate_cuda():
            training = Training(place.architecture, place, options.seed + number, scaler=place.scaler)
            verdict = checked(training, training.run())
        verdicts.append(verdict)
        marks = "".join("-" if each is None else "+" if each else "!" for each in verdict[:4])
        print(f"{marks} {place} step {training.step}")
        if "!" in marks:
            print(f"     {training.module}: {verdict.said}")
    lines = [verdict.line for verdict in verdicts if verdict.line is not None]
    print(
        f"noticed {sum(v.noticed for v in verdicts)}, module right {sum(v.module for v in verdicts)}, step right"
        f" {sum(v.step for v in verdicts)} of {len(verdicts)}; line right {sum(lines)} of the {len(lines)} a line makes"
    )
    for name in ARCHITECTURES:
        for scaler in (True, False):
            with emulate_cuda():
                run = Training(name, None, options.seed, scaler=scaler).run()
            loud = [finding for finding in run.findings if finding.code.startswith("AMP8")]
            print(f"clean {name} {'with' if scaler else 'without'} a scaler: {loud or 'silent'}")
    if options.others:
        for line in others(options.seed, options.only):
            print(line)
    if options.cost:
        for line in cost():
            print(f"cost of a step of 20 ms {line}")


if __name__ == "__main__":
    main()
