"""The zip archives in which PyTorch keeps models, opened as files from others: sizes bounded, checksums tested, members read in one way.

PyTorch's own reader tests no checksum and may see another archive than Python's does in a file made for that, so both must agree.
"""
from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tcjit.errors import PartitionError

MEMBERS = 1 << 17  # members of an archive at most
PACKED = 256 << 20  # bytes at most that compressed members come to; weights are never compressed
DOCUMENT = 256 << 20  # bytes of a member of text
DEPTH = 100  # of lists and objects in each other, in a member of JSON


@dataclass(frozen=True)
class Archive:
    """A model's file. ``members`` maps names below the archive's one top folder to names in it."""

    path: str
    content: bytes
    members: dict[str, str]

    def read(self, name: str, largest: int = DOCUMENT) -> bytes:
        """A member; PartitionError where it has more than so many bytes."""
        with self.failing(name), zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            if archive.getinfo(self.members[name]).file_size > largest:
                raise PartitionError(f"{self.path}: {name} is larger than {largest} bytes")
            return archive.read(self.members[name])

    def json(self, name: str) -> Any:
        """A member that is JSON, bounded in size and depth."""
        with self.failing(name):
            found = json.loads(self.read(name).decode("utf-8"))
            if _depth(found) > DEPTH:
                raise PartitionError(f"{self.path}: {name} has more than {DEPTH} lists and objects in each other")
            return found

    @contextmanager
    def failing(self, name: str) -> Iterator[None]:
        """Whatever is wrong with a member, as a PartitionError that names it and the file."""
        try:
            yield
        except PartitionError:
            raise
        except Exception as error:  # of decoders, of PyTorch's readers, and of what they call: no list of them is whole
            raise PartitionError(f"{self.path}: {name} is damaged: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says first, its class where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def opened(file: str | os.PathLike[str]) -> Archive:
    """A model's file, whole and of sizes that it can have; raises PartitionError."""
    path = os.fspath(file)
    try:
        content = Path(file).read_bytes()
    except FileNotFoundError as error:
        raise PartitionError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise PartitionError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return unpacked(content, path)


def unpacked(content: bytes, path: str) -> Archive:
    """The same of a file's content; ``path`` is its name in errors."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = _members(archive, path, len(content))
            found = Archive(path, content, members)
            _tested(found, archive)
    except PartitionError:
        raise
    except Exception as error:  # zipfile raises what its parts raise
        raise PartitionError(f"{path} is no model, or damaged: {first_line(error)}") from error
    return found


def _members(archive: zipfile.ZipFile, path: str, size: int) -> dict[str, str]:
    infos = archive.infolist()
    roots = {info.filename.partition("/")[0] for info in infos}
    names = {info.filename.partition("/")[2]: info.filename for info in infos}
    if not infos or len(infos) > MEMBERS or len(roots) != 1 or len({name.lower() for name in names}) != len(infos) or "" in names:
        raise PartitionError(f"{path} is no model, or damaged: it has not one folder of up to {MEMBERS} files, each of its own name")
    packed = sum(info.file_size for info in infos if info.compress_type != zipfile.ZIP_STORED)
    plain = sum(info.file_size for info in infos if info.compress_type == zipfile.ZIP_STORED)
    if sum(info.compress_size for info in infos) > size or plain > size or packed > PACKED:
        raise PartitionError(f"{path}: its members come to {plain + packed} bytes, more than a file of {size} bytes holds")
    return names


def _tested(found: Archive, archive: zipfile.ZipFile) -> None:
    """Checksums, and that PyTorch reads what they are of."""
    with found.failing("the archive"):
        reader = torch._C.PyTorchFileReader(io.BytesIO(found.content))
        seen = set(reader.get_all_records())
    if seen != set(found.members):
        raise PartitionError(f"{found.path} is damaged: PyTorch sees other members in it than are listed")
    for name, member in found.members.items():
        try:
            content = archive.read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise PartitionError(f"{found.path}: {name} is damaged: {first_line(error)}") from error
        with found.failing(name):
            if reader.get_record(name) != content:
                raise PartitionError(f"{found.path}: {name} is damaged: PyTorch reads something else")



def _depth(value: Any) -> int:
    """How many lists and objects are in each other; a level at a time, so that no depth is too great."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, (list, dict))]:
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return depth
