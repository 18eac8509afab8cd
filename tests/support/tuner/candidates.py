"""Candidates that misbehave: ``jit.tune_worker`` with a kernel that hangs, crashes, lies or takes all memory, chosen by its tile size."""
from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from tcjit.jit import tune_runner, tune_worker
from tcjit.jit.tune_compiler import Session

KINDS = {"2": "hangs", "4": "crashes", "6": "lies", "8": "swallows", "12": "ends"}  # by the size of the outermost tile
_runner = tune_runner._runner


def answer(request: dict[str, Any]) -> dict[str, Any]:
    reply = tune_worker.answer(request)
    folder = os.environ["TCJIT_MISCHIEF"]
    if request["do"] == "print" and request["options"]["tile"]:
        kind = KINDS.get(str(request["options"]["tile"][0]))
        if kind:
            with open(os.path.join(folder, reply["code"]), "w", encoding="utf-8") as file:
                file.write(kind)
    return reply


def runner(session: Session, code: str, number: int) -> Any:
    run = _runner(session, code, number)
    try:
        with open(os.path.join(os.environ["TCJIT_MISCHIEF"], code), encoding="utf-8") as file:
            kind = file.read()
    except FileNotFoundError:
        return run

    def misbehave() -> None:
        if kind == "hangs":
            sleep = ctypes.PyDLL(None).sleep  # without giving up the interpreter's lock
            while True:
                sleep(1000)
        if kind == "crashes":
            ctypes.string_at(0)
        if kind == "swallows":
            held = [np.empty(1 << 27) for _ in range(1 << 20)]  # of no use, so that the machine need not have it
            assert held
        if kind == "ends":
            os._exit(3)
        run()
        session.problems[number].outs[0][0] += 1

    return misbehave


tune_runner._runner = runner
