"""Results of the text search in a file before parsing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_amp_check.protocol.rule import RUNTIME
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.sources.patterns.code import CLOSER_SEARCHES, Code
from pytest_amp_check.static.sources.patterns.declarations import iterate_imports


def speaks(text: str) -> bool:
    return Code(text.encode()).may_have_findings()


WITH_AMP = {
    "a region": "with torch.autocast('cuda'):\n    pass",
    "another name": "from torch.cuda.amp import autocast as ac",
    "another name, several lines": "from torch.amp import (\n    GradScaler,\n    autocast as ac,\n)",
    "another name, continued": "from torch.amp import \\\n    autocast as ac",
    "the module": "from torch.cuda import amp\nwith amp.autocast():\n    pass",
    "a bare decorator": "@torch.autocast\ndef f(): ...",
    "a decorator": "@ autocast('cuda')\ndef f(): ...",
    "a value": "ctx = torch.autocast if amp else nullcontext",
    "a value of a partial": "ctx = partial(autocast, 'cuda')",
    "a helper": "with maybe_autocast (dtype):\n    pass",
    "an attribute": "with self.autocast:\n    pass",
    "a local name": "with autocast:\n    pass",
    "an old getter": "torch.get_autocast_gpu_dtype()",
    "an old setter": "from torch import set_autocast_cpu_enabled",
    "a custom function": "@amp.custom_bwd\ndef backward(): ...",
    "an old clip": "from torch.nn.utils import clip_grad_norm",
    "a scaler": "s = torch.amp.GradScaler()",
    "a scaler by another name": "from torch.amp import GradScaler as G",
    "a sharded scaler": "s = ShardedGradScaler()",
    "a scaler that is passed in": "def f(scaler, opt):\n    scaler.step(opt)",
    "a scaler in a dict": "scaler['g'].update()",
    "a scaler in an attribute": "self.loss_scaler(loss, optimizer)",
    "a scaler by its methods": "self.amp.unscale_(optimizer)",
    "a scaler by its scaling": "g.scale(loss).backward()",
    "accumulation": "loss.backward()\nif i % k == 0:\n    optimizer.step()",
    "float16 weights": "model.half()\noptimizer = optim.SGD(model.parameters())",
    "bfloat16 weights": "model.to(dtype=torch.bfloat16)\nopt = Lion(model.parameters())\nopt.step()",
    "float16 by name": "model = model.to(device, torch.float16)\noptimizer = torch.optim.SGD(model.parameters())",
    "a fill": "scores.masked_fill(mask, -1e9)",
    "a fill, nested": "scores.masked_fill((mask == f(0, g(1))), value=float('-1e9'))",
    "a fill, nested deeper": "scores.masked_fill(f(g(h(i(mask)))), -1e9)",
    "a fill over lines": "scores.masked_fill_(\n    mask,  # (padding\n    -1e9,\n)",
    "a fill with an integer": "torch.where(mask, x, -100000)",
    "a fill with a power": "torch.full_like(x, -2**31)",
    "a fill with a limit": "x.index_fill(0, i, torch.finfo(torch.float32).min)",
    "a fill of all": "x[mask].fill_(1e6)",
    "a fill with a constant": "low: float = -1e9\ntorch.where(mask, x, low)",
    "a fill with an attribute": "self.low = -1e9\nx.masked_fill(mask, self.low)",
    "a fill with a default": "def f(x, low=-1e9):\n    return x.masked_fill(x == 0, low)",
    "a suppression": "x = 1  # amp: ignore[AMP201]",
    "a suppression, tight": "x = 1  #amp:ignore",
    "a noqa": "x = 1  # noqa: AMP201",
    "a noqa of several": "x = 1  # NOQA:E501, AMP201",
    "a region behind a documentation string": '"""A trainer."""\nwith torch.autocast("cuda"):\n    pass',
    "a region between two strings": 'A = """a"""\nautocast("cuda")\nB = """b"""',
    "a region behind quotes in a string": "a = '\"\"\"'\nautocast('cuda')\nb = '\"\"\"'",
    "a region behind quotes in a comment": '# """\nautocast("cuda")\n# """',
    "a region behind escaped quotes": 'a = """\\"""\nautocast("cuda")\n"""',
    "a region behind other quotes": "a = '''\n\"\"\"\n'''\nautocast('cuda')\nb = '''\n\"\"\"\n'''",
}
WITHOUT_AMP = {
    "nothing": "",
    "a word in a comment": "# autocast is off here\nx = 1",
    "a word in prose": 'def f():\n    """Runs where the autocast mode is off."""',
    "a name that contains it": "torch.is_autocast_enabled()",
    "a string": "__all__ = ['autocast']",
    "a list of getters": "NAMES = ['torch.get_autocast_gpu_dtype']",
    "another scaler": "the upscaler is fast",
    "the new clip": "torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
    "inference": "model.half()\nmodel.to(torch.float16)",
    "training without accumulation": "optimizer.step()",
    "a small fill": "x.half().masked_fill(mask, 0.0)",
    "an infinite fill": "x.half().masked_fill(mask, float('-inf'))",
    "a large number beside a fill": "x.half().masked_fill(mask, 0)\ny = 1e9",
    "words of a fill": "where (and how) a fill of 1e9 helps",
    "a noqa of another tool": "x = 1  # noqa: E501\nAMP = 1",
    "an example in prose": 'def f():\n    r"""So.\n\n    >>> loss.backward()\n    >>> opt.step()\n    """',
}


