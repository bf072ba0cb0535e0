"""Rights of the table, given to the principals of the parts and taken away again."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from tests.integration.kafka_parts import eventually
from tests.security.secured import Secured

from amends.kafka.rights import Operation, Part, Resource, Right, rights_of
from amends.schemas.topics import TRANSACTIONS

TYPES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
OPERATIONS = {
    Operation.READ: AclOperation.READ,
    Operation.WRITE: AclOperation.WRITE,
    Operation.CREATE: AclOperation.CREATE,
    Operation.DELETE: AclOperation.DELETE,
    Operation.DESCRIBE: AclOperation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}


def grant_all(secured: Secured, topic_prefix: str, engine: str = TRANSACTIONS) -> None:
    """Give each part its rights on the topics of that prefix, whose processor's application id is the prefix too."""
    settings = secured.setup_settings(topic_prefix)
    wanted = {part: rights_of(part, settings, application_id=topic_prefix, engine=engine) for part in Part}
    bindings = [binding for part, rights in wanted.items() for right in rights for binding in of(part, right)]
    bindings += [binding for right in wanted[Part.CONSOLE] for binding in of(Part.DECISIONS, right)]
    _grant(secured, bindings)


def withdraw(secured: Secured, part: Part, right: Right, operation: Operation) -> None:
    """Take one operation of a right away from a part."""
    _take(secured, of(part, Right(right.resource, right.name, (operation,), right.prefixed)))


def restore(secured: Secured, part: Part, right: Right) -> None:
    _grant(secured, list(of(part, right)))


def give_in_place_of(secured: Secured, part: Part, before: Iterable[Right], after: Iterable[Right]) -> None:
    """Take the rights `before` away from a part, and give it those `after`."""
    _take(secured, [binding for right in before for binding in of(part, right)])
    _grant(secured, [binding for right in after for binding in of(part, right)])


def _take(secured: Secured, bindings: Iterable[AclBinding]) -> None:
    admin = _admin(secured)
    filters = [_exactly(binding) for binding in bindings]
    for future in admin.delete_acls(filters).values():
        assert len(future.result(30)) == 1
    eventually(lambda: all(wanted_gone(admin, wanted) for wanted in filters))


def _exactly(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal, "*", binding.operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip


def wanted_gone(admin: AdminClient, wanted: AclBindingFilter) -> bool:
    return not admin.describe_acls(wanted).result(30)


def of(part: Part, right: Right) -> Iterable[AclBinding]:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    for operation in right.operations:
        yield AclBinding(
            TYPES[right.resource], right.name, pattern, f"User:{part.value}", "*", OPERATIONS[operation],
            AclPermissionType.ALLOW,
        )  # fmt: skip


def _grant(secured: Secured, bindings: list[AclBinding]) -> None:
    admin = _admin(secured)
    for future in admin.create_acls(bindings).values():
        future.result(30)
    eventually(lambda: admin.describe_acls(_exactly(bindings[-1])).result(30))


def _admin(secured: Secured) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured.server.bootstrap_servers})
