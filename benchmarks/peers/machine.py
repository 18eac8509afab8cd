"""The machine that is measured: its name, how busy it is, and one lock for everyone who measures on it."""
from __future__ import annotations

import fcntl
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOCK = Path(tempfile.gettempdir()) / "tcjit-bench.lock"
TICKS = os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, Any]:
    """Model of the CPU, cores, memory in GB, operating system."""
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = facts.get("model name") or platform.processor() or platform.machine()
    if not re.search("[0-9]", model) and "cpu family" in facts:  # what a virtual machine tells may be the maker's name alone
        model += f" (family {facts['cpu family']}, model {facts['model']})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {"cpu": model, "cores": cores(), "memory_gb": round(memory), "system": f"{platform.system()} {platform.release()}"}


def name() -> str:
    """The machine's name in file names: CPU model and cores.

    >>> import re
    >>> bool(re.fullmatch(r"[a-z0-9-]+-[0-9]+c", name()))
    True
    """
    facts = describe()
    model = re.sub(r"\(r\)|\(tm\)|\bcpu\b|@.*", " ", facts["cpu"].lower())
    return re.sub(r"[^a-z0-9]+", "-", model).strip("-") + f"-{facts['cores']}c"


def busy_seconds() -> float:
    """CPU seconds that all processes together have used."""
    times = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(times[:3]) + sum(times[5:8])) / TICKS  # user nice system irq softirq steal


def process_seconds(pid: int) -> float:
    """CPU seconds that one process has used; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_until_quiet(limit_s: float) -> bool:
    """Wait until the machine has been idle for 60 ms, at most ``limit_s``; whether it was."""
    end = time.perf_counter() + limit_s
    while time.perf_counter() < end:
        before, start = busy_seconds(), time.perf_counter()
        time.sleep(0.06)
        if (busy_seconds() - before) / (time.perf_counter() - start) < 0.2:
            return True
    return False


@contextmanager
def alone() -> Iterator[None]:
    """One measurement at a time on a machine, across processes."""
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
