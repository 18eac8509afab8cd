"""The command as typed: what it prints, and with which status it ends.

Modules: cli.cache cli.run cli.tune
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tcjit
from tcjit import Options, cache
from tcjit.cache import Choice
from tcjit.cli import main
from tcjit.jit import kernel_cache
from tcjit.jit.call import forget

MLP = """
def mlp(float(B,I) X, float(O,I) W, float(O) b) -> (Y, S) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o)   = fmax(Y(n, o) + b(o), 0.0)
    S(o)    +=! Y(n, o)
}
"""
BAG = """
def bag(float(V,D) T, int64(B,L) Idx) -> (Y) {
    Y(b, d) +=! T(Idx(b, l), d)
}
"""
SHAPES = "X=8x16,O=4"


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.tc"
    path.write_text(text, encoding="utf-8")
    return str(path)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of ``tcjit arguments``."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"tcjit {tcjit.__version__}\n", "")
    status, out, _ = call(capsys, "--help")
    assert status == 0 and all(name in out for name in ("run", "explain", "doctor", "cache"))


@pytest.mark.cold
@pytest.mark.parametrize("start", [["-m", "tcjit"], ["-c", "import sys; from tcjit.cli import main; main(sys.argv[1:])"]])
def test_as_a_process(start: list[str], tmp_path: Path) -> None:
    command = [sys.executable, *start, "run", write(tmp_path, MLP), "--shapes", "X=8y16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: X=8y16 is not a shape\ntry: X=8x8\n"


def test_run_prints_each_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "run", write(tmp_path, MLP), "--shapes", SHAPES)
    assert (status, err) == (0, "")
    first, second = (line.split() for line in out.splitlines())
    assert first[:4] == ["Y", "float32(8,", "4)", "sum"] and second[:3] == ["S", "float32(4)", "sum"]
    assert float(first[4]) == pytest.approx(float(second[3]), rel=1e-5)


def test_a_seed_means_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, MLP)
    outs = [call(capsys, "run", path, "--shapes", SHAPES, "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert outs[0] == outs[1] != outs[2]


def test_run_agrees_with_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, MLP)
    sums = []
    for target in ("cpu", "reference"):
        status, out, err = call(capsys, "run", path, "--shapes", SHAPES, "--target", target)
        assert status == 0, err
        sums.append(float(out.splitlines()[0].split("sum ")[1].split()[0]))
    assert sums[0] == pytest.approx(sums[1], rel=1e-4)


def test_run_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "run", write(tmp_path, MLP), "--shapes", SHAPES, "--time")
    assert "first call" in out and "(median of " in out


def test_random_indices_are_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "run", write(tmp_path, BAG), "--shapes", "T=3x4,Idx=50x6")
    assert status == 0 and out.startswith("Y  float32(50, 4)"), err


def test_unknown_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "run", write(tmp_path, MLP), "--shapes", SHAPES, "--target", "abacus")
    assert status == 2 and out == "" and "abacus" in err and "try: " in err


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_mistake_in_the_program_has_a_caret(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, command, write(tmp_path, MLP.replace("W(o, i)", "W(o, i")), "--shapes", SHAPES)
    assert status == 2 and out == "" and err.startswith("error: line 4") and "^" in err and "Traceback" not in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", str(tmp_path / "none.tc"))[2].startswith("error: cannot read ")
    assert call(capsys, "run", str(tmp_path))[0] == 2
    (tmp_path / "latin.tc").write_bytes(b"# caf\xe9\n")
    status, _, err = call(capsys, "run", str(tmp_path / "latin.tc"))
    assert status == 2 and "is not UTF-8 text" in err


def test_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tcjit", "run", "-", "--shapes", SHAPES]
    done = subprocess.run(command, input=MLP, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("Y  "), done.stderr


def test_explain_shows_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "explain", write(tmp_path, MLP), "--shapes", SHAPES)
    assert (status, err) == (0, "")
    heads = [line.split()[0] for line in out.splitlines() if line.endswith("───")]
    assert heads == ["ranges", "domains", "dependences", "options", "tree", "code"]


@pytest.mark.parametrize(
    "stage, holds",
    [("ranges", "n"), ("domains", "0 <="), ("dependences", "->"), ("options", "the model's"), ("tree", "domain"), ("code", "for (")],
)
def test_explain_one_stage(stage: str, holds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "explain", write(tmp_path, MLP), "--shapes", SHAPES, "--stage", stage)
    assert status == 0 and holds in out and "───" not in out, err


def test_ranges_need_no_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, MLP)
    status, out, _ = call(capsys, "explain", path, "--stage", "ranges")
    assert status == 0 and "I" in out
    status, _, err = call(capsys, "explain", path)
    assert status == 2 and "--stage ranges" in err
    status, _, err = call(capsys, "explain", path, "--stage", "trees")
    assert status == 2 and "ranges, domains, dependences, options, tree, code" in err


def test_a_gradient_is_explained_with_and_without_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "def f(float(N) X, float(K) W, int32 s) -> (Y) { Y(i) +=! X(s*i + k) * W(k) where i in 0:4 }")
    status, out, _ = call(capsys, "explain", path, "--stage", "gradient")
    assert status == 0 and "d_X(n) +=! n - i * s >= 0 && n - i * s < K ? d_Y(i) * W(n - i * s) : 0.0" in out
    status, out, _ = call(capsys, "explain", path, "--stage", "gradient", "--shapes", "N=10,K=3,s=2")
    assert status == 0 and "d_X(i0) +=! (i0 - k) % 2 == 0 && i0 - k >= 0 && i0 - k < 8 ? d_Y((i0 - k) / 2) * W(k) : 0.0" in out


def test_explain_says_the_same_when_the_kernel_is_cached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BAG)
    call(capsys, "run", path, "--shapes", "T=3x4,Idx=5x6")
    command = [sys.executable, "-m", "tcjit", "explain", path, "--shapes", "T=3x4,Idx=5x6", "--stage"]
    for stage in ("domains", "dependences", "options", "tree", "code"):
        done = subprocess.run([*command, stage], capture_output=True, text=True, env=dict(os.environ))
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_a_pipe_that_closes_early(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tcjit explain {write(tmp_path, MLP)} --shapes {SHAPES} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and done.stdout.startswith("ranges")


def test_cache_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of its own, since it is cleared."""
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    path, file = write(tmp_path, MLP), str(tmp_path / "options.json")

    def cli(*arguments: str) -> str:
        status, out, err = call(capsys, *arguments)
        assert status == 0, err
        return out

    signature = kernel_cache.signature(MLP, "mlp")
    forget(signature)
    cli("explain", path, "--shapes", SHAPES, "--stage", "tree")
    choices = [Choice(Options(vector_width=1).to_dict(), {"seconds": 2e-6, "default": 3e-6}, "mlp 8x16 on cpu", ((8, 16),))]
    choices += [Choice(Options().to_dict(), {"seconds": 1e-6}, "", ((n, 2), ())) for n in (1, 2)]
    for choice, program in zip(choices, (signature.canonical, "0" * 64, "0" * 64)):
        cache.store().put_choice(cache.options_key("cpu", program), choice)
    listed = cli("cache", "list")
    assert "options       mlp 8x16 on cpu  1.50x the default, 2.0 us" in listed and "options       1x2  1.0 us" in listed
    assert "mlp(float32" in listed and "3 choices of options, 1 kernel, " in listed
    assert "All is sound" in cli("cache", "verify")
    assert "Wrote 1 choice of options" in cli("cache", "export", file, "--text", path)
    (entry,) = json.loads(Path(file).read_text())["entries"]
    assert entry["label"] == "mlp 8x16 on cpu"
    assert "Wrote 3 choices" in cli("cache", "export", file)
    assert "Removed 0 files" in cli("cache", "gc")
    cli("cache", "gc", "--older-than", "0")
    assert "3 choices of options, 0 kernels" in cli("cache", "list")
    assert call(capsys, "cache", "gc", "--older-than", "-1")[0] == 2
    cli("cache", "clear")
    assert "0 choices of options, 0 kernels" in cli("cache", "list")
    assert cli("cache", "import", file) == f"Took 3 choices of options from {file}.\n"
    again = cli("cache", "import", file)
    assert again == f"Took 0 choices of options from {file}. It holds 3 choices, known here with times that are as good or better.\n"
    note = tmp_path / "cache/v1/options" / next(p.name for p in (tmp_path / "cache/v1/options").iterdir())
    note.write_bytes(note.read_bytes()[:-1])
    status, out, _ = call(capsys, "cache", "verify")
    assert status == 1 and f"damaged, removed: options/{note.name}" in out


