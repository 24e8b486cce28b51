"""Configuration files: settings that store weights, or sum gradients, in low precision, at their line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from warm import run_command, run_pytest

from pytest_amp_check import check_paths, check_source
from pytest_amp_check.static.sources import configurations

pytest_plugins = ["pytester"]

LIGHTNING = """\
trainer:
  accelerator: gpu
  precision: {precision}
  max_epochs: 50
model:
  lr: 0.0001
"""
TORCHTUNE = """\
dtype: {dtype}
model:
  _component_: torchtune.models.{model}
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
"""
TRL = """\
model_name_or_path: some/model
torch_dtype: {dtype}
learning_rate: 2.0e-06
bf16: true
"""
RECIPE = """\
model:
  pretrained_model_name_or_path: a/b
  torch_dtype: {dtype}
optimizer:
  _target_: {optimizer}
  lr: 6.0e-6
"""
LLAMA_FACTORY = "model_name_or_path: a/b\nfinetuning_type: {kind}\nlearning_rate: 1.0e-5\npure_bf16: {pure}\n"
AXOLOTL = "base_model: a/b\nlearning_rate: 0.00002\noptimizer: adamw_torch\nbf16: {bf16}\n{adapter}"
TORCHTITAN = """\
[model]
name = "llama3"
[optimizer]
lr = 3e-4
[training]
dtype = "{dtype}"  # of the weights
mixed_precision_param = "bfloat16"
mixed_precision_reduce = "{reduce}"
"""
VERL = """\
actor_rollout_ref:
  actor:
    optim: {{lr: 1e-6}}
    fsdp_config:
      model_dtype: {dtype}
  ref:
    fsdp_config:
      model_dtype: bf16
