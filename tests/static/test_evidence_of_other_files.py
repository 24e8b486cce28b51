"""What other files are evidence of: a finding goes where they make the call that is missing, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

#: Trees in which a file hid what another one shows by itself. Marks say what must be found.
HIDDEN = {
    "a helper that is followed until the budget ends": """
        === net.py
        import torch

        from scaling import Scaling
        from layers import stack

        def main(loader, model, optimizer):
            scaling = Scaling()
            for images in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = stack(stack(stack(stack(model(images))))).mean()
                scaling(loss, optimizer, model.parameters())

        === scaling.py
        import torch

        class Scaling:
            def __init__(self):
                self.inner = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, parameters):
                self.inner.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(parameters, 0.5)  # AMP201
                self.inner.step(optimizer)
                self.inner.update()

        === layers.py
        def one(x):
            x = x + 1
            return x

        def ten(x):
            return one(one(one(one(one(one(one(one(one(one(x))))))))))

        def hundred(x):
            return ten(ten(ten(ten(ten(ten(ten(ten(ten(ten(x))))))))))

        def stack(x):
            return hundred(hundred(hundred(hundred(x))))
        """,
    "an unrelated training that steps through its scaler": """
        === pyproject.toml
        [project]
        name = "two-trainings"
        version = "1"

        === gan.py
        import torch

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()  # AMP215
            amp_scaler.step(opt)
            amp_scaler.update()

        def fit(runner, net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            runner.each(lambda images: half_step(net, opt, amp_scaler, images), batches)

        === segment.py
        import torch

        def run(net, batches):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            amp_scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(images).mean()
                amp_scaler.scale(loss).backward()
                amp_scaler.step(opt)
                amp_scaler.update()
        """,
    "a checkpoint that is cast for release": """
        === learn.py
        import torch

        def learn(net, batches, criterion):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images, labels in batches:
                opt.zero_grad()
                scores = net(images)  # AMP110
                loss = criterion(scores, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === release.py
        import torch

        def release(path):
            saved = torch.load(path)
            saved["weights"].half()
            torch.save(saved, "small.pt")
        """,
}
#: The same shapes, in which the other file does what is missing, or shows that the call is never made.
SUPPLIED = {
    "a subclass unscales in the hook of its base": """
        === base.py
        import torch

        class Base:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def before_clip(self):
                raise NotImplementedError

            def fit(self, batches):
                for images in batches:
                    self.opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = self.net(images).mean()
                    self.scaler.scale(loss).backward()
                    self.before_clip()
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                    self.scaler.step(self.opt)
                    self.scaler.update()

        === own.py
        from base import Base

        class Own(Base):
            def before_clip(self):
                self.scaler.unscale_(self.opt)

        def main(net, batches):
            Own(net).fit(batches)
        """,
    "the caller clears the gradients": """
        === half.py
        import torch

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()
            amp_scaler.step(opt)
            amp_scaler.update()

        === main.py
        import torch
        from half import half_step

        def main(net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                half_step(net, opt, amp_scaler, images)
        """,
    "a file of helpers clears": """
        === gan.py
        import torch

        from tools.reset import reset

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()
            amp_scaler.step(opt)
            amp_scaler.update()

        def fit(runner, net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            runner.each(lambda images: half_step(net, opt, amp_scaler, images), batches, reset)

        === tools/__init__.py

        === tools/reset.py
        def reset(opt):
            opt.zero_grad()
        """,
    "the caller updates the scale": """
        === half.py
        import torch

        def step(loss, opt, amp_scaler, parameters):
            amp_scaler.scale(loss).backward()
            amp_scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            amp_scaler.step(opt)

        === main.py
        import torch
        from half import step

        def main(net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(images).mean()
                step(loss, opt, amp_scaler, net.parameters())
                amp_scaler.update()
        """,
    "the model is trained in float16 by hand": """
        === learn.py
        def learn(net, opt, scaler, batches, criterion):
            for images, labels in batches:
                opt.zero_grad()
                loss = criterion(net(images), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === main.py
        import torch
        from learn import learn

        def main(net, batches, criterion):
            net = net.cuda().half()
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            learn(net, opt, torch.amp.GradScaler("cuda"), batches, criterion)
        """,
}


@pytest.mark.parametrize("tree", HIDDEN.values(), ids=HIDDEN)
def test_what_a_file_shows_stays_beside_files_that_make_nothing_right(tree: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    assert marks(tmp_path)
    assert marks(tmp_path) <= found(tmp_path)


@pytest.mark.parametrize("tree", SUPPLIED.values(), ids=SUPPLIED)
def test_what_another_file_supplies_is_not_missing(tree: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    assert {place for place in found(tmp_path) if place[2] not in ("AMP501", "AMP503")} == set()


HALF_STEP = """\
import torch

def half_step(net, opt, scaler, images, log):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(images).mean()
    scaler.scale(loss).backward()
    if log:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # AMP201
    scaler.step(opt)
    scaler.update()
"""


def test_a_caller_with_more_states_than_are_followed_shows_only_the_calls_that_it_makes(tmp_path: Path) -> None:
    """Where its states are joined, a violation may be lost. That it clears the gradients is seen all the same."""
    parts = range(18)
    lines = [
        "import torch",
        "from half import half_step",
        "",
        "def main(nets, batches, flags):",
        '    scaler = torch.amp.GradScaler("cuda")',
        *(f"    opt{each} = torch.optim.SGD(nets[{each}].parameters(), lr=0.1)" for each in parts),
        "    for images in batches:",
        *(f"        if flags.part{each}:\n            opt{each}.zero_grad()" for each in parts),
    ]
    for each in parts:
        call = f"half_step(nets[{each}], opt{each}, scaler, images, flags.log)"
        lines += [f"        if flags.part{each}:", f"            {call}"]
    (tmp_path / "half.py").write_text(HALF_STEP, encoding="utf-8")
    (tmp_path / "main.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


STAR_IMPORTS = """
    === train.py
    import torch
    import parts

    def fit(net, opt, batches):
        scaler = torch.amp.GradScaler("cuda")
        for images in batches:
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = parts.losses.{name}(net, images)
                scaler.scale(loss).backward()  # AMP103
            scaler.step(opt)
            scaler.update()

    === parts/__init__.py
    from . import *
    from .other import *

    === parts/other.py
    from . import *
    from .losses import *

    === parts/losses.py
    from parts.other import *

    def mean(net, images):
        return net(images).mean()
    """


@pytest.mark.parametrize("name", ["mean", "nowhere"])
def test_packages_that_import_all_from_themselves_and_each_other(name: str, tmp_path: Path) -> None:
    write(tmp_path, STAR_IMPORTS.replace("{name}", name))
    assert found(tmp_path) == marks(tmp_path)


MARIMO = """\
import marimo

app = marimo.App(width="medium")

with app.setup:
    import torch


@app.cell(hide_code=True)
def _(loader, model, optimizer, scaler):
    for images in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = mean(model(images))
        scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
        scaler.step(optimizer)
        scaler.update()
    return


@app.function
def mean(values):
    return values.mean()


@app.cell
def _():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    return model, optimizer, scaler


@app.cell
def _():
    loader = [torch.randn(2, 4)]
    return (loader,)


if __name__ == "__main__":
    app.run()
"""


def test_the_cells_of_a_marimo_notebook_are_one_program_in_the_order_in_which_they_run(tmp_path: Path) -> None:
    wrong = MARIMO.replace("{unscale}", "pass").replace("{mark}", "  # AMP201")
    right = MARIMO.replace("{unscale}", "scaler.unscale_(optimizer)").replace("{mark}", "")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    (tmp_path / "right.py").write_text(right, encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path) == {("wrong.py", 17, "AMP201")}
