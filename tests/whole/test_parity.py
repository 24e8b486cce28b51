"""Findings of a run equal the marks, and analyzer and recorder give the same messages."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import re
import runpy
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from marks import MISTAKES, Places, marks, one_sided, shown
from negative_examples import negative_examples
from samples import sample

from pytest_amp_check.protocol.rule import STATIC
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

torch = pytest.importorskip("torch")

from agreement import IMPOSSIBLE, Recorded, found_exactly, recorded  # noqa: E402 - needs torch, as the next ones do
from runtime_programs import GIVEN_UP, Program  # noqa: E402
from torch import nn  # noqa: E402

from pytest_amp_check import emulate_cuda  # noqa: E402

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SCRIPTS = {path.relative_to(FIXTURES).as_posix(): path for path in sorted(FIXTURES.rglob("*.py"))}
#: Rules about source text, which a run does not have.
OF_TEXT = {"AMP902", "AMP903", "AMP904"}
EXAMPLES = [(code, kind) for code in RULES if code not in OF_TEXT for kind in ("bad", "good")]
NEGATIVE_EXAMPLES = sample(
    [
        (code, number)
        for code, rule in RULES.items()
        if code not in OF_TEXT
        for number in range(len(negative_examples(rule)))
        if rule.detected_by != STATIC
    ],
    6,
)

#: Findings whose two messages cannot be equal, and why: "fixture.py:line AMPnnn" -> reason. It may only shrink.
SAID_DIFFERENTLY: dict[str, str] = dict.fromkeys(
    ("scaling/unscale_out_of_order_bad.py:26 AMP209", "AMP209 bad:15 AMP209"),
    "what skips a step is written in the source, and does nothing that a run sees",
)
#: Number of marks that count for only one of analyzer and recorder, though both decide the rule. It may only shrink.
ONE_SIDED = 6
#: Share of the negative examples that run to their end. The others need missing libraries, or undefined names.
RUNNABLE = 0.53

#: Codes that are impossible on this machine, or that its torch cannot show.
HERE = {*IMPOSSIBLE, *(["AMP217"] if torch.cuda.is_available() else [])}
if torch.__version__ < "2.5":
    # Graph nodes of this version do not have the dtype of their result.
    HERE |= {"AMP110", "AMP702"}

pytestmark = pytest.mark.usefixtures("patched_once", "alone_in_a_folder")


@functools.cache
def run_of(name: str) -> Recorded:
    """Run a fixture under the recorder."""
    return recorded(lambda: runpy.run_path(str(SCRIPTS[name]), run_name="__main__"))


def expected(source: str) -> Places:
    return {(line, code) for line, code in marks(source, "runtime") if code not in HERE}


def said_equally(name: str, run: Recorded, source: str) -> int:
    """Check that common findings have equal messages. Return the number of compared findings."""
    static = {(f.line, f.code): f.message for f in check_source(source, "script.py", Settings(select=MISTAKES))}
    compared = 0
    for finding in run.findings:
        message = static.get((finding.line, finding.code))
        if message is not None:
            compared += 1
            place = f"{name}:{finding.line} {finding.code}"
            differs = finding.message != message
            assert differs == (place in SAID_DIFFERENTLY), f"{place}\nsource: {message}\nrun:    {finding.message}"
    return compared


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_of_a_fixture_finds_exactly_what_it_marks(name: str) -> None:
    """Analyzer and recorder also have the same messages, which is checked here because each run takes time."""
    run = run_of(name)
    assert run.error is None
    source = SCRIPTS[name].read_text(encoding="utf-8")
    found_exactly(run, SCRIPTS[name], expected(source))
    if SCRIPTS[name].stem.endswith("_bad"):
        said_equally(name, run, source)


def test_many_findings_are_common_to_both_readers() -> None:
    source = (FIXTURES / "headline.py").read_text(encoding="utf-8")
    assert said_equally("headline.py", run_of("headline.py"), source) == 3
    both = [
        mark
        for path in SCRIPTS.values()
        for mark in marks(path.read_text(encoding="utf-8")) & expected(path.read_text(encoding="utf-8"))
    ]
    assert len(both) >= 70
    assert len({code for _, code in both}) >= 24


def test_marks_of_one_reader_become_no_more() -> None:
    taken = [
        f"{name}:{line} {code} {reader} only"
        for name, path in SCRIPTS.items()
        for line, code, reader in one_sided(path.read_text(encoding="utf-8"))
    ]
    print(*taken, sep="\n")  # noqa: T201 - shown by -rP
    assert len(taken) <= ONE_SIDED


@pytest.mark.parametrize(("code", "kind"), EXAMPLES)
def test_a_run_of_an_example_finds_exactly_what_it_marks(code: str, kind: str, tmp_path: Path) -> None:
    source: str = getattr(RULES[code], f"{kind}_example")
    script = tmp_path / f"{kind}.py"
    script.write_text(source, encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    found_exactly(run, script, expected(source))
    said_equally(f"{code} {kind}", run, source)


# Negative examples are mostly functions and lines without context. The context is added here.


class Net(nn.Module):
    def __init__(self, config: object = None) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.embedding = nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Any, y: Any = None) -> Any:
        out = self.head(torch.relu(self.embedding(self.body(x))))
        return out if y is None else nn.functional.mse_loss(out, y)


class LossScaler:
    """The loss scaler of timm."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss: Any, optimizer: Any, clip_grad: Any, parameters: Any, need_update: bool = True) -> None:
        self.scaler.scale(loss).backward()
        if need_update:
            if clip_grad is not None:
                self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, clip_grad)
            self.scaler.step(optimizer)
            self.scaler.update()


