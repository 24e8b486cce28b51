"""Names of torch and of frameworks at all their locations, and known properties of the ops behind some names."""

from __future__ import annotations

import pytest

from pytest_amp_check.protocol import frameworks, kernels, torch_api


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("torch.autocast", "torch.autocast"),
        ("torch.amp.autocast", "torch.autocast"),
        ("torch.GradScaler", "torch.amp.GradScaler"),
        ("torch.optim.adamw.AdamW", "torch.optim.AdamW"),
        ("torch.nn.utils.clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("torch.optim.adamw", "torch.optim.adamw"),
        ("torch", "torch"),
        ("model", "model"),
    ],
)
def test_an_object_of_torch_has_one_place(name: str, place: str) -> None:
    assert torch_api.canonical_name(name) == place


def test_what_the_table_knows_of_a_name_of_torch() -> None:
    found = torch_api.find_entry("torch.optim.adamw.AdamW")
    assert found is not None
    assert (found.name, found.role) == ("torch.optim.AdamW", torch_api.OPTIMIZER)
    assert torch_api.find_entry("torch.optim.Lion") is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("torch", True),
        ("torch.anything.at.all", True),
        ("contextlib.nullcontext", True),
        ("multiprocessing.dummy.Pool", True),
        ("contextlib.closing", False),
        ("torchvision.models", False),
        ("train.torch", False),
    ],
)
def test_names_of_torch_and_those_that_the_table_speaks_of(name: str, known: bool) -> None:
    assert torch_api.is_known_name(name) is known


@pytest.mark.parametrize(
    ("old", "version"),
    [
        ("torch.cuda.amp.autocast", (2, 0)),
        ("torch.cpu.amp.GradScaler", (2, 3)),
        ("torch.nn.utils.clip_grad_norm", (1, 0)),
        ("torch.cuda.amp.custom_fwd", (2, 4)),
    ],
)
def test_the_version_of_torch_that_has_what_replaces_a_name(old: str, version: tuple[int, int]) -> None:
    assert torch_api.replacement_version(old) == version


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("lightning.Fabric", "lightning.Fabric"),
        ("lightning.fabric.fabric.Fabric", "lightning.Fabric"),
        ("pytorch_lightning.LightningModule", "lightning.LightningModule"),
        ("transformers.Seq2SeqTrainer", "transformers.Trainer"),
        ("accelerate", "accelerate"),
    ],
)
def test_an_object_of_a_framework_has_one_place(name: str, place: str) -> None:
    assert frameworks.canonical_name(name) == place


def test_what_the_table_knows_of_a_name_of_a_framework() -> None:
    found = frameworks.find_entry("accelerate.accelerator.Accelerator")
    assert found is not None
    assert (found.name, found.role) == ("accelerate.Accelerator", frameworks.ENGINE)
    assert frameworks.find_entry("accelerate.Nothing") is None
    assert frameworks.find_entry("project.Accelerator") is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("accelerate.Accelerator", True),
        ("lightning.pytorch.LightningModule", True),
        ("transformers.Trainer", True),
        # A module that contains some of the names, but not the package as a whole.
        ("apex.amp", True),
        ("timm.utils", True),
        ("timm", False),
        ("accelerate.utils", False),
        ("apex.am", False),
        ("transformers.Train", False),
    ],
)
def test_names_of_which_the_table_of_frameworks_speaks(name: str, known: bool) -> None:
    assert frameworks.is_known_name(name) is known


@pytest.mark.parametrize(
    ("op", "dtype", "device", "how"),
    [
        # cuSOLVER has no kernel for either dtype, and autocast for CUDA does not cast for it.
        ("svd", "float16", "cuda", kernels.REFUSED),
        ("svd", "bfloat16", "", kernels.REFUSED),
        ("cholesky", "float16", "cuda", kernels.REFUSED),
        # Autocast for the CPU does: for `svd`, and for the ops in its list as `linalg_...`, as `fft_...`, or in another
        # form.
        ("svd", "float16", "cpu", ""),
        ("eigh", "bfloat16", "cpu", ""),
        ("lu", "bfloat16", "cpu", ""),
        ("svd_lowrank", "bfloat16", "cpu", ""),
        ("fft", "float16", "cpu", ""),
        ("det", "float16", "cpu", kernels.REFUSED),
        ("svd_lowrank", "float16", "cuda", kernels.INNER),
        ("pca_lowrank", "bfloat16", "", kernels.INNER),
        ("fft", "float16", "cuda", kernels.LENGTHS),
        ("irfftn", "float16", "", kernels.LENGTHS),
        ("fft", "bfloat16", "cuda", kernels.REFUSED),
        ("quantile", "float16", "cuda", kernels.REFUSED),
        ("quantile", "float16", "cpu", ""),
    ],
)
def test_how_an_op_takes_low_precision(op: str, dtype: str, device: str, how: str) -> None:
    assert kernels.find_refusal(op, dtype, device) == how
