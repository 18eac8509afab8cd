"""Python processes that start with PyTorch and tcjit imported: forked, for each, from a server that has done nothing but import them.

``install`` puts ``Popen`` in the place of ``subprocess.Popen``. What starts this Python with ``-c``, ``-m`` or a script, the package's own
workers too, is then forked; whatever concerns the start itself is started as ever: other commands, other options, and an environment in
which more differs than what is read at use. What would find another tcjit than this one is forked with PyTorch alone, and so is all that
a test starts which is marked ``bare``. A forked process is a child of the process that asked, as any that Popen starts: its server
forks twice, and an orphan belongs to the next subreaper. It has a server of its own, for what it starts in turn; a server ends with its
process. Servers run no kernels: after a parallel region of OpenMP no fork is safe.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from support import PYTHONPATH, ROOT

REAL = subprocess.Popen
PYTHON = sys.executable  # a test may change the name
PRELOADED = ("torch", "torch._dynamo")
PACKAGE = ("tcjit.byoc.partition", "tcjit.cli", "tcjit.jit.autotune", "tcjit.jit.kernel", "tcjit.jit.tune_runner", "tcjit.jit.tune_worker")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
MOST = 1 << 20  # bytes of a request
# what is read at use, by the beginning of its name; other variables may count when a process starts or PyTorch is imported
AT_USE = ("TCJIT_", "POCL_", "PYTEST_", "CUDA_", "XDG_", "CC", "CXX", "COLUMNS", "HOME", "PATH", "PWD", "PYTHONPATH", "TMPDIR")
AT_USE += ("OCLGRIND_", "TORCHINDUCTOR_CACHE_DIR")
USUAL = {"preexec_fn": None, "pass_fds": (), "shell": False, "gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1}


class Server:
    """What forks processes for this one; it is started with the first."""

    def __init__(self, asked: socket.socket | None = None) -> None:
        self._asked, self._lock = asked, threading.Lock()
        self._process: REAL[bytes] | None = None  # type: ignore[valid-type]
        self._begun = _at_start(os.environ)
        self._owner = os.getpid()

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with such an environment may be forked."""
        return sys.platform == "linux" and self._owner == os.getpid() and _at_start(environment) == self._begun

    def fork(self, request: dict[str, Any], files: Sequence[int]) -> int:
        """The number of a new process, a child of this one, with these as its standard streams."""
        with self._lock:
            if self._asked is None:
                self._asked, self._process = _started()
            prctl = ctypes.CDLL(None).prctl
            prctl(SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._asked, [json.dumps(request).encode()], list(files))
                answer = self._asked.recv(MOST)
                if not answer:
                    raise ConnectionError("the server that forks processes has ended")
                return int(answer)
            finally:
                prctl(SUBREAPER, 0, 0, 0, 0)


class Popen(REAL):  # type: ignore[type-arg]
    """``subprocess.Popen``, which forks what it may."""

    def _execute_child(self, *given: Any) -> None:
        how = inspect.signature(REAL._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in (how["env"] or os.environ).items()}
        start, folder = _start(how["args"]), os.path.abspath(how["cwd"] or ".")
        usual = how["executable"] is None and all(how.get(name, value) == value for name, value in USUAL.items())
        if server is None or start is None or not usual or not os.path.isdir(folder) or not server.takes(environment):
            super()._execute_child(*given)
            return
        ends = how["p2cread"], how["c2pwrite"], how["errwrite"]
        files = [number if end == -1 else end for number, end in enumerate(ends)]
        package = loaded and _finds_this(start, folder, environment)
        request = {"start": start, "environment": environment, "folder": folder, "session": how["start_new_session"], "package": package}
        self.pid = server.fork(request, files)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[end] for end in pipes))  # type: ignore[attr-defined]


server: Server | None = None
loaded = True  # whether what is forked has tcjit imported
at_fork: list[dict[str, Any]] = []  # what tcjit, once imported, asks of ``os.register_at_fork``


def install(forked: bool = True, package: bool = True) -> None:
    """Let ``subprocess`` fork what it may, with tcjit or without, or start everything as ever."""
    global server, loaded
    server, loaded = server or Server(), package
    subprocess.Popen = Popen if forked else REAL  # type: ignore[misc]


def serve(number: int) -> NoReturn:
    """Fork on request, from the socket of this number, until nobody asks any more."""
    with contextlib.suppress(ImportError):  # tests of the language do without
        for name in PRELOADED:
            importlib.import_module(name)
        sys.modules["torch"].manual_seed(0)  # else each server's processes would draw others
    gc.freeze()
    _serve(socket.socket(fileno=number), [path for path in sys.path if path and path not in PYTHONPATH.split(os.pathsep)], False)


# ---------------------------------------------------------------- asking


