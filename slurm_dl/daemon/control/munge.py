"""MUNGE credentials: bytes, and the user who made them, on any host that has the cluster's key.

Slurm's own identity of users. libmunge is called directly: MUNGE's commands would cost a process
for each request.

Source: libmunge's manual pages munge(3), munge_ctx(3), munge_enum(3).
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Final

from slurm_dl.model.errors import SlurmDlError

REQUEST: Final = b"request"
ANSWER: Final = b"answer"
_LIBRARY: Final = "libmunge.so.2"
_OPT_SOCKET: Final = 8
_OPT_UID_RESTRICTION: Final = 9
_SOCKET_ERROR: Final = 6
_ADVICE: Final = {
    14: "the hosts have different keys of MUNGE: see `munge -n | ssh HOST unmunge`",
    15: "the clock of one of the hosts is slow or fast: see `munge -n | ssh HOST unmunge`",
    16: "the clock of one of the hosts is slow or fast: see `munge -n | ssh HOST unmunge`",
}
"""By EMUNGE_CRED_INVALID, EMUNGE_CRED_EXPIRED and EMUNGE_CRED_REWOUND."""


class MungeError(SlurmDlError):
    """No credential, or none that is good."""


class Munge:
    """The MUNGE service of this host.

    Args:
        socket: Of munged; empty: the usual one.

    Raises:
        MungeError: libmunge is not installed.
    """

    def __init__(self, socket: str = "") -> None:
        self._socket = socket
        try:
            self._lib = ctypes.CDLL(_LIBRARY)
            self._free = ctypes.CDLL(None).free
        except OSError:
            msg = f"{_LIBRARY} is not on this host: install MUNGE (Debian: libmunge2)"
            raise MungeError(msg) from None
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._lib.munge_ctx_create.restype = ctypes.c_void_p
        self._lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
        self._lib.munge_strerror.restype = ctypes.c_char_p

    def encode(self, payload: bytes, *, for_uid: int | None = None) -> bytes:
        """A credential of this process's user.

        Args:
            for_uid: Only that user can decode it; None: everybody.

        Raises:
            MungeError: munged does not answer.
        """
        context, made = self._context(), ctypes.c_void_p()
        try:
            if for_uid is not None:
                self._set(context, _OPT_UID_RESTRICTION, ctypes.c_uint32(for_uid))
            self._check(self._lib.munge_encode(ctypes.byref(made), context, payload, len(payload)))
            return ctypes.string_at(made)
        finally:
            self._free(made)
            self._lib.munge_ctx_destroy(context)

    def decode(self, credential: bytes) -> tuple[bytes, int]:
        """The payload, and the uid of whoever made it.

        Raises:
            MungeError: It is no credential, is of another key, too old, of the future, for another
                user, or was decoded before; or munged does not answer.
        """
        context, made = self._context(), ctypes.c_void_p()
        length, uid, gid = ctypes.c_int(), ctypes.c_uint32(), ctypes.c_uint32()
        try:
            self._check(
                self._lib.munge_decode(
                    credential, context, ctypes.byref(made), ctypes.byref(length),
                    ctypes.byref(uid), ctypes.byref(gid),
                )
            )  # fmt: skip
            return ctypes.string_at(made, length.value) if made else b"", uid.value
        finally:
            self._free(made)
            self._lib.munge_ctx_destroy(context)

    def _context(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p(self._lib.munge_ctx_create())
        if self._socket:
            self._set(context, _OPT_SOCKET, ctypes.c_char_p(self._socket.encode()))
        return context

    def _set(self, context: ctypes.c_void_p, option: int, value: Any) -> None:  # noqa: ANN401
        self._check(self._lib.munge_ctx_set(context, option, value))

    def _check(self, error: int) -> None:
        if error:
            said = self._lib.munge_strerror(error).decode(errors="replace")
            said += f" ({self._socket or 'is munged running?'})" if error == _SOCKET_ERROR else ""
            advice = _ADVICE.get(error)
            msg = f"MUNGE: {said}{f': {advice}' if advice else ''}"
            raise MungeError(msg)


def digest(kind: bytes, *parts: bytes) -> bytes:
    """Payload of the credential of a `REQUEST`, or of an `ANSWER`, that consists of *parts*."""
    found = hashlib.sha256(kind)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()
