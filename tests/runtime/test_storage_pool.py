"""Large results out of the memory of dead ones: when it is handed out again, when never, how much is kept, and that tensors are ordinary.

Modules: runtime.storage_pool
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import resource
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import tcjit
from tcjit.errors import TCError
from tcjit.runtime import storage_pool, tensors
from tcjit.runtime.storage_pool import LEAST, StoragePool

SIZE = LEAST // 4  # float32
pytestmark = pytest.mark.skipif(storage_pool._use_count is None, reason="a torch that does not tell who uses a storage")


@pytest.fixture
def pool() -> StoragePool:
    return StoragePool()


@pytest.fixture(autouse=True)
def own_pool() -> Iterator[None]:
    storage_pool.POOL.clear()
    yield
    storage_pool.POOL.clear()


def made(pool: StoragePool, size: int = SIZE) -> tuple[torch.Tensor, int]:
    tensor = pool.empty((size,), torch.float32)
    return tensor, tensor.data_ptr()


def reused(pool: StoragePool, address: int) -> bool:
    """Whether the next tensor has the memory at an address."""
    return made(pool)[1] == address


def test_the_next_one_of_as_many_bytes_takes_it(pool: StoragePool) -> None:
    tensor, address = made(pool)
    assert pool.holds(tensor) and not pool.holds(torch.empty(SIZE))
    other, elsewhere = made(pool)
    assert elsewhere != address, "the first one lives"
    del tensor
    for shape, dtype in (((SIZE // 4, 4), torch.int32), ((2, 3, SIZE // 12 * 2), torch.float32), ((SIZE * 4,), torch.bool)):
        size = torch.Size(shape).numel() * dtype.itemsize
        again = pool.empty(shape, dtype)
        assert again.shape == shape and again.dtype == dtype and again.is_contiguous()
        assert (again.data_ptr() == address) == (size == LEAST)
        assert again.untyped_storage().nbytes() == size, "of its size, not more"
        del again
    assert torch.equal(other, other) or other.isnan().any()


KEEPERS: dict[str, Any] = {
    "view": lambda t: t[5:],
    "detached": lambda t: t.detach(),
    "storage": lambda t: t.untyped_storage(),
    "typed storage": lambda t: torch.TypedStorage(wrap_storage=t.untyped_storage(), dtype=t.dtype, _internal=True),
    "array": lambda t: t.numpy(),
    "capsule": lambda t: torch.utils.dlpack.to_dlpack(t),
    "saved for backward": lambda t: (torch.ones(SIZE, requires_grad=True) * t),
    "weak storage": lambda t: weakref.ref(t.untyped_storage()),
    "set": lambda t: torch.empty(0).set_(t.untyped_storage()),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_is_referred_to_is_in_use(pool: StoragePool, keeper: str) -> None:
    tensor, address = made(pool)
    tensor.fill_(7)
    kept = KEEPERS[keeper](tensor)
    del tensor
    assert not reused(pool, address)
    del kept
    gc.collect()
    assert reused(pool, address)


def test_what_was_done_to_a_storage_stays_with_it(pool: StoragePool) -> None:
    """Storages that were shared, resized, freed or cloned lazily go their own ways."""
    tensor, _ = made(pool)
    tensor.fill_(3)
    tensor.share_memory_()
    shared = tensor.data_ptr()
    del tensor
    assert not reused(pool, shared)
    tensor, _ = made(pool)
    tensor.resize_(2 * SIZE)
    assert tensor.untyped_storage().nbytes() == 2 * LEAST and not pool.holds(tensor)
    tensor, _ = made(pool)
    tensor.untyped_storage().resize_(0)
    assert tensor.data_ptr() == 0
    tensor.untyped_storage().resize_(LEAST)
    tensor.fill_(1)
    del tensor
    made(pool)[0].fill_(2)
    tensor, _ = made(pool)
    tensor.fill_(5)
    lazy = torch._lazy_clone(tensor)
    del tensor
    made(pool)[0].fill_(6)
    assert (lazy == 5).all()


def test_tensors_are_ordinary(pool: StoragePool) -> None:
    """As ``torch.empty`` makes them, the first time and the next."""
    plain = torch.empty(SIZE)
    for _ in range(2):
        tensor, _ = made(pool)
        for attribute in ("requires_grad", "is_leaf", "grad_fn", "_version", "layout", "device", "dtype", "shape"):
            assert getattr(tensor, attribute) == getattr(plain, attribute), attribute
        assert not tensor._is_view() and tensors.plain(tensor) and not tensor.is_inference()
        assert tensor.untyped_storage().resizable() and tensor.untyped_storage().nbytes() == LEAST and not tensor.is_shared()
        assert tensor.requires_grad_().requires_grad
        (tensor * 2).sum().backward()
        assert tensor.grad is not None and (tensor.grad == 2).all()
        tensor = tensor.detach().fill_(1.5)
        file = io.BytesIO()
        torch.save(tensor, file)
        assert file.tell() < LEAST + 4096 and torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
        assert StorageWeakRef(tensor.untyped_storage()).expired() is False
        torch.add(tensor, 1, out=tensor)
        assert torch.add(torch.ones(8), 1, out=tensor.resize_(0)).shape == (8,)
        del tensor


def test_inference_mode(pool: StoragePool) -> None:
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            tensor, address = made(pool)
        assert tensor.is_inference() == mode
        del tensor
        assert reused(pool, address)


def test_versions_are_new(pool: StoragePool) -> None:
    tensor, address = made(pool)
    tensor.fill_(1).add_(1)
    assert tensor._version == 2
    del tensor
    again, same = made(pool)
    assert same == address and again._version == 0


def test_the_bound(pool: StoragePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_POOL_SIZE", str(2 * LEAST))
    (first, _), (second, other), (third, last) = made(pool), made(pool), made(pool)
    assert not pool.holds(first) and pool.holds(second) and pool.holds(third), "what was handed out first goes first"
    large = pool.empty((3 * SIZE,), torch.float32)
    assert not pool.holds(large) and pool.holds(second) and pool.holds(third), "what is beyond the bound drives nothing out"
    del first, second, third
    assert {made(pool)[1], (held := made(pool))[1], made(pool)[1]} <= {other, last} and pool.holds(held[0])
    monkeypatch.setenv("TCJIT_POOL_SIZE", "0")
    assert not pool.holds(pool.empty((3 * SIZE,), torch.float32))
    assert not pool.holds(held[0]), "a smaller bound counts from the next storage on"
    monkeypatch.setenv("TCJIT_POOL_SIZE", "much")
    with pytest.raises(TCError, match="TCJIT_POOL_SIZE='much' is not a size"):
        made(pool)


def test_idle_memory_goes(pool: StoragePool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(storage_pool.time, "monotonic", lambda: clock[0])
    kept, dead = made(pool)[0], made(pool, 2 * SIZE)
    died = StorageWeakRef(dead[0].untyped_storage())
    del dead
    for _ in range(3):
        clock[0] += 0.6 * storage_pool.IDLE_S
        assert made(pool)[0] is not None
    assert died.expired() and pool.holds(kept)


def test_without_memory(pool: StoragePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is given back before there is none, and then torch says so."""
    made(pool)
    empty, calls = torch.empty, []

    def short(*args: Any, **named: Any) -> torch.Tensor:
        calls.append(args)
        if pool._blocks:
            raise RuntimeError("not enough memory")
        return empty(*args, **named)

    monkeypatch.setattr(storage_pool.torch, "empty", short)
    assert made(pool, 2 * SIZE)[0].shape == (2 * SIZE,) and len(calls) == 2
    monkeypatch.undo()
    with pytest.raises(RuntimeError):
        pool.empty((1 << 60,), torch.float32)


