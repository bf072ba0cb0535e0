"""Options of librdkafka as credentials of Faust, whose client is aiokafka. What can't be said there is refused."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

import faust
from faust.types.auth import CredentialsT

from amends.kafka.secrets import is_secret
from amends.processors.engine import EngineError
from amends.processors.faust_oauth import ClientCredentials, TokenProvider

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

SECURITY = frozenset({
    "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password",
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location",
    "ssl.key.pem", "ssl.key.password", "ssl.cipher.suites", "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification", "sasl.oauthbearer.method", "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope",
    "sasl.oauthbearer.grant.type", "https.ca.location",
})  # fmt: skip
OTHERS = frozenset({"client.id"})
"""What is said to Faust elsewhere (`faust_options`)."""


class OptionRefusedError(EngineError):
    """An option of the client that Faust's client can't express."""

    exit_code = 78


def refuse_unknown(options: Mapping[str, str]) -> None:
    """Raise OptionRefusedError for an option that Faust's client has nothing for. Values are never shown."""
    unknown = sorted(set(options) - SECURITY - OTHERS)
    if unknown:
        raise OptionRefusedError(
            f"the engine faust can't express these options of the client: {', '.join(unknown)}. Its client is "
            f"aiokafka, and takes {', '.join(sorted(OTHERS | SECURITY))}. Remove them, or use "
            "AMENDS_PROCESSOR__ENGINE=transactions"
        )


def credentials_of(options: Mapping[str, str]) -> CredentialsT | None:
    """Return what Faust connects with; None: in the clear, without a name.

    Raises:
        OptionRefusedError: they can't be expressed, or a file can't be read. Secrets are not in its words.
    """
    protocol = options.get("security.protocol", "plaintext").upper().replace("-", "_")
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise OptionRefusedError(f"security.protocol {protocol} is not known to the engine faust")
    context = _context(options) if protocol.endswith("SSL") else None
    if protocol == "PLAINTEXT":
        return None
    if protocol == "SSL":
        return faust.SSLCredentials(context)
    return _sasl(options, context)


def _sasl(options: Mapping[str, str], context: ssl.SSLContext | None) -> CredentialsT:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms") or "GSSAPI"
    if mechanism.upper() not in MECHANISMS:
        raise OptionRefusedError(
            f"sasl.mechanism {mechanism} can't be expressed with the engine faust; it takes {', '.join(MECHANISMS)}"
        )
    if mechanism.upper() == "OAUTHBEARER":
        return faust.OAuthCredentials(oauth_cb=TokenProvider(_client(options)), ssl_context=context)
    return faust.SASLCredentials(
        username=_wanted(options, "sasl.username"),
        password=_wanted(options, "sasl.password"),
        ssl_context=context,
        mechanism=mechanism.upper(),
    )


def _client(options: Mapping[str, str]) -> ClientCredentials:
    if options.get("sasl.oauthbearer.method", "default").lower() != "oidc":
        raise OptionRefusedError(
            "OAUTHBEARER with the engine faust asks for sasl.oauthbearer.method=oidc and client credentials"
        )
    grant = options.get("sasl.oauthbearer.grant.type", "client_credentials")
    if grant != "client_credentials":
        raise OptionRefusedError(f"sasl.oauthbearer.grant.type {grant}: the engine faust takes client_credentials")
    ca = options.get("https.ca.location")
    url = _wanted(options, "sasl.oauthbearer.token.endpoint.url")
    if not url.startswith(("https://", "http://")):
        raise OptionRefusedError("sasl.oauthbearer.token.endpoint.url must begin with https:// or http://")
    return ClientCredentials(
        url=url,
        client_id=_wanted(options, "sasl.oauthbearer.client.id"),
        client_secret=_wanted(options, "sasl.oauthbearer.client.secret"),
        scope=options.get("sasl.oauthbearer.scope"),
        ca_file=None if ca in (None, "", "probe") else ca,
    )


def _wanted(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise OptionRefusedError(f"{name} is missing: set AMENDS_KAFKA__{name.upper().replace('.', '_')}")
    return value


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        return _context_of(options)
    except (OSError, ssl.SSLError, ValueError) as error:  # a file that is not there, a certificate that is none
        named = ", ".join(f"{name}={value}" for name, value in options.items() if name.endswith(".location"))
        words = str(error)
        for name, value in options.items():
            words = words.replace(value, "********") if is_secret(name) and value else words
        raise OptionRefusedError(f"the certificates can't be used ({named or 'given as PEM'}): {words}") from error


def _context_of(options: Mapping[str, str]) -> ssl.SSLContext:
    location = options.get("ssl.ca.location") or None
    folder = location is not None and Path(location).is_dir()
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH,
        cafile=None if folder or location == "probe" else location,
        capath=location if folder else None,
        cadata=options.get("ssl.ca.pem") or None,
    )
    verifies = options.get("enable.ssl.certificate.verification", "true").lower() not in ("false", "0", "f", "n", "no")
    if not verifies or options.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if not verifies:
        context.verify_mode = ssl.CERT_NONE
    if options.get("ssl.cipher.suites"):
        context.set_ciphers(options["ssl.cipher.suites"])
    _load_own_certificate(context, options)
    return context


def _load_own_certificate(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    password = options.get("ssl.key.password") or None
    certificate, key = options.get("ssl.certificate.location"), options.get("ssl.key.location")
    pem = [options.get("ssl.certificate.pem"), options.get("ssl.key.pem")]
    if certificate:
        context.load_cert_chain(certificate, key or None, password)
    elif any(pem):
        # Python reads a chain from files only. This one is there for as long as it is read, and for nobody else.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write("\n".join(part for part in pem if part))
            file.flush()
            context.load_cert_chain(file.name, None, password)
    elif key:
        raise ValueError("ssl.key.location without ssl.certificate.location")
