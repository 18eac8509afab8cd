"""Two processes search the best options of one def together.

On two machines it is the same, with a path that both see or the URL of a PostgreSQL database: `docs/machines.md`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import tcjit

TEXT = """
def mlp(float(B,I) X, float(O,I) W, float(O) b) -> (Y) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o)   = fmax(Y(n, o) + b(o), 0.0)
}
"""
TRIALS = 12

with tempfile.TemporaryDirectory() as folder:
    program, study = Path(folder, "mlp.tc"), Path(folder, "study")
    program.write_text(TEXT)
    command = [sys.executable, "-m", "tcjit", "tune", str(program), "--shapes", "X=60x80,W=50x80,b=50"]
    command += ["--trials", str(TRIALS), "--workers", "1", "--storage", str(study)]
    running = [subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.DEVNULL) for seed in (1, 2)]
    print("both ended well:", [process.wait() for process in running] == [0, 0])

    # a third one comes too late to try anything, and gets what they found
    X, W, b = torch.randn(60, 80), torch.randn(50, 80), torch.randn(50)
    tc = tcjit.define(TEXT)
    found = tc.mlp.autotune(X, W, b, config=tcjit.TunerConfig(trials=TRIALS, storage=study))
    tried_before = sum(trial.at < 0 for trial in found.history)
    print(f"candidates: {len(found.history)}, all tried before:", tried_before == len(found.history))
    print("close to PyTorch:", torch.allclose(tc.mlp(X, W, b), torch.relu(X @ W.T + b), rtol=1e-3, atol=1e-3))
