"""torch.profiler beside a recording."""

from __future__ import annotations

import os
from pathlib import Path

from warm import run_python

#: A profiler with Python stacks reads the frames of module calls, so a mistake there ends the process.
PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
from pytest_amp_check import record

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
def names():
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True) as profiled:
        model(torch.ones(2, 4)).sum().backward()
    return sorted({event.name for event in profiled.events() if event.name.startswith("nn.Module")})

before = names()
with record(model):
    print(before == names(), *before)
"""


def test_stacks_of_modules_are_profiled_during_a_recording(tmp_path: Path) -> None:
    done = run_python("-c", PROFILED, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    # Older versions of torch name no modules.
    assert done.stdout.split()[0] == "True"
