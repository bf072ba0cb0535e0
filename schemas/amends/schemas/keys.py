"""Identity: partition of a key, step ids, idempotency keys.

Keys are the raw UTF-8 workflow id and partitions are murmur2 in every client, because librdkafka's default (CRC32)
and the JVM's and aiokafka's (murmur2) agree on no more keys than chance.
"""

from __future__ import annotations

from hashlib import sha256

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned (org.apache.kafka.common.utils.Utils.murmur2)."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of `key`, as Kafka's default partitioner has it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def record_key(workflow_id: str) -> bytes:
    """Return the Kafka key of a workflow: its id in raw UTF-8."""
    return workflow_id.encode()


def _digest(*parts: str) -> str:
    # Each part is preceded by its length, so that no two lists of parts share a digest.
    raw = [_LENGTHS[len(p)] + p if len(p) < _SHORT else len(p).to_bytes(4, "big") + p for p in map(str.encode, parts)]
    return sha256(b"".join(raw)).hexdigest()[:32]


_SHORT = 256
_LENGTHS = [size.to_bytes(4, "big") for size in range(_SHORT)]


def step_id(workflow_id: str, workflow_offset: int, call_id: str, epoch: int, attempt: str | None = None) -> str:
    """Return the id of a step: 32 hex digits. `attempt` is given for a tool that is neither keyed nor idempotent:
    there every send is a step of its own, since one step is at most one effect."""
    return _digest("step", workflow_id, str(workflow_offset), call_id, str(epoch), attempt or "")


def forward_key(step: str) -> str:
    """Return the idempotency key of a step's call, the same on every try."""
    return "amends-do-" + _digest("do", step)


def undo_key(step: str, generation: int) -> str:
    """Return the idempotency key of a step's undo. No attempt is in it."""
    return "amends-undo-" + _digest("undo", step, str(generation))


MENDED_PREFIX = b"\x00mended\x00"


def mended_key(tool_name: str) -> bytes:
    """Return the key, on the ledger, of a person's word that a tool works again. It is no workflow's: it is written to
    every partition, for each has a breaker of its own."""
    return MENDED_PREFIX + tool_name.encode()


def incident_id(workflow_id: str, workflow_offset: int, kind: str, subject: str) -> str:
    """Return the id of an incident: the same thing is the same incident, however often it is computed."""
    return _digest("incident", workflow_id, str(workflow_offset), kind, subject)


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 hex digits."""
    return sha256(data).hexdigest()
