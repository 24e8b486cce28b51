"""Windows by counters, settings and the last index of a loop: each mistake, with the right program beside it."""

from __future__ import annotations

from textwrap import dedent

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
import torch.nn.functional as F
from torch.amp import GradScaler, autocast

"""
FORWARD = 'with autocast("cuda", dtype=torch.float16):\n    loss = F.mse_loss(model(x), y)'
UPDATE = "scaler.step(optimizer)\nscaler.update()\noptimizer.zero_grad()"
CASES: dict[str, str] = {}


def case(name: str, source: str) -> None:
    text = dedent(source)
    for word, block in (("FORWARD", FORWARD), ("UPDATE", UPDATE)):
        lines = []
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + part for part in block.split("\n")] if line.strip() == word else [line]
        text = "\n".join(lines)
    CASES[name] = HEAD + text


# The last index of a loop.
for _name, _loop, _last in (
    ("a range", "for j in range(n):", "j == n - 1"),
    ("a range, counted from one", "for j in range(n):", "j + 1 == n"),
    ("a range with a step", "for j in range(0, n, k):", "j + k >= n"),
    ("a range with a step, from the end", "for j in range(0, n, k):", "j >= n - k"),
    ("the other way round", "for j in range(0, n, k):", "n <= j + k"),
    ("an enumeration", "for j, _ in enumerate(batch):", "j == len(batch) - 1"),
    ("an enumeration, by order", "for j, _ in enumerate(batch):", "not j < len(batch) - 1"),
):
    case(
        f"the last index of {_name}",
        f"""
        def train_batch(model, optimizer, scaler, batch, n, k, max_norm):
            optimizer.zero_grad()
            {_loop}
                x, y = batch[j]
                with autocast("cuda", dtype=torch.float16):
                    loss = F.mse_loss(model(x), y) / n
                scaler.scale(loss).backward()
                if {_last}:
                    scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
        """,
    )
case(
    "an index that is not the last",
    """
    def train_batch(model, optimizer, scaler, batch, n, max_norm):
        optimizer.zero_grad()
        for j in range(n):
            x, y = batch[j]
            with autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(x), y) / n
            scaler.scale(loss).backward()
            if j == n - 2:
                scaler.unscale_(optimizer)  # AMP303
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a clip after a loop that unscales at another index",
    """
    def train_batch(model, optimizer, scaler, batch, n, max_norm):
        optimizer.zero_grad()
        for j in range(n):
            x, y = batch[j]
            with autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(x), y) / n
            scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)

# A loop of one iteration.
for _name, _count, _mark in (("one", 1, ""), ("two", 2, "  # AMP206")):
    case(
        f"a loop of {_name}",
        f"""
        STEPS = {_count}

        def train(net_g, net_d, optim_g, optim_d, loader):
            scaler = GradScaler("cuda")
            for x, y in loader:
                for _ in range(STEPS):
                    with autocast("cuda"):
                        loss_d = F.mse_loss(net_d(x), y)
                    optim_d.zero_grad()
                    scaler.scale(loss_d).backward()
                    scaler.step(optim_d){_mark}
                with autocast("cuda"):
                    loss_g = F.mse_loss(net_g(x), y)
                optim_g.zero_grad()
                scaler.scale(loss_g).backward()
                scaler.step(optim_g)
                scaler.update()
        """,
    )

# Settings of a class.
for _name, _setting, _more, _marked in (
    ("one", "1", "pass", False),
    ("four", "4", "pass", True),
    ("a number that other code sets", "1", "CFG.window = args.window", True),
    ("a number that is set by name", "1", "setattr(CFG, args.name, args.value)", True),
):
    case(
        f"a window of {_name} in a class",
        f"""
        class CFG:
            window = {_setting}

        def main(model, optimizer, loader, args):
            {_more}
            scaler = GradScaler("cuda")
            for step, (x, y) in enumerate(loader):
                FORWARD
                scaler.scale(loss).backward(){"  # AMP301" if _marked else ""}
                if (step + 1) % CFG.window == 0:
                    UPDATE
        """,
    )
case(
    "an off switch beside the switch of the scaler",
    """
    class CFG:
        apex = True
        unscale = False

    def train(model, optimizer, loader):
        scaler = GradScaler("cuda", enabled=CFG.apex)
        for x, y in loader:
            FORWARD
            scaler.scale(loss).backward()
            if CFG.unscale:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            UPDATE
    """,
)
case(
    "the switch of the scaler",
    """
    class CFG:
        apex = True

    def train(model, optimizer, loader):
        scaler = GradScaler("cuda", enabled=CFG.apex)
        for x, y in loader:
            FORWARD
            scaler.scale(loss).backward()
            if CFG.apex:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            UPDATE
    """,
)

# Divisors.
for _name, _before, _divisor, _mark in (
    ("a counter", "n += 1", "n", "  # AMP304"),
    ("a counter, written out", "n = n + 1", "n", "  # AMP304"),
    ("the window", "n += 1", "k", ""),
    ("the rest of the window", "n += 1", "(total - n)", ""),
):
    case(
        f"a division by {_name}",
        f"""
        def train(model, optimizer, loader, k, total):
            scaler = GradScaler("cuda")
            n = 0
            for x, y in loader:
                {_before}
                FORWARD
                loss = loss / {_divisor}{_mark}
                scaler.scale(loss).backward()
                if n >= k:
                    UPDATE
                    n = 0
        """,
    )
case(
    "a division by an index in the window",
    """
    def train(model, optimizer, loader, k):
        scaler = GradScaler("cuda")
        for i, (x, y) in enumerate(loader):
            FORWARD
            scaler.scale(loss / (i + 1)).backward()  # AMP304
            if (i + 1) % k == 0:
                UPDATE
    """,
)
case(
    "a running mean for the log, and a weight that falls with the iterations",
    """
    def train(model, optimizer, loader, k):
        scaler = GradScaler("cuda")
        seen = 0
        for i, (x, y) in enumerate(loader):
            FORWARD
            seen += loss.item()
            print(seen / (i + 1), loss / (i + 1))
            scaler.scale(loss / k).backward()
            if (i + 1) % k == 0:
                UPDATE

    def anneal(model, optimizer, loader):
        scaler = GradScaler("cuda")
        for i, (x, y) in enumerate(loader):
            FORWARD
            scaler.scale(loss / (i + 1)).backward()
            UPDATE
    """,
)
for _name, _divisor, _mark in (("the window", "k", "  # AMP302"), ("another number", "classes", "")):
    for _function in ("float", "int"):
        case(
            f"{_function} of {_name}",
            f"""
            from accelerate import Accelerator

            def train(model, optimizer, loader, k, classes):
                accelerator = Accelerator(gradient_accumulation_steps=k, mixed_precision="fp16")
                model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
                for x, y in loader:
                    with accelerator.accumulate(model):
                        loss = F.mse_loss(model(x), y)
                        loss = loss / {_function}({_divisor}){_mark}
                        accelerator.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
            """,
        )

# Sums of means.
for _name, _loss, _marked in (
    ("a mean over the samples, then a sum", "(model(x) - y).abs().mean(0).sum()", True),
    ("a mean over the first dimension, then a sum", "(model(x) - y).abs().mean(dim=0).sum()", True),
    ("a mean of each sample, then a sum", "(model(x) - y).abs().mean(dim=-1).sum()", False),
    ("a sum over all", "(model(x) - y).abs().sum()", False),
    ("stacked means", "torch.stack([F.mse_loss(out, y) for out in model(x)]).sum()", True),
    ("stacked means of samples", "torch.stack([F.mse_loss(a, b) for a, b in zip(model(x), y)]).sum()", False),
    ("stacked sums", 'torch.stack([F.mse_loss(out, y, reduction="sum") for out in model(x)]).sum()', False),
    ("two means", "torch.stack([F.mse_loss(model(x), y), F.l1_loss(model(x), y)]).sum()", True),
    ("losses of elements", 'F.mse_loss(model(x), y, reduction="none").sum()', False),
):
    case(
        f"the sum of {_name}",
        f"""
        def train(model, optimizer, loader, k):
            scaler = GradScaler("cuda")
            for i, (x, y) in enumerate(loader):
                with autocast("cuda"):
                    loss = {_loss}
                scaler.scale(loss).backward(){"  # AMP301" if _marked else ""}
                if (i + 1) % k == 0:
                    UPDATE
        """,
    )

# zero_grad at the end of a window, before its last backward.
for _name, _place, _mark in (("before the last backward", "early", "  # AMP304"), ("after the step", "late", "")):
    case(
        f"zero_grad {_name}",
        f"""
        def is_last(i, k):
            return (i + 1) % k == 0

        def train(model, optimizer, loader, k):
            scaler = GradScaler("cuda")
            for i, (x, y) in enumerate(loader):
                with autocast("cuda", dtype=torch.float16):
                    loss = F.mse_loss(model(x), y) / k
                if {"is_last(i, k)" if _place == "early" else "False"}:
                    optimizer.zero_grad(){_mark}
                scaler.scale(loss).backward()
                if is_last(i, k):
                    scaler.step(optimizer)
                    scaler.update()
                    {"pass" if _place == "early" else "optimizer.zero_grad()"}
        """,
    )
case(
    "zero_grad at the start of a window",
    """
    def train(model, optimizer, loader, k):
        scaler = GradScaler("cuda")
        for i, (x, y) in enumerate(loader):
            if i % k == 0:
                optimizer.zero_grad()
            with autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(x), y) / k
            scaler.scale(loss).backward()
            if i % k == k - 1:
                scaler.step(optimizer)
                scaler.update()
    """,
)

# A count that an unknown object keeps.
for _divisor, _mark in (("", "  # AMP301"), (" / k", "")):
    case(
        f"progress that an object counts{_divisor}",
        f"""
        def due(progress, k):
            return progress.step % k == 0

        def train(model, optimizer, loader, progress, k):
            scaler = GradScaler("cuda")
            for x, y in loader:
                with autocast("cuda", dtype=torch.float16):
                    loss = F.mse_loss(model(x), y){_divisor}
                scaler.scale(loss).backward(){_mark}
                if due(progress, k):
                    UPDATE
                progress.next_step()
        """,
    )

# Micro-batches by their name.
for _divisor, _mark in (("", "  # AMP301"), (" / len(data)", "")):
    case(
        f"micro-batches from an iterator{_divisor}",
        f"""
        def train(model, optimizer, data, size):
            for start in range(0, len(data), size):
                optimizer.zero_grad()
                for x, y in data.slice(start, start + size).make_microbatch_iterator():
                    with autocast("cuda", dtype=torch.bfloat16):
                        loss = F.mse_loss(model(x), y){_divisor}
                    loss.backward(){_mark}
                optimizer.step()
        """,
    )


# A clip in every micro-batch.
for _name, _scaled, _place, _mark in (
    ("every micro-batch", False, "early", "  # AMP304"),
    ("every micro-batch of a scaled loss", True, "early", "  # AMP201"),
    ("the step", False, "late", ""),
):
    _clip = f"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){_mark}"
    case(
        f"a clip in {_name}",
        f"""
        def train(model, optimizer, loader, k):
            scaler = GradScaler("cuda")
            for i, (x, y) in enumerate(loader):
                with autocast("cuda", dtype=torch.bfloat16):
                    loss = F.mse_loss(model(x), y) / k
                {"scaler.scale(loss).backward()" if _scaled else "loss.backward()"}
                {_clip if _place == "early" else "pass"}
                if (i + 1) % k == 0:
                    {_clip if _place == "late" else "pass"}
                    {"scaler.step(optimizer)" if _scaled else "optimizer.step()"}
                    {"scaler.update()" if _scaled else "pass"}
                    optimizer.zero_grad()
        """,
    )
case(
    "a clip in every batch of windows of one",
    """
    def train(model, optimizer, loader):
        for x, y in loader:
            with autocast("cuda", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    """,
)

# A clip where the scaler is off.
for _scaled_clip, _mark in (
    ("pass", "  # AMP201"),
    ("scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", ""),
    ("clip(scaler, optimizer)", ""),
):
    case(
        f"a clip without the scaler, and {_scaled_clip}",
        f"""
        from helpers import clip

        def step(model, optimizer, x, y, use_amp, scaler=None):
            optimizer.zero_grad()
            with autocast("cuda", dtype=torch.float16, enabled=use_amp):
                loss = F.mse_loss(model(x), y)
            if use_amp:
                scaler.scale(loss).backward()
                {_scaled_clip}
                scaler.step(optimizer){_mark}
                scaler.update()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """,
    )

# A scaler beside accelerate, which leaves precision to its configuration.
case(
    "a scaler beside accelerate",
    """
    from accelerate import Accelerator

    def train(model, optimizer, loader):
        accelerator, scaler = Accelerator(), GradScaler("cuda")
        model, optimizer = accelerator.prepare(model, optimizer)
        for x, y in loader:
            FORWARD
            accelerator.backward(scaler.scale(loss))
            UPDATE
    """,
)
case(
    "a scaler beside accelerate in fp16",
    """
    from accelerate import Accelerator

    def train(model, optimizer, loader):
        accelerator, scaler = Accelerator(mixed_precision="fp16"), GradScaler("cuda")
        for x, y in loader:
            FORWARD
            accelerator.backward(scaler.scale(loss))  # AMP205
            UPDATE
    """,
)

# Losses that are normalised by their own data, and weighted by a number that may be one.
for _name, _loss, _marked in (
    ("the valid tokens, and the ranks", "(model(x) * m).sum() / (m.sum() + 1e-8) * ranks", True),
    ("the mean of the mask", "(model(x) * m).mean() / m.mean(dim=1).mean()", True),
    ("the window", "(model(x) * m).sum() / (m.sum() + 1e-8) / k", False),
    ("a share", "(model(x) * m).mean() * share", False),
):
    case(
        f"a loss divided by {_name}",
        f"""
        import torch.distributed as dist

        def train(model, optimizer, loader, k, balance):
            ranks = dist.get_world_size() if balance else 1
            share = 1 / k if k > 1 else 1.0
            for i, (x, m) in enumerate(loader):
                with autocast("cuda", dtype=torch.bfloat16):
                    loss = {_loss}
                loss.backward(){"  # AMP301" if _marked else ""}
                if (i + 1) % k == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    )


