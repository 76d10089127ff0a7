"""Escape attempts as candidate code, with the errno that each must get. Used with the rules on code switched off.

The prelude shows that builtins and imports are no wall: it reaches every module of the process through `object`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pibroch.evals.speceval.session as session_module

REACH = """
def reach():
    for kind in object.__subclasses__():
        if kind.__name__ == "_wrap_close":
            return kind.__init__.__globals__["sys"].modules

MODULES = reach()
os, sys, builtins, ctypes = (MODULES[n] for n in ("os", "sys", "builtins", "ctypes"))
load = builtins.__import__
errno = load("errno")
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(name, *args):
    ctypes.set_errno(0)
    made = [a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in args]
    got = libc.syscall(ctypes.c_long(NR[name]), *made)
    return "done" if got >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(function, *args):
    try:
        function(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    except RuntimeError as error:
        return str(error)
    return "done"
"""

_X86, _ARM = 0, 1
_NUMBERS = {
    "ptrace": (101, 117), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281),
    "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "socket": (41, 198),
    "socketpair": (53, 199), "fchmod": (91, 52), "fchmodat": (268, 53), "fchownat": (260, 54), "symlinkat": (266, 36),
    "linkat": (265, 37), "prctl": (157, 167), "io_uring_setup": (425, 425), "keyctl": (250, 219), "add_key": (248, 217),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "memfd_create": (319, 279),
    "prlimit64": (302, 261), "setrlimit": (160, 164), "kill": (62, 129), "tgkill": (234, 131), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "ioctl": (16, 29),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "seccomp": (317, 277), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "shmget": (29, 194), "mq_open": (240, 180), "open_by_handle_at": (304, 265),
    "setuid": (105, 146), "setsid": (112, 157), "personality": (135, 92), "mmap": (9, 222), "mprotect": (10, 226),
    "fcntl": (72, 25), "truncate": (76, 45), "utimensat": (280, 88), "timer_create": (222, 107),
    "setitimer": (38, 103), "mknodat": (259, 33), "reboot": (169, 142), "init_module": (175, 105),
    "pkey_mprotect": (329, 288), "landlock_create_ruleset": (444, 444), "inotify_init1": (294, 26),
}  # fmt: skip
NR = {name: row[_ARM if os.uname().machine == "aarch64" else _X86] for name, row in _NUMBERS.items()}
JUDGE = str(Path(session_module.__file__).resolve())
E, A = "EPERM", "EACCES"

# (what, expressions that give one errno each, what each must give); TARGET is a file of the test's, outside.
PROBES: list[tuple[str, list[str], str]] = [
    ("read outside", ["attempt(os.open, '/etc/passwd', 0)", "attempt(os.open, TARGET, 0)", "attempt(os.listdir, '/')",
                      f"attempt(os.open, {JUDGE!r}, 0)"], A),
    ("memory through proc", ["attempt(os.open, '/proc/self/mem', 2)", "attempt(os.open, '/proc/self/maps', 0)",
                             "attempt(os.open, '/proc/self/environ', 0)", "attempt(os.listdir, '/proc')"], A),
    ("write", ["attempt(os.open, 'file', 66)", "attempt(os.open, TARGET, 1)", "attempt(os.mkdir, 'folder')",
               "attempt(os.unlink, TARGET)", "attempt(os.rename, TARGET, 'x')"], A),
    ("change a file", ["call('fchmodat', -100, TARGET.encode(), 0)", "call('fchownat', -100, TARGET.encode(), 1, 1, 0)",
                       "call('truncate', TARGET.encode(), 0)", "call('utimensat', -100, TARGET.encode(), 0, 0)",
                       "call('fchmod', 0, 0o777)"], E),
    ("links and devices", ["call('symlinkat', TARGET.encode(), -100, b'link')",
                           "call('linkat', -100, TARGET.encode(), -100, b'link', 0)",
                           "call('mknodat', -100, b'pipe', 0o10600, 0)"], E),
    ("sockets", ["call('socket', 2, 1, 0)", "call('socket', 2, 2, 0)", "call('socket', 10, 1, 0)",
                 "call('socket', 1, 1, 0)", "call('socket', 16, 3, 0)", "call('socketpair', 1, 1, 0, bytes(8))"], E),
    ("fork", ["attempt(os.fork)", "call('clone', 17, 0, 0, 0, 0)", "call('clone', 0x50f00, 0, 0, 0, 0)",
              "call('clone3', bytes(64), 64)"], E),
    ("another program", ["attempt(os.execv, '/bin/sh', ['sh'])", "call('execveat', 0, b'', 0, 0, 0x1000)",
                         "call('memfd_create', b'x', 0)", "attempt(os.posix_spawn, '/bin/sh', ['sh'], {})"], E),
    ("kill the judge", ["attempt(os.kill, 1, 9)", "attempt(os.kill, PARENT, 9)", "attempt(os.kill, -1, 9)",
                        "call('tgkill', PARENT, PARENT, 9)", "call('tkill', PARENT, 9)",
                        "call('rt_sigqueueinfo', PARENT, 9, bytes(128))", "call('pidfd_open', PARENT, 0)",
                        "call('pidfd_send_signal', 0, 9, 0, 0)"], E),
    ("signals through a file", ["call('fcntl', 3, 8, PARENT)", "call('fcntl', 3, 10, 9)",
                                "call('fcntl', 3, 4, 0o20000)",
                                "call('timer_create', 0, 0, bytes(8))", "call('setitimer', 0, bytes(32), 0)"], E),
    ("ptrace", ["call('ptrace', 0, 0, 0, 0)", "call('ptrace', 16, PARENT, 0, 0)",
                "call('process_vm_readv', PARENT, bytes(16), 1, bytes(16), 1, 0)",
                "call('process_vm_writev', PARENT, bytes(16), 1, bytes(16), 1, 0)"], E),
    ("name spaces", ["call('mount', b'none', b'/', b'tmpfs', 0, 0)", "call('unshare', 0x10000000)",
                     "call('setns', 0, 0)", "call('chroot', b'/')", "call('open_by_handle_at', 0, bytes(64), 0)"], E),
    ("code in memory", ["call('mmap', 0, 4096, 7, 0x22, -1, 0)", "call('mmap', 0, 4096, 5, 0x22, -1, 0)",
                        "call('mprotect', 4096, 4096, 7)", "call('mprotect', 4096, 4096, 4)",
                        "call('pkey_mprotect', 4096, 4096, 7, -1)", "call('personality', 0x400000)"], E),
    ("undo the lock", ["call('prctl', 22, 0, 0, 0, 0)", "call('prctl', 1, 0, 0, 0, 0)", "call('seccomp', 0, 0, 0)",
                       "call('landlock_create_ruleset', 0, 0, 1)", "call('setuid', 0)", "call('setsid')"], E),
    ("limits", ["call('setrlimit', 9, b'\\xff' * 16)", "call('prlimit64', 0, 9, b'\\xff' * 16, 0)",
                "call('setpriority', 0, 0, 0)", "call('sched_setaffinity', 0, 8, bytes(8))"], E),
    ("kernel interfaces", ["call('io_uring_setup', 1, bytes(120))", "call('bpf', 0, bytes(64), 64)",
                           "call('userfaultfd', 0)", "call('perf_event_open', bytes(112), 0, -1, -1, 0)",
                           "call('inotify_init1', 0)", "call('reboot', 0, 0, 0, 0)",
                           "call('init_module', 0, 0, b'')"], E),
    ("keys, shared memory, queues", ["call('keyctl', 0, -3, 0)", "call('add_key', b'user', b'x', b'x', 1, -3)",
                                     "call('shmget', 0, 4096, 0o1777)", "call('mq_open', b'q', 0o102, 0o600, 0)"], E),
    ("terminal", ["call('ioctl', 0, 0x5412, b'x')", "call('ioctl', 3, 0x541b, bytes(8))"], E),
    ("threads", ["attempt(load('_thread').start_new_thread, load, ())"], "can't start new thread"),
]  # fmt: skip


def probe_source(expressions: list[str], target: Path) -> str:
    """A candidate whose `probe(x)` makes all attempts and says what came of them."""
    head = f"NR = {NR!r}\nTARGET = {str(target)!r}\nPARENT = {os.getpid()}\n{REACH}\n"
    rows = "".join(f"        {e},\n" for e in expressions)
    return f"{head}def probe(x: int) -> list[str]:\n    return [\n{rows}    ]\n"
