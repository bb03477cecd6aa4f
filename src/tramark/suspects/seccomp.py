"""A filter of system calls (Linux seccomp), for a process that only computes.

It refuses everything by which a process reaches others or leaves something behind: sockets, new processes and
programs, signals, other processes' memory, files opened for writing, and the parts of the kernel that only
administrators need. Reading files is left to Landlock, which can tell one from another.
"""

import ctypes
import errno
import os
import platform
import struct

# name:number on x86-64:number on arm64
REFUSED = """
socket:41:198 socketpair:53:199 connect:42:203 accept:43:202 accept4:288:242 sendto:44:206 sendmsg:46:211
sendmmsg:307:269 bind:49:200 listen:50:201 fork:57: vfork:58: execve:59:221 execveat:322:281 kill:62:129
tkill:200:130 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 ptrace:101:117 process_vm_readv:310:270
process_vm_writev:311:271 kcmp:312:272 migrate_pages:256:238 move_pages:279:239 shmget:29:194 shmat:30:196
shmctl:31:195 semget:64:190 semop:65:193 semctl:66:191 semtimedop:220:192 msgget:68:186 msgsnd:69:189
msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181 truncate:76:45 rename:82: renameat:264:38
renameat2:316:276 mkdir:83: mkdirat:258:34 rmdir:84: creat:85: link:86: linkat:265:37 unlink:87: unlinkat:263:35
symlink:88: symlinkat:266:36 chmod:90: fchmod:91:52 fchmodat:268:53 chown:92: fchown:93:55 lchown:94:
fchownat:260:54 utime:132: utimes:235: futimesat:261: utimensat:280:88 mknod:133: mknodat:259:33 setxattr:188:5
lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 personality:135:92
modify_ldt:154: uselib:134: pivot_root:155:41 chroot:161:51 acct:163:89 settimeofday:164:170
clock_settime:227:112 clock_adjtime:305:266 adjtimex:159:171 mount:165:40 umount2:166:39 swapon:167:224
swapoff:168:225 reboot:169:142 sethostname:170:161 setdomainname:171:162 iopl:172: ioperm:173:
init_module:175:105 finit_module:313:273 delete_module:176:106 quotactl:179:60 kexec_load:246:104
kexec_file_load:320:294 add_key:248:217 request_key:249:218 keyctl:250:219 unshare:272:97 setns:308:268
perf_event_open:298:241 fanotify_init:300:262 name_to_handle_at:303:264 open_by_handle_at:304:265
seccomp:317:277 bpf:321:280 userfaultfd:323:282
"""
# Calls that are looked at: which argument, and what of it.
LOOKED_AT = {"open": (2, None), "openat": (257, 56), "clone": (56, 220), "tgkill": (234, 131), "prlimit64": (302, 261)}
# Calls newer than Linux 5.0 have the same numbers everywhere. These do no harm: close_range, faccessat2, epoll_pwait2,
# futex_waitv, cachestat, map_shadow_stack, futex_wake, futex_wait, futex_requeue, mseal.
FIRST_NEW, NEW = 424, (436, 439, 441, 449, 451, 453, 454, 455, 456, 462)

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16
CLONE_THREAD = 0x10000
PR_SET_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
FILTER, ALL_THREADS = 1, 1


def refuse_calls() -> bool:
    """Puts the filter in force for all threads, for good. False if this system has no such thing."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return False
    program = _program(*MACHINES[platform.machine()])
    octets = ctypes.create_string_buffer(b"".join(program), len(program) * 8)
    # struct sock_fprog: a count and a pointer.
    described = struct.pack("@HP", len(program), ctypes.addressof(octets))
    libc = ctypes.CDLL(None, use_errno=True)
    call = PR_SET_SECCOMP_CALL[platform.machine()]
    return bool(libc.syscall(call, FILTER, ALL_THREADS, ctypes.c_char_p(described)) == 0)


def _program(column: int, machine: int) -> list[bytes]:
    """The filter's instructions, for the machine whose numbers stand in that column."""
    program = [_do(LOAD, MACHINE), _do(EQUAL, machine, 1, 0), _do(RETURN, KILL), _do(LOAD, NUMBER)]

    def answer(number: int, error: int) -> None:
        program.extend((_do(EQUAL, number, 0, 1), _do(RETURN, FAIL | error)))

    def look(name: str, argument: int, test: int, value: int, refused_if: bool) -> None:
        number = LOOKED_AT[name][column]
        if number is not None:
            passes, fails = (1, 0) if refused_if else (0, 1)
            program.extend(
                (
                    _do(EQUAL, number, 0, 4),
                    _do(LOAD, ARGUMENTS + 8 * argument),
                    _do(test, value, passes, fails),
                    _do(RETURN, ALLOW),
                    _do(RETURN, FAIL | errno.EPERM),
                )
            )

    for entry in REFUSED.split():
        known = entry.split(":")[1 + column]
        if known:
            answer(int(known), errno.EPERM)
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    look("open", 1, ANY_BIT, writing, refused_if=True)
    look("openat", 2, ANY_BIT, writing, refused_if=True)
    look("clone", 0, ANY_BIT, CLONE_THREAD, refused_if=False)
    look("tgkill", 0, EQUAL, os.getpid(), refused_if=False)
    look("prlimit64", 0, EQUAL, 0, refused_if=False)
    for number in NEW:
        program.extend((_do(EQUAL, number, 0, 1), _do(RETURN, ALLOW)))
    # As if the kernel were older: libraries then fall back on calls that are looked at. x32's numbers are above these.
    program.extend((_do(AT_LEAST, FIRST_NEW, 0, 1), _do(RETURN, FAIL | errno.ENOSYS), _do(RETURN, ALLOW)))
    return program


def _do(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
