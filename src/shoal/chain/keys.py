"""The wallet that settles: from the environment, or from a keystore file and its password.

In flow SHOAL_CHAIN_KEY, or a keystore's path and SHOAL_CHAIN_PASSWORD; out flows an `Account`. Invariant: no secret is
in an error or a log, and a keystore with a wrong password gives no account.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from shoal.base.errors import ShoalError
from shoal.chain.keccak import keccak256
from shoal.chain.signing import Account

KEY_VARIABLE, PASSWORD_VARIABLE = "SHOAL_CHAIN_KEY", "SHOAL_CHAIN_PASSWORD"
MAX_KEYSTORE_BYTES = 1 << 16
MAX_MEMORY = 1 << 30
_HEX = re.compile("(0x)?[0-9a-fA-F]{64}")


def load_account(keystore: Path | None = None, environment: Mapping[str, str] | None = None) -> Account:
    """Raises SH-CHAIN-02."""
    found = os.environ if environment is None else environment
    if keystore is not None:
        return Account(_decrypt(keystore, found.get(PASSWORD_VARIABLE, "")))
    secret = found.get(KEY_VARIABLE, "").strip()
    if not secret:
        raise _no_key(
            "there is no key", f"set {KEY_VARIABLE}, or give --keystore and set {PASSWORD_VARIABLE}"
        )
    if not _HEX.fullmatch(secret):
        raise _no_key(f"{KEY_VARIABLE} does not hold 64 hexadecimal digits", "copy the key again")
    return Account(bytes.fromhex(secret.removeprefix("0x")))


def _decrypt(path: Path, password: str) -> bytes:
    """The secret in a version 3 keystore, as wallets write them."""
    try:
        with open(path, "rb") as file:
            crypto = json.loads(file.read(MAX_KEYSTORE_BYTES))["crypto"]
        derived = _derive(crypto, password.encode())
        secret = bytes.fromhex(crypto["ciphertext"])
        mac = keccak256(derived[16:32] + secret).hex()
        if not hmac.compare_digest(mac, str(crypto["mac"]).lower()):
            raise _no_key(f"the password does not open {path.name}", f"set {PASSWORD_VARIABLE}")
        if crypto["cipher"] != "aes-128-ctr":
            raise ValueError(crypto["cipher"])
        counter = modes.CTR(bytes.fromhex(crypto["cipherparams"]["iv"]))
        opened = Cipher(algorithms.AES(derived[:16]), counter).decryptor()
        return opened.update(secret) + opened.finalize()
    except (OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise _no_key(f"{path.name} is not a keystore that can be read", "check the file") from error


def _derive(crypto: dict[str, Any], password: bytes) -> bytes:
    params = crypto["kdfparams"]
    salt = bytes.fromhex(params["salt"])
    if crypto["kdf"] == "scrypt":
        return hashlib.scrypt(
            password, salt=salt, n=params["n"], r=params["r"], p=params["p"], dklen=32, maxmem=MAX_MEMORY
        )
    return hashlib.pbkdf2_hmac("sha256", password, salt, int(params["c"]), 32)


def _no_key(cause: str, next_step: str) -> ShoalError:
    return ShoalError("SH-CHAIN-02", cause, next_step)
