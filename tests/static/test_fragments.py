"""Documents that show only the body of a loop, or of a method called for each batch: windows are still recognized."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from marks import marks, places

from pytest_amp_check.static.engine import check_paths, check_source

#: Blocks of a document, with marks at the mistakes.
BAD = {
    "unscale_ before the window ends, counted on self": """
        self.scaler.scale(loss / self.k).backward()
        self.scaler.unscale_(self.optimizer)  # AMP303
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.step += 1
        if self.step % self.k == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        """,
    "update in each batch, counted on self": """
        self.scaler.scale(self.loss(batch) / self.k).backward()
        self.seen += 1
        if self.seen % self.k == 0:
            self.scaler.step(self.optimizer)
            self.optimizer.zero_grad()
        self.scaler.update()  # AMP303
        """,
    "cleared in each batch, by the number of the batch": """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()  # AMP304
        """,
    "not divided, by the number of the batch": """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if (batch_number + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "in a method": """
        def training_step(self, batch):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch) / self.k
            self.scaler.scale(loss).backward()
            self.step += 1
            if self.step % self.k == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.optimizer.zero_grad()  # AMP304
        """,
}
GOOD = {
    "all at the end of the window, counted on self": """
        self.scaler.scale(loss / self.k).backward()
        self.step += 1
        if self.step % self.k == 0:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        """,
    "a loss that was made elsewhere": """
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "a remainder that decides nothing": """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(loss.item())
        """,
    "a block that counts from its own beginning": """
        count = 0
        scaler.scale(loss / 2).backward()
        count += 1
        if count % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
        scaler.unscale_(optimizer)
        """,
}


def found_in(block: str, path: Path) -> tuple[set[tuple[int, str]], str]:
    """Return the findings by line in a document that shows a block, and the text of the document."""
    text = f"# How to train\n\n```python\n{textwrap.dedent(block).strip()}\n```\n"
    path.write_text(text, encoding="utf-8")
    return {(finding.line, finding.code) for finding in check_paths([str(path)]).findings}, text


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_within_a_window(name: str, tmp_path: Path) -> None:
    found, text = found_in(BAD[name], tmp_path / "guide.md")
    assert found == marks(text)


@pytest.mark.parametrize("name", GOOD)
def test_a_right_block_is_silent(name: str, tmp_path: Path) -> None:
    assert found_in(GOOD[name], tmp_path / "guide.md")[0] == set()


METHOD = """
import torch

class Learner:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")
        self.count = 0

    def learn(self, x, y):
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(self.model(x), y)DIVISION
        self.scaler.scale(loss).backward()MARK
        if (self.count + 1) % self.k == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            RESET
        ELSE
"""
#: Counters of a method for its calls.
COUNTS = {
    "on and on": ("pass", "self.count += 1"),
    "to the end of the window": ("self.count = 0", "else:\n            self.count += 1"),
    "to the end of the window, and anew": ("self.count = -1", "self.count += 1"),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(("division", "mark"), [("", "  # AMP301"), (" / self.k", "")])
def test_a_method_that_counts_after_it_has_asked(name: str, division: str, mark: str) -> None:
    reset, otherwise = COUNTS[name]
    source = METHOD.replace("DIVISION", division).replace("MARK", mark).replace("RESET", reset)
    source = source.replace("ELSE", otherwise)
    assert places(check_source(source, "learn.py")) == marks(source)