# A clear in each iteration of a loop, and one step after the loop.
for _name, _inside, _outside, _mark in (
    ("each iteration", True, False, "  # AMP304"),
    ("the start", False, True, ""),
):
    case(
        f"a clear in {_name} before one step",
        f"""
        def train(model, optimizer, batches):
            scaler = GradScaler("cuda")
            {"optimizer.zero_grad()" if _outside else "pass"}
            for x, y in batches:
                {"optimizer.zero_grad()" + _mark if _inside else "pass"}
                with autocast("cuda", dtype=torch.float16):
                    loss = F.mse_loss(model(x), y) / len(batches)
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    )
case(
    "a clear in each iteration that keeps the gradients",
    """
    def train(model, optimizer, batches, kept):
        scaler = GradScaler("cuda")
        for x, y in batches:
            optimizer.zero_grad()
            with autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(x), y) / len(batches)
            scaler.scale(loss).backward()
            kept.append([p.grad.clone() for p in model.parameters()])
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "an optimizer that the file only clears and configures",
    """
    def prepare(optimizer, rate):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()

    def train(model, optimizer, loader):
        prepare(optimizer, 0.1)
        scaler = GradScaler("cuda")
        for x, y in loader:
            FORWARD
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            UPDATE
    """,
)


# A warm-up without steps, which a fraction of the epochs ends, is no window: nothing resets the fraction.
for _name, _due in (
    ("a fraction of the epochs", "exact >= 1"),
    ("a fraction or a count", "i >= warm or exact >= 1"),
    ("a difference", "exact - 1 >= 0"),
    ("a count of samples", "i * size >= warm"),
):
    case(
        f"a warm-up that ends by {_name}",
        f"""
        def train(model, optimizer, scaler, loader, epoch, size, warm):
            for i, (x, y) in enumerate(loader):
                exact = epoch + float(i) / size
                optimizer.zero_grad()
                FORWARD
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                if {_due}:
                    scaler.step(optimizer)
                scaler.update()
        """,
    )

case(
    "a warm-up that ends by a fraction of the epochs, of which a loop counts",
    """
    def train(model, optimizer, scaler, loader, epochs):
        for epoch in range(epochs):
            for i, (x, y) in enumerate(loader):
                exact = epoch + float(i) / len(loader)
                optimizer.zero_grad()
                FORWARD
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                if exact >= 1:
                    scaler.step(optimizer)
                scaler.update()
    """,
)

# A count that the step resets ends a window.
case(
    "a count of samples that the step resets",
    """
    def train(model, optimizer, scaler, loader, size, due):
        seen = 0
        for x, y in loader:
            FORWARD
            scaler.scale(loss / due).backward()
            scaler.unscale_(optimizer)  # AMP303
            seen += len(x)
            if seen * 2 >= due:
                UPDATE
                seen = 0
    """,
)


@pytest.mark.parametrize("name", CASES)
def test_windows(name: str) -> None:
    source = CASES[name]
    found = [finding for finding in check_source(source, "train.py") if finding.code not in ("AMP401", "AMP503")]
    assert places(found) == marks(source), f"{shown(found)}\n{source}"
