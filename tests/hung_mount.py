"""A mounted file system whose server stopped in the middle of an answer: whoever asks it waits in state D, truly.

A FUSE server in this process: it takes up the mount's greeting, then reads one request and never answers it. From then
on the kernel lets the asking process wait beyond SIGKILL, as it does for a dead NFS server with `hard`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

GETATTR, STATFS, INIT = 3, 17, 26
HEADER = struct.Struct("<IIQQIIII")  # fuse_in_header
ANSWER = struct.Struct("<IiQ")  # fuse_out_header
MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Whoever counts what a mount leaves behind sees no other's: every agent looks at all mounts of the machine."""
    with (Path(tempfile.gettempdir()) / "gpuwatch-tests-hung-mount.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class HungMount:
    """Mounted at `place` until `end`. Raises `OSError` where this process may not mount."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.answers = True
        self._file = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        data = f"fd={self._file},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        done = _libc.mount(b"server:/export", os.fsencode(place), b"fuse.test", 0, data.encode())
        if done:
            os.close(self._file)
            raise OSError(ctypes.get_errno(), "mount")
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            if self._stop in select.select([self._file, self._stop], [], [])[0]:
                return  # not while we read: the connection ends with the last who uses its file
            try:
                asked = os.read(self._file, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue  # whoever asked was ended before we read it
                return
            _, opcode, unique, *_ = HEADER.unpack_from(asked)
            if opcode == INIT:
                body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 65_536, 0, 16, 12, 65_536, 1, 1, 0, 0)
            elif opcode == GETATTR:
                attributes = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
                body = struct.pack("<QII", 1, 0, 0) + attributes
            elif opcode == STATFS and self.answers:
                body = struct.pack("<QQQQQIIII24x", 1000, 500, 500, 100, 50, 4096, 255, 4096, 0)
            elif opcode == STATFS:
                continue  # read, and never answered
            else:
                with contextlib.suppress(OSError):
                    os.write(self._file, ANSWER.pack(ANSWER.size, -errno.ENOSYS, unique))
                continue
            with contextlib.suppress(OSError):
                os.write(self._file, ANSWER.pack(ANSWER.size + len(body), 0, unique) + body)

    def die(self) -> None:
        """The server ends: those who wait get an error, and so does everybody after them."""
        if self._thread.is_alive():
            os.write(self._wake, b"x")
            self._thread.join(5)
            for file in (self._file, self._stop, self._wake):
                os.close(file)

    def end(self) -> None:
        """Nothing is mounted any more."""
        self.die()
        _libc.umount2(os.fsencode(self.place), MNT_DETACH)