"""
DEEPSPEED = """\
{{
\t"train_micro_batch_size_per_gpu": 8,
\t"bf16": {{"enabled": {bf16}{copies}}},
\t"communication_data_type": "{summed}",
\t"zero_optimization": {{"stage": 2}}
}}
"""


ACCUMULATED = """\
{{
"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {steps},
"bf16": {{"enabled": true}},
"data_types": {{"grad_accum_dtype": "{dtype}"}}
}}
"""


def found(text: str, name: str) -> list[tuple[int, int, str]]:
    """Line, column and label of the findings in a file."""
    return [(f.line, f.site.column + 1, f.label) for f in check_source(text, name)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("fit.yaml", LIGHTNING.format(precision="16-true"), [(3, 3, "setting:trained")]),
        ("fit.yml", LIGHTNING.format(precision='"bf16-true"'), [(3, 3, "setting:trained")]),
        ("fit.yaml", LIGHTNING.format(precision="bf16-mixed"), []),
        ("fit.yaml", LIGHTNING.format(precision="bf16-true") + "strategy: deepspeed_stage_2\n", []),
        ("fit.yaml", LIGHTNING.format(precision="bf16-true") + "lora_r: 8\n", []),
        ("fit.yaml", LIGHTNING.format(precision="bf16-true") + "use_lora: false\n", [(3, 3, "setting:trained")]),
        # Nothing is trained.
        ("generate.yaml", "precision: bf16-true\nprompt: Hello\n", []),
        ("full.yaml", TORCHTUNE.format(dtype="bf16", model="llama3_8b"), [(1, 1, "setting:trained")]),
        ("full.yaml", TORCHTUNE.format(dtype="fp32", model="llama3_8b"), []),
        ("lora.yaml", TORCHTUNE.format(dtype="bf16", model="lora_llama3_8b"), []),
        # Of autocast, as in many projects.
        ("train.yaml", "dtype: bfloat16\noptimizer: adamw\nlr: 0.001\n", []),
        ("sft.yaml", TRL.format(dtype="bfloat16"), [(2, 1, "setting:trained")]),
        ("sft.yaml", TRL.format(dtype="float16"), [(2, 1, "setting:trained")]),
        ("sft.yaml", TRL.format(dtype="float32"), []),
        ("sft.yaml", TRL.format(dtype="bfloat16") + "use_peft: true\n", []),
        ("sft.yaml", TRL.format(dtype="bfloat16") + "load_in_4bit: true\n", []),
        ("sft.yaml", TRL.format(dtype="bfloat16") + "deepspeed: ds.json\n", []),
        ("sft.yaml", RECIPE.format(dtype="bfloat16", optimizer="torch.optim.AdamW"), [(3, 3, "setting:trained")]),
        ("sft.yaml", RECIPE.format(dtype="float32", optimizer="torch.optim.AdamW"), []),
        # This optimizer may keep float32 copies.
        ("sft.yaml", RECIPE.format(dtype="bfloat16", optimizer="mine.optim.AdamW"), []),
        ("sft.yaml", RECIPE.format(dtype="bfloat16", optimizer="torch.optim.AdamW") + "peft: {r: 8}\n", []),
        ("full.yaml", LLAMA_FACTORY.format(kind="full", pure="true"), [(4, 1, "setting:trained")]),
        ("full.yaml", LLAMA_FACTORY.format(kind="full", pure="false"), []),
        ("lora.yaml", LLAMA_FACTORY.format(kind="lora", pure="true"), []),
        ("full.yml", AXOLOTL.format(bf16="full", adapter=""), [(4, 1, "setting:trained")]),
        ("full.yml", AXOLOTL.format(bf16="auto", adapter=""), []),
        ("lora.yml", AXOLOTL.format(bf16="full", adapter="adapter: qlora\n"), []),
        ("run.toml", TORCHTITAN.format(dtype="bfloat16", reduce="float32"), [(6, 1, "setting:trained")]),
        ("run.toml", TORCHTITAN.format(dtype="float32", reduce="bfloat16"), [(8, 1, "reduction:setting")]),
        ("run.toml", TORCHTITAN.format(dtype="float32", reduce="float32"), []),
        # The reference model is not trained.
        ("ppo.yaml", VERL.format(dtype="bf16"), [(5, 7, "setting:trained")]),
        ("ppo.yaml", VERL.format(dtype="fp32"), []),
        ("ds.json", DEEPSPEED.format(bf16="true", copies="", summed="fp16"), [(4, 2, "reduction:setting")]),
        ("ds.json", DEEPSPEED.format(bf16="false", copies="", summed="bf16"), [(4, 2, "reduction:setting")]),
        ("ds.json", DEEPSPEED.format(bf16="true", copies="", summed="bf16"), []),
        ("ds.json", DEEPSPEED.format(bf16="true", copies="", summed="fp32"), []),
        ("ds.json", ACCUMULATED.format(steps=64, dtype="bf16"), [(4, 16, "reduction:window")]),
        ("ds.json", ACCUMULATED.format(steps=64, dtype="fp32"), []),
        ("ds.json", ACCUMULATED.format(steps=1, dtype="bf16"), []),
        ("ds.json", ACCUMULATED.format(steps='"auto"', dtype="bf16"), []),
        (
            "ds.json",
            DEEPSPEED.format(bf16="true", copies=', "bf16_master_weights_and_grads": true', summed="fp32"),
            [(3, 28, "setting:trained")],
        ),
    ],
)
def test_formats(name: str, text: str, expected: list[tuple[int, int, str]]) -> None:
    assert found(text, name) == expected


def test_the_message_names_the_setting_and_what_to_write() -> None:
    (finding,) = check_source(LIGHTNING.format(precision="16-true"), "fit.yaml")
    assert (finding.code, finding.severity, finding.certain) == ("AMP501", "warning", False)
    assert "`precision: 16-true` stores trained parameters in float16" in finding.message
    assert "write `precision: 16-mixed`" in finding.remedy


def test_several_mistakes_stand_in_order() -> None:
    text = TORCHTITAN.format(dtype="bfloat16", reduce="bfloat16")
    assert [(line, label) for line, _, label in found(text, "run.toml")] == [
        (6, "setting:trained"),
        (8, "reduction:setting"),
    ]


@pytest.mark.parametrize(
    "comment", ["# amp: ignore[AMP501] no room", "# noqa: AMP501", "# amp: ignore[low-precision-master-weights]"]
)
def test_comments_suppress(comment: str) -> None:
    text = LIGHTNING.format(precision=f"bf16-true  {comment}")
    assert found(text, "fit.yaml") == []


def test_a_comment_without_a_finding_is_unused() -> None:
    text = LIGHTNING.format(precision="bf16-mixed  # amp: ignore[AMP501]")
    assert found(text, "fit.yaml") == [(3, 26, "suppression:unused")]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.yaml", "precision: bf16-true\nmax_epochs: [1\nlr: 2\n", 3),
        ("config.json", '{"precision": "bf16-true", "lr": [}', 1),
        ("a.toml", 'dtype = "bf16"\nlr = = 2\n', 1),
        ("a.yaml", f"precision: bf16-true\nlr: {'[' * 3000}\n", 2),
    ],
)
def test_an_invalid_file_is_named(name: str, text: str, line: int) -> None:
    (finding,) = check_source(text, name)
    assert (finding.code, finding.line) == ("AMP903", line)
    assert "it is no valid" in finding.message


@pytest.mark.parametrize("text", ["precision: {{ precision }}\nlr: 1\n{% if x %}\n", "lr: <% rate %>: [\n"])
def test_a_template_has_no_settings(text: str) -> None:
    assert found(text, "a.yaml") == []


def test_an_alias_of_a_section_around_it_ends() -> None:
    assert found("trainer: &t\n  precision: bf16-true\n  lr: 1\n  again: *t\n", "a.yaml") == [(2, 3, "setting:trained")]


def test_a_folder_takes_files_that_set_a_precision(tmp_path: Path) -> None:
    files = {
        "conf/fit.yaml": LIGHTNING.format(precision="bf16-true"),
        "conf/right.yaml": LIGHTNING.format(precision="bf16-mixed"),
        "ds_config.json": DEEPSPEED.format(bf16="true", copies="", summed="fp16"),
        # A JSON file of another name is data.
        "samples.json": DEEPSPEED.format(bf16="true", copies="", summed="fp16"),
        "pyproject.toml": TORCHTITAN.format(dtype="bfloat16", reduce="float32"),
        "large.yaml": LIGHTNING.format(precision="bf16-true") + "#" * configurations.LARGEST,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "linked.yaml").symlink_to(tmp_path / "conf" / "fit.yaml")
    report = check_paths([tmp_path])
    places = [(Path(f.filename).relative_to(tmp_path).as_posix(), f.code) for f in report.findings]
    assert places == [("conf/fit.yaml", "AMP501"), ("ds_config.json", "AMP508")]
    assert report.files == 2
    # A named file is read, whatever its name says.
    assert [f.code for f in check_paths([tmp_path / "samples.json"]).findings] == ["AMP508"]


def test_endless_and_strange_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    subprocess.run(["mkfifo", tmp_path / "pipe.yaml"], check=True)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"precision: bf16-true\xff\n")
    (tmp_path / "train.py").write_text("import torch\n")
    findings = check_paths([tmp_path]).findings
    assert [(Path(f.filename).name, f.code) for f in findings] == [("binary.yaml", "AMP903")]


def test_command_and_plugin_show_the_line(pytester: pytest.Pytester) -> None:
    pytester.makefile(".yaml", fit=LIGHTNING.format(precision="16-true"))
    shown = run_command("check", ".", "--no-cache", cwd=pytester.path)
    assert shown.returncode == 1
    assert "fit.yaml:3:3: AMP501" in shown.stdout
    assert "3 |   precision: 16-true" in shown.stdout
    result = run_pytest(pytester, "--amp-check")
    result.stdout.fnmatch_lines(["FAILED fit.yaml::amp-check*AMP501*"])
