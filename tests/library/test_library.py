"""The library's front: names, texts and their variants, comments, errors."""
from __future__ import annotations

import pytest
from support.library import documented

from tcjit import library
from tcjit.errors import ArgumentError
from tcjit.grammar import front


def test_names_are_unique_and_are_those_of_the_defs() -> None:
    names = library.names()
    assert len(set(names)) == len(names)
    for name in names:
        assert f"def {name}(" in library.source(name)


@pytest.mark.parametrize("name", library.names())
def test_every_operator_is_documented(name: str) -> None:
    assert documented(name)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", library.names())
def test_every_variant_is_valid(name: str, dtype: str) -> None:
    definition = front.read(library.source(name, dtype))[-1]
    assert definition.name == name
    dtypes = {definition.tensor(output).dtype for output in definition.returns}
    assert dtype in dtypes or name.startswith("moments")
    assert dtypes <= {dtype, "float32"}  # statistics of half types come back wide


def test_variants_substitute_types_and_nothing_else() -> None:
    assert library.source("embedding", "double", "int32") == library.source("embedding", "float64", "int32")
    text = library.source("cross_entropy", "bfloat16", "int32")
    assert "bfloat16(N, C) X, int32(N) Class" in text
    assert "exp(float32(X(n, c) - top(n)))" in text
    assert "exp(float64(X(n, c) - top(n)))" in library.source("cross_entropy", "float64")


def test_an_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(ArgumentError, match="conv2d"):
        library.source("conv_2d")


@pytest.mark.parametrize(("dtype", "index"), [("int32", "int64"), ("complex64", "int64"), ("float32", "float32"), ("float32", "bool")])
def test_types_must_fit(dtype: str, index: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be"):
        library.source("embedding", dtype, index)
