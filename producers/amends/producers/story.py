"""What an agent is told after an undoing: for a prompt as text, for code as steps. The fold's words, nothing added."""

from __future__ import annotations

from dataclasses import dataclass

from amends.producers.effects import Standing
from amends.schemas.commands import ToldStep


@dataclass(frozen=True, slots=True)
class Story:
    """What became of the calls after a savepoint. `str(story)` is ready for a prompt.

    Attributes:
        text: the whole story.
        steps: the calls that were undone, newest first: `tool_name`, `call_id`, `fate` in words, `residue` (what even a
            perfect undo leaves behind) and `is_open` (something is still owed).
        savepoint: what was undone to, "" for the start; an older one than asked for if that was void.
        epoch: in which the agent goes on.
    """

    text: str
    steps: tuple[ToldStep, ...] = ()
    savepoint: str = ""
    epoch: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def open(self) -> tuple[ToldStep, ...]:
        """The calls that are not undone: a person decides on them."""
        return tuple(step for step in self.steps if step.is_open)


def story_of(asked: str, standing: Standing) -> Story:
    """Return the story of the last turn, which was asked to go to the savepoint `asked`."""
    place = f"savepoint {standing.savepoint!r}" if standing.savepoint else "the start of the workflow"
    lines = [f"What was done since {place} has been undone, and the work goes on from there."]
    if standing.savepoint != asked:
        lines.append(
            f"Asked for was savepoint {asked!r}, which does not count: it was taken while a call was open or unknown."
        )
    lines.extend(f"- {_line(step)}" for step in standing.steps)
    if not standing.steps:
        lines.append("Nothing had been done since.")
    if still_open := sum(1 for step in standing.steps if step.is_open):
        lines.append(f"Not undone: {still_open}. A person decides on that; count neither on it being there nor gone.")
    return Story("\n".join(lines), standing.steps, standing.savepoint, standing.epoch)


def _line(step: ToldStep) -> str:
    left = f"; it leaves behind: {step.residue}" if step.residue else ""
    return f"{step.tool_name}: {step.fate}{left}"
