"""What a process can give up for good before it looks at a stranger's file.

Everything is asked of the operating system, and each function tells what it granted: nobody need believe that a limit
is in force because it was wanted. Namespaces and Landlock bind only the thread that asks, so they come while it is
alone.
"""

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x08000000  # user, network, System V objects
SET_PARENT_DEATH_SIGNAL, SET_NO_NEW_PRIVILEGES, SIGKILL = 1, 38, 9

# Landlock: calls, and bits of rights that the versions of it know.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF, VERSION, PATH_BENEATH = 444, 445, 446, 1, 1
READ_FILE, READ_DIRECTORY = 1 << 2, 1 << 3
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP, SCOPED = 0b11, 0b11

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom")
MACHINE = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat")
DESCRIPTORS = 64


def leave_the_network() -> list[str]:
    """Moves the process into namespaces of its own: no network, and no rights over processes outside."""
    if platform.system() != "Linux":
        return []
    user, group = os.geteuid(), os.getegid()
    if _libc().unshare(NEW_NAMESPACES) != 0:
        return []
    # Without a map the process would have no user; it may still work, so a failure here is no reason to end.
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return ["network namespace"]


def die_with_parent() -> None:
    """Ends the process when the one that started it ends (Linux)."""
    if platform.system() == "Linux":
        _libc().prctl(SET_PARENT_DEATH_SIGNAL, SIGKILL, 0, 0, 0)


def limit_resources(memory: int) -> list[str]:
    """Limits memory (beyond what is in use), written files, open files and core dumps."""
    granted = []
    wanted = [
        ("no files written", resource.RLIMIT_FSIZE, 0),
        (f"{DESCRIPTORS} open files", resource.RLIMIT_NOFILE, DESCRIPTORS),
        ("no core dump", resource.RLIMIT_CORE, 0),
    ]
    # macOS accepts a limit on memory and does not keep it.
    if platform.system() == "Linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        wanted.append((f"{memory / 2**30:.1f} GiB of memory", resource.RLIMIT_AS, used + memory))
    for name, which, value in wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (value, value))
            granted.append(name)
    return granted


def forgo_privileges() -> list[str]:
    """No program that the process might start gets more rights than it has."""
    if platform.system() != "Linux" or _libc().prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return []
    return ["no new privileges"]


def read_only(paths: Iterable[Path]) -> list[str]:
    """Leaves the process nothing but reading these paths, libraries and what the machine is like (Landlock).

    It binds the calling thread and those it starts: with other threads about it is not in force, and not told to be.
    """
    if platform.system() != "Linux" or len(os.listdir("/proc/self/task")) > 1:
        return []
    libc = _libc()
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    if version < 1:
        return []
    rights = RIGHTS[max(known for known in RIGHTS if known <= version)]
    described = struct.pack("=QQQ", rights, TCP if version >= 4 else 0, SCOPED if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(CREATE_RULESET, ctypes.c_char_p(described), ctypes.c_size_t(size), 0)
    if rules < 0:
        return []
    try:
        places = (*map(str, paths), *SYSTEM, *MACHINE, *_libraries())
        for path in {Path(place).resolve() for place in places if os.path.exists(place)}:
            allowed = READ_FILE | (READ_DIRECTORY if path.is_dir() else 0)
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", allowed, opened)
            failed = libc.syscall(ADD_RULE, rules, PATH_BENEATH, ctypes.c_char_p(rule), 0)
            os.close(opened)
            if failed:
                return []
        if libc.syscall(RESTRICT_SELF, rules, 0) != 0:
            return []
    finally:
        os.close(rules)
    return [f"Landlock {version}"]


def _libraries() -> set[str]:
    """Folders of Python and of installed packages, from which modules may still be imported."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    base = Path(sys.base_prefix) / "lib"
    return {place for place in places if place} | {str(base)}


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