def _start(command: Any) -> list[str] | None:
    """How a command starts this Python, with ``-W``, and ``-c``, ``-m``, ``-`` or a script and what follows; None where it does not so."""
    if isinstance(command, (str, bytes, os.PathLike)):
        return None
    program, *words = [os.fsdecode(word) for word in command]
    rest = words
    while rest[:1] == ["-W"]:
        rest = rest[2:]
    known = rest and (rest[0] == "-" or not rest[0].startswith("-") or rest[0] in ("-c", "-m") and len(rest) > 1)
    return words if program == PYTHON and known else None


def _finds_this(start: Sequence[str], folder: str, environment: Mapping[str, str]) -> bool:
    """Whether ``import tcjit`` in such a process finds the tcjit that is tested."""
    while start[0] == "-W":
        start = start[2:]
    first = "." if start[0] in ("-", "-c", "-m") else os.path.dirname(start[0])
    places = [os.path.join(folder, place) for place in (first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))]
    there = [place for place in places if os.path.isdir(os.path.join(place, "tcjit"))]
    return bool(there) and os.path.samefile(there[0], ROOT)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(AT_USE)}


def _started() -> tuple[socket.socket, REAL[bytes]]:  # type: ignore[valid-type]
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"from support import warm; warm.serve({there.fileno()})"
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    silent = subprocess.DEVNULL
    process = REAL([PYTHON, "-c", code], pass_fds=[there.fileno()], env=environment, stdin=silent, stdout=silent)
    there.close()
    return here, process


# ---------------------------------------------------------------- serving


def _serve(asked: socket.socket, paths: list[str], package: bool) -> NoReturn:
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    other: socket.socket | None = None  # asks a server that has tcjit imported
    while True:
        text, files, _, _ = socket.recv_fds(asked, MOST, 3)
        if not text:
            os._exit(0)
        request = json.loads(text)
        if request["package"] and not package:
            other = other or _with_package((asked.fileno(), *files), paths, interrupted)
            socket.send_fds(other, [text], files)
            for file in files:
                os.close(file)
            asked.send(other.recv(MOST))
            continue
        number, told = os.pipe()
        if (middle := os.fork()) == 0:
            if (child := os.fork()) != 0:
                os.write(told, str(child).encode())
                os._exit(0)
            os.close(number)
            os.close(told)
            asked.close()
            if other is not None:
                other.close()
            signal.signal(signal.SIGINT, interrupted)
            _work(request, files, paths, package)
        os.close(told)
        for file in files:
            os.close(file)
        os.waitpid(middle, 0)
        asked.send(os.read(number, 20))
        os.close(number)


def _with_package(ours: Sequence[int], paths: list[str], interrupted: Any) -> socket.socket:
    """Fork a server that imports tcjit. What that does after a fork it does in what is forked from a test's process, not from a server."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() != 0:
        there.close()
        return here
    for file in (here.fileno(), *ours):
        os.close(file)
    register, os.register_at_fork = os.register_at_fork, lambda **calls: at_fork.append(calls)
    with contextlib.suppress(ImportError):
        for name in PACKAGE:
            importlib.import_module(name)
    os.register_at_fork = register
    gc.freeze()
    signal.signal(signal.SIGINT, interrupted)
    _serve(there, paths, True)


def _work(request: dict[str, Any], files: Sequence[int], paths: list[str], package: bool) -> NoReturn:
    """Become the process that was asked for, and do its work."""
    global server
    if request["session"]:
        os.setsid()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for file in (here.fileno(), *files):
            os.close(file)
        _serve(there, paths, package)
    there.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # PyTorch has asked for it already
    server = Server(here)
    install(package=request["package"])
    for calls in at_fork:
        os.register_at_fork(**calls)
    os._exit(_ended(request["start"], paths))


def _ended(start: list[str], paths: list[str]) -> int:
    """The status of a process after its work, without the teardown of the interpreter: of all that it never used, in copied pages."""
    status = 0
    try:
        _run(start, paths)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status, trace = 1, error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status & 255


def _run(start: list[str], paths: list[str]) -> None:
    """What ``python`` does with its arguments."""
    while start[0] == "-W":
        sys.warnoptions.append(start[1])
        start = start[2:]
    kind, module = start[0], types.ModuleType("__main__")
    sys.modules["__main__"] = module
    first = {"-": "", "-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(kind)))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *paths]
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    if kind in ("-", "-c"):
        words = start[kind == "-c" :]
        code, name = (sys.stdin.read(), "<stdin>") if kind == "-" else (words[0], "<string>")
        sys.argv = [kind, *words[1:]]
        exec(compile(code, name, "exec"), module.__dict__)
    elif kind == "-m":
        sys.argv = ["-m", *start[2:]]
        runpy._run_module_as_main(start[1])  # type: ignore[attr-defined]
    else:
        sys.argv = start
        module.__file__ = kind
        with open(kind, "rb") as file:
            exec(compile(file.read(), kind, "exec"), module.__dict__)
