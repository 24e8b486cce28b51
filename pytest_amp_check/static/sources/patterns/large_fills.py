"""Byte patterns of fills with numbers beyond the range of float16."""

from __future__ import annotations

import re

#: Numbers that may exceed float16: a large number, a power, or the limits of a wider type.
_LARGE = (
    rb"(?:[0-9._]*[0-9.][eE]\+?0*(?:[4-9]|[1-3][0-9])(?!\w)|[0-9][0-9_]{4,}(?![\w.])"
    rb"|[0-9]{2,}\s*\*\*\s*[0-9]|[0-9]\s*\*\*\s*[0-9]{2}|\w*\.?finfo\()"
)
_SIGN = rb"[-'\"(\s]*(?:float\([-'\"(\s]*)?"
#: The name of a constant, whose number may stand in another file.
_CONSTANT_NAME = rb"[A-Z][A-Z0-9_]{2,}"
#: An item that is set to such a number or to minus a constant.
_LARGE_ITEM = rb"\] = (?:-?" + _LARGE + rb"|-(?:\w+\.)*" + _CONSTANT_NAME + rb"\b)"
_FILL_FUNCTIONS = rb"masked_fill|index_fill|full_like|\.fill_\(|where\("
#: Each fill function contains one of these words.
FILL_WORDS = (b"fill", b"where(", b"full_like")
#: Text before a number that is assigned to items.
ITEM_WRITE = b"] = "
#: Number of bytes that are searched for arguments without a closing bracket, or with too many brackets.
_ARGUMENT_REACH = 200
#: The name before an assigned number, with its annotation.
_ASSIGNED_NAME = rb"(\w+) *(?::[^=\n]*)?$"
#: Number of bytes before the equals sign in which the name stands.
_NAME_REACH = 100
#: Name of a call up to its bracket, and arguments with brackets up to two levels deep.
_NAME_AND_ARGUMENTS = rb"[^(]{0,40}(\((?:[^()#]|\((?:[^()#]|\([^()#]*\))*\)){0,400}\))"


def fills_large_number(data: bytes) -> bool:
    """Return True if code may fill a tensor with a number above float16, written directly or by a name."""
    if ITEM_WRITE in data and re.search(_LARGE_ITEM, data) is not None:
        return True
    if not any(word in data for word in FILL_WORDS):
        return False
    names: set[bytes] = set()
    before = re.compile(_ASSIGNED_NAME)
    # The lookahead only saves time: most assignments fail there.
    for match in re.finditer(rb"= *(?=[-0-9.'\"(fnt])" + _SIGN + _LARGE, data):
        name = before.search(data, match.start() - _NAME_REACH, match.start())
        if name is not None:
            names.add(name.group(1))
    value = re.compile(rb"[,=(\n]" + _SIGN + rb"(?:(" + _LARGE + rb")|((?:\w+\.)*\w+))?")
    call = re.compile(_NAME_AND_ARGUMENTS)
    for named in re.finditer(_FILL_FUNCTIONS, data):
        position = named.start()
        found = call.match(data, position)
        text = found.group(1) if found is not None else data[position : position + _ARGUMENT_REACH]
        for number, dotted in value.findall(text):
            if number or not names.isdisjoint(dotted.split(b".")):
                return True
            if re.fullmatch(_CONSTANT_NAME, dotted.rpartition(b".")[2]):
                return True
    return False
