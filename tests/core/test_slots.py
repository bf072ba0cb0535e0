"""`quick`: a constructor that does the same as the one that dataclasses writes."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from amends.compensators import effects as undoing
from amends.producers import effects as calling
from amends.schemas import commands, facts
from amends.schemas.slots import quick


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    name: str
    count: int = 3
    more: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


@quick
@dataclasses.dataclass(frozen=True, slots=True)
class Quick:
    name: str
    count: int = 3
    more: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


GIVEN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", 4), {}),
    (("a", 4, {"b": "c"}), {}),
    ((), {"name": "a", "more": {"b": "c"}}),
    (("a",), {"more": None}),
]


@pytest.mark.parametrize(("positional", "named"), GIVEN)
def test_it_fills_the_fields_as_the_other_does(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    made = Quick(*positional, **named)
    assert dataclasses.asdict(made) == dataclasses.asdict(Plain(*positional, **named))
    assert made == Quick(*positional, **named)
    assert pickle.loads(pickle.dumps(made)) == made
    assert dataclasses.replace(made, count=9).count == 9


def test_each_object_has_a_default_of_its_own() -> None:
    assert Quick("a").more is not Quick("a").more


@pytest.mark.parametrize(("positional", "named"), [((), {}), (("a", 1, {}, 2), {}), (("a",), {"other": 1})])
def test_it_refuses_what_the_other_refuses(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (Plain, Quick):
        with pytest.raises(TypeError):
            kind(*positional, **named)


def test_what_is_made_stays_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Quick("a").name = "b"  # type: ignore[misc]


def test_a_class_whose_fields_would_not_be_checked_or_filled_is_refused() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Checked:
        name: str

        def __post_init__(self) -> None:
            assert self.name

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        name: str

    for kind in (Checked, Named):
        with pytest.raises(AssertionError):
            quick(kind)


def test_the_records_and_effects_of_the_hot_path_are_quick() -> None:
    for module in (calling, undoing, facts, commands):
        kinds = [k for k in vars(module).values() if dataclasses.is_dataclass(k) and k.__module__ == module.__name__]
        assert kinds
        for kind in kinds:
            assert isinstance(kind, type)
            assert any(name.startswith("set_") for name in kind.__init__.__globals__) or not dataclasses.fields(kind)
