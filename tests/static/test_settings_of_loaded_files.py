"""AMP501: dtypes of settings that a program loads from a YAML, JSON or TOML file with a literal path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths, check_source

YAML = """\
dtype: {dtype}
model:
  dtype: {dtype}
  width: 16
"""
LOOP = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCRIPTS = {
    "subscripts": """\
import torch
import yaml
from torch import nn
from data import loader

with open("conf.yaml") as f:
    cfg = yaml.safe_load(f)
model = nn.Linear(16, 4).cuda().to(getattr(torch, cfg["model"]["dtype"]))
""",
    "attributes": """\
import torch
from omegaconf import OmegaConf
from torch import nn
from data import loader

cfg = OmegaConf.load("conf.yaml")
model = nn.Linear(16, 4)
model = model.cuda().to(dtype=getattr(torch, cfg.model.dtype))
""",
    "variables": """\
import torch
import yaml
from torch import nn
from data import loader

cfg = yaml.safe_load(open("conf.yaml"))
section = cfg.get("model")
dtype = getattr(torch, section["dtype"])
model = nn.Linear(16, 4).cuda().to(dtype)
""",
    "a function that loads": """\
import torch
import yaml
from torch import nn
from data import loader


def load(path="conf.yaml"):
    with open(path) as f:
        return yaml.safe_load(f)


cfg = load()
model = nn.Linear(16, 4).cuda().to(getattr(torch, cfg["dtype"]))
""",
}


def check(folder: Path, script: str, settings: str, name: str = "conf.yaml") -> list[str]:
    (folder / "fit.py").write_text(script.replace("conf.yaml", name) + LOOP)
    (folder / name).write_text(settings)
    return [finding.code for finding in check_paths([folder / "fit.py"]).findings]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", ["AMP501"]), ("float32", [])])
def test_a_setting_of_a_loaded_file(tmp_path: Path, script: str, dtype: str, expected: list[str]) -> None:
    assert check(tmp_path, script, YAML.format(dtype=dtype)) == expected


@pytest.mark.parametrize(
    ("name", "settings"),
    [("conf.json", '{"dtype": "bfloat16"}'), ("conf.toml", 'dtype = "bfloat16"\n')],
)
def test_json_and_toml(tmp_path: Path, name: str, settings: str) -> None:
    loader = {"conf.json": "json.load", "conf.toml": "tomllib.load"}[name]
    script = SCRIPTS["a function that loads"].replace("yaml.safe_load", loader).replace("yaml\n", f"{loader[:-5]}\n")
    assert check(tmp_path, script, settings, name) == ["AMP501"]


def test_a_setting_of_another_section_or_another_file_decides_nothing(tmp_path: Path) -> None:
    script = SCRIPTS["subscripts"]
    assert check(tmp_path, script, "dtype: bfloat16\nmodel:\n  width: 16\n") == []
    assert check(tmp_path, script, "model: [bfloat16]\n") == []
    assert check(tmp_path, script.replace('"conf.yaml"', '"other.yaml"'), YAML.format(dtype="bfloat16")) == []
    assert check(tmp_path, script.replace('open("conf.yaml")', "open(path)"), YAML.format(dtype="bfloat16")) == []


def test_a_broken_file_and_a_variable_that_holds_its_own_section_end_no_check(tmp_path: Path) -> None:
    itself = SCRIPTS["subscripts"].replace("model = nn", 'cfg = cfg.get("model")\nmodel = nn')
    assert check(tmp_path, SCRIPTS["subscripts"], "model: [\n") == []
    assert check(tmp_path, itself.replace('["model"]["dtype"]', '["dtype"]'), "width: 16\n") == []


def test_a_file_in_a_folder_above_the_program_is_found(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "fit.py").write_text(SCRIPTS["subscripts"] + LOOP)
    (tmp_path / "conf.yaml").write_text(YAML.format(dtype="bfloat16"))
    assert [finding.code for finding in check_paths([tmp_path / "pkg"]).findings] == ["AMP501"]


@pytest.mark.parametrize(
    ("key", "parameter", "expected"),
    [
        ('"low"', "dtype='low'", ["AMP501"]),
        ('"low"', "dtype='wide'", []),
        # Neither the key nor the setting is known.
        ("LOW", "dtype=CHOSEN", []),
    ],
)
def test_the_default_of_a_setting_chooses_an_entry_of_a_table(key: str, parameter: str, expected: list[str]) -> None:
    source = (
        "import torch\nfrom transformers import AutoModel\nfrom names import CHOSEN, LOW\nfrom data import loader, nn\n"
        f"DTYPES = {{{key}: torch.bfloat16, 'wide': torch.float32}}\n\n\n"
        f"def load(name, {parameter}):\n"
        "    return AutoModel.from_pretrained(name, torch_dtype=DTYPES[dtype])\n\n\n"
        "model = load('a/b')\n"
    )
    assert [finding.code for finding in check_source(source + LOOP)] == expected
