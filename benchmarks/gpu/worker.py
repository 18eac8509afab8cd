"""The process that owns the device: takes entries one after another, as lines of JSON, and answers with rows."""
from __future__ import annotations

import json
import sys
from typing import Any

import torch

from gpu import ceilings
from gpu.device import Cuda, Device, Host
from gpu.measure import Lost, Settings, measure
from gpu.suites import ENTRIES

HEADING = "gpu bench: "  # begins the lines that are answers: libraries print what they like


def say(**facts: Any) -> None:
    print(f"\n{HEADING}{json.dumps(facts)}", flush=True)


def answer(request: dict[str, Any], device: Device, settings: Settings) -> dict[str, Any]:
    """What a request asks for; ``lost`` names the contender after which nothing runs here any more."""
    if request["kind"] == "ceilings":
        return {"facts": device.facts(), "ceilings": ceilings.measure(device, settings.quick, settings.small)}
    entry = ENTRIES[request["name"]]
    try:
        row = measure(entry, device, settings, request["ceilings"], request["excluded"], lambda who: say(stage=who))
    except Lost as loss:
        return {"lost": loss.args[0], "error": loss.args[1]}
    except Exception as failure:
        row = {
            "name": entry.name, "suite": entry.suite, "dims": entry.sizes(settings.small), "contenders": {},
            "error": f"{type(failure).__name__}: {failure}",
        }  # fmt: skip
    try:
        device.synchronize()
    except Exception as failure:
        return {"row": row | {"error": f"{type(failure).__name__}: {failure}"}, "lost": ""}
    return {"row": row}


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device: Device = Host() if settings.small else Cuda()
    for line in sys.stdin:
        said = answer(json.loads(line), device, settings)
        if isinstance(device, Cuda) and "lost" not in said:
            torch.cuda.empty_cache()
        say(**said)
        if "lost" in said:
            break


if __name__ == "__main__":
    main()
