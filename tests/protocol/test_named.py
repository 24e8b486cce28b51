"""Fast named tuples equal the result of typing.NamedTuple for the same class."""

from __future__ import annotations

import pickle
import typing

import pytest

from pytest_amp_check.protocol import fast_namedtuple

BODY = '''
class Made(NamedTuple):
    """What was made."""

    first: int
    second: str = "two"

    def both(self) -> str:
        return f"{self.first} {self.second}"
'''


def made(maker: object) -> typing.Any:
    names: dict[str, typing.Any] = {"NamedTuple": maker, "__name__": "somewhere"}
    exec("from __future__ import annotations\n" + BODY, names)  # noqa: S102 - one body for both makers
    return names["Made"]


@pytest.mark.parametrize("maker", [fast_namedtuple.NamedTuple, typing.NamedTuple])
def test_such_a_class(maker: object) -> None:
    cls = made(maker)
    one = cls(1)
    assert one == (1, "two") == tuple(one)
    assert one == cls(first=1)
    assert (one.first, one.second, one.both()) == (1, "two", "1 two")
    assert one._replace(first=3).both() == "3 two"
    assert (cls.__doc__, cls.__name__, cls.__qualname__, cls.__module__) == (
        "What was made.",
        "Made",
        "Made",
        "somewhere",
    )
    assert hash(one) == hash((1, "two"))
    assert repr(one) == "Made(first=1, second='two')"
    assert cls.__bases__ == (tuple,)
    with pytest.raises(TypeError, match="first"):
        cls()


def test_one_of_ours_goes_to_another_process() -> None:
    from pytest_amp_check.static.project.module import ImportedName

    assert pickle.loads(pickle.dumps(ImportedName("torch", "amp", 0))) == ImportedName("torch", "amp", 0)  # noqa: S301 - our own
