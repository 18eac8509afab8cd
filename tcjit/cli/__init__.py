"""The command ``tcjit``.

A command's own module is imported when the command runs: ``tcjit doctor`` must speak where torch or isl does not even import,
and ``tcjit --version`` need not wait for them. No function here bears the name of such a module, which importing it would rebind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tcjit import __version__, config
from tcjit.cli import doctor as checks
from tcjit.errors import TCError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
store = typer.Typer(no_args_is_help=True, help="The kernels and options kept on disk.")
app.add_typer(store, name="cache")

Program = Annotated[str, typer.Argument(metavar="FILE", help="A file with one or more defs; - reads standard input.")]
Def = Annotated[str | None, typer.Option("--name", help="Which def, where the file has several.")]
TARGETS = "cpu, cuda or opencl"
SHAPES = 'Shapes of tensors, sizes and scalars: "A=1024x512,N=256,alpha=0.5". What follows from the rest may be left out.'


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tcjit {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    """Tensor comprehensions as PyTorch functions."""


@app.command("run")
def run_command(
    file: Program,
    shapes: Annotated[str, typer.Option("--shapes", help=SHAPES)] = "",
    name: Def = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    target: Annotated[str, typer.Option(help=f"{TARGETS}; or reference, the slow interpreter that says what is right.")] = "cpu",
    time: Annotated[bool, typer.Option("--time", help="Print the time of the first call and the median of later ones.")] = False,
) -> None:
    """Compile a def, call it on random inputs and print each output's shape, sum and checksum."""
    from tcjit.cli.run import run as perform

    for line in perform(read(file), shapes, name, seed, target, time):
        typer.echo(line)


@app.command("explain")
def explain_command(
    file: Program,
    shapes: Annotated[str | None, typer.Option("--shapes", help=SHAPES)] = None,
    name: Def = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="ranges, domains, dependences, options, tree, code, or all of these; or gradient.")
    ] = None,
    target: Annotated[str, typer.Option(help=f"{TARGETS}; or an architecture, cuda:sm_90, that need not be here.")] = "cpu",
) -> None:
    """Show what the compiler makes of a def: ranges, domains, dependences, options, schedule tree, code."""
    from tcjit.cli.explain import Stage
    from tcjit.cli.explain import explain as perform

    if stage is not None and stage not in list(Stage):
        raise TCError(f"no stage is called {stage!r}", hint="one of " + ", ".join(s.value for s in Stage))
    console = Console()
    for done, text in perform(read(file), shapes, name, Stage(stage) if stage else None, target):
        if stage is None:
            console.rule(done.value, align="left")
        if done is Stage.code and console.is_terminal:
            console.print(Syntax(text, "c", background_color="default"))
        else:
            typer.echo(text.rstrip("\n"))


@app.command("tune")
def tune_command(
    file: Program,
    shapes: Annotated[list[str] | None, typer.Option("--shapes", help=f"{SHAPES} Several times: options good for all of them.")] = None,
    name: Def = None,
    target: Annotated[str, typer.Option(help=f"{TARGETS}.")] = "cpu",
    trials: Annotated[int | None, typer.Option(help="Candidates to try in all; 128 by default.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds after which the search ends.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that compile; by default one per core.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search and of the random inputs.")] = 0,
    storage: Annotated[str | None, typer.Option(help="A study that machines share: a path on a shared disk, or postgresql://...")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that running one candidate may take.")] = 10.0,
    report: Annotated[Path | None, typer.Option(help="An HTML file to write about the search.")] = None,
) -> None:
    """Search the best mapping options for a def; calls with these shapes use them from then on. Ctrl-C keeps the best so far."""
    from tcjit.cli.tune import tune as perform
    from tcjit.tuner.config import TunerConfig

    config = TunerConfig(trials=trials, seconds=seconds, workers=workers, seed=seed, storage=storage, timeout=timeout)
    for line in perform(read(file), shapes or [], name, target, config, seed, report):
        typer.echo(line)


@app.command("partition")
def partition_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file of torch.jit.save or torch.export.save.")],
    example: Annotated[str, typer.Option("--example", help="Inputs: 1x3x224x224,int64:8x16 for random ones, @inputs.pt for saved ones.")],
    backends: Annotated[
        str | None, typer.Option(help="Who may take regions, the first one first: tcjit,vendor, and with --measure packed, if not said.")
    ] = None,
    opt_level: Annotated[int, typer.Option(help="Which passes run: 0 none to 3 all.")] = 2,
    without: Annotated[str, typer.Option(help="Passes that do not run, with commas.")] = "",
    cost: Annotated[bool, typer.Option(help="Give back regions that gain nothing by estimate.")] = True,
    measure: Annotated[bool, typer.Option("--measure", help="Time regions on the example and keep those that are faster.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compile nothing.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Print every region and operation, not only the sums.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the partitioned model.")] = None,
    export: Annotated[Path | None, typer.Option(help="A directory that C++ can run without Python.")] = None,
    svg: Annotated[Path | None, typer.Option(help="A file for a picture of the graph.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs.")] = 0,
    trust: Annotated[bool, typer.Option("--trust", help="Load a file that can run any code, such as pickles.")] = False,
) -> None:
    """Cut a saved model into regions for tcjit's kernels and the vendor's operators."""
    from tcjit.byoc.settings import PartitionConfig
    from tcjit.cli.partition import cut

    names = None if backends is None else tuple(filter(None, (name.strip() for name in backends.split(","))))
    skipped = tuple(filter(None, (name.strip() for name in without.split(","))))
    config = PartitionConfig(backends=names, cost=cost, opt_level=opt_level, without=skipped)
    for line in cut(model, example, seed, config, measure, dry_run, out, export, svg, report, trust):
        typer.echo(line)