def test_gc_drops_kernels_of_what_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that was replaced, a version of tcjit that was removed; not the kernels of another compiler that is still here."""
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    compilers = []
    for number in range(2):
        compilers.append(tmp_path / f"cc{number}")
        compilers[-1].write_text('#!/bin/sh\nexec gcc "$@"\n')
        compilers[-1].chmod(0o755)
        monkeypatch.setenv("CC", str(compilers[-1]))
        forget(kernel_cache.signature(MLP, "mlp"))
        tcjit.compile(MLP, "mlp", *(torch.ones(shape) for shape in ((8, 16), (4, 16), (4,))))
    here = cache.entries()[0]
    record = {**here.record, "tools": ["a version", here.record["tools"][1]]}
    cache.store().put("0" * 64, record, b"", {})
    assert len(cache.entries()) == 3 and here.record["tools"][0] == cache.code_version()
    assert "Removed 1 file," in call(capsys, "cache", "gc")[1] and len(cache.entries()) == 2
    os.utime(compilers[0], ns=(5, 5))
    assert "Removed 1 file," in call(capsys, "cache", "gc")[1]
    assert [entry.key for entry in cache.entries()] == [here.key]


def test_importing_nonsense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text("{]")
    status, _, err = call(capsys, "cache", "import", str(path))
    assert status == 2 and err.startswith("error: ")


def test_choices_of_one_label_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    for program, rows in (("0" * 64, 20), ("0" * 64, 200), ("1" * 64, 20)):
        choice = Choice(Options().to_dict(), {"seconds": 1e-6}, "sums 20x80; 200x80", ((rows, 80),))
        cache.store().put_choice(cache.options_key("cpu", program), choice)
    _, out, _ = call(capsys, "cache", "list")
    lines = [line for line in out.splitlines() if line.startswith("options")]
    assert len(set(lines)) == 3 and sum("sums 20x80; 200x80 for 200x80  1.0 us" in line for line in lines) == 1
    assert sum("for 20x80 (" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ("X=99999999x99999999,O=99999999", "no memory on cpu for X of shape (99999999, 99999999) in float32"),
        ("X=3000000000x3000000000,O=3", "no memory on cpu for X"),
        ("X=100000000000000000000x3,O=1", "an extent has at most 18 digits"),
        ("X=4x4,O=" + "9" * 5000, "an extent has at most 18 digits"),
        ("X=4x\u0663,O=1", "is not a shape"),
    ],
)
def test_sizes_that_no_machine_has(shapes: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "run", write(tmp_path, MLP), "--shapes", shapes)
    assert status == 2 and says in err and "Traceback" not in err


def test_an_unexpected_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("something\nmore")

    monkeypatch.setattr("tcjit.cli.sizes.definition", broken)
    monkeypatch.setattr("tcjit.cli.run.definition", broken)
    status, _, err = call(capsys, "run", write(tmp_path, MLP), "--shapes", SHAPES)
    assert status == 2 and "error: unexpected KeyError: " in err and "TCJIT_TRACEBACK=1" in err and "Traceback" not in err
    monkeypatch.setenv("TCJIT_TRACEBACK", "1")
    with pytest.raises(KeyError):
        call(capsys, "run", write(tmp_path, MLP), "--shapes", SHAPES)
