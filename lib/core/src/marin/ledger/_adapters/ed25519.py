"""Ed25519 keys and signatures, an extra: ``pip install marin-core[sign]``.

Private keys are PKCS #8 PEM files that only their owner may read; public ones are PEM files to pass around. A key's id
is the SHA-256 of its DER form, so it says nothing about who holds it.

References:
    RFC 8032, Edwards-Curve Digital Signature Algorithm; RFC 8410, algorithm identifiers for X.509.
"""

import hashlib
import os
import stat
from typing import Any

from rigging.errors import SecretResolutionError
from rigging.secrets import is_secret_reference, resolve_secret_spec

from marin.errors import KeyFileError, UsageError

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    INSTALLED = True
except ImportError:
    INSTALLED = False


def _need_extra() -> None:
    if not INSTALLED:
        raise UsageError(
            "signatures need the package cryptography.", hint="Install it: pip install 'marin-core[sign]'."
        )


def generate_pair(path: str) -> str:
    """Make a key pair: ``path`` (mode 0600) and ``path.pub``.

    Returns:
        The key's id.
    Raises:
        KeyFileError: One of the files exists, or cannot be written.
        UsageError: The extra is not installed.
    """
    _need_extra()
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for name in (path, f"{path}.pub"):
        if os.path.lexists(name):
            raise KeyFileError(name, "it exists and is not overwritten", hint="Choose another name.")
    for name, data, mode in ((f"{path}.pub", public, 0o644), (path, private, 0o600)):
        try:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise KeyFileError(name, str(error.strerror), hint="Choose a folder that can be written.") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    return key_id(key.public_key())


def key_id(public: Any) -> str:
    """SHA-256 of a public key's DER form, in hex."""
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


class Signer:
    """A private key, ready to sign. Its material is in no attribute that is ever shown.

    Attributes:
        keyid: Id of the key.
    """

    def __init__(self, key: Any) -> None:
        self._key = key
        self.keyid = key_id(key.public_key())

    def __repr__(self) -> str:
        return f"Signer({self.keyid[:16]})"

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes, 64 bytes long."""
        return self._key.sign(data)


def load_signer(reference: str) -> Signer:
    """A private key from a file, or from where a reference (``env:NAME``, ``file:/path``) says.

    Raises:
        KeyFileError: It cannot be read, others may read it, or it is no Ed25519 key.
        UsageError: The extra is not installed.
    """
    _need_extra()
    if is_secret_reference(reference):
        try:
            data = resolve_secret_spec(reference).value.encode("utf-8")
        except SecretResolutionError as error:
            raise KeyFileError(reference, str(error), hint="Set it to the text of the PEM file.") from None
    else:
        data = _private_file(reference)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message could quote the input.
        raise KeyFileError(reference, "it is no unencrypted private key in PEM form") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(reference, "it is no Ed25519 key")
    return Signer(key)


def _private_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except OSError as error:
        raise KeyFileError(path, str(error.strerror)) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(path, f"mode={mode:04o}, others may read it", hint=f"Run: chmod 600 {path}")
    return data


def load_public(text: str, path: str) -> Any:
    """A public key from PEM text.

    Raises:
        KeyFileError: It is no Ed25519 public key.
        UsageError: The extra is not installed.
    """
    _need_extra()
    try:
        key = serialization.load_pem_public_key(text.encode("utf-8"))
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(path, "it is no public key in PEM form") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(path, "it is no Ed25519 key")
    return key


def holds(public: Any, signature: bytes, data: bytes) -> bool:
    """Whether a signature over some bytes was made with the private half of a key."""
    try:
        public.verify(signature, data)
    except InvalidSignature:
        return False
    return True
