"""Checkpoints as users write them: with an optimizer and without the scaler, and similar correct programs."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import checkpoint_programs as programs
import pytest
from marks import marks, places, shown

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.static.engine import check_paths, check_source

OF_CHECKPOINTS = {"AMP401", "AMP402"}


def _parts(text: str) -> dict[str, str]:
    """Return programs by title."""
    return dict(part.split("\n", 1) for part in text.split("## ")[1:])


SCRIPTS = {
    title: f"{programs.IMPORTS}\n\n{programs.EPOCH}{programs.SCRIPT}{indent(body, '    ')}"
    for title, body in _parts(programs.SCRIPTS).items()
}
TRAINERS = {title: f"{programs.IMPORTS}\n\n{programs.EPOCH}{body}" for title, body in _parts(programs.TRAINERS).items()}
WHOLE = {title: f"{programs.IMPORTS}\n\n{body}" for title, body in _parts(programs.WHOLE).items()}
PROGRAMS = {**SCRIPTS, **TRAINERS, **WHOLE}
FILES = _parts(programs.FILES)
#: Programs of several files whose mistake is not found yet.
NOT_YET = {"optimizers that a helper finds by their class"}


def of_checkpoints(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.code in OF_CHECKPOINTS]


def test_every_program_has_a_title_of_its_own() -> None:
    assert len(PROGRAMS) == len(SCRIPTS) + len(TRAINERS) + len(WHOLE)
    assert len(PROGRAMS) == sum(t.count("## ") for t in (programs.SCRIPTS, programs.TRAINERS, programs.WHOLE))


@pytest.mark.parametrize("title", PROGRAMS)
def test_what_is_marked_is_found(title: str) -> None:
    found = of_checkpoints(check_source(PROGRAMS[title]))
    assert places(found) == marks(PROGRAMS[title]), shown(found)


@pytest.mark.parametrize("title", SCRIPTS)
def test_a_scaler_that_is_off_has_nothing_to_save(title: str) -> None:
    """The same scripts with a disabled scaler: no scale influences the steps of the optimizer."""
    text = SCRIPTS[title].replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)')
    found = [finding for finding in check_source(text) if finding.code == "AMP401"]
    assert not found, shown(found)


@pytest.mark.parametrize("title", [title for title, text in SCRIPTS.items() if "AMP401" in text])
def test_the_scalers_state_in_a_file_beside_settles_it(title: str) -> None:
    text = SCRIPTS[title].replace("# AMP401", "") + "    torch.save(scaler.state_dict(), args.out + '.scaler')\n"
    found = of_checkpoints(check_source(text))
    assert not found, shown(found)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=pytest.mark.xfail(strict=True, reason="objects are not searched for what they hold"))
        if title in NOT_YET
        else title
        for title in FILES
    ],
)
def test_checkpoints_across_files(title: str, tmp_path: Path) -> None:
    wanted: set[tuple[str, int, str]] = set()
    for part in re.split(r"^# (?=\w+\.py$)", FILES[title], flags=re.MULTILINE)[1:]:
        name, text = part.split("\n", 1)
        (tmp_path / name).write_text(text)
        wanted |= {(name, *mark) for mark in marks(text)}
    findings = of_checkpoints(check_paths([str(tmp_path)]).findings)
    assert {(Path(f.filename).name, f.line, f.code) for f in findings} == wanted, shown(findings)


@pytest.mark.parametrize(
    ("resume", "severity"),
    [
        ("", "info"),
        ("def resume(model, path):\n    model.load_state_dict(torch.load(path))\n", "info"),
        ("def resume(model, held):\n    model.load_state_dict(held)\n    # optimizer.load_state_dict(held)\n", "info"),
        ("def keep(model, held):\n    model.load_state_dict(held)\n    held['optimizer'] = None\n", "info"),
        ("def resume(optimizer, path):\n    optimizer.load_state_dict(torch.load(path)['opt'])\n", "warning"),
        (
            "def resume(opts, held):\n    for o, s in zip(opts, held['optimizers']):\n        o.load_state_dict(s)\n",
            "warning",
        ),
    ],
)
def test_a_checkpoint_of_which_nothing_is_resumed_is_worth_less(resume: str, severity: str, tmp_path: Path) -> None:
    title = next(title for title, source in SCRIPTS.items() if "# AMP401" in source and "load_state_dict" not in source)
    (tmp_path / "train.py").write_text(SCRIPTS[title])
    (tmp_path / "resume.py").write_text(f"import torch\n\n{resume}")
    (found,) = of_checkpoints(check_paths([str(tmp_path)]).findings)
    assert (found.severity, "no analyzed code loads it" in found.message) == (severity, severity == "info")
    # A single file does not show everything that the project loads.
    (found,) = of_checkpoints(check_paths([str(tmp_path / "train.py")]).findings)
    assert found.severity == "warning"


def test_a_scaler_that_is_made_in_each_epoch_has_nothing_worth_saving() -> None:
    """The recreation of the scaler is the mistake, and the only finding."""
    source = """
