"""TLS for the HTTP API, wherever its socket leaves this machine.

In flow a home and the names by which the API is reached; out flow a certificate and its key, as files. Invariant: on
loopback the API is plain, and nowhere else; a certificate of one's own is used as it is, and otherwise one is made once
and kept, for browsers to be shown and for `shoal` clients to be given (SHOAL_API_CERT).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from shoal.base.errors import ShoalError

CERT_VARIABLE = "SHOAL_API_CERT"
LASTS_DAYS = 3650


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path


def leaves_machine(host: str) -> bool:
    """True unless only this machine can reach a socket that is bound to this address."""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def certificate_for(folder: Path, names: tuple[str, ...], cert: Path | None, key: Path | None) -> Certificate:
    """The given certificate, or this home's own, made if need be. Raises SH-KEY-01."""
    if cert is not None and key is not None:
        for path in (cert, key):
            if not path.is_file():
                raise ShoalError("SH-KEY-01", f"{path} cannot be read", "check --api-cert and --api-key")
        return Certificate(cert, key)
    own = Certificate(folder / "api-cert.pem", folder / "api-key.pem")
    if not (own.cert.is_file() and own.key.is_file()):
        _make(own, names)
    return own


def _make(own: Certificate, names: tuple[str, ...]) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal coordinator")])
    known = dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), *filter(None, names)))
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=LASTS_DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in known]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with open(os.open(own.key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
    own.cert.write_bytes(made.public_bytes(Encoding.PEM))


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
