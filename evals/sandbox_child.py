"""The inside of the sandbox: locks its own process up, runs one function of untrusted source, prints one JSON object.

Started as a script by `evals/sandbox.py` (`python -I -S -B`), never imported. It reads `{"source", "call", "args",
"limits"}` from standard input and writes `{"value": ...}` or `{"error": "..."}` to standard output. Whatever it
says is only data for the parent: nothing here is trusted after the source has started.

Order: close-on-parent-death, rlimits, no-new-privileges, Landlock (read the standard library, write only the work
folder, no network), seccomp (an allow list; everything else is EPERM: no process, thread, socket or signal).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys
from typing import Any

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
READ_FILE, READ_DIR = 1 << 2, 1 << 3

# What an interpreter without threads, processes and network needs: (x86_64, aarch64); -1 where there is none.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "open": (2, -1), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "poll": (7, -1), "ppoll": (271, 73), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "access": (21, -1), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "fcntl": (72, 25),
    "ftruncate": (77, 46), "getdents": (78, -1), "getcwd": (79, 17), "mkdir": (83, -1), "rename": (82, -1),
    "rmdir": (84, -1), "unlink": (87, -1), "readlink": (89, -1), "gettimeofday": (96, 169), "getrusage": (98, 165),
    "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "getdents64": (217, 61), "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "openat": (257, 56), "mkdirat": (258, 34),
    "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38), "readlinkat": (267, 78),
    "faccessat": (269, 48), "dup3": (292, 24), "getrandom": (318, 278), "statx": (332, 291), "rseq": (334, 293),
    "faccessat2": (439, 439),
}  # fmt: skip
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def main() -> None:
    """Read the job, lock up, run, answer."""
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        lock_up(job["limits"])
    except OSError as error:
        answer(out, {"refused": f"the sandbox cannot be set up: {error}"})
        os._exit(0)
    answer(out, run(job))
    os._exit(0)


def answer(out: int, data: dict[str, Any]) -> None:
    """Write one JSON object and nothing else."""
    text = json.dumps(data, allow_nan=False).encode()
    while text:
        text = text[os.write(out, text) :]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The value of the call, or what went wrong, in one line that is the same on every machine."""
    scope: dict[str, Any] = {"__name__": "candidate"}
    try:
        exec(compile(job["source"], "candidate", "exec"), scope)
        function = scope.get(job["call"])
        if not callable(function):
            return {"error": f"it defines no function {job['call']}()"}
        value = function(*job["args"])
    except MemoryError:
        return {"error": "it needs more memory than allowed"}
    except BaseException as error:
        return {"error": f"{where(error)}{type(error).__name__}: {str(error)[:500]}"}
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        return {"error": f"{job['call']}() returned something that is not plain JSON: {str(error)[:200]}"}
    return {"value": value}


def where(error: BaseException) -> str:
    """The line of the candidate that raised."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "candidate":
            line = at.tb_lineno
        at = at.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    return f"line {line}: " if line else ""


def lock_up(limits: dict[str, int]) -> None:
    """Raises OSError where the kernel refuses any part."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(1, 9, 0, 0, 0), "parent-death signal")
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    _checked(libc.prctl(38, 1, 0, 0, 0), "no new privileges")
    _landlock(libc)
    _seccomp(libc)


def _landlock(libc: ctypes.CDLL) -> None:
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    _checked(version, "Landlock")
    files = (1 << 13) - 1
    for minimum, bit in ((2, 13), (3, 14), (5, 15)):
        if version >= minimum:
            files |= 1 << bit
    attributes = [files]
    if version >= 4:
        attributes.append(3)  # TCP bind and connect
    if version >= 6:
        attributes.append(3)  # abstract unix sockets and signals
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = libc.syscall(LANDLOCK_CREATE, packed, len(packed), 0)
    _checked(ruleset, "Landlock ruleset")
    inside = files & ~(1 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12)  # no execute, devices, fifos or links
    for path, access in ((os.path.dirname(os.__file__), READ_FILE | READ_DIR), (os.getcwd(), inside)):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access, fd)
        _checked(libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), "Landlock rule")
        os.close(fd)
    _checked(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "Landlock restriction")
    os.close(ruleset)


def _seccomp(libc: ctypes.CDLL) -> None:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(f"no seccomp table for {machine}")
    column, audit = ARCHITECTURES[machine]
    numbers = sorted({row[column] for row in ALLOWED.values()} - {-1})
    load, equal, ret = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (ret, 0, 0, 0x80000000), (load, 0, 0, 0)]
    for i, number in enumerate(numbers):
        program.append((equal, len(numbers) - i, 0, number))
    program += [(ret, 0, 0, 0x00050000 | 1), (ret, 0, 0, 0x7FFF0000)]  # EPERM; allow
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in program))
    header = struct.pack("@HxxxxxxP", len(program), ctypes.addressof(code))
    _checked(libc.prctl(22, 2, header, 0, 0), "seccomp")


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