@app.command("doctor")
def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="First measure what the cost models use; half a minute.")] = False,
) -> None:
    """Say what this machine has, what is missing and how to get it. Status 1 if the CPU target cannot work."""
    for line in checks.calibrate() if calibrate else ():
        typer.echo(line, err=as_json)
    findings = checks.examine()
    healthy = all(f.state != "missing" for f in findings if f.required)
    if as_json:
        typer.echo(json.dumps({"version": __version__, "healthy": healthy, "findings": [f.to_dict() for f in findings]}, indent=2))
    else:
        colours = {"ok": "green", "missing": "yellow", "problem": "red"}
        table = Table.grid(padding=(0, 2))
        for f in findings:
            colour = "red" if f.required and f.state == "missing" else colours[f.state]
            table.add_row(Text(f.state, style=colour), f.name, Text("\n".join(filter(None, [f.found, f.advice and f"try: {f.advice}"]))))
        Console().print(table)
        typer.echo("The CPU target works here." if healthy else "The CPU target cannot work here: see what is missing above.")
    raise typer.Exit(0 if healthy else 1)


@store.command("list")
def cache_list() -> None:
    """What the cache holds, most recently used first."""
    from tcjit.cli.cache import listing

    for line in listing():
        typer.echo(line)


@store.command("verify")
def cache_verify() -> None:
    """Read every entry again and compare checksums. Status 1 if an entry was damaged."""
    from tcjit.cli.cache import verify

    lines, sound = verify()
    for line in lines:
        typer.echo(line)
    raise typer.Exit(0 if sound else 1)


@store.command("clear")
def cache_clear() -> None:
    """Remove every entry."""
    from tcjit.cli.cache import clear

    typer.echo(clear())


@store.command("gc")
def cache_gc(
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", help="Also what was not used for so long.")] = None,
) -> None:
    """Make room now: keep to the size limit, and drop kernels of compilers and versions of tcjit that are gone. Tuned options stay."""
    from tcjit.cli.cache import gc

    typer.echo(gc(older_than))


@store.command("export")
def cache_export(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    text: Annotated[list[str] | None, typer.Option(metavar="FILE.tc", help="Only the options of the defs in this file.")] = None,
) -> None:
    """Write the tuned options (no binaries) to a file that can travel with a model."""
    from tcjit.cli.cache import export

    typer.echo(export(file, [read(path) for path in text or ()]))


@store.command("import")
def cache_import(file: Annotated[Path, typer.Argument(help="A file that `tcjit cache export` wrote.")]) -> None:
    """Take options from an exported file, after checking every value in it."""
    from tcjit.cli.cache import import_

    typer.echo(import_(file))


def read(path: str) -> str:
    """The text of a program file; ``-`` reads standard input. TCError where it cannot be read."""
    try:
        if path == "-":
            with open(0, encoding="utf-8", closefd=False) as stream:
                return stream.read()
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError as error:
        raise TCError(f"cannot read {path}: {error.strerror}", hint="the path of a file with one or more defs") from None
    except UnicodeDecodeError as error:
        raise TCError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; an error is printed without a traceback and ends with status 2."""
    try:
        app(arguments)
    except TCError as error:
        _complain(str(error))
    except BrokenPipeError:  # `tcjit explain ... | head`
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:  # a bug of ours, or of what we call
        if config.traceback():
            raise
        first = next(iter(str(error).strip().splitlines()), "")
        _complain(f"unexpected {type(error).__name__}: {first}\ntry: TCJIT_TRACEBACK=1 shows where, for a report")
    sys.exit(0)


def _complain(message: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), message), highlight=False)
    sys.exit(2)
