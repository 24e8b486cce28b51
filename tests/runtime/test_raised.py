"""Each message of the catalogue is raised and recognized, and the run explains the cause at the correct line.

Messages that only CUDA raises are in tests/gpu.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from marks import marks, places, shown
from raised_programs import PROGRAMS, SETUP, WARNINGS, Program

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import fsdp

from pytest_amp_check import emulate_cuda, record
from pytest_amp_check.protocol.messages import MESSAGES, find_messages

if TYPE_CHECKING:
    from pytest_amp_check.runtime.run import Run

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Use a process group of one process, and turn autocast off after exceptions that leave autocast on."""
    started = dist.is_available() and not dist.is_initialized()
    if started:
        dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield
    if started:
        dist.destroy_process_group()
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()


def run(source: str, path: Path, *, emulated: bool = False) -> tuple[Run, BaseException]:
    """Run a program under the recorder. Return the run and the exception that ended the program."""
    path.write_text(source, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    made = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if emulated:
            stack.enter_context(emulate_cuda())
        with pytest.raises(Exception) as caught, record() as made:  # noqa: PT011 - which it is, is looked at
            exec(compile(source, str(path), "exec"), names)  # noqa: S102 - our own programs
    assert made is not None
    assert made.failure is None, repr(made.failure)
    return made, caught.value


def test_every_message_is_raised_here() -> None:
    raised = {program.message for program in PROGRAMS} | set(WARNINGS)
    # test_processors.py raises it, in a process without newer instructions.
    assert raised | {"no-kernel-on-this-processor"} == set(MESSAGES)


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"{each.message}: {each.name}" for each in PROGRAMS])
def test_a_run_says_why_torch_has_ended_it(program: Program, tmp_path: Path) -> None:
    if "import fully_shard" in program.source and not hasattr(fsdp, "fully_shard"):
        pytest.skip("fully_shard came with torch 2.6")
    made, error = run(program.source, tmp_path / "train.py", emulated=program.emulated)
    assert [message.name for message in find_messages(str(error))] == [program.message], repr(error)
    findings = made.findings
    assert places(findings) == marks(program.source, "runtime"), shown(findings)
    (finding,) = findings
    assert finding.filename == str(tmp_path / "train.py")
    said = finding.message
    for words in program.says:
        assert words in said, finding.message
        said = said.partition(words)[2]
    assert not any(brace in finding.message for brace in "{}")
    assert made.ended_by is MESSAGES[program.message]


#: Programs that end, or continue, without a refusal of torch: the run gives no explanation.
OTHERS = {
    "an exception of the program's own": "raise RuntimeError('the loss is not finite')\n",
    "its own exception with torch's words": (
        "assert scaler is None, 'No inf checks were recorded for this optimizer.'\n"
    ),
    "another exception of torch": "torch.zeros(2) @ torch.zeros(3)\n",
    "an exception of the program's own with torch's words": (
        "raise ValueError('Attempting to unscale FP16 gradients.')\n"
    ),
    "an exit": "raise SystemExit('Attempting to unscale FP16 gradients.')\n",
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_nothing_is_said_of_other_exceptions(body: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SETUP + body, encoding="utf-8")
    with pytest.raises(BaseException), record() as made:  # noqa: B017, PT011 - whatever it is
        exec(compile(SETUP + body, str(path), "exec"), {})  # noqa: S102 - our own programs
    assert made.failure is None
    assert (made.findings, made.ended_by) == ([], None)


def test_nothing_is_said_of_an_exception_that_the_program_handles(tmp_path: Path) -> None:
    body = "try:\n    torch.mm(x.half(), y)\nexcept RuntimeError:\n    pass\n"
    with record() as made:
        exec(SETUP + body, {})  # noqa: S102 - our own programs
    assert (made.findings, made.ended_by, made.failure) == ([], None, None)


def test_parameters_that_were_there_before_are_named_at_the_refusal(tmp_path: Path) -> None:
    """Parameters in float16 are reported even if they were created before the recording."""
    names: dict[str, Any] = {}
    exec(SETUP + "model.half()\n", names)  # noqa: S102 - our own programs
    body = "scaler.scale(model(x.half()).mean()).backward()\nscaler.step(optimizer)  # AMP810\n"
    path = tmp_path / "train.py"
    path.write_text(body, encoding="utf-8")
    with pytest.raises(ValueError, match="FP16"), record() as made:
        exec(compile(body, str(path), "exec"), names)  # noqa: S102 - our own programs
    assert places(made.findings) == marks(body, "runtime"), shown(made.findings)
    (finding,) = made.findings
    assert "`model.0.weight`, `model.0.bias`, `model.2.weight` and 1 more of `optimizer`: keep" in finding.message


def test_the_exception_that_another_one_hides_is_explained(tmp_path: Path) -> None:
    body = """
try:
    torch.inverse(torch.eye(2).half())  # AMP810
except RuntimeError as error:
    raise ValueError("the batch cannot be used") from error
"""
    made, error = run(SETUP + body, tmp_path / "train.py")
    assert isinstance(error, ValueError)
    assert places(made.findings) == marks(SETUP + body, "runtime")
    assert made.ended_by is MESSAGES["not-implemented-for-half"]


def test_what_a_library_of_kernels_refuses_is_explained_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "fast_kernels.py").write_text(
        "def attention(query, key, value):\n"
        "    if not query.dtype == key.dtype == value.dtype:\n"
        "        raise ValueError('Query/Key/Value should either all have the same dtype, or Key/Value int32')\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(installed))
    body = """
import fast_kernels

norm, layer = nn.LayerNorm(4).cuda(), model[0].cuda()
with torch.autocast("cuda", dtype=torch.float16):
    value = layer(x.cuda())[:, :4]
    query = norm(value)
    fast_kernels.attention(query, query, value)  # AMP810
"""
    made, _ = run(SETUP + body, tmp_path / "train.py", emulated=True)
    assert places(made.findings) == marks(SETUP + body, "runtime"), shown(made.findings)
    (finding,) = made.findings
    assert finding.filename == str(tmp_path / "train.py")
    assert "gets `query` in float32 and `value` in float16, and autocast does not cast its operands" in finding.message
    assert "`query` comes from `norm(value)`, which autocast runs in float32 (line 23)" in finding.message


def test_a_comment_silences_it(tmp_path: Path) -> None:
    body = "torch.inverse(torch.eye(2).half())  # amp: ignore[AMP810] shown in a lecture\n"
    made, _ = run(SETUP + body, tmp_path / "train.py")
    assert made.findings == []


@pytest.mark.parametrize("name", WARNINGS)
def test_a_warning_is_recognised(name: str) -> None:
    if name == "scaler-without-its-device" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        exec(SETUP + WARNINGS[name], {})  # noqa: S102 - our own programs
    assert [message.name for warning in given for message in find_messages(str(warning.message))] == [name]
