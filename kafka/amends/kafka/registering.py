"""Our records in a schema registry: under which subjects, which ids they have, whether they fit what stands there.

Subjects are named by the record (RecordNameStrategy), since a topic holds several. A subject's level is
FULL_TRANSITIVE: readers of any version read what any other wrote, as the ledger is read for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from amends.kafka.errors import SettingsWrong
from amends.kafka.schema_registry_answers import SchemaRegistryAnswered
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.schemas.codec import ON_TOPICS, Record, schema_of
from amends.schemas.releases import incompatibilities

LEVEL = "FULL_TRANSITIVE"
MISFIT = "ours does not fit version"


class SchemasRefused(SettingsWrong):
    """Our schemas are not in the registry, or do not fit what is there; the message has what to do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A record's subject as the registry has it. `id`, `version`: of our schema, None while it is not registered."""

    subject: str
    id: int | None
    version: int | None
    versions: tuple[int, ...]
    compatibility: str
    problems: tuple[str, ...]


def subject_of(record: type[Record]) -> str:
    schema = schema_of(record)
    return f"{schema['namespace']}.{schema['name']}"


def text_of(record: type[Record]) -> str:
    """Return our schema of a record as it is registered."""
    return json.dumps(schema_of(record), separators=(",", ":"))


def ids_of(client: SchemaRegistryClient) -> dict[type[Record], int]:
    """Return the ids of those of our schemas that are registered. Raises SchemaRegistryFault."""
    found = ((record, client.find(subject_of(record), text_of(record))) for record in ON_TOPICS)
    return {record: registered.id for record, registered in found if registered is not None}


def examine(client: SchemaRegistryClient) -> list[Subject]:
    """Return what the registry holds of our records, and what is wrong with it. Raises SchemaRegistryFault."""
    return [_examined(client, record) for record in ON_TOPICS]


def register(client: SchemaRegistryClient) -> list[Subject]:
    """Set the level of our subjects and register what is missing; return how they are then.

    Nothing is changed where a schema doesn't fit: its subject names the problems. Raises SchemaRegistryFault.
    """
    before = {subject.subject: subject for subject in examine(client)}
    if any(_misfits(subject) for subject in before.values()):
        return list(before.values())
    refused: dict[str, str] = {}
    for record in ON_TOPICS:
        subject = before[subject_of(record)]
        try:
            _registered(client, subject, text_of(record))
        except SchemaRegistryAnswered as error:
            refused[subject.subject] = f"the registry does not take our schema: {error}"
    return [
        subject if subject.subject not in refused else _with(subject, refused[subject.subject])
        for subject in examine(client)
    ]


def missing_words(subjects: Iterable[str]) -> str:
    """Return what to do where our schemas are not registered."""
    return (
        f"the schema registry does not have the schemas of this version of amends ({', '.join(subjects)}): run `amends "
        "schemas register` once, or set AMENDS_SCHEMA_REGISTRY__AUTO_REGISTER=true"
    )


def problem_words(subjects: Iterable[Subject]) -> str:
    return "; ".join(f"{subject.subject}: {problem}" for subject in subjects for problem in subject.problems)


def _registered(client: SchemaRegistryClient, subject: Subject, text: str) -> None:
    is_level_set = subject.compatibility == LEVEL
    if not is_level_set and subject.versions:  # before anything new comes under it
        client.set_compatibility(subject.subject, LEVEL)
        is_level_set = True
    if subject.id is None:
        client.register(subject.subject, text)
    if not is_level_set:  # Apicurio has no level of a subject that is not there yet
        client.set_compatibility(subject.subject, LEVEL)


def _examined(client: SchemaRegistryClient, record: type[Record]) -> Subject:
    name = subject_of(record)
    versions = client.versions(name)
    ours = client.find(name, text_of(record)) if versions else None
    compatibility = client.compatibility(name) if versions else ""
    problems = [problem for number in versions for problem in _against(client, record, number)]
    if ours is None:
        problems.append("our schema is not registered: run `amends schemas register`")
    if versions and compatibility != LEVEL:
        problems.append(
            f"its compatibility is {compatibility or 'not set'}, and must be {LEVEL}: run `amends schemas register`"
        )
    return Subject(
        name,
        ours.id if ours is not None else None,
        ours.version if ours is not None else None,
        tuple(versions),
        compatibility,
        tuple(problems),
    )


def _against(client: SchemaRegistryClient, record: type[Record], number: int) -> list[str]:
    """Return why our schema and a version that is registered don't fit."""
    found = client.version(subject_of(record), number)
    if found is None:  # deleted meanwhile
        return []
    try:
        older = json.loads(found.schema) if found.is_avro else None
        if not isinstance(older, dict):
            raise TypeError("it is no Avro record")
        reasons = incompatibilities({**older, "name": str(older["name"]).rpartition(".")[2]}, schema_of(record))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reasons = [f"it can't be compared with ours ({error})"]
    return [
        f"{MISFIT} {number}: {reason}. If that version is of a newer amends, run that one here; if it is none of "
        "amends', delete it from the subject"
        for reason in reasons
    ]


def _misfits(subject: Subject) -> bool:
    return any(problem.startswith(MISFIT) for problem in subject.problems)


def _with(subject: Subject, problem: str) -> Subject:
    return Subject(subject.subject, subject.id, subject.version, subject.versions, subject.compatibility, (problem,))
