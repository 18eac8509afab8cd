"""Environment variables: read at use, with a meaning each, and an error that helps.

Modules: config
"""
from __future__ import annotations

from pathlib import Path

import pytest

from tcjit import config
from tcjit.errors import TCError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*(v.name for v in config.VARIABLES), "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert config.cache_dir() == Path("/home/someone/.cache/tcjit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert config.cache_dir() == Path("/home/someone/.cache/tcjit")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert config.cache_dir() == Path("/var/caches/tcjit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCJIT_CACHE_DIR", "here")
    assert config.cache_dir() == tmp_path / "here"
    monkeypatch.setenv("TCJIT_CACHE_DIR", "~/there")
    assert config.cache_dir() == Path("/home/someone/there")
    monkeypatch.setenv("TCJIT_CACHE_DIR", "")
    assert config.cache_dir() == Path("/var/caches/tcjit")


def test_a_home_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", "~nobody-of-that-name/x")
    with pytest.raises(TCError, match=r"TCJIT_CACHE_DIR='~nobody-of-that-name/x' names a home directory(.|\n)*try: an absolute path"):
        config.cache_dir()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 2_000_000_000),
        ("0", 0),
        ("123456", 123456),
        ("12b", 12),
        ("2GB", 2_000_000_000),
        ("1.5 gb", 1_500_000_000),
        ("1GiB", 1 << 30),
        ("64k", 64_000),
        ("3TiB", 3 << 40),
        (" 500MB ", 500_000_000),
    ],
)
def test_cache_size(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("TCJIT_CACHE_SIZE", text)
    assert config.cache_size() == size


def test_pool_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_POOL_SIZE", "0")
    assert config.pool_size() == 0
    monkeypatch.setenv("TCJIT_POOL_SIZE", "64MiB")
    assert config.pool_size() == 64 << 20
    monkeypatch.setenv("TCJIT_POOL_SIZE", "")
    assert config.pool_size() == 10**9


@pytest.mark.parametrize(
    "text", ["big", "-1", "2 PB", "1e9", "GB", "2GBs", "nan", "inf", "1_000", "9" * 400, "9" * 5000, "9" * 19 + "GB", "١٢٣", "²"]
)
def test_no_cache_size(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TCJIT_CACHE_SIZE", text)
    with pytest.raises(TCError, match="TCJIT_CACHE_SIZE=.* is not a size") as caught:
        config.cache_size()
    assert len(str(caught.value)) < 300


def test_no_variable_shows_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = {"TCJIT_CACHE_SIZE": config.cache_size, "TCJIT_POOL_SIZE": config.pool_size}
    readers |= {"TCJIT_VERIFY": config.verify, "TCJIT_CUDA_DRIVER": config.cuda_driver}
    for variable, read in readers.items():
        for text in ("postgresql://me:S3CRET@host/db", "postgresql://host/db?password=S3CRET", "host=x password=S3CRET"):
            monkeypatch.setenv(variable, text)
            with pytest.raises(TCError, match=rf"{variable}=.*\*\*\*") as caught:
                read()
            assert "S3CRET" not in str(caught.value)


def test_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.verify() is None
    for text, meaning in (("1", True), ("0", False), ("", None)):
        monkeypatch.setenv("TCJIT_VERIFY", text)
        assert config.verify() is meaning
    monkeypatch.setenv("TCJIT_VERIFY", "yes")
    with pytest.raises(TCError, match="TCJIT_VERIFY='yes' is neither 0 nor 1"):
        config.verify()


def test_dump_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert config.dump_dir() is None
    monkeypatch.setenv("TCJIT_DUMP", str(tmp_path))
    assert config.dump_dir() == tmp_path


def test_every_variable_says_what_it_is() -> None:
    for variable in config.VARIABLES:
        assert variable.name and variable.meaning and variable.default
