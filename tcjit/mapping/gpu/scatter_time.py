"""How long a reduction takes on a GPU whose terms data pick the results of: as atomic updates, or as sums over all pairs of both."""

from __future__ import annotations

from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.polynomial import names
from tcjit.mapping.machine import Device
from tcjit.mapping.scop import StatementForm

WORTH = 0.9  # of the time without that with atomic updates may take: the model is rough
CHUNKS = (1, 8, 32, 128)  # with partial results of their own
SPARE = 8  # terms for each partial result that pay for chunks
FEW = 8  # terms that a thread sums before its update, however few threads there are
BLOCK = 256  # threads for each of the processors that are enough


def summed_dims(s: StatementForm, processors: int) -> tuple[str, ...]:
    """The dimensions of a scatter's terms that do not decide on the results which data pick, over which each thread sums before its
    update, as long as there are threads for so many processors."""
    compared = {name for data in s.picks.values() for name in names(data)}
    rest = tuple(dim for dim in s.reduction if dim not in compared)
    others = prod(s.extents[dim] for dim in s.dims if dim not in (*rest, *s.scatter))
    return rest if others >= processors * BLOCK or prod(map(s.extents.__getitem__, rest)) <= FEW else ()


@dataclass(frozen=True)
class ScatterShape:
    """So many ``terms``, of which data pick one of ``picked`` results, each with ``beside`` elements of so many ``bytes``; a thread sums
    ``summed`` of them before an update."""

    terms: int
    picked: int
    beside: int
    bytes: int
    summed: int = 1

    def gather(self, device: Device) -> float:
        """Cycles of a sum over all terms for each result."""
        costs = device.costs
        return costs.launch + self.terms * self.picked * self.beside / (costs.comparison * device.processors)

    def scatter(self, chunks: int, device: Device) -> float:
        """Cycles of atomic updates of the results, or of those of so many chunks of terms, and of the start and the end of these."""
        costs, updates = device.costs, self.terms * self.beside / self.summed
        results = chunks * self.picked * self.beside
        time = 2 * costs.launch + max(updates / costs.atomic, updates / (results * costs.atomic_one))
        return time if chunks == 1 else time + costs.launch + 2 * results * self.bytes / costs.memory


def scatter_chunks(shape: ScatterShape, most: int, device: Device) -> int:
    """Into how many chunks of terms, at most, atomic updates are best cut; 1 for none, 0 where sums over all terms take less."""
    fits = [count for count in CHUNKS if count == 1 or count <= min(most, shape.terms // (shape.picked * SPARE))]
    best = min(fits, key=lambda count: shape.scatter(count, device))
    return best if shape.scatter(best, device) < WORTH * shape.gather(device) else 0
