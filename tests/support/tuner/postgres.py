"""A PostgreSQL server of one's own: in a temporary directory, heard on a socket in it only, gone afterwards."""
from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ELSEWHERE = Path("/usr/lib/postgresql")  # Debian keeps the server's programs out of PATH, by version


def program(name: str) -> str:
    """The path of ``postgres``, ``initdb`` or ``pg_ctl``; skips the test where there is none."""
    places = sorted(_ELSEWHERE.glob("*/bin"), key=lambda place: place.parent.name.zfill(4), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip(f"no PostgreSQL server: {name} is neither on PATH nor in {_ELSEWHERE}/*/bin (apt install postgresql)")
    return found


@contextmanager
def server(*settings: str) -> Iterator[str]:
    """The URL of a fresh server's database."""
    pytest.importorskip("psycopg2", reason="the driver psycopg2 is not installed (pip install psycopg2-binary)")
    folder = Path(tempfile.mkdtemp(prefix="tcjit-pg-"))
    data = folder / "data"
    try:
        _run(folder, program("initdb"), "-D", data, "-U", "tcjit", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        flags = " ".join(["-k", str(folder), "-c", "listen_addresses=''", *(f"-c {setting}" for setting in settings)])
        _run(folder, program("pg_ctl"), "-D", data, "-l", folder / "log", "-o", flags, "-w", "-t", "60", "start")
        try:
            yield f"postgresql://tcjit@/postgres?host={folder}"
        finally:
            _run(folder, program("pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, *command: str | Path) -> None:
    """Run a program; as another user where this one is the superuser, for whom the server does not start."""
    who: dict[str, object] = {}
    if os.geteuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        name = next((name for name in ("postgres", "nobody") if name in names), None)
        if name is None:
            pytest.skip("PostgreSQL does not run as the superuser, and there is no user postgres or nobody")
        user = pwd.getpwnam(name)
        os.chown(folder, user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    with open(folder / "output", "ab") as output:  # not a pipe: the server would keep it open
        done = subprocess.run([str(part) for part in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **who)
    assert done.returncode == 0, (folder / "output").read_text()