def test_threads(pool: StoragePool) -> None:
    """No two of them have the same memory."""
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            tensor, _ = made(pool)
            tensor[::4096] = 1000 * number + turn
            if not (tensor[::4096] == 1000 * number + turn).all():
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


CHAIN = "def pooled(float(N) X) -> (A, B) { A(i) = X(i) * 2.0  B(i) = X(i) + 1.0 }"


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("size", [SIZE, 12 * SIZE])
def test_results_of_calls(size: int) -> None:
    """They come from the pool, by every way to call, and take no page faults."""
    f, x = tcjit.define(CHAIN).pooled, torch.rand(size)
    kernel = f.compile(x)
    for call in (f, kernel):
        results = [call(x) for _ in range(5)]
        assert all(storage_pool.POOL.holds(tensor) for pair in results for tensor in pair)
        assert all(torch.equal(a, x * 2) and torch.equal(b, x + 1) for a, b in results)
        addresses = {tensor.data_ptr() for pair in results for tensor in pair}
        assert len(addresses) == 10
        del results
        before = faults()
        for _ in range(5):
            a, b = call(x)
            assert {a.data_ptr(), b.data_ptr()} < addresses
        assert faults() - before < 100
        del a, b
    given = torch.empty(size), torch.empty(size)
    f(x, out=given)
    assert not storage_pool.POOL.holds(given[0])


def test_without_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_POOL_SIZE", "0")
    f, x = tcjit.define(CHAIN).pooled, torch.rand(SIZE)
    for _ in range(3):
        a, b = f(x)
        assert torch.equal(a, x * 2) and torch.equal(b, x + 1) and not storage_pool.POOL.holds(a)


def test_small_results_are_malloc_s() -> None:
    f, x = tcjit.define(CHAIN).pooled, torch.rand(SIZE - 1)
    assert not any(storage_pool.POOL.holds(f(x)[0]) for _ in range(3))


def test_workspaces() -> None:
    """Temporaries are as warm as results: what one call leaves the next one takes."""
    text = "def spaced(float(M,N) X) -> (O) { T(i,j) = exp(X(i,j))  O(i,j) = T(j,i) + T(i,j) }"
    x = torch.rand(2048, 2048)
    f = tcjit.define(text).spaced
    for _ in range(6):
        result = f(x)
    torch.testing.assert_close(result, x.exp() + x.exp().t())
    assert [block.bytes for block in storage_pool.POOL._blocks] == 3 * [x.nbytes], "two results by turns, and T"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_begins_with_nothing() -> None:
    f, x = tcjit.define(CHAIN).pooled, torch.rand(SIZE)
    kept, _ = f(x)
    child = os.fork()
    if not child:
        status = 1
        try:
            torch.set_num_threads(1)  # torch's own threads are not in the child
            a, b = f(x)
            status = 0 if torch.equal(a, x * 2) and torch.equal(kept, a) and not storage_pool.POOL.holds(kept) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert storage_pool.POOL.holds(kept)
