"""Facts into workflows: read a record, find whose it is, fold it there. Nothing that a record holds makes it raise."""

from __future__ import annotations

from typing import Final

from amends.processors import asking, children, saga
from amends.processors.contracts import ContractBook
from amends.processors.emission import LedgerRecord
from amends.processors.hearing import Hears
from amends.processors.placing import Place, newest_of, place_of, place_of_redriven, place_of_unread, unborn_of
from amends.processors.reading import is_workflow_key, mended_of, original_offset, read_fact
from amends.processors.slots import Slot, Slots
from amends.processors.state import Header, Step, in_words, replace
from amends.processors.terms import Terms
from amends.processors.timers import Silences
from amends.processors.workflow import Workflow
from amends.schemas.codec import UnreadableRecord
from amends.schemas.decisions import TOOL_MENDED
from amends.schemas.facts import (
    Decision,
    Fact,
    Party,
    Resolution,
    StepEvent,
    Timeout,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)
from amends.schemas.keys import MENDED_PREFIX

_NEW: Final = Place.NEW
_CHILD_STARTED: Final = WorkflowStatus.CHILD_STARTED
_UNDO_STARTED: Final = UndoStatus.STARTED


class Folding:
    """Folds records into the workflows of `slots`.

    Args:
        silences: of the partition; the record that is folded has been taken note of.
        admission: is told how undos end. None: nobody is.
    """

    def __init__(
        self,
        slots: Slots,
        contracts: ContractBook,
        silences: Silences,
        terms: Terms,
        admission: Hears | None = None,
    ) -> None:
        self.slots = slots
        self.contracts = contracts
        self.silences = silences
        self._terms = terms
        self._admission = admission
        self.dead: list[tuple[LedgerRecord, str]] = []
        """Records that could not be read or folded, with the reason; for the caller to take."""
        self.nobodys: list[tuple[LedgerRecord, str]] = []
        """Those of them of which nobody can tell the workflow."""
        self.touched: list[Slot] = []
        """Instances changed beside the one returned; for the caller to take."""

    def fold(self, record: LedgerRecord) -> Slot | Place | None:
        """Fold a record; return the instance that it changed, where it belongs instead, or None if nobody can tell."""
        try:
            fact = read_fact(record)
        except UnreadableRecord as error:
            return self._unread(record, str(error))
        key = record.key or b""
        found = place_of(self.slots, key, fact, record.offset, record.appended_at_ms, self._terms.grace_ms)
        if found is _NEW:
            found = self._begun(key, record.offset)
        if isinstance(found, Slot):
            if record.offset <= self.slots.hot(found).header.folded_to:  # a Carry holds it already
                return found
            if isinstance(fact, WorkflowEvent) and fact.parent_workflow_id is not None:
                self._fold_family(found, fact, record)
            else:
                self._fold_into(found, fact, record)
        return found

    def begin(self, record: LedgerRecord) -> Slot:
        """Fold a STARTED that is known to have begun an instance, whatever is held of its id."""
        fact = read_fact(record)
        assert isinstance(fact, WorkflowEvent)
        slot = self._begun(record.key or b"", record.offset)
        fold = self._fold_into if fact.parent_workflow_id is None else self._fold_family
        fold(slot, fact, record)
        return slot

    def fold_into(self, started: int, record: LedgerRecord) -> Slot:
        """Fold a record of a known id into the instance that began at `started`. NOWHERE: it belongs to none, an
        incident and nothing else."""
        key = record.key or b""
        slot = self.slots.find(key, started) or self.slots.add(key, started)
        try:
            fact = read_fact(record)
        except UnreadableRecord as error:
            saga.fold_unread(self.slots.hot(slot), record.offset, record.appended_at_ms, str(error))
        else:
            self._fold_into(slot, fact, record)
        return slot

    def _fold_family(self, slot: Slot, fact: WorkflowEvent, record: LedgerRecord) -> None:
        """The STARTED of a child may come after its parent asked for its undoing, or long after that was forgotten. One
        that nobody could read at the time, and that is written anew behind a later one, turns nothing: the child goes
        on under that."""
        workflow = self.slots.hot(slot)
        late = asking.is_late(fact, record.appended_at_ms, self._terms.grace_ms)
        family = workflow.header.family
        late = late and not asking.is_known(family, fact)
        outrun = original_offset(record) is not None and asking.is_outrun(family, fact)
        self._fold_into(slot, fact, record)
        asked = unborn_of(self.slots, slot.workflow_key, fact)
        if outrun and (late or asked is not None):
            saga.names_nobody(workflow, family)
        elif late:
            saga.born_late(workflow, fact, family, record.offset, record.appended_at_ms)
        elif asked is not None and asked is not slot:
            saga.born_turned(workflow, self.slots.hot(asked).header, record.offset, record.appended_at_ms)

    def _begun(self, key: bytes, offset: int) -> Slot:
        """Make room for a new instance. The one before it is the newest no more."""
        before = newest_of(self.slots, key)
        if before is not None:
            workflow = self.slots.hot(before)
            workflow.put_header(replace(workflow.header, superseded=True))
            self.touched.append(before)
        return self.slots.add(key, offset)

    def _fold_into(self, slot: Slot, fact: Fact, record: LedgerRecord) -> None:
        workflow = slot.workflow or self.slots.hot(slot)
        if isinstance(fact, WorkflowEvent) and fact.status is _CHILD_STARTED:
            original = original_offset(record)
            fact = fact if original is None else children.redriven(fact, original)
        before, step, contract = workflow.header, None, ""
        if not isinstance(fact, StepEvent):
            step = _undone_by(workflow, fact)
        elif fact.contract is not None:
            contract = self.contracts.of(fact.contract)
        try:
            saga.fold(workflow, fact, contract, record.offset, record.appended_at_ms, self.silences)
        except Exception as error:  # a bug of ours must not stop the partition: the workflow becomes an incident
            self._poisoned(before, workflow, record, f"the fold raised {type(error).__name__}: {error}")
            return
        if step is not None and self._admission is not None:
            self._ended(self._admission, slot, workflow, step, fact, record.appended_at_ms)
        if workflow.header.unread or len(self.slots.of(slot.workflow_key)) > 1:
            self._redriven(record)

    def _ended(self, admission: Hears, slot: Slot, workflow: Workflow, before: Step, fact: Fact, at_ms: int) -> None:
        if isinstance(fact, Resolution):
            admission.mended(before.tool_name, in_words(fact.by), at_ms)
        else:
            after = workflow.steps[before.number]
            admission.ended(slot, before, after, workflow.contract_of(after), fact, at_ms)

    def _redriven(self, record: LedgerRecord) -> None:
        """A record that nobody could read may have been written anew."""
        original = original_offset(record)
        waits = None if original is None else place_of_redriven(self.slots, record.key or b"", original)
        if waits is not None and original is not None:
            saga.was_read(self.slots.hot(waits), original, record.appended_at_ms, "redrive")
            self.touched.append(waits)

    def _unread(self, record: LedgerRecord, reason: str) -> Slot | Place | None:
        key = record.key
        if key is not None and key.startswith(MENDED_PREFIX) and self._mended(record):
            return None
        self.dead.append((record, reason))
        if key is None or not is_workflow_key(key):
            self.nobodys.append((record, reason))
            return None
        found = place_of_unread(self.slots, key, record.appended_at_ms, self._terms.grace_ms)
        if isinstance(found, Slot):
            saga.fold_unread(self.slots.hot(found), record.offset, record.appended_at_ms, reason)
        return found

    def _mended(self, record: LedgerRecord) -> bool:
        """Whether this is a person's word that a tool works again; then it is taken."""
        ruling = mended_of(record)
        if ruling is None:
            return False
        if self._admission is not None:
            self._admission.mended(ruling.attributes[TOOL_MENDED], in_words(ruling.by), record.appended_at_ms)
        return True

    def _poisoned(self, before: Header, workflow: Workflow, record: LedgerRecord, reason: str) -> None:
        """The fold raised: keep the header of before this fact, and the workflow open as an incident."""
        workflow.put_header(replace(before, steps=len(workflow.steps)))
        self.dead.append((record, reason))
        saga.fold_unread(workflow, record.offset, record.appended_at_ms, reason)
        workflow.with_trouble("poisoned", reason, record.offset, record.appended_at_ms)


def _undone_by(workflow: Workflow, fact: Fact) -> Step | None:
    """Return the step as it is before a fact that may end an attempt to undo it, or is a person's word to try again."""
    if isinstance(fact, UndoEvent):
        return None if fact.status is _UNDO_STARTED else workflow.find(fact.step_id)
    if isinstance(fact, Timeout):
        return workflow.find(fact.step_id) if fact.generation is not None and fact.step_id is not None else None
    if isinstance(fact, Resolution) and fact.decision is Decision.RETRY and fact.writer is Party.PERSON:
        return workflow.find(fact.step_id) if fact.step_id is not None else None
    return None