class TestSpeaks:
    @pytest.mark.parametrize("what", WITH_AMP)
    def test_what_may_give_a_finding(self, what: str) -> None:
        assert speaks(WITH_AMP[what])

    @pytest.mark.parametrize("what", WITHOUT_AMP)
    def test_what_gives_none(self, what: str) -> None:
        assert not speaks(WITHOUT_AMP[what])

    @pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.detected_by != RUNTIME])
    def test_every_rule_sees_its_own_bad_example(self, code: str) -> None:
        assert speaks(RULES[code].bad_example)

    @pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.prescan_words])
    def test_every_rule_finds_its_own_words_in_its_bad_example(self, code: str) -> None:
        read = Code(RULES[code].bad_example.encode())
        assert any(map(read.has_rule_need, RULES[code].prescan_words))

    def test_rules_found_in_source_say_what_a_file_must_hold(self) -> None:
        without = {code for code, rule in RULES.items() if rule.detected_by != RUNTIME and not rule.prescan_words}
        assert without == {"AMP903"}, "what cannot be read is found in whatever is read"

    def test_what_is_looked_at_closely_is_what_some_rule_needs(self) -> None:
        assert {word for rule in RULES.values() for word in rule.prescan_words} >= set(CLOSER_SEARCHES)

    def test_text_that_hides_its_names(self) -> None:
        assert Code("with torch.autocast('cuda'): pass".encode("utf-16")).may_have_findings()

    @given(st.binary(max_size=200))
    def test_any_bytes_have_an_answer(self, data: bytes) -> None:
        assert Code(data + b"\nwith torch.autocast('cuda'):\n    pass\n").may_have_findings()
        assert Code(data).may_have_findings() in (True, False)


class TestClasses:
    def test_names_and_bases(self) -> None:
        code = Code(
            b"from torch.optim import Optimizer\nfrom trainers import Base\n\n"
            b"class Own(Base, torch.nn.Module): ...\n\n"
            b"  class Inner(Own, mixins.Clips[int], Optimizer):\n    def f(self): self.loss.backward()\n"
            b"# class Commented(Other):\n"
        )
        assert code.class_names() == {b"Own", b"Inner"}
        assert code.base_names() == {b"Base", b"Clips"}

    def test_bases_matter_only_where_a_method_may(self) -> None:
        assert Code(b"class Own(Base):\n    x = 1\n").base_names() == set()


class TestImports:
    def test_modules_and_names(self) -> None:
        code = (
            b"import os, torch.amp\nfrom . import utils\n"
            b"    from .engine.train import (\n    run,  # first\n    stop as end,\n)\nimport a.b as c\n"
            b"from torch import nn\nsave(model.state_dict())\n# import this\n"
        )
        assert set(iterate_imports(code)) == {
            (b".", b"utils", b"utils"),
            (b".engine.train", b"run", b"run"),
            (b".engine.train", b"stop", b"end"),
            (b"torch", b"nn", b"nn"),
            (b"os", b"", b"os"),
            (b"torch.amp", b"", b"torch"),
            (b"a.b", b"", b"c"),
        }
        assert Code(code).imported_names() == {b"os", b"utils", b"train", b"run", b"stop", b"b"}

    def test_they_matter_only_to_what_saves_or_clips(self) -> None:
        assert Code(b"from .engine import train\n").imported_names() == set()
