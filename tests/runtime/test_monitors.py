"""Monitors in the frameworks themselves: they record the training, log figures, and change nothing."""

from __future__ import annotations

import ast
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from warm import run_python

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]

#: Trains three times: without a monitor, with one, and with one that sees an exception. Prints a dict.
BEGIN = """\
import logging, sys, warnings
import torch

warnings.simplefilter("ignore")
logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s %(message)s")
told = {}


class Failed(Exception):
    pass


class Net(torch.nn.Module):
    fails = False

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        if self.fails:
            raise Failed
        return {"loss": (self.inner(x) - 1.0).square().mean()}


def tell(name, run, net):
    told[name] = {
        "weights": net.inner.weight.tolist(),
        "scales": [scale for _, scale in run.scale_history] if run else None,
        "skipped": [step.skipped for step in run.steps] if run else None,
        "reasons": [step.skip_reason for step in run.steps] if run else None,
        "codes": [finding.code for finding in run.findings] if run else None,
    }


BEFORE = torch.amp.GradScaler.step


def is_patched():
    return torch.amp.GradScaler.step is not BEFORE

"""
LIGHTNING = """\
import lightning.pytorch as L
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.precision import MixedPrecision
from pytest_amp_check.monitors.lightning import AmpMonitor


class Kept(Logger):
    name, version = "kept", "0"

    def __init__(self):
        super().__init__()
        self.values = []

    def log_metrics(self, metrics, step=None):
        self.values.append((dict(metrics), step))

    def log_hyperparams(self, *given):
        pass


class Module(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        return self.net(batch[0])["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(monitor, fails=False):
    L.seed_everything(0)
    net = Net()
    net.fails = fails
    kept = Kept()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)], logger=kept,
        callbacks=[monitor] if monitor else [], log_every_n_steps=2, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(32, 4)), batch_size=4)
    trainer.fit(Module(net), data)
    return net, [(values, step) for values, step in kept.values if "amp/scale" in values]


monitor = AmpMonitor(norms=True)
tell("alone", None, train(None)[0])
net, told["logged"] = train(monitor)
tell("monitored", monitor.run, net)
told["norms"] = monitor.run.steps[-1].grad_norm is not None
try:
    train(monitor, fails=True)
except Failed:
    told["failed"] = monitor.run.steps_total
told["patched"] = is_patched()
print(told)
"""
TRANSFORMERS = """\
from transformers import Trainer, TrainingArguments
from pytest_amp_check import emulate_cuda
from pytest_amp_check.monitors.transformers import AmpMonitor


def train(monitor, fails=False):
    torch.manual_seed(0)
    net = Net()
    net.fails = fails
    arguments = TrainingArguments(
        "out", fp16=True, per_device_train_batch_size=4, logging_steps=2, num_train_epochs=1, report_to="none",
        save_strategy="no", disable_tqdm=True, optim="sgd", learning_rate=0.01,
    )
    data = [{"x": torch.ones(4), "labels": torch.zeros(1)} for _ in range(32)]
    trainer = Trainer(net, arguments, train_dataset=data, callbacks=[monitor] if monitor else [])
    trainer.accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**18)
    trainer.train()
    kept = [entry for entry in trainer.state.log_history if "amp/scale" in entry]
    return net, [({n: e[n] for n in ("amp/scale", "amp/skipped")}, e["step"]) for e in kept]


with emulate_cuda():
    monitor = AmpMonitor(norms=True)
    tell("alone", None, train(None)[0])
    net, told["logged"] = train(monitor)
    tell("monitored", monitor.run, net)
    told["norms"] = monitor.run.steps[-1].grad_norm is not None
    try:
        train(monitor, fails=True)
    except Failed:
        told["failed"] = monitor.run.steps_total
    monitor.close()
told["patched"] = is_patched()
print(told)
"""
ACCELERATE = """\
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker
from pytest_amp_check import emulate_cuda
from pytest_amp_check.monitors.accelerate import AmpMonitor


class Kept(GeneralTracker):
    name, requires_logging_directory, tracker = "kept", False, None

    def __init__(self):
        super().__init__()
        self.values = []

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **given):
        self.values.append((dict(values), step))


def prepare(fails=False):
    AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    net, kept = Net(), Kept()
    net.fails = fails
    accelerator = Accelerator(mixed_precision="fp16", log_with=kept)
    accelerator.init_trackers("project")
    accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**18)
    return accelerator, net, kept, accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))


def train(accelerator, model, optimizer, log):
    for step in range(1, 9):
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(4, 4, device=accelerator.device))["loss"])
        optimizer.step()
        if step % 2 == 0:
            log(step)


with emulate_cuda():
    accelerator, net, kept, prepared = prepare()
    train(accelerator, *prepared, lambda step: None)
    tell("alone", None, net)
    accelerator, net, kept, prepared = prepare()
    with AmpMonitor(accelerator, norms=True) as monitor:
        train(accelerator, *prepared, monitor.log)
    tell("monitored", monitor.run, net)
    told["logged"] = kept.values
    told["norms"] = monitor.run.steps[-1].grad_norm is not None
    accelerator, net, kept, prepared = prepare(fails=True)
    try:
        with AmpMonitor(accelerator) as monitor:
            train(accelerator, *prepared, monitor.log)
    except Failed:
        told["failed"] = monitor.run.steps_total
told["patched"] = is_patched()
print(told)
"""


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **offline, "PYTHONPATH": path}


