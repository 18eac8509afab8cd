"""No password of a database is shown, kept or raised, whatever form its URL has.

Modules: redact
"""
from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcjit import cli
from tcjit.errors import TCError, TuneError
from tcjit.mapping.options import Options
from tcjit.redact import redacted
from tcjit.tuner import report, search
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.result import TuneResult
from tcjit.tuner.storage import open_storage

HOST = "127.0.0.1:1"  # nobody listens
FORMS = [
    f"postgresql://user:S3CRET@{HOST}/db",
    f"postgresql+psycopg2://user:S3CRET@{HOST}/db",
    f"postgresql://user:S3CRET%40T0P@{HOST}/db",
    f"postgresql://user:S3CRET@T0P@{HOST}/db",
    f"postgresql://user:S3CRET/T0P@{HOST}/db",
    f"postgresql://user:S3CRET?T0P#@{HOST}/db",
    f"postgresql://user:S3CRET T0P'@{HOST}/db",
    f"postgresql://:S3CRET@{HOST}/db",
    f"postgresql://{HOST}/db?user=u&password=S3CRET",
    f"postgresql://{HOST}/db?PASSWORD=S3CRET%20T0P",
    f"postgresql://{HOST}/db?p%61ssword=S3CRET",
    f"postgresql://{HOST}/db?sslpassword=S3CRET&connect_timeout=3",
    f"postgresql://{HOST}/db?token=S3CRET",
    f"postgresql://{HOST}/db?options=-c%20x&client_secret=S3CRET;api_key=T0P",
    f"postgresql://user:S3CRET@{HOST}x/db",
    f"postgresql:/user:S3CRET@{HOST}/db",
    f" postgresql://user:S3CRET@{HOST}/db",
    f"mysql+nosuchdriver://user:S3CRET@{HOST}/db",
    "redis://:S3CRET@host/0",
    "sqlite:///no/such/folder/x.db?password=S3CRET",
    "host=127.0.0.1 port=1 user=u password=S3CRET",
    "host=127.0.0.1 password='S3CRET T0P' dbname=x",
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir()), "a password became the name of a file"


def hidden(text: str) -> None:
    assert "S3CRET" not in text and "T0P" not in text, text


@pytest.mark.parametrize("url", FORMS)
def test_what_is_shown(url: str) -> None:
    for text in (redacted(url), redacted(f"cannot use {url!r}: no", url), repr(TunerConfig(storage=url))):
        hidden(text)
    assert TunerConfig(storage=url).storage == url
    facts = search._settings(TunerConfig(storage=url))
    hidden(str(facts))
    for noted in (facts, {"storage": url}):
        page = report.html(TuneResult(Options(), 1.0, 1.0, (), "trials", facts=noted))
        hidden(page)
        assert "***" in page
    with pytest.raises(TuneError) as caught:
        TunerConfig(storage=[url])  # type: ignore[arg-type]
    hidden(str(caught.value))


@pytest.mark.parametrize("url", FORMS)
def test_what_is_raised(url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned, pytest.raises(TCError) as caught:
        open_storage(url)
    error: BaseException | None = caught.value
    assert isinstance(error, TuneError)
    hidden("".join(traceback.format_exception(error)))
    while error is not None:  # what a debugger or a collector of errors finds, suppressed or not
        hidden(f"{error} {error!r} {vars(error)}")
        error = error.__cause__ or error.__context__
    hidden(caplog.text + "".join(capfd.readouterr()) + "".join(str(w.message) for w in warned))


@pytest.mark.parametrize("url", [FORMS[0], FORMS[8], FORMS[-1]])
def test_what_the_command_prints(url: str, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path_factory.mktemp("program") / "twice.tc"
    file.write_text("def twice(float(N) X) -> (Y) { Y(i) = 2 * X(i) }")
    with pytest.raises(SystemExit) as ended:
        cli.main(["tune", str(file), "--shapes", "X=8", "--trials", "2", "--storage", url])
    out, err = capfd.readouterr()
    assert ended.value.code == 2 and "error:" in err
    hidden(out + err)


def test_what_stays() -> None:
    for plain in (
        "/home/me/study", "postgresql://user@host/db", "sqlite:////tmp/x.db", "password authentication failed for user \"me\"",
        "postgresql://host/db?passfile=/home/me/.pgpass", "kernel.c:3: error: expected ;", "N = 5, M = 7", "C:/study:old",
    ):  # fmt: skip
        assert redacted(plain) == plain
    assert redacted('FATAL: role "p" does not exist', "postgresql://p:p@host/postgres") == 'FATAL: role "***" does not exist'
    assert redacted("a driver said hunter2.", "postgresql://me:hunter%32@host/db") == "a driver said ***."
