"""Signatures by the keys that a deployment has anyway: a site's key for Flower, a server's key for TLS.

Both formats work: those of ssh-keygen and the PEM files of openssl, certificates included.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

HASH = ec.ECDSA(hashes.SHA256())


def private_key(path: str | Path) -> Any:
    """The private key in a file."""
    content = _read(path)
    load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
    try:
        return _checked(load(content, password=None), path)
    except (ValueError, TypeError) as error:  # TypeError: it has a password
        raise ValueError(f"key: {path} is not a private key that can be used: {error}") from None


def public_key(path: str | Path) -> Any:
    """The public key in a file of ssh-keygen, a PEM file or a certificate."""
    return public_key_in(_read(path), path)


def public_key_in(content: bytes, path: str | Path) -> Any:
    try:
        if b"BEGIN CERTIFICATE" in content:
            return _checked(x509.load_pem_x509_certificate(content).public_key(), path)
        if b"BEGIN" in content:
            return _checked(serialization.load_pem_public_key(content), path)
        return _checked(serialization.load_ssh_public_key(content), path)
    except ValueError as error:
        raise ValueError(f"key: {path} is not a public key that can be used: {error}") from None


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"key: cannot read {path}: {error.strerror or error}") from None


def _checked(key: Any, path: str | Path) -> Any:
    kinds = ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey
    if not isinstance(key, kinds):
        raise ValueError(f"{path} has another kind of key than EC and Ed25519")
    return key


def sign(key: Any, content: bytes) -> str:
    """The signature of the content, as text."""
    made = key.sign(content) if isinstance(key, ed25519.Ed25519PrivateKey) else key.sign(content, HASH)
    return base64.b64encode(made).decode()


def is_signed(key: Any, signature: str, content: bytes) -> bool:
    """Did the owner of this public key sign the content?"""
    try:
        made = base64.b64decode(signature, validate=True)
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(made, content)
        else:
            key.verify(made, content, HASH)
    except (InvalidSignature, ValueError):
        return False
    return True


def as_pem(key: Any) -> str:
    """A public key as PEM text."""
    kinds = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return str(key.public_bytes(*kinds).decode())


def fingerprint(key: Any) -> str:
    """A short name of a public key, for logs."""
    return hashlib.sha256(as_pem(key).encode()).hexdigest()[:16]


def site_keys(folder: str | Path, clients: int) -> dict[int, Any]:
    """The public key of every client: the files 0.pub, 1.pub and so on in a folder."""
    return {client: public_key(Path(folder).expanduser() / f"{client}.pub") for client in range(clients)}


def introduction(nonce: str, node: int, client: int, samples: int) -> bytes:
    """What a site signs to show that it is this client. nonce: the server's random number for this introduction."""
    return f"fedkeel introduction\n{nonce}\n{node}\n{client}\n{samples}".encode()
