"""Search for configuration files that set the precision of a training, by name, size and bytes."""

from __future__ import annotations

import re

#: Suffixes of files that may configure a training.
SUFFIXES = (".yaml", ".yml", ".json", ".toml")
#: Largest configuration file, in bytes. Larger files hold data.
LARGEST = 64 * 1024
#: Words of which the name of a JSON file has one: other JSON files are data, and a folder may hold very many.
_JSON_NAMES = re.compile(r"config|deepspeed|ds_|_ds|zero|stage[_-]?[1-3]|accelerate|trainer|recipe", re.IGNORECASE)
#: Files that configure tools, and no training.
_OTHER_NAMES = frozenset({"pyproject.toml", "tsconfig.json", ".pre-commit-config.yaml"})
_ASSIGNED = rb"[\"']?\s*[:=]\s*[\"']?(?:torch\.)?"
#: A setting that may store weights, or sum gradients, in a low dtype.
_WORDS = re.compile(
    rb"precision" + _ASSIGNED + rb"(?:bf)?16-true\b"
    rb"|dtype" + _ASSIGNED + rb"(?:bf16|fp16|bfloat16|float16|half|auto)\b"
    rb"|\bpure_bf16\b|\bbf16" + _ASSIGNED + rb"full\b|master_weights_and_grad"
    rb"|communication_data_type|mixed_precision_reduce"
)


def is_configuration(path: str) -> bool:
    """Return True for a file in a format of configuration files."""
    return path.lower().endswith(SUFFIXES)


def may_configure_training(name: str) -> bool:
    """Return True if a file below a directory may configure a training, by its name."""
    lower = name.lower()
    if not lower.endswith(SUFFIXES) or name in _OTHER_NAMES:
        return False
    return not lower.endswith(".json") or _JSON_NAMES.search(name) is not None


def sets_precision(data: bytes) -> bool:
    """Return True if the bytes of a configuration file may set a low precision."""
    return len(data) <= LARGEST and _WORDS.search(data) is not None


def keep_comments(text: str) -> str:
    """Return a Python text with the comments of a YAML or TOML text in their places, and a statement in each line."""
    lines = (line.rpartition(" #") if " #" in line else ("", "", line) for line in text.split("\n"))
    return "\n".join(
        line if line.lstrip().startswith("#") else "0" + (" " * (len(before) - 1) + mark + line if mark else "")
        for before, mark, line in lines
    )
