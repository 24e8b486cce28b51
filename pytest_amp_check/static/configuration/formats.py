"""Formats of configuration files, and their settings that store weights or sum gradients in low precision.

A format is recognized by keys or values that only its framework has. A file of no known format has no findings: a
``dtype`` alone is as often the dtype of autocast, where low precision is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ...protocol import frameworks
from ...protocol.fast_namedtuple import NamedTuple
from .documents import Section, Setting


class LowSetting(NamedTuple):
    """A setting of low precision: its effect ("storage", "reduction" or "window"), and what to write."""

    setting: Setting
    dtype: str
    effect: str
    instead: str


Format = Callable[[Section], Iterator[LowSetting]]

#: Names of low dtypes in settings -> dtype.
LOW_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "bfp16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
    "torch.float16": "float16",
}
#: Keys of a configuration that trains, not only evaluates.
_TRAINING_KEY = re.compile(
    r"(?:max_(?:epochs|steps|time|iters)|num_train_epochs|epochs|lr|learning_rate|optim(?:izer)?|train(?:ing)?"
    r"|gradient_clip\w*|accumulate_grad_batches|gradient_accumulation\w*)"
)
#: Words of a training of adapters alone, and of engines that update float32 copies of the weights.
_OTHER_WEIGHTS = re.compile(r"lora|peft|adapter|deepspeed|load_in_[48]bit|megatron_amp", re.IGNORECASE)
#: Keys of the class of an object, and of the name of a pretrained model.
_CLASS_KEYS = ("_target_", "_component_", "class_path")
_MODEL_NAMES = frozenset({"pretrained_model_name_or_path", "model_name_or_path", "name_or_path", "model_name"})
_OFF = (None, False, "", "none", "null", "no", "0")


def low_settings(root: Section) -> list[LowSetting]:
    """Return the settings of low precision of a configuration, in order of their lines."""
    found = [low for read_format in FORMATS for low in read_format(root)]
    return sorted(found, key=lambda low: (low.setting.line, low.setting.column))


def _trains_weights(root: Section) -> bool:
    """Return True if a configuration trains the weights themselves, and no float32 copies of them are known."""
    trains = False
    for section in root.walk():
        for setting in section.settings.values():
            trains = trains or _TRAINING_KEY.fullmatch(setting.key) is not None
            if setting.value in _OFF:
                continue
            texts = [text for text in (setting.key, setting.value) if isinstance(text, str)]
            if any(_OTHER_WEIGHTS.search(text) for text in texts):
                return False
    return trains


def _stored(setting: Setting | None, instead: str) -> Iterator[LowSetting]:
    """Yield a setting that names a low dtype for the weights."""
    dtype = LOW_DTYPES.get(setting.value) if setting is not None and isinstance(setting.value, str) else None
    if setting is not None and dtype is not None:
        yield LowSetting(setting, dtype, "storage", f"{setting.key}: {instead}")


def _read_lightning(root: Section) -> Iterator[LowSetting]:
    """Yield each ``precision`` of Lightning or Fabric that casts the model: no other library has these values."""
    for section in root.walk():
        stored = frameworks.STORED_LOW.get(section.text("precision"))
        if stored is not None and _trains_weights(root):
            yield LowSetting(section.settings["precision"], stored[0], "storage", f"precision: {stored[1]}")


def _read_torchtune(root: Section) -> Iterator[LowSetting]:
    """Yield the ``dtype`` of a recipe of torchtune, whose parts have a ``_component_``."""
    optimizer = root.value("optimizer")
    if isinstance(optimizer, Section) and "_component_" in optimizer.settings and _trains_weights(root):
        yield from _stored(root.find("dtype"), "fp32")


def _read_transformers(root: Section) -> Iterator[LowSetting]:
    """Yield the dtype in which a Trainer of transformers or trl loads a model that it trains as a whole."""
    if "model_name_or_path" in root.settings and "learning_rate" in root.settings and _trains_weights(root):
        for key in ("torch_dtype", "dtype"):
            yield from _stored(root.find(key), "float32")


def _read_recipe(root: Section) -> Iterator[LowSetting]:
    """Yield the dtype in which a recipe loads a model of Transformers that an optimizer of torch trains as a whole.

    The recipe names the class of the optimizer, as Hydra and jsonargparse do.
    """
    named = (section.text(key) for section in root.walk() for key in _CLASS_KEYS)
    if any(name.startswith("torch.optim.") for name in named) and _trains_weights(root):
        for section in root.walk():
            if section is not root and not _MODEL_NAMES.isdisjoint(section.settings):
                yield from _stored(section.find("torch_dtype"), "float32")


def _read_llama_factory(root: Section) -> Iterator[LowSetting]:
    """Yield ``pure_bf16`` of LLaMA-Factory."""
    pure = root.find("pure_bf16")
    if pure is not None and pure.value is True and root.text("finetuning_type") in ("full", "freeze"):
        yield LowSetting(pure, "bfloat16", "storage", "bf16: true")


def _read_axolotl(root: Section) -> Iterator[LowSetting]:
    """Yield ``bf16: full`` of axolotl, which trains without autocast."""
    setting = root.find("bf16")
    if setting is not None and setting.value == "full" and "base_model" in root.settings and _trains_weights(root):
        yield LowSetting(setting, "bfloat16", "storage", "bf16: true")


def _read_torchtitan(root: Section) -> Iterator[LowSetting]:
    """Yield the dtypes of ``[training]`` of torchtitan."""
    training = root.value("training")
    if not isinstance(training, Section) or not isinstance(root.value("optimizer"), Section):
        return
    if "mixed_precision_param" in training.settings or isinstance(root.value("parallelism"), Section):
        yield from _stored(training.find("dtype"), "float32")
    reduced = training.find("mixed_precision_reduce")
    if reduced is not None and reduced.value in LOW_DTYPES:
        yield LowSetting(reduced, LOW_DTYPES[reduced.value], "reduction", "mixed_precision_reduce: float32")


def _read_verl(root: Section) -> Iterator[LowSetting]:
    """Yield the dtype in which verl holds the weights of a sharded model with an optimizer."""
    for section in root.walk():
        if "optim" in section.settings and "fsdp_config" in section.settings:
            yield from _stored(section.find("fsdp_config.model_dtype"), "fp32")


def _read_deepspeed(root: Section) -> Iterator[LowSetting]:
    """Yield what makes DeepSpeed sum gradients in a dtype of lower range, or give up its float32 copies."""
    if not root.settings.keys() & {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}:
        return
    bfloat16, float16 = (root.value(f"{name}.enabled") is True for name in ("bf16", "fp16"))
    summed = root.find("communication_data_type")
    dtype = LOW_DTYPES.get(summed.value) if summed is not None and isinstance(summed.value, str) else None
    if summed is not None and dtype is not None and not float16 and (dtype == "float16" or not bfloat16):
        yield LowSetting(summed, dtype, "reduction", "communication_data_type: fp32")
    kept, micro_batches = root.find("data_types.grad_accum_dtype"), str(root.value("gradient_accumulation_steps"))
    dtype = LOW_DTYPES.get(kept.value) if kept is not None and isinstance(kept.value, str) else None
    if kept is not None and dtype is not None and micro_batches.isdigit() and micro_batches != "1":
        yield LowSetting(kept, dtype, "window", "grad_accum_dtype: fp32")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        section = root.value(name)
        for setting in section.settings.values() if isinstance(section, Section) else ():
            if "master_weights_and_grad" in setting.key and setting.value is True:
                yield LowSetting(setting, dtype, "storage", f"{setting.key}: false")


#: One row for each format.
FORMATS: tuple[Format, ...] = (
    _read_lightning,
    _read_torchtune,
    _read_transformers,
    _read_recipe,
    _read_llama_factory,
    _read_axolotl,
    _read_torchtitan,
    _read_verl,
    _read_deepspeed,
)