import torch

def epoch(model, criterion, optimizer, loader):
{new}    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def main(model, criterion, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        epoch(model, criterion, optimizer, loader)
        torch.save({{"optimizer": optimizer.state_dict()}}, "last.pt")
    optimizer.load_state_dict(torch.load("last.pt")["optimizer"])

{once}main({model}, torch.nn.MSELoss(), [])
"""
    new, model = 'scaler = torch.amp.GradScaler("cuda")\n', "torch.nn.Linear(2, 2)"
    codes = {f.code for f in check_source(source.format(new=f"    {new}", once="", model=model), "train.py")}
    assert codes == {"AMP208"}
    codes = {f.code for f in check_source(source.format(new="", once=new, model=model), "train.py")}
    assert codes == {"AMP401"}


def test_an_object_of_a_library_that_runs_backward_is_no_scaler() -> None:
    source = """
import torch

def train(accel, model, optimizer, loader):
    for x in loader:
        with accel.autocast():
            loss = model(x).mean()
        optimizer.zero_grad()
        {backward}
        accel.step(optimizer)
        accel.update()
        torch.save({{"optimizer": optimizer.state_dict()}}, "last.pt")
"""
    assert check_source(source.format(backward="accel.backward(loss)"), "train.py") == []
    found = check_source(source.format(backward="accel.scale(loss).backward()"), "train.py")
    assert {f.code for f in found} == {"AMP401"}


FLAGGED = """\
import torch


def train(model, loader, optimizer, args, path):
    scaler = torch.amp.GradScaler("cuda", enabled=not args.no_scaler)
    kind = "text" if args.text else None
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        if hasattr(kind, "lower"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    if not args.no_scaler:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
"""


def test_a_flag_for_no_scaler_is_no_flag_for_one_and_a_word_may_have_what_words_have() -> None:
    assert [finding.code for finding in check_source(FLAGGED)] == ["AMP201", "AMP401"]
    assert [finding.code for finding in check_source(FLAGGED.replace("if not args.no_", "if not args.use_"))] == [
        "AMP201"
    ]


@pytest.mark.parametrize(("dtype", "found"), [("float16", [(7, "AMP402")]), ("bfloat16", [(12, "AMP503")])])
def test_the_state_of_a_scaler_is_missed_where_there_is_something_to_scale(
    dtype: str, found: list[tuple[int, str]]
) -> None:
    source = f"""\
import torch

def train(model, loader, path, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    checkpoint = torch.load(path)
    optimizer.load_state_dict(checkpoint["optimizer"])
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.{dtype}):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save({{"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}}, path)
"""
    assert [(finding.line, finding.code) for finding in check_source(source)] == found


#: A loader asks for the states only as the places to load into. What a writer passes is a checkpoint.
SCAFFOLD = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

def train(net, batches, path):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for images in batches:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(images).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    weights, state = get_state_dict(net, opt)
    {use}
"""
LOADING = """dcp.load({"net": weights, "opt": state}, checkpoint_id=path)
    set_state_dict(net, opt, model_state_dict=weights, optim_state_dict=state)"""


@pytest.mark.parametrize(
    ("use", "codes"), [(LOADING, []), ('dcp.save({"net": weights, "opt": state}, checkpoint_id=path)', ["AMP401"])]
)
def test_states_to_load_into_are_no_checkpoint(use: str, codes: list[str]) -> None:
    assert [finding.code for finding in check_source(SCAFFOLD.replace("{use}", use))] == codes
