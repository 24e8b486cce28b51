"""CPUs without low-precision kernels: errors name the op and a remedy, and training under emulation still works."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from warm import run_python

#: The newest instruction set that oneDNN may use in these tests. It has no LSTM in bfloat16 or float16.
WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}

SETUP = """
import torch
from torch import nn
from pytest_amp_check import record
from pytest_amp_check.runtime.measure.memory import measure_memory
from pytest_amp_check.runtime.session import session

lstm = nn.LSTM(8, 8)
batch = torch.randn(3, 2, 8)
"""


def run_without_avx512(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in another process, because oneDNN reads the instruction set once."""
    path = folder / "train.py"
    path.write_text(SETUP + program, encoding="utf-8")
    return run_python(str(path), cwd=folder, env={**os.environ, **WITHOUT_AVX512})


def test_a_recorded_lstm_without_a_kernel_is_a_finding_that_names_the_remedy(tmp_path: Path) -> None:
    done = run_without_avx512(
        """
try:
    with record() as run:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lstm(batch)
except RuntimeError:
    pass
for finding in run.findings:
    print(finding.code, finding.site.line, finding.message)
""",
        tmp_path,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("AMP810 14 `lstm` needs a low-precision kernel that this CPU does not have")
    assert "(LSTM forward propagation)" in line
    assert line.endswith(
        "disable autocast for it with `torch.autocast(..., enabled=False)`, or run the program on a GPU or with "
        "`--device emulate`"
    )


def test_measuring_an_lstm_without_a_kernel_says_where_it_can_be_measured(tmp_path: Path) -> None:
    done = run_without_avx512(
        """
with measure_memory(lstm), torch.autocast("cpu", dtype=torch.bfloat16):
    lstm(batch)
""",
        tmp_path,
    )
    assert done.stderr.splitlines()[-1] == (
        "RuntimeError: this CPU has no kernel in low precision for LSTM forward propagation: measure on a GPU, under "
        "emulated CUDA, or without autocast for that module"
    )


def test_other_errors_of_what_is_measured_stay_as_they_are(tmp_path: Path) -> None:
    done = run_without_avx512("with measure_memory(lstm):\n    lstm(batch[..., :4])\n", tmp_path)
    assert "this CPU" not in done.stderr
    assert "RuntimeError" in done.stderr.splitlines()[-1]


def test_the_emulation_trains_recurrent_layers_without_kernels_in_low_precision(tmp_path: Path) -> None:
    done = run_without_avx512(
        """
for dtype in (torch.float16, torch.bfloat16):
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        with session("emulate", str(dtype).removeprefix("torch.")):
            layer = kind(8, 8, num_layers=2, bidirectional=True).cuda()
            with torch.autocast("cuda", dtype=dtype):
                out, _ = layer(batch.cuda())
            out.float().square().mean().backward()
            gradients = {parameter.grad.dtype for parameter in layer.parameters()}
            print(kind.__name__, out.dtype, *gradients)
""",
        tmp_path,
    )
    assert (
        done.stdout.splitlines()
        == [
            # In a bfloat16 region too: autocast casts to float16 for cuDNN (aten/src/ATen/cudnn/AutocastRNN.cpp).
            "LSTM torch.float16 torch.float32",
            "GRU torch.float16 torch.float32",
            "RNN torch.float16 torch.float32",
        ]
        * 2
    ), done.stderr
