"""Files that outlive a run: written whole or not at all, and refused early where they cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from pathlib import Path

from pibroch.runtime.errors import InputError

PROBE = bytes(4096)  # a block: what a full disk refuses
SPACE = "free some space, or write somewhere else"
PLACE = "choose a place that you may write to"
REASONS = {
    errno.ENOSPC: ("the disk is full", SPACE),
    errno.EDQUOT: ("your quota of the disk is used up", SPACE),
    errno.EFBIG: ("the file would exceed the largest size that is allowed", SPACE),
    errno.EACCES: ("you may not write there", PLACE),
    errno.EPERM: ("you may not write there", PLACE),
    errno.EROFS: ("the file system is read-only", PLACE),
    errno.EISDIR: ("it is a folder", "name a file"),
    errno.ENOTDIR: ("a part of the path is a file", "check the path"),
    errno.EEXIST: ("a part of the path is a file", "check the path"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
}


def write_atomically(path: str | Path, data: str | bytes) -> None:
    """Write a file (text as UTF-8) so that a reader, or a crash, sees the old one or the whole new one.

    Makes the folder, keeps the mode of the file that was there, and writes devices and pipes directly. Raises
    `InputError` that names the path, the reason and the remedy; nothing of ours is left then.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    target = Path(path)
    try:
        if _is_special(target):
            with open(target, "wb", buffering=0) as device:
                _write_all(device.fileno(), raw)
            return
        target = target.resolve()  # a symbolic link stays one
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "", str(path))
        if target.exists() and not os.access(target, os.W_OK):  # a rename would not ask
            raise PermissionError(errno.EACCES, "", str(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, raw)
    except OSError as error:
        raise InputError(f"{path}: {explain(error)}") from error


def check_writable(path: str | Path) -> None:
    """Raise the `InputError` of `write_atomically` now, where it can be foreseen: before a long run. Leaves nothing."""
    target = Path(path)
    try:
        if _is_special(target):
            return
        target = target.resolve()
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "", str(path))
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "", str(path))
        folder = next(parent for parent in target.parents if parent.exists())
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            _write_all(probe.fileno(), PROBE)
    except OSError as error:
        raise InputError(f"{path}: {explain(error)}") from error


def explain(error: OSError) -> str:
    """Why a file cannot be written, and what to do."""
    reason, remedy = REASONS.get(error.errno or 0, (error.strerror or str(error), "check the path"))
    return f"cannot be written, {reason}: {remedy}"


def _is_special(path: Path) -> bool:
    """A device, a pipe, or a name like /dev/stdout: written to, never replaced by a file."""
    inside = path.absolute().parts[:2] in (("/", "dev"), ("/", "proc")) and path.parts[:3] != ("/", "dev", "shm")
    return (inside and path.exists()) or (path.exists() and not path.is_file() and not path.is_dir())


def _replace(target: Path, raw: bytes) -> None:
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        try:
            with contextlib.suppress(OSError):
                os.fchmod(handle, target.stat().st_mode & 0o7777)
            _write_all(handle, raw)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_all(handle: int, raw: bytes) -> None:
    left = memoryview(raw)
    while left:
        left = left[os.write(handle, left) :]
