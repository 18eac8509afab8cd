"""What the first call of a process costs, cold and from a warm cache: ``python benchmarks/startup.py [RUNS]``.

Every run is a process of its own. Times start after ``import torch`` and ``import tcjit`` and cover ``define`` and the first call.
The cache is warm from a plain call, and then from a short search.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile

CHILD = """
import sys, time, torch
start = time.perf_counter()
import tcjit
imported = time.perf_counter() - start
n = int(sys.argv[1])
a, b = torch.ones(n, n), torch.ones(n, n)
a @ b
start = time.perf_counter()
tc = tcjit.define("def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }")
c = tc.matmul(a, b)
spent = time.perf_counter() - start
assert bool((c == n).all())
print(imported, spent, "lark" in sys.modules)
"""

# an installed package has its bytecode: a process writes it before any is timed
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

TUNE = """
import torch, tcjit
tc = tcjit.define("def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }")
result = tc.matmul.autotune(torch.ones(64, 64), torch.ones(64, 64), config=tcjit.TunerConfig(trials=32))
print({name: value for name, value in result.options.to_dict().items() if value != tcjit.Options().to_dict()[name]})
"""


def child(cache: str, n: int) -> tuple[float, float, bool]:
    """Milliseconds for ``import tcjit`` and for define and first call of an n^3 product, and whether anything was compiled."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(n)], env={**ENVIRONMENT, "TCJIT_CACHE_DIR": cache}, capture_output=True, text=True, check=True
    )
    imported, spent, compiled = run.stdout.split()
    return 1e3 * float(imported), 1e3 * float(spent), compiled == "True"


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    cold = []
    with tempfile.TemporaryDirectory() as empty:
        child(empty, 64)
    for _ in range(3):
        with tempfile.TemporaryDirectory() as empty:
            cold.append(child(empty, 1024)[1])
    with tempfile.TemporaryDirectory() as cache:
        child(cache, 64)
        warm = [child(cache, 64) for _ in range(runs)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**ENVIRONMENT, "TCJIT_CACHE_DIR": cache}
        options = subprocess.run([sys.executable, "-c", TUNE], env=environment, capture_output=True, text=True, check=True).stdout.strip()
        tuned = [child(cache, 64) for _ in range(runs)]
    assert not any(compiled for _, _, compiled in warm + tuned), "a warm process compiled"
    print(f"{platform.node()}, {os.cpu_count()} cores, Python {platform.python_version()}; ms")
    print(f"import tcjit after torch: {statistics.median(i for i, _, _ in warm):.1f}")
    print(f"first call of a 1024^3 matmul, empty cache: {', '.join(f'{c:.0f}' for c in cold)}")
    for words, found in (("warm cache", warm), (f"tuned to {options}", tuned)):
        spent = [s for _, s, _ in found]
        print(f"first call of a 64^3 matmul, {words}, {runs} processes: median {statistics.median(spent):.2f}, most {max(spent):.2f}")


if __name__ == "__main__":
    main()
