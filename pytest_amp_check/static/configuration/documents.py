"""Settings of a YAML, JSON or TOML file, each with its position in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...protocol.fast_namedtuple import NamedTuple
from ..sources.source_files import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import yaml

#: Marks of a template that another program fills.
_TEMPLATE = re.compile(r"\{[{%]|<%")


class Setting(NamedTuple):
    """One key with its value. ``line`` counts from 1, the columns from 0, in characters.

    A value is a :class:`Section`, a list, a text, a truth value or None. Numbers are texts as they are written.
    """

    key: str
    value: Any
    line: int
    column: int
    end_column: int


class Section:
    """The settings below one key, or of a whole file, in order."""

    __slots__ = ("settings",)

    def __init__(self, settings: dict[str, Setting]) -> None:
        self.settings = settings

    def find(self, path: str) -> Setting | None:
        """Return the setting of a dotted path, or None."""
        key, _, rest = path.partition(".")
        found = self.settings.get(key)
        if found is None or not rest:
            return found
        return found.value.find(rest) if isinstance(found.value, Section) else None

    def value(self, path: str) -> Any:
        """Return the value of a dotted path, or None."""
        found = self.find(path)
        return None if found is None else found.value

    def text(self, path: str) -> str:
        """Return the text of a dotted path, "" if the value is no text."""
        value = self.value(path)
        return value if isinstance(value, str) else ""

    def walk(self) -> Iterator[Section]:
        """Yield this section and all sections below it, also those in lists."""
        yield self
        for setting in self.settings.values():
            for value in setting.value if isinstance(setting.value, list) else [setting.value]:
                if isinstance(value, Section):
                    yield from value.walk()


def load_settings(path: str, text: str) -> Section:
    """Return the settings of a file. Raise :class:`.Unreadable` for a text that is not in the format of the file.

    A template, which another program fills first, has no settings.
    """
    if _TEMPLATE.search(text):
        return Section({})
    if path.lower().endswith(".toml"):
        return _load_toml(text)
    return _load_yaml(text, "JSON" if path.lower().endswith(".json") else "YAML")


def _load_yaml(text: str, name: str) -> Section:
    """Return the settings of the first YAML document. Every JSON text is a YAML text, once tabs are spaces."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text.replace("\t", " ") if name == "JSON" else text.partition("\n---\n")[0], loader)
        return _section_of(root, set()) if isinstance(root, yaml.MappingNode) else Section({})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = 1 if mark is None else mark.line + 1
        raise Unreadable(f"it is no valid {name}, {error.problem} on line {line}", line) from None
    except (yaml.YAMLError, RecursionError):
        raise Unreadable(f"it is no valid {name}") from None


def _section_of(node: yaml.MappingNode, around: set[int]) -> Section:
    """Return the settings of a mapping. An alias of a mapping around it is an empty section."""
    if id(node) in around:
        return Section({})
    settings: dict[str, Setting] = {}
    for key, value in node.value:
        if isinstance(key.value, str):
            end = value.end_mark.column if value.end_mark.line == key.start_mark.line else key.end_mark.column
            position = (key.start_mark.line + 1, key.start_mark.column, end)
            settings[key.value] = Setting(key.value, _value_of(value, around | {id(node)}), *position)
    return Section(settings)


def _value_of(node: yaml.Node, around: set[int]) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return _section_of(node, around)
    if isinstance(node, yaml.SequenceNode):
        return [] if id(node) in around else [_value_of(item, around | {id(node)}) for item in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() in ("true", "yes", "on")
    return node.value


def _load_toml(text: str) -> Section:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        loaded = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Unreadable(f"it is no valid TOML, {str(error)[:1].lower()}{str(error)[1:]}") from None
    return _placed(loaded, "", _toml_positions(text))


def _toml_positions(text: str) -> dict[str, tuple[int, int, int]]:
    """Return the first position of each dotted key that stands on a line of its own."""
    positions: dict[str, tuple[int, int, int]] = {}
    prefix = ""
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition(" #")[0].rstrip()
        key = words.partition("=")[0]
        if words.endswith("]") and words.lstrip().startswith("["):
            prefix = _unquoted(words.strip(" []")) + "."
        elif key != words and key.strip():
            position = (number, len(key) - len(key.lstrip()), len(words))
            positions.setdefault(prefix + _unquoted(key), position)
    return positions


def _unquoted(key: str) -> str:
    return re.sub(r"[\"'\s]", "", key)


def _placed(loaded: dict[str, Any], prefix: str, positions: dict[str, tuple[int, int, int]]) -> Section:
    """Return loaded TOML as settings. A key without a known position, as in an inline table, has that of line 1."""
    settings = {}
    for key, value in loaded.items():
        name = prefix + key
        items = [
            _placed(item, name + ".", positions) if isinstance(item, dict) else item
            for item in (value if isinstance(value, list) else [value])
        ]
        made = [item if isinstance(item, (Section, bool)) else str(item) for item in items]
        settings[key] = Setting(key, made if isinstance(value, list) else made[0], *positions.get(name, (1, 0, 0)))
    return Section(settings)
