"""A broker that refuses whatever nobody granted, with a listener for each way to be secured.

The plain listener is the door of set-up: whoever comes there is ANONYMOUS, and super user. So is the broker itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from tests.security.certificates import Authority, Identity
from tests.security.token_endpoint import AUDIENCE, TokenEndpoint
from tests.security.tools import LANE

from amends.kafka.rights import Part
from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port
from amends.local.jars import BrokerSetup, Listener
from amends.local.kafka_server import KafkaServer, start_kafka

PARTS = tuple(part.value for part in Part)
"""Each has a principal of its own; its name is the part's."""

PASSWORD = "pass:word with ü"
PREFIX = "org.apache.kafka.common.security"
SUPER = "User:ANONYMOUS"
REAUTHENTICATES = "SCRAM-SHA-256"
"""Clients that come so are asked again, every `REAUTHENTICATE_MS`."""
REAUTHENTICATE_MS = 3_000
MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@dataclass
class Secured:
    """The broker, its doors by name, and what its clients need."""

    server: KafkaServer
    ports: dict[str, int]
    authority: Authority
    identities: dict[str, Identity]
    endpoint: TokenEndpoint
    folder: Path

    def setup_settings(self, topic_prefix: str) -> KafkaSettings:
        """Settings of whoever sets up: all is granted."""
        return KafkaSettings(bootstrap_servers=self.server.bootstrap_servers, **common(topic_prefix))

    def options(self, way: str, part: str) -> dict[str, str]:
        """Options of a client of `part` at the door `way`."""
        tls = {"ssl.ca.location": str(self.authority.file)}
        if way == "tls":
            return {"security.protocol": "SSL", **tls}
        if way == "mtls":
            own = self.identities[part]
            return {
                "security.protocol": "SSL", **tls,
                "ssl.certificate.location": str(own.certificate), "ssl.key.location": str(own.key),
                "ssl.key.password": PASSWORD,
            }  # fmt: skip
        sasl = {"security.protocol": "SASL_SSL", **tls, "sasl.mechanism": way}
        if way == "OAUTHBEARER":
            return {
                **sasl, "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": part, "sasl.oauthbearer.client.secret": secret_of(part),
                "sasl.oauthbearer.token.endpoint.url": self.endpoint.token_url,
            }  # fmt: skip
        return {**sasl, "sasl.username": part, "sasl.password": secret_of(part)}

    def settings(self, way: str, part: str, topic_prefix: str, **options: str) -> KafkaSettings:
        door = way if way in self.ports else "sasl"
        chosen = {**self.options(way, part), **{name.replace("_", "."): value for name, value in options.items()}}
        return KafkaSettings(bootstrap_servers=f"127.0.0.1:{self.ports[door]}", options=chosen, **common(topic_prefix))


def common(topic_prefix: str) -> dict[str, object]:
    return {"topic_prefix": topic_prefix, "partitions": 2, "replication_factor": 1, "lanes": (LANE,)}


def secret_of(part: str) -> str:
    return f"secret-of-{part}"


def start_secured(folder: Path, endpoint: TokenEndpoint) -> Secured:
    authority = Authority(folder, "ca")
    good, misnamed = authority.sign("broker"), authority.sign("broker", host="elsewhere.example")
    expired = authority.sign("broker", expired=True)
    identities = {part: authority.sign(part, password=PASSWORD) for part in PARTS}
    ports = {name: free_port() for name in ("tls", "mtls", "sasl", "expired", "misnamed", "clear")}
    plain = " ".join(f'user_{part}="{secret_of(part)}"' for part in PARTS)
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "plain.sasl.jaas.config": f"{PREFIX}.plain.PlainLoginModule required {plain};",
        "scram-sha-256.connections.max.reauth.ms": str(REAUTHENTICATE_MS),
        "scram-sha-256.sasl.jaas.config": f"{PREFIX}.scram.ScramLoginModule required;",
        "scram-sha-512.sasl.jaas.config": f"{PREFIX}.scram.ScramLoginModule required;",
        "oauthbearer.sasl.jaas.config": f"{PREFIX}.oauthbearer.OAuthBearerLoginModule required;",
        "oauthbearer.sasl.server.callback.handler.class":
            f"{PREFIX}.oauthbearer.OAuthBearerValidatorCallbackHandler",
    }  # fmt: skip
    listeners = [
        Listener("TLS", ports["tls"], "SSL", store(good, authority)),
        Listener("MTLS", ports["mtls"], "SSL", {
            **store(good, authority), "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": r"RULE:^CN=([^,]+).*$/$1/",
        }),
        Listener("SASL", ports["sasl"], "SASL_SSL", {**store(good, authority), **sasl}),
        Listener("CLEAR", ports["clear"], "SASL_PLAINTEXT", {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "scram-sha-512.sasl.jaas.config": sasl["scram-sha-512.sasl.jaas.config"],
        }),
        Listener("EXPIRED", ports["expired"], "SSL", store(expired, authority)),
        Listener("MISNAMED", ports["misnamed"], "SSL", store(misnamed, authority)),
    ]  # fmt: skip
    setup = BrokerSetup(
        listeners,
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": SUPER,
            "sasl.oauthbearer.jwks.endpoint.url": endpoint.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": endpoint.url,
        },
        [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.keys_url}"],
    )
    server = start_kafka(preference="apache", setup=setup)
    make_users(server)
    return Secured(server, ports, authority, identities, endpoint, folder)


def store(identity: Identity, authority: Authority) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(identity.both),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.file),
    }  # fmt: skip


def make_users(server: KafkaServer) -> None:
    for mechanism in MECHANISMS:  # one of a user in each request
        _set_passwords(server, mechanism, {part: secret_of(part) for part in PARTS})


def set_password(secured: Secured, part: str, mechanism: str, word: str) -> None:
    """Change the password that a part has for a SCRAM mechanism."""
    _set_passwords(secured.server, mechanism, {part: word})


def _set_passwords(server: KafkaServer, mechanism: str, words: dict[str, str]) -> None:
    client = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(MECHANISMS[mechanism], 4_096), word.encode())
        for user, word in words.items()
    ]
    for future in client.alter_user_scram_credentials(wanted).values():
        future.result(30)