def surroundings(source: str) -> dict[str, Any]:
    """Return the objects that negative examples assume to exist, by name, as far as the source mentions them."""
    torch.manual_seed(0)
    adam = functools.partial(torch.optim.AdamW, lr=1e-3)
    batches = [(torch.randn(4, 8), torch.rand(4, 1)) for _ in range(4)]
    x, y = batches[0]
    x = x.clone().requires_grad_()

    def loss_fn(output: Any, target: Any) -> Any:
        """Return a loss so small that no step is skipped."""
        return 0.01 * nn.functional.mse_loss(output, target)

    def loss() -> Any:
        with torch.autocast("cuda", dtype=torch.float16):
            return loss_fn(the("model")(x), y)

    def adversarial(*scores: Any) -> Any:
        return 0.01 * sum(score.float().mean() for score in scores)

    def checkpoint() -> io.BytesIO:
        file = io.BytesIO()
        torch.save(
            {"model": the("model").state_dict(), "optimizer": the("optimizer").state_dict(), "scaler": {}},
            file,
        )
        file.seek(0)
        return file

    makers: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch,
        "nn": lambda: nn,
        "F": lambda: nn.functional,
        "contextlib": lambda: contextlib,
        "copy": lambda: copy,
        "Net": lambda: Net,
        "Encoder": lambda: Net,
        "Decoder": lambda: Net,
        "build": lambda: Net,
        "config": lambda: {"amp": True, "epochs": 2},
        "model": Net,
        "encoder": lambda: the("model"),
        "layer": lambda: the("model").head,
        "student": Net,
        "average": lambda: the("student"),
        "decoder": lambda: the("student"),
        "frozen": lambda: the("student"),
        "probe": lambda: copy.deepcopy(the("student")),
        "linear": lambda: the("model").body,
        "optimizer": lambda: adam(the("model").parameters()),
        "base": lambda: the("optimizer"),
        "opt_e": lambda: the("optimizer"),
        "optimizers": lambda: [the("optimizer"), adam(the("student").parameters())],
        "scaler": lambda: torch.amp.GradScaler("cuda"),
        "loss_scaler": LossScaler,
        "generator": lambda: nn.Linear(1, 8),
        "opt_g": lambda: adam(the("generator").parameters()),
        "g_loss": lambda: adversarial,
        "discriminator": lambda: nn.Linear(8, 1),
        "opt_d": lambda: adam(the("discriminator").parameters()),
        "d_loss": lambda: adversarial,
        "critic": lambda: the("discriminator"),
        "opt_c": lambda: adam(the("discriminator").parameters()),
        "c_loss": lambda: adversarial,
        "n_critic": lambda: 2,
        "loader": lambda: batches,
        "batches": lambda: batches,
        "valid_loader": lambda: batches,
        "valid": lambda: batches,
        "epochs": lambda: 2,
        "k": lambda: 2,
        "x": lambda: x,
        "y": lambda: y,
        "inputs": lambda: x,
        "targets": lambda: y,
        "labels": lambda: y,
        "batch": lambda: (x, y),
        "windows": lambda: [batches[:2], batches[2:]],
        "folds": lambda: [batches] * 2,
        "stages": lambda: [batches] * 2,
        "loss_fn": lambda: loss_fn,
        "criterion": lambda: loss_fn,
        "loss": loss,
        "auxiliary": loss,
        "losses": lambda: [loss(), loss()],
        "reconstruction": loss,
        "adversarial": loss,
        "penalty": lambda: lambda model: model.head.weight.square().sum(),
        "loss_of": lambda: lambda batch: loss(),
        "centers": lambda: nn.Parameter(torch.randn(4, 8)),
        "center_optimizer": lambda: adam([the("centers")]),
        "center_loss": lambda: torch.sum,
        "use_amp": lambda: True,
        "fp16": lambda: True,
        "enabled": lambda: True,
        "dtype": lambda: torch.bfloat16,
        "device_type": lambda: "cuda",
        "max_norm": lambda: 1.0,
        "limit": lambda: 0.5,
        "lr": lambda: 1e-3,
        "step": lambda: 0,
        "path": checkpoint,
        "history": list,
        "outputs": list,
        "log": lambda: lambda *_: None,
        "writer": lambda: types.SimpleNamespace(add_histogram=lambda *_: None),
        "scheduler": lambda: torch.optim.lr_scheduler.ConstantLR(the("optimizer")),
        "schedule": lambda: lambda i: 128.0,
        "callbacks": lambda: types.SimpleNamespace(after_step=lambda scaler: scaler.update()),
        "saliency_of": lambda: abs,
        "extra_state": lambda: lambda scaler: {"scaler": scaler.state_dict()},
        "closure": lambda: loss,
        "query": lambda: torch.randn(2, 4, 8),
        "key": lambda: torch.randn(2, 4, 8),
        "mask": lambda: torch.zeros(4, 4).bool(),
        "length": lambda: 4,
        "causal_mask": lambda: torch.zeros(4, 4).bool(),
        "router": lambda: the("model").body,
        "tokens": lambda: x,
    }
    made: dict[str, Any] = {}

    def the(name: str) -> Any:
        if name not in made:
            made[name] = makers[name]()
        return made[name]

    spoken_of = set(re.findall(r"\w+", source))
    return {name: the(name) for name in makers if name in spoken_of}


