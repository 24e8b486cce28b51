"""Threads, pools and replicas, which lack the region of the caller: findings, and quoted texts."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 3)

    def forward(self, frames):
        return self.proj(frames)


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 3)

    def forward(self, frames):
        with torch.autocast("cuda", dtype=torch.float16):
            return self.proj(frames)


encoder = Encoder().cuda()
guarded = Guarded().cuda()
pool = ThreadPoolExecutor(4)
workers = ThreadPool(4)


def encode(frames):
    return encoder(frames)


def encode_in_region(frames):
    with torch.autocast("cuda", dtype=torch.float16):
        return encoder(frames)


def read(path):
    return torch.load(path)


"""
THREAD, REPLICAS = "thread@region", "replicas@region"
#: Statements in a region, the label of the last statement ("" for none), and the quoted call.
IN_A_REGION = [
    ("pool.submit(encode, frames)", THREAD, "pool.submit"),
    ("pool.map(encode, batches)", THREAD, "pool.map"),
    ("workers.apply(encode, (frames,))", THREAD, "workers.apply"),
    ("workers.apply_async(encode, (frames,))", THREAD, "workers.apply_async"),
    ("workers.imap_unordered(encode, batches)", THREAD, "workers.imap_unordered"),
    ("workers.starmap(encode, batches)", THREAD, "workers.starmap"),
    ("pool.submit(lambda: encoder(frames))", THREAD, "pool.submit"),
    ("pool.submit(encode_in_region, frames)", "", ""),
    ("pool.submit(lambda: guarded(frames))", "", ""),
    ("pool.submit(read, path)", "", ""),
    ("pool.submit()", "", ""),
    ("pool.map()", "", ""),
    ("pool.shutdown(encode)", "", ""),
    ("pool.shutdown()", "", ""),
    ("workers.close()", "", ""),
    (
        "threading.Thread(target=encode, args=(frames,)).start()",
        THREAD,
        "threading.Thread(target=encode, args=(frames,)).start",
    ),
    ("worker = threading.Thread(None, encode, 'encodes', (frames,))\nworker.start()", THREAD, "worker.start"),
    ("worker = threading.Thread(target=encode, args=(frames,))", "", ""),
    ("worker = threading.Thread(target=encode, args=(frames,))\nworker.join()", "", ""),
    ("worker = threading.Thread(target=encode_in_region, args=(frames,))\nworker.start()", "", ""),
    ("worker = threading.Thread(target=read, args=(path,))\nworker.start()", "", ""),
    ("worker = threading.Thread()\nworker.start()", "", ""),
    ("copies = nn.DataParallel(encoder)\ncodes = copies(frames)", REPLICAS, "copies"),
    ("copies = nn.DataParallel(module=encoder)\ncodes = copies(frames)", REPLICAS, "copies"),
    ("copies = nn.DataParallel(guarded)\ncodes = copies(frames)", "", ""),
    ("codes = encoder(frames)", "", ""),
]


@pytest.mark.parametrize(("statements", "label", "call"), IN_A_REGION)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_work_that_a_region_hands_out(statements: str, label: str, call: str, dtype: str) -> None:
    """Replicas compute in float16, because they use autocast without the dtype of the region."""
    region = f'with torch.autocast("cuda", dtype=torch.{dtype}):\n'
    found = check_source(HEAD + region + indent(statements, "    ") + "\n")
    if label == REPLICAS and dtype == "float16":
        label = ""
    assert [each.label for each in found] == ([label] if label else [])
    line = HEAD.count("\n") + 2 + statements.count("\n")
    for each in found:
        assert (each.line, each.certain) == (line, True)
        assert re.findall(r"`([^`]*)`", each.message)[0] == call


@pytest.mark.parametrize("statements", [statements for statements, _, _ in IN_A_REGION])
def test_without_a_region_nothing_is_lost(statements: str) -> None:
    assert not check_source(HEAD + statements + "\n")


@pytest.mark.parametrize("statements", [statements for statements, label, _ in IN_A_REGION if label == THREAD])
def test_a_region_that_is_off_is_not_lost(statements: str) -> None:
    """Another thread computes in float32, like a disabled region."""
    region = 'with torch.autocast("cuda", enabled=False):\n'
    assert not check_source(HEAD + region + indent(statements, "    ") + "\n")
