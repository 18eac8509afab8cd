"""Logs: a record is there as it was written or not at all, whoever is killed and whatever happens to the file."""
from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.cache import printed, python

from tcjit.cache import CacheWarning, Store
from tcjit.cache.log import Log

WRITER = """
import sys
from tcjit.cache.log import Log
log, who, count, batch = Log(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
lines = 0
for round in range(count):
    now = log.append([{"who": who, "n": round * batch + n, "text": "x" * 200} for n in range(batch)])
    assert now >= lines + batch
    lines = now
"""


def records(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": "é\n" * n} for n in numbers]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "log"


def start(*writers: Any) -> None:
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()


def test_append_and_read(path: Path) -> None:
    log, other = Log(path), Log(path)
    assert log.read() == [] and not path.exists(), "a look creates nothing"
    assert log.append(records(1, 2)) == 2
    assert other.append(records(3)) == 3
    assert log.append([]) == 3
    for reader in (log, other, Log(path)):
        assert reader.read() == records(1, 2, 3)
        assert reader.read(1) == records(2, 3) and reader.read(3) == reader.read(9) == []
        assert reader.read(2) == records(3), "backwards, too"
    log.append(records(4))
    assert other.read(3) == records(4)


def test_only_json_enters(path: Path) -> None:
    log = Log(path)
    with pytest.raises(TypeError):
        log.append([{"n": 1}, {"n": {2}}])
    assert log.read() == []


def test_to_read_on_costs_what_is_new(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = Log(path), Log(path)
    lines = log.append(records(*range(50)))
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *a: read.append(part := pread(*a)) or part)
    other.append(records(50))
    read.clear()
    assert log.read(lines) == records(50)
    assert sum(map(len, read)) < 600 < path.stat().st_size


def test_a_torn_line(path: Path) -> None:
    """What a killed writer left: not yet there, and ended by the next one."""
    log = Log(path)
    log.append(records(1, 2))
    whole = path.read_bytes()
    for length in range(len(whole) - len(whole.splitlines()[1]), len(whole)):
        path.write_bytes(whole[:length])
        log = Log(path)
        assert log.read() == records(1)
        torn = whole[length - 1 : length] != b"\n"
        assert log.append(records(3)) == 2 + torn
        whole_again = length == len(whole) - 1  # only the line end was missing
        assert log.read() == records(1) + ([records(2)[0] if whole_again else None] if torn else []) + records(3)


def test_a_flipped_bit(path: Path) -> None:
    log = Log(path)
    log.append(records(1, 2, 3))
    content = path.read_bytes()
    ends = [n for n, byte in enumerate(content) if byte == ord("\n")]
    for at in range(len(content)):
        for bit in (0, 3, 7):
            bad = bytearray(content)
            bad[at] ^= 1 << bit
            path.write_bytes(bad)
            found = Log(path).read()
            assert all(record is None or record in records(1, 2, 3) for record in found)
            line = sum(end < at for end in ends)
            kept = [n for n in range(3) if n != line and not (at in ends and n == line + 1)]
            assert [record for record in found if record] == [records(1, 2, 3)[n] for n in kept]
            assert log.read() == found, "one that had read it before finds the same"


def test_lines_of_another_make(path: Path) -> None:
    from tcjit.cache.log import _seal

    path.parent.mkdir()
    bodies = [b"[]", b"3", b"", b"{", b"[" * 100000, b"\xff", b'{"n": 1}']
    path.write_bytes(b"".join(_seal(body) + b" " + body + b"\n" for body in bodies) + b"\n\n")
    assert Log(path).read() == [None] * 6 + [{"n": 1}, None, None]


def test_mending_blanks_what_is_damaged(path: Path) -> None:
    log, other = Log(path), Log(path)
    assert log.mend() == 0 and not path.exists()
    log.append(records(1, 2, 3))
    other.read()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"2", b"7") + lines[2] + b"torn")
    assert log.mend() == 1
    assert log.mend() == 0
    for reader in (log, other, Log(path)):
        assert reader.read() == [*records(1), None, *records(3)]
    assert other.append(records(4)) == 5 and log.read(3) == [None, *records(4)]


