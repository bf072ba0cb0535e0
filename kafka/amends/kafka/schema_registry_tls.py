"""TLS to a schema registry: certificates from files, and what is wrong with them, in words without secrets."""

from __future__ import annotations

import ssl

from amends.kafka.errors import SettingsWrong
from amends.kafka.schema_registry_settings import SchemaRegistrySettings


def secured(settings: SchemaRegistrySettings) -> ssl.SSLContext:
    """Return whom we trust and who we are. Raises SettingsWrong where a file can't be read or does not fit."""
    try:
        secured = ssl.create_default_context(cafile=settings.ssl_ca_location)
    except (OSError, ssl.SSLError) as error:
        raise SettingsWrong(
            f"AMENDS_SCHEMA_REGISTRY__SSL_CA_LOCATION {settings.ssl_ca_location}: {_of_file(error)}"
        ) from error
    if settings.ssl_certificate_location:
        word = settings.ssl_key_password.get_secret_value() if settings.ssl_key_password is not None else ""
        try:  # without any password OpenSSL would ask for it at the terminal
            secured.load_cert_chain(settings.ssl_certificate_location, settings.ssl_key_location, lambda: word)
        except (OSError, ssl.SSLError) as error:
            raise SettingsWrong(
                f"AMENDS_SCHEMA_REGISTRY__SSL_CERTIFICATE_LOCATION {settings.ssl_certificate_location}, "
                f"…SSL_KEY_LOCATION {settings.ssl_key_location}, …SSL_KEY_PASSWORD: {_of_file(error)}"
            ) from error
    return secured


def _of_file(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "the files are no certificate and key that belong together, or the key's password is wrong"
    return error.strerror or "can't be read"


def words_of(error: ssl.SSLError) -> str:
    """Return why there is no connection, and what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {error.verify_message}; have it renewed if it expired, else set "
            "AMENDS_SCHEMA_REGISTRY__SSL_CA_LOCATION to the certificates it is signed by"
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version" in reason or "http request" in reason:
        return "it does not speak TLS on that port: set http:// in AMENDS_SCHEMA_REGISTRY__URL, or its TLS port"
    return (
        f"no TLS connection: {reason}; if it asks who we are, set AMENDS_SCHEMA_REGISTRY__SSL_CERTIFICATE_LOCATION and "
        "AMENDS_SCHEMA_REGISTRY__SSL_KEY_LOCATION"
    )
