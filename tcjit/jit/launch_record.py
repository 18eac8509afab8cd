"""Launch records, which are stored without the names of the def, so that defs which differ in names only share a kernel."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcjit.cache import Entry
from tcjit.errors import DivisionError, GatherError, LaunchError, TCError, Where
from tcjit.jit.signature import Signature


def anonymise(record: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    """A record with positions for names: of parameters, of returns, of the places that may fail. JSON."""
    position = {param.name: number for number, param in enumerate(signature.params)}
    return {
        **record,
        "params": [_without(param, "name") for param in record["params"]],
        "returns": [_without(returned, "name") for returned in record["returns"]],
        "numbers": [[kind, name if kind == "value" else position[name], last] for kind, name, last in record["numbers"]],
        "sites": [_site_number(site, signature) for site in record["sites"]],
        "spelling": signature.spelling,
        "spelled": str(signature),
    }


def rename(record: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    """The record in the names of a def of the same canonical form: the inverse of ``anonymise``."""
    return {
        **record,
        "params": [{"name": own.name, **param} for own, param in zip(signature.params, record["params"])],
        "returns": [{"name": own.name, **returned} for own, returned in zip(signature.returns, record["returns"])],
        "numbers": [
            [kind, signature.params[name].name if isinstance(name, int) else name, last] for kind, name, last in record["numbers"]
        ],
        "sites": [signature.places[site] if isinstance(site, int) else site for site in record["sites"]],
    }


def texts(entry: Entry, signature: Signature) -> dict[str, str]:
    """The texts of a compilation, which are in the names of the def that was compiled; the source says so if they are not this one's."""
    artifacts = entry.artifacts()
    if entry.record["spelling"] != signature.spelling and "source" in artifacts:
        artifacts["source"] = f"// compiled for {entry.record['spelled']}, the same program in other words\n{artifacts['source']}"
    return artifacts


def failure(record: Mapping[str, Any], flag: int) -> TCError:
    """The error for a kernel's flag, which is the number of a site, from 1."""
    sites = record["sites"]
    if flag == -1:  # the launcher's own
        what = f"no memory for the workspace of {record['symbol']}, {record['workspace']} bytes"
        return LaunchError(what, hint="smaller arguments, or fewer tensors that are kept")
    if not 0 < flag <= len(sites):
        return LaunchError(f"{record['symbol']} returned {flag}, which no check of its own returns", hint="tcjit.cache.clear()")
    site = sites[flag - 1]
    where = Where(site["line"], site["column"], 1, site.get("line_text", "")) if "line" in site else None
    if site["kind"] == "gather":
        return GatherError(
            f"an index into {site['tensor']} is outside of it",
            where=where,
            hint="indices from 0 to the extent, less 1; unchecked=True skips the test",
        )
    return DivisionError("an integer is divided by zero", where=where, hint="a divisor that is never 0")


def _site_number(site: Mapping[str, Any], signature: Signature) -> int | dict[str, Any]:
    """The index of a site among the def's places; the site itself where lowering added it."""
    alike = [number for number, place in enumerate(signature.places) if _without(place, "tensor") == _without(site, "tensor")]
    same = [number for number in alike if signature.places[number].get("tensor") == site.get("tensor")]
    return next(iter(same or alike), dict(site))


def _without(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != name}
