"""A certificate authority of a test, that signs what it is asked for."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Authority:
    """Files lie in `folder`; `ca` is its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / f"{name}.pem"
        made = self._certificate(self._name, self._key, authority=True)
        self.ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, password: str | None = None) -> tuple[Path, Path]:
        """(certificate, key) of a common name, for 127.0.0.1 as well."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, file = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        made = self._certificate(_named(name), key, authority=False)
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        how: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            how = serialization.BestAvailableEncryption(password.encode())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(pem, pkcs8, how))
        file.chmod(0o600)
        return certificate, file

    def _certificate(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(here, critical=False)
        )
        return built.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
