"""The code, broken on purpose: one rule of the protocol taken away at a time. `test_mutations.py` says what is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation import pipeline, workers

from amends.compensators import attempt as undo_attempt
from amends.compensators import decide, ladder, ownership
from amends.compensators.ownership import Lost, Owned, Released
from amends.processors import (
    asking,
    attempts,
    children,
    condemned,
    dependencies,
    diagnosis,
    editing,
    placing,
    plan,
    records,
    runs,
    saga,
    story,
    turning,
    undos,
)
from amends.processors import ladder as rungs
from amends.processors.admission import Admission
from amends.processors.dependencies import Claim, Dependencies, Role
from amends.processors.memory import MemoryBroker
from amends.processors.partition import Partition
from amends.processors.placing import Place
from amends.processors.state import NOWHERE, AttemptState, UndoState
from amends.processors.timers import Silences
from amends.producers import effects, flow, intent, outcome, scope_flow
from amends.producers.calls import CallBook
from amends.producers.known_steps import KnownStep
from amends.producers.scope import Scope
from amends.schemas import approvals, keys
from amends.schemas.commands import Phase
from amends.schemas.contract import Idempotency
from amends.schemas.facts import Party, StepStatus, WorkflowStatus

Break = Callable[[pytest.MonkeyPatch], None]


def no_read_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "standing_of_undo", lambda *given: Owned())


def undo_facts_without_identity(patch: pytest.MonkeyPatch) -> None:
    real = undos.fold_undo_event

    def fold(step: Any, fact: Any, *rest: Any) -> Any:
        undo = step.undo
        if undo is not None:
            fact = replace(fact, generation=undo.generation, attempt=undo.attempt, owner=undo.owner or fact.owner)
        return real(step, fact, *rest)

    patch.setattr(undos, "fold_undo_event", fold)


def first_in_first_out(patch: pytest.MonkeyPatch) -> None:
    built_on, bases_of = Dependencies.built_on, Dependencies.bases_of
    patch.setattr(Dependencies, "built_on", bases_of)
    patch.setattr(Dependencies, "bases_of", built_on)


def data_flow_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dependencies, "claims_of", lambda step: frozenset({Claim(dependencies.ANY, Role.READS)}))


def unknown_is_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(attempts._END, StepStatus.UNKNOWN, AttemptState.FAILED)


def attempt_in_the_undo_key(patch: pytest.MonkeyPatch) -> None:
    _with_entry(patch, lambda entry: replace(entry, key=f"{entry.key}-{entry.attempt}"))


def verify_is_not_asked_first(patch: pytest.MonkeyPatch) -> None:
    _with_entry(patch, lambda entry: replace(entry, verify_first=False))


def _with_entry(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    real = plan.entry
    patch.setattr(plan, "entry", lambda *given: change(real(*given)))


def an_owner_is_a_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workers.WorkerProcess, "next_owner", lambda worker: "the-only-host")


def no_settle_wait(patch: pytest.MonkeyPatch) -> None:
    for module in (rungs, runs, condemned):
        patch.setattr(module, "settles_at_ms", lambda *given: 0)


def evidence_speaks_for_every_attempt(patch: pytest.MonkeyPatch) -> None:
    real = attempts.fold_evidence

    def fold(step: Any, fact: Any, *rest: Any) -> Any:
        return real(step, replace(fact, attempts=tuple(a.name for a in step.attempts)), *rest)

    patch.setattr(attempts, "fold_evidence", fold)


def new_steps_do_not_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership, "_moves", lambda *given: None)


def turns_do_not_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership, "_may_condemn", lambda *given: False)


def zombies_may_checkpoint(patch: pytest.MonkeyPatch) -> None:
    real = MemoryBroker.commit

    def commit(self: Any, transactional_id: str, epoch: int, *rest: Any) -> None:
        real(self, transactional_id, self._epochs[transactional_id], *rest)

    patch.setattr(MemoryBroker, "commit", commit)


def compensators_ignore_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(undo_attempt, "half_is_gone", lambda *given: False)
    patch.setattr(ladder, "half_is_gone", lambda *given: False)


def agents_have_no_fence(patch: pytest.MonkeyPatch) -> None:
    def open_fence(*given: Any) -> Any:
        yield effects.LookAtEcho()
        yield effects.ReadClock()

    patch.setattr(flow, "fenced", open_fence)


def claims_do_not_wait_for_what_is_owed(patch: pytest.MonkeyPatch) -> None:
    real = Scope._looked_for

    def looked_for(self: Any, effect: Any) -> Any:
        look, within_ms = real(self, effect)
        return ((lambda: True), within_ms) if isinstance(effect, effects.AwaitOwed) else (look, within_ms)

    patch.setattr(Scope, "_looked_for", looked_for)


def success_by_self_report(patch: pytest.MonkeyPatch) -> None:
    def claim(terms: Any) -> Any:
        standing = yield effects.AwaitStanding()
        yield effects.WriteFact(intent.workflow_event(terms, standing, WorkflowStatus.SUCCEEDED, 0))
        return scope_flow.Succeeded()

    patch.setattr("tests.simulation.lives.claim_flow", claim)


def outputs_only_when_a_change_is_seen(patch: pytest.MonkeyPatch) -> None:
    real = Partition.restored

    def restored(self: Any, folded_to: int) -> None:
        real(self, folded_to)
        self._touched.clear()

    patch.setattr(Partition, "restored", restored)


def commands_are_sent_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipeline, "REPEAT_MS", 10**9)


def neither_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(undos, "can_be_tried_again", lambda *given: True)


def open_attempts_do_not_block_the_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(condemned, "_is_blocked", lambda step: False)
    patch.setattr(runs, "has_open_attempt", lambda step: False)


def owners_of_ends_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    real = undos.fold_undo_event

    def fold(step: Any, fact: Any, *rest: Any) -> Any:
        return real(step, replace(fact, owner=step.undo.owner or fact.owner) if step.undo else fact, *rest)

    patch.setattr(undos, "fold_undo_event", fold)


def losers_release(patch: pytest.MonkeyPatch) -> None:
    real = decide._standing

    def standing(*given: Any) -> Any:
        found = real(*given)
        return Released("lost") if isinstance(found, Lost) else found

    patch.setattr(decide, "_standing", standing)


def both(*breaks: Break) -> Break:
    def apply(patch: pytest.MonkeyPatch) -> None:
        for one in breaks:
            one(patch)

    return apply


def silences_extend_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Silences, "heartbeat_due_ms", lambda self, armed_at_ms, lease_ms: armed_at_ms + lease_ms)


def turns_name_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """What was started behind a savepoint is condemned, in whatever epoch."""

    def behind(step: Any, turns: Any) -> bool:
        return any(
            (turn.offset == NOWHERE and turn.final) or any(a.started_offset > turn.offset for a in step.attempts)
            for turn in turns
        )

    patch.setattr("amends.processors.workflow.is_condemned", behind)


def condemned_by_phase(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("amends.processors.workflow.is_condemned", lambda step, turns: any(turn.final for turn in turns))


def triggers_name_no_epoch(patch: pytest.MonkeyPatch) -> None:
    real = diagnosis.signal_of
    patch.setattr(diagnosis, "signal_of", lambda header, fact: real(header, replace(fact, epoch=header.epoch)))


def savepoints_are_never_void(patch: pytest.MonkeyPatch) -> None:
    real = turning.take_savepoint

    def take(workflow: Any, *rest: Any) -> None:
        real(workflow, *rest)
        sound = tuple(savepoint._replace(void=False) for savepoint in workflow.header.savepoints)
        workflow.put_header(replace(workflow.header, savepoints=sound))

    patch.setattr(turning, "take_savepoint", take)


def savepoints_move_with_their_repeats(patch: pytest.MonkeyPatch) -> None:
    real = turning.take_savepoint
    patch.setattr(
        turning, "take_savepoint", lambda workflow, name, epoch, offset, behind: real(workflow, name, epoch, offset)
    )
    turns_do_not_release(patch)  # which holds much of it, too


def steps_survive_savepoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownStep, "condemned", lambda step, turns: False)


def agents_go_on_before_the_plan_is_closed(patch: pytest.MonkeyPatch) -> None:
    def closed(scope: Any, epoch: int, as_of: int) -> Any:
        return scope.standing if scope.standing is not None and scope.standing.epoch > epoch else None

    patch.setattr(Scope, "_plan_closed", closed)
    turns_do_not_release(patch)  # which holds much of it, too


def older_echoes_say_that_all_is_undone(patch: pytest.MonkeyPatch) -> None:
    real = Scope._plan_closed
    patch.setattr(Scope, "_plan_closed", lambda scope, epoch, as_of: real(scope, epoch, -1))


def stories_say_that_all_is_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(story, "fate", lambda workflow, step: "undone")


def zombies_condemn_what_stood_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts, "_is_known", lambda step, contract: False)


def only_who_knows_the_epoch_is_alive(patch: pytest.MonkeyPatch) -> None:
    real = saga._renews

    def renews(workflow: Any, fact: Any) -> bool:
        return bool(real(workflow, fact)) and (
            fact.epoch == workflow.header.epoch or fact.status is WorkflowStatus.STARTED
        )

    patch.setattr(saga, "_renews", renews)


def undos_write_over_others(patch: pytest.MonkeyPatch) -> None:
    _with_entry(patch, lambda entry: replace(entry, compares=False))


def remotes_remember_keys_for_ever(patch: pytest.MonkeyPatch) -> None:
    for module in (rungs, undos, plan):
        patch.setattr(module, "is_key_remembered", lambda kind, *rest: kind is Idempotency.KEY)


def what_cannot_be_undone_has_no_strict_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intent, "is_strict", lambda contract, *, approved: False)


def steps_of_two_lives_are_one(patch: pytest.MonkeyPatch) -> None:
    real = keys.step_id
    patch.setattr("amends.producers.calls.step_id", lambda workflow_id, offset, *rest: real(workflow_id, 0, *rest))


def late_facts_of_the_forgotten_are_nobodys(patch: pytest.MonkeyPatch) -> None:
    real = placing.place_of

    def place(*given: Any) -> Any:
        found = real(*given)
        return Place.NOBODY if found is Place.FORGOTTEN else found

    patch.setattr("amends.processors.folding.place_of", place)


def rulings_name_no_version(patch: pytest.MonkeyPatch) -> None:
    real = undos.fold_ruling
    patch.setattr(undos, "fold_ruling", lambda step, fact, *rest: real(step, replace(fact, version=None), *rest))


def what_is_restored_knows_no_offset(patch: pytest.MonkeyPatch) -> None:
    """The state of a workflow says no more up to where it was folded."""
    real = records.decode_header
    patch.setattr(records, "decode_header", lambda data: replace(real(data), folded_to=NOWHERE))


# --- families -------------------------------------------------------------------------------------------------------


def children_stand_in_no_order(patch: pytest.MonkeyPatch) -> None:
    real = Dependencies._claims
    nothing = frozenset({Claim(dependencies.ANY, Role.READS)})

    def claims(self: Any, step: Any) -> Any:
        return real(self, step) if step.child is None else nothing

    patch.setattr(Dependencies, "_claims", claims)
    patch.setattr("amends.processors.workflow.STEPS_MAX", 0)


def children_that_wait_for_people_are_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(children._ENDS, Phase.TURNED.value, UndoState.UNDONE)


def the_unborn_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asking, "is_unborn_of", lambda header, fact: False)


def a_childs_success_is_final(patch: pytest.MonkeyPatch) -> None:
    """Finished stays finished, even if its parent fails."""
    real = diagnosis.signal_of

    def signal_of(header: Any, fact: Any) -> Any:
        is_parents = getattr(fact, "writer", None) is Party.PARENT
        return None if is_parents and header.phase is Phase.SUCCEEDED else real(header, fact)

    patch.setattr(diagnosis, "signal_of", signal_of)


# --- budgets --------------------------------------------------------------------------------------------------------


def breakers_are_forgotten_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "restore", lambda self, tool, value: None)


def nothing_bounds_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "admit", lambda self, slot, workflow, commands, *rest: commands)


# --- what is done later, and what is approved -----------------------------------------------------------------------


def accepted_later_is_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcome, "is_accepted", lambda *given: False)


def what_was_taken_is_undone_again(patch: pytest.MonkeyPatch) -> None:
    """A remote that took an undo and is not done with it is sent the undo anew."""
    _with_entry(patch, lambda entry: replace(entry, polls=False))


def approvals_are_not_looked_at_before_the_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow, "check_accepted", lambda started, echo: "")


def approvals_stand_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = approvals.used
    patch.setattr(
        approvals,
        "used",
        lambda approval, terms, attempt, epoch, at_ms, sent: real(approval, terms, attempt, epoch, 0, sent=sent),
    )


def approved_calls_have_no_strict_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intent, "is_strict", lambda contract, *, approved: False)


# --- models that plan again, workflows that stand alone, containment ------------------------------------------------


def calls_planned_again_are_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CallBook, "_equal", lambda self, call: None)


def who_stands_alone_is_a_child(patch: pytest.MonkeyPatch) -> None:
    family_of, announced = asking.family_of, children.announced
    patch.setattr(asking, "family_of", lambda fact: family_of(replace(fact, detached=False)))
    patch.setattr(
        children, "announced", lambda workflow, fact, *rest: announced(workflow, replace(fact, detached=False), *rest)
    )


def a_success_is_not_contained(patch: pytest.MonkeyPatch) -> None:
    """Finished stays finished, whoever asks."""
    real = diagnosis.signal_of

    def signal_of(header: Any, fact: Any) -> Any:
        is_persons = getattr(fact, "writer", None) is Party.PERSON
        return None if is_persons and header.phase is Phase.SUCCEEDED else real(header, fact)

    patch.setattr(diagnosis, "signal_of", signal_of)


def edits_keep_their_key(patch: pytest.MonkeyPatch) -> None:
    """Other arguments go out in the old generation."""
    real = undos.granted_anew
    patch.setattr(editing, "granted_anew", lambda *given, fresh: real(*given, fresh=not fresh))


# --- state that is built anew ---------------------------------------------------------------------------------------


def a_stale_command_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    """What stands between a command's `as_of` and one's own STARTED is not looked at."""
    real = ownership.standing_of_undo

    def standing(command: Any, *rest: Any) -> Any:
        return real(replace(command, as_of=1 << 60), *rest)

    patch.setattr(decide, "standing_of_undo", standing)