def test_another_file_in_its_place(path: Path) -> None:
    log = Log(path)
    log.append(records(1, 2, 3))
    path.unlink()
    assert log.read(2) == []
    assert log.append(records(4)) == 1 and log.read() == records(4)
    Log(path).append(records(*range(20)))
    assert log.read(20) == records(19)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """All or nothing: half of a batch that did not fit is taken back."""
    log = Log(path)
    log.append(records(1))
    before = path.read_bytes()
    write, calls = os.write, []

    def full(handle: int, *rest: Any) -> int:
        calls.append(1)
        if call == "fsync" or len(calls) > 1:
            raise OSError(28, os.strerror(28))
        return write(handle, bytes(rest[0])[:30])

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            log.append(records(2, 3))
    assert path.read_bytes() == before and log.read() == records(1)
    assert log.append(records(4)) == 2 and log.read() == records(1, 4)


def test_a_write_cut_short_by_the_system(path: Path) -> None:
    """A real limit on file sizes."""
    code = """
import json, resource, sys
from tcjit.cache.log import Log
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
log, outcomes = Log(sys.argv[1]), []
for n in range(4):
    try:
        outcomes.append(log.append([{"n": n, "text": "x" * 300}]))
    except OSError as error:
        outcomes.append(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
outcomes.append(log.append([{"n": 4}]))
print(json.dumps([outcomes, [record["n"] for record in log.read()]]))
"""
    assert printed(code, str(path)) == [[1, 2, 27, 27, 3], [0, 1, 4]]


def test_four_processes_append(path: Path) -> None:
    writers = [python(WRITER, str(path), str(n), "40", "3") for n in range(4)]
    start(*writers)
    log, seen = Log(path), []
    while any(writer.poll() is None for writer in writers):
        seen += log.read(len(seen))
        time.sleep(0.005)
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    seen += log.read(len(seen))
    assert seen == Log(path).read() and len(seen) == 480 and None not in seen
    for n in range(4):
        assert [record["n"] for record in seen if record and record["who"] == str(n)] == list(range(120)), "in order, none lost"


def test_threads_append(path: Path) -> None:
    log = Log(path)
    threads = [threading.Thread(target=lambda n=n: [log.append([{"n": n}]) for _ in range(20)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(record["n"] for record in log.read() if record) == [n for n in range(4) for _ in range(20)]


def test_a_writer_killed(path: Path) -> None:
    """At random moments: every line that was there stays, and at most one is torn each time."""
    rng = random.Random(3)
    log, before = Log(path), []
    for number in range(8):
        writer = python(WRITER, str(path), str(number), "1000000", "20")
        start(writer)
        time.sleep(rng.uniform(0.005, 0.06))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        found = log.read()
        assert found[: len(before)] == before
        new = found[len(before) :]
        assert new.count(None) <= 1 and None not in new[1:], "what the one before left was ended"
        mine = [record["n"] for record in new if record]
        assert mine == list(range(len(mine)))
        before = found
    assert len(before) > 100, "the writers got somewhere"


def test_in_the_cache(store: Store, home: Path, spare: Path, tmp_path: Path) -> None:
    log = store.log("measurements")
    assert log.read() == [] and not home.exists()
    mask = os.umask(0)
    try:
        log.append(records(1))
    finally:
        os.umask(mask)
    assert all(p.stat().st_mode & 0o777 == (0o700 if p.is_dir() else 0o600) for p in (home, *home.rglob("*")))
    assert Store(home).log("measurements").read() == records(1)
    home.chmod(0o777)
    with pytest.warns(CacheWarning, match="can be written by others"):
        assert Store(home).log("measurements").path.is_relative_to(spare)