def play(script: Path) -> None:
    """Run a negative example, and the functions that it only defines, as a CUDA machine would."""
    with emulate_cuda():
        source = script.read_text(encoding="utf-8")
        namespace = runpy.run_path(str(script), init_globals=surroundings(source), run_name="__main__")
        for function in list(namespace.values()):
            if not inspect.isfunction(function) or function.__code__.co_filename != str(script):
                continue
            given = surroundings(source)
            names = inspect.signature(function).parameters
            missing = [n for n, p in names.items() if n not in given and p.default is p.empty]
            if missing:
                raise NameError(f"nobody gives {', '.join(missing)}")
            made = function(**{n: given[n] for n in names if n in given})
            if isinstance(made, Iterator):
                list(made)


@pytest.mark.long
def test_runs_of_negative_examples_stay_silent_and_most_run_to_their_end(tmp_path: Path) -> None:
    """One test, because the number of runs that end is a property of all. A failure names each wrong example."""
    wrong, ended = [], 0
    for code, number in NEGATIVE_EXAMPLES:
        reason, source = negative_examples(RULES[code])[number]
        script = tmp_path / f"{code}_{number}.py"
        script.write_text(source, encoding="utf-8")
        run = recorded(lambda script=script: play(script))  # type: ignore[misc] # a default binds the loop's value
        ended += run.error is None
        found = [finding for finding in run.findings if finding.code == code]
        if run.failure is not None or found:
            wrong.append(f"{code}: {reason}\n{run.failure!r}\n{shown(found)}")
    print(ended, "of", len(NEGATIVE_EXAMPLES), "negative examples run")  # noqa: T201 - shown by -rP
    assert not wrong, "\n".join(wrong)
    assert ended >= RUNNABLE * len(NEGATIVE_EXAMPLES)


@pytest.mark.parametrize("program", GIVEN_UP, ids=[program.name for program in GIVEN_UP])
def test_gradients_that_a_run_takes_to_be_given_up_are_so_in_source(program: Program) -> None:
    """The analyzer has no finding; the findings of the run are checked with all negative examples."""
    assert check_source(program.source(3)) == []
