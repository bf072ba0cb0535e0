"""Certificates of one test run: an authority, and what it signs, good and bad."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, as PEM files. `both` holds key and certificate, as Kafka's PEM key stores want it."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates; `file` is its own, for those who trust it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _begun(self._name, self._name, self._key, expired=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, common_name: str, *, host: str = "127.0.0.1", expired: bool = False, password: str = "") -> Identity:
        """Return a certificate for a server on `host`, or for a client of that common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = (
            _begun(subject, self._name, key, expired=expired)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(host)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        pem_key = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        stem = f"{common_name}-{host}-{'expired' if expired else 'good'}"
        made = Identity(*(self._folder / f"{stem}.{ending}" for ending in ("crt", "key", "pem")))
        made.certificate.write_bytes(pem)
        made.key.write_bytes(pem_key)
        made.both.write_bytes(pem_key + pem)
        return made


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now - DAY if expired else now + DAY)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
