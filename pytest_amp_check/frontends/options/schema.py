"""JSON schema of the configuration table, generated from the option table."""

from __future__ import annotations

from ...protocol.byte_sizes import UNITS
from ...protocol.declared_wrappers import DOES
from ...protocol.rules import RULES
from ...protocol.selection import ALL
from ...protocol.severities import SEVERITIES
from ...protocol.torch_api import AUTOCAST_DEVICES
from . import kinds
from .files import TABLE
from .table import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The draft that validate-pyproject requires.
DIALECT = "http://json-schema.org/draft-07/schema#"
#: A name, not an address. Below a URN, validate-pyproject resolves no reference and fails for every project.
SCHEMA_ID = "https://pytest-amp-check.invalid/amp-check.schema.json"
_RULES = {"$ref": "#/definitions/rules"}
_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_NUMBER = r"(\d+(_\d+)*(\.\d*)?|\.\d+)"


def _any_case(word: str) -> str:
    return "".join(f"[{letter}{letter.lower()}]" for letter in word)


#: Schemas of kinds without a finite set of values.
_KINDS: dict[kinds.OptionKind, dict[str, Any]] = {
    kinds.WORDS: _RULES,
    kinds.PATTERNS: _TEXTS,
    kinds.PATHS: _TEXTS,
    kinds.IGNORES: {"type": "object", "additionalProperties": _RULES},
    kinds.LEVELS: {
        "type": "object",
        "propertyNames": {"$ref": "#/definitions/rule"},
        "additionalProperties": {"enum": list(SEVERITIES)},
    },
    kinds.FLAG: {"type": "boolean"},
    kinds.DEVICE: {"type": "string", "pattern": rf"^({'|'.join(kinds.DEVICES)}|cuda:\d+)$"},
    kinds.DTYPE: {"enum": list(kinds.DTYPES)},
    kinds.PATH: _TEXT,
    kinds.FOLDER: _TEXT,
    kinds.CONFIGURATION: _TEXT,
    kinds.COUNT: {"type": "integer", "minimum": 1},
    kinds.SIZE: {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": rf"^(\d+|\s*{_NUMBER}\s*({'|'.join(map(_any_case, UNITS))})\s*)$"},
        ]
    },
    kinds.SECONDS: {"type": "number", "minimum": 0},
    kinds.HELPERS: {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"enum": list(DOES)}},
    },
    kinds.TYPES: {"type": "array", "items": {"enum": sorted(AUTOCAST_DEVICES)}},
    kinds.VERSION: {"type": "string", "pattern": r"^\d+\.\d+([.+].*)?$"},
    kinds.REQUIREMENT: _TEXT,
}


def make_schema(tool_name: str = "amp-check") -> dict[str, Any]:
    """Return the JSON schema of the table of this tool, which is the whole content of an amp-check.toml.

    validate-pyproject calls this function with the name of the tool.
    """
    properties = {}
    for option in OPTIONS:
        if option.allowed_in_file:
            choices = option.kind.choices
            held = {"enum": list(choices())} if choices is not None else _KINDS[option.kind]
            more = {"description": f"{option.help[0].upper()}{option.help[1:]}."}
            if option.default is not None:
                more["default"] = option.default
            # In this draft, what stands beside a reference is ignored.
            properties[option.key] = {"allOf": [held], **more} if "$ref" in held else {**held, **more}
    return {
        "$schema": DIALECT,
        "$id": SCHEMA_ID,
        "title": f"Table {TABLE} of pyproject.toml, and the content of amp-check.toml",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "definitions": {
            "rule": {"enum": _list_rule_words()},
            "rules": {"type": "array", "items": {"$ref": "#/definitions/rule"}},
        },
    }


def _list_rule_words() -> list[str]:
    """Return ALL, the codes with their prefixes, and the names of rules."""
    prefixes = {code[:end] for code in RULES for end in range(len("AMP"), len(code) + 1)}
    return [ALL, *sorted(prefixes), *(rule.name for rule in RULES.values())]
