"""What handlers say becomes a record that can be written, whatever they say it with."""

from __future__ import annotations

from typing import Any, cast

import pytest

from amends.compensators.effects import IsStillThere, IsUndone, NobodyKnows, ProbeAnswer, Refused, Succeeded, Uncertain
from amends.compensators.verdicts import (
    Answer,
    failure_of,
    not_begun,
    not_deployed,
    probe_answer,
    uncertain,
    undo_answer,
    verify_answer,
)
from amends.schemas.codec import decode, encode
from amends.schemas.facts import Failure, Party, Resolution
from amends.tools import Absent, AlreadyUndone, NothingToUndo, NotUndone, Present, StillThere, Undone, Unknown


class Rude:
    def __str__(self) -> str:
        raise KeyboardInterrupt


ODD_WORDS: list[Any] = ["x" * 1_000_000, "\ud800", 7, b"bytes", Rude(), None, "✓"]


def _words_in(answer: Answer) -> str:
    return str(getattr(answer, "evidence", "")) + str(getattr(answer, "error", ""))


@pytest.mark.parametrize("words", ODD_WORDS, ids=lambda words: type(words).__name__)
def test_evidence_of_any_kind_and_length_can_be_written(words: Any) -> None:
    said = cast("str", words)
    answers: list[Answer] = [
        *(undo_answer(kind(said)) for kind in (Undone, AlreadyUndone, NothingToUndo, StillThere, Unknown, NotUndone)),
        *(verify_answer(kind(said)) for kind in (Undone, StillThere, Unknown)),
        *(probe_answer(kind(evidence=said), 1_000) for kind in (Present, Absent, Unknown)),
    ]
    for answer in answers:
        text = _words_in(answer)
        assert len(text) < 2_000
        fact = Resolution("w", probe_answer(None, 1_000).decision, Party.COMPENSATOR, "c", evidence=text)
        assert decode(encode(fact)) == fact


def test_ids_of_any_kind_and_number_are_bounded() -> None:
    ids = cast("dict[str, str]", {str(number): number for number in range(1_000)} | {"0": "y" * 10_000})
    answer = probe_answer(Present(external_resource_ids=ids), 1_000)
    assert len(answer.external_resource_ids) == 100
    assert all(len(value) <= 500 for value in answer.external_resource_ids.values())


def test_an_exception_without_words_has_a_name() -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert failure_of(WordlessError()).type.endswith("WordlessError")


@pytest.mark.parametrize("role", ["undo", "forward", "verify", "probe"])
def test_what_was_not_run_or_was_cut_is_said_in_the_words_of_the_question(role: str) -> None:
    failure = Failure("t", "m")
    kinds: dict[str, tuple[type, ...]] = {"verify": (NobodyKnows,), "probe": (ProbeAnswer,)}
    assert isinstance(uncertain(role, failure), kinds.get(role, (Uncertain,)))
    for answer in (not_begun(role, "r"), not_deployed(role, failure)):
        assert not isinstance(answer, Succeeded | Uncertain | Refused | IsUndone | IsStillThere)
