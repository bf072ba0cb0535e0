"""A record of the ledger as a fact, or why it is none. What would break what is sent about the workflow is refused."""

from __future__ import annotations

from amends.processors import records
from amends.processors.emission import LedgerRecord
from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.decisions import TOOL_MENDED
from amends.schemas.facts import Carry, Decision, Fact, Party, Resolution, StepEvent, Timeout, UndoEvent, WorkflowEvent
from amends.schemas.keys import mended_key

_FACTS = (StepEvent, WorkflowEvent, UndoEvent, Resolution, Timeout, Carry)
_WITH_ARGUMENTS = (StepEvent, Resolution)
ORIGINAL_OFFSET_HEADER = "amends-original-offset"
ARGUMENTS_BYTES_MAX = 16_384
KEY_BYTES_MAX = 4_096
"""Of a workflow id; writers keep to 512. A longer key would be said again in each record about it, beyond its size."""
NAME_CHARACTERS_MAX = 4_096
"""Of names that facts give to steps, attempts and owners."""


def read_fact(record: LedgerRecord) -> Fact:
    """Return the fact that a record of the ledger holds.

    Raises:
        UnreadableRecord: it holds none, or one that must not be folded.
    """
    if record.key is None:
        raise UnreadableRecord("no key: nobody can tell whose workflow it belongs to")
    if not _may_be_workflow_key(record.key):
        raise UnreadableRecord("a key that is no workflow id")
    found = decode(record.value, record)
    if not isinstance(found, _FACTS):
        raise UnreadableRecord(f"a {type(found).__name__} is no fact")
    if found.workflow_id.encode() != record.key:
        raise UnreadableRecord("its key is not the workflow id it names")
    if record.value is not None and len(record.value) > NAME_CHARACTERS_MAX:
        _check_names(found)
    arguments = found.undo_arguments if isinstance(found, _WITH_ARGUMENTS) else None
    if arguments is not None:
        _check_arguments(arguments)
    return found


def original_offset(record: LedgerRecord) -> int | None:
    """Return where a redriven record stood when nobody could read it."""
    text = next((value for name, value in record.headers if name == ORIGINAL_OFFSET_HEADER), b"")
    return int(text) if text.isdigit() else None


def mended_of(record: LedgerRecord) -> Resolution | None:
    """Return a person's word that a tool works again; None if the record is no such thing."""
    try:
        found = decode(record.value, record)
    except UnreadableRecord:
        return None
    if not isinstance(found, Resolution) or found.decision is not Decision.RETRY or found.writer is not Party.PERSON:
        return None
    return found if record.key == mended_key(found.attributes.get(TOOL_MENDED, "")) else None


def is_workflow_key(key: bytes) -> bool:
    try:
        return _may_be_workflow_key(key) and bool(key.decode())
    except UnicodeDecodeError:
        return False


def _may_be_workflow_key(key: bytes) -> bool:
    if len(key) > KEY_BYTES_MAX:
        return False
    return b"\x00" not in key or not (key.startswith(records.SEPARATOR) or records.SEPARATOR * 2 in key)


def _check_names(fact: Fact) -> None:
    """Refuse names so long that what is sent about the workflow would not fit into a record."""
    for name in ("step_id", "attempt", "owner", "traceparent"):
        text = getattr(fact, name, None)
        if isinstance(text, str) and len(text) > NAME_CHARACTERS_MAX:
            raise UnreadableRecord(f"a {name} of {len(text)} characters, more than {NAME_CHARACTERS_MAX}")


def _check_arguments(data: bytes) -> None:
    """Refuse what could not be kept as text; a compensator reads it as JSON and says what is wrong with it. The limit
    keeps a run of many undos under the size of a record; writers keep to a quarter of it."""
    if len(data) > ARGUMENTS_BYTES_MAX:
        raise UnreadableRecord(f"undo arguments of {len(data)} bytes, more than {ARGUMENTS_BYTES_MAX}")
    try:
        text = data.decode()
    except ValueError as error:
        raise UnreadableRecord(f"undo arguments that are no UTF-8: {error}") from error
    if text[:1] != "{" or text[-1:] != "}":
        raise UnreadableRecord("undo arguments that are no JSON object")
