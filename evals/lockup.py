"""Locks the calling process up, for good: rlimits, no-new-privileges, Landlock, seccomp. Standard library only.

Both children use it: `evals/sandbox_child.py` (one function) and `evals/speceval/child.py` (a session). Order: death
with the parent, rlimits, no-new-privileges, Landlock (read the standard library and the work folder, perhaps write
there, no network), then whatever must still happen (threads), then seccomp on all threads: an allow list, everything
else is EPERM: no process, thread, socket, signal or limit.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Callable, Mapping

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
READ_FILE, READ_DIR = 1 << 2, 1 << 3
EPERM, ALLOW = 0x00050000 | 1, 0x7FFF0000
FOREIGN = ("site-packages", "dist-packages")  # beside the standard library, where a judge may be installed

# What an interpreter without threads, processes and network needs: (x86_64, aarch64); -1 where there is none.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "open": (2, -1), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "poll": (7, -1), "ppoll": (271, 73), "lseek": (8, 62), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "access": (21, -1), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160),
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
FCNTL, MMAP, MPROTECT = (72, 25), (9, 222), (10, 226)
FCNTL_COMMANDS = (0, 1, 2, 3, 1030)  # duplicate and flags; not F_SETOWN and F_SETSIG, which send signals
PROT_EXEC = 4
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
SECCOMP = {"x86_64": 317, "aarch64": 277}


def lock_up(
    limits: Mapping[str, int], *, write: bool, new_code: bool, before_seccomp: Callable[[], None] = lambda: None
) -> None:
    """Raises `OSError` where the kernel refuses any part.

    `limits` by rlimit name. `write`: files may be made in the working folder. `new_code`: memory may become
    executable (extension modules can still be loaded). `before_seccomp` runs last but one; threads that it starts
    are locked up too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(1, 9, 0, 0, 0), "parent-death signal")
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    _checked(libc.prctl(38, 1, 0, 0, 0), "no new privileges")
    _landlock(libc, write)
    before_seccomp()
    _seccomp(libc, new_code)


def _landlock(libc: ctypes.CDLL, write: bool) -> None:
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
    library = os.path.dirname(os.__file__)
    rules = [(library, READ_DIR), (os.getcwd(), inside if write else READ_FILE | READ_DIR)]
    rules += [(os.path.join(library, name), READ_FILE) for name in os.listdir(library) if name not in FOREIGN]
    for path, access in rules:
        if not os.path.exists(path):
            continue  # a link that leads nowhere
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access, fd)
        _checked(libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), "Landlock rule")
        os.close(fd)
    _checked(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "Landlock restriction")
    os.close(ruleset)


def _seccomp(libc: ctypes.CDLL, new_code: bool) -> None:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no seccomp table for {machine}")
    column, audit = ARCHITECTURES[machine]
    load, equal, any_bit, ret = 0x20, 0x15, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (ret, 0, 0, 0x80000000), (load, 0, 0, 0)]
    commands = [(equal, len(FCNTL_COMMANDS) - i, 0, c) for i, c in enumerate(FCNTL_COMMANDS)]
    program += _block(FCNTL[column], [(load, 0, 0, 24), *commands, (ret, 0, 0, EPERM), (ret, 0, 0, ALLOW)])
    for call in (MMAP, MPROTECT):
        test = [] if new_code else [(load, 0, 0, 32), (any_bit, 0, 1, PROT_EXEC), (ret, 0, 0, EPERM)]
        program += _block(call[column], [*test, (ret, 0, 0, ALLOW)])
    numbers = sorted({row[column] for row in ALLOWED.values()} - {-1})
    for i, number in enumerate(numbers):
        program.append((equal, len(numbers) - i, 0, number))
    program += [(ret, 0, 0, EPERM), (ret, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in program))
    header = struct.pack("@HxxxxxxP", len(program), ctypes.addressof(code))
    result = libc.syscall(SECCOMP[machine], 1, 1, header)  # set a filter, on all threads
    _checked(result, "seccomp")
    if result:
        raise OSError(f"seccomp: thread {result} cannot be locked up")


def _block(number: int, body: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """What is done for one system call; every path through it returns."""
    return [(0x15, 0, len(body), number), *body]


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")