def train(program: str, folder: Path) -> dict[str, Any]:
    done = run_python("-c", BEGIN + program, cwd=folder, env=environment(folder))
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = ast.literal_eval(done.stdout.splitlines()[-1])
    return reported


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "program"),
    [("lightning", LIGHTNING), ("transformers", TRANSFORMERS), ("accelerate", ACCELERATE)],
)
def test_a_monitor_records_and_changes_nothing(framework: str, program: str, tmp_path: Path) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    reported = train(program, tmp_path)
    alone, monitored = reported["alone"], reported["monitored"]
    assert alone["weights"] == monitored["weights"]
    # The gradients of the first steps overflow, until the scaler has halved the scale often enough.
    skipped = monitored["skipped"]
    assert len(skipped) == 8
    skips = sum(skipped)
    assert 0 < skips < 8
    assert skipped == [True] * skips + [False] * (8 - skips)
    assert monitored["scales"] == [2.0 ** (18 - number) for number in range(skips + 1)]
    assert monitored["reasons"][0] == "gradients are not finite at the loss scale 262144"
    assert monitored["reasons"][-1] is None
    assert monitored["codes"] == []
    assert reported["norms"]
    # Every second step, the scale and the skips since the last log are logged.
    logged = reported["logged"]
    assert [step for _, step in logged] == [2, 4, 6, 8]
    assert sum(values["amp/skipped"] for values, _ in logged) == skips
    assert logged[-1][0]["amp/scale"] == monitored["scales"][-1]
    # An exception of the program ends the recording.
    assert reported["failed"] == 0
    assert reported["patched"] is False


NEVER_TRAINED = """\
from pytest_amp_check.monitors.monitored import MonitoredTraining
try:
    MonitoredTraining({}).run
except RuntimeError as error:
    print(error)
"""


def test_a_monitor_without_a_training_has_no_run(tmp_path: Path) -> None:
    done = run_python("-c", NEVER_TRAINED, cwd=tmp_path, env=environment(tmp_path))
    assert done.stdout == "the monitor has recorded no training yet: give it to the trainer, and train\n"


FINDING = """\
import torch
from pytest_amp_check.monitors.monitored import MonitoredTraining

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
training = MonitoredTraining({})
training.begin(model)
assert training.take_figures() == {}
scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
assert training.take_figures() == {"amp/scale": 1024.0, "amp/skipped": 0.0}
assert training.take_figures() == {}
training.end()
assert training.take_figures() == {}
training.end()
training.begin(None)
optimizer.step()
assert training.take_figures() == {"amp/skipped": 0.0}
training.end()
"""


def test_findings_are_logged_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FINDING, encoding="utf-8")
    done = run_python("train.py", cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "train.py:11: AMP201 `torch.nn.utils.clip_grad_norm_` clips gradients" in done.stderr
