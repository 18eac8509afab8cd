"""The operators that are measured: sizes, inputs, PyTorch form and source in the language.

Importable with nothing but numpy, because the peers' own environments have no more. ``flops`` counts the minimal algorithm; the bytes
are the compulsory traffic, inputs once and outputs once. Sizes and operators follow the evaluation of Tensor Comprehensions
(Vasilache et al., 2018), with common ones added.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

FLOAT_BYTES = 4


class Input(NamedTuple):
    """``draw`` is "normal", "weight" (normal over the root of the last extent) or, for int32 indices, the bound below which they lie."""

    name: str
    shape: tuple[int, ...]
    draw: str | int = "normal"

    @property
    def is_index(self) -> bool:
        return isinstance(self.draw, int)


@dataclass(frozen=True)
class Op:
    """One operator at one size."""

    name: str
    group: str
    dims: Mapping[str, int]
    inputs: tuple[Input, ...]
    outputs: Mapping[str, tuple[int, ...]]
    flops: float
    source: str  # in the language
    entry: str  # the def's name
    torch_form: Callable[..., Any]  # (torch, torch.nn.functional, *inputs): the idiomatic eager form
    tolerance: float = 1e-4  # largest error over largest magnitude
    key: bool = False

    @property
    def bytes(self) -> int:
        """Compulsory traffic; of a look-up table only the rows touched count."""
        total = 0
        for given in self.inputs:
            touched = self.dims["B"] * self.dims["L"] * self.dims["D"] if given.name.startswith("LUT") else math.prod(given.shape)
            total += FLOAT_BYTES * touched
        return total + FLOAT_BYTES * sum(math.prod(shape) for shape in self.outputs.values())

    def make_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """float32 (or int32) arrays by name, the same for the same seed."""
        random = np.random.default_rng(seed)
        made: dict[str, np.ndarray] = {}
        for name, shape, draw in self.inputs:
            if isinstance(draw, int):
                made[name] = random.integers(0, draw, size=shape, dtype=np.int32)
                continue
            made[name] = random.standard_normal(shape, dtype=np.float32)
            if draw == "weight":
                made[name] /= np.float32(math.sqrt(shape[-1]))
        return made


OPS: dict[str, Op] = {}


def add(name: str, *args: Any, **facts: Any) -> None:
    OPS[name] = Op(name, *args, **facts)


def reference(op: Op, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs by PyTorch in float64."""
    import torch
    import torch.nn.functional as F

    tensors = [torch.from_numpy(array) for array in inputs.values()]
    with torch.no_grad():
        result = op.torch_form(torch, F, *(t.double() if t.dtype == torch.float32 else t for t in tensors))
    return [x.numpy() for x in (result if isinstance(result, (tuple, list)) else [result])]


# ---------------------------------------------------------------- matrix products

TMM = "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
for tag, (M, K, N) in {"tmm_s": (128, 32, 256), "tmm_m": (128, 1024, 1024), "tmm_l": (128, 4096, 16384)}.items():
    add(
        tag, "1 tmm", {"M": M, "K": K, "N": N},
        (Input("A", (M, K)), Input("B", (N, K), "weight")), {"C": (M, N)},
        2 * M * N * K, TMM, "tmm", lambda torch, F, A, B: A @ B.t(), key=tag != "tmm_l",
    )  # fmt: skip

MATMUL = "def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
for tag, (M, K, N) in {"mm_1024": (1024, 1024, 1024), "mm_odd": (1000, 777, 555)}.items():
    add(
        tag, "2 matmul", {"M": M, "K": K, "N": N},
        (Input("A", (M, K)), Input("B", (K, N), "weight")), {"C": (M, N)},
        2 * M * N * K, MATMUL, "matmul", lambda torch, F, A, B: A @ B,
    )  # fmt: skip

add(
    "tbmm", "3 tbmm", {"B": 500, "N": 26, "M": 72, "K": 26},
    (Input("X", (500, 26, 72)), Input("Y", (500, 26, 72), "weight")), {"Z": (500, 26, 26)},
    2 * 500 * 26 * 72 * 26,
    "def tbmm(float(B,N,M) X, float(B,K,M) Y) -> (Z) { Z(b,n,k) +=! X(b,n,m) * Y(b,k,m) }",
    "tbmm", lambda torch, F, X, Y: torch.bmm(X, Y.transpose(1, 2)), key=True,
)  # fmt: skip

# ---------------------------------------------------------------- grouped convolution

GROUP_CONV = """
def gconv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1, float(G,F) B) -> (O) {
    O(n,g,f,h,w) +=! I(n,g,r_c,h + r_kh,w + r_kw) * W1(g,f,r_c,r_kh,r_kw)
    O(n,g,f,h,w)   = O(n,g,f,h,w) + B(g,f)
}
"""


def group_conv(torch: Any, F: Any, X: Any, W: Any, B: Any) -> Any:
    flat = F.conv2d(X.flatten(1, 2), W.flatten(0, 1), B.reshape(-1), groups=X.shape[1])
    return flat.unflatten(1, B.shape)


for tag, (C, H) in {"gconv_56": (4, 56), "gconv_14": (16, 14), "gconv_7": (32, 7)}.items():
    add(
        tag, "4 gconv", {"N": 32, "G": 32, "C": C, "F": C, "H": H, "W": H, "KH": 3, "KW": 3},
        (Input("I", (32, 32, C, H, H)), Input("W1", (32, C, C, 3, 3), "weight"), Input("B", (32, C))),
        {"O": (32, 32, C, H - 2, H - 2)},
        2 * 32 * 32 * C * C * 9 * (H - 2) ** 2, GROUP_CONV, "gconv", group_conv, key=tag != "gconv_7",
    )  # fmt: skip

# ---------------------------------------------------------------- perceptrons

add(
    "mlp1", "5 mlp", {"B": 128, "M": 2000, "N": 128},
    (Input("I", (128, 2000)), Input("W1", (128, 2000), "weight"), Input("B1", (128,))), {"O1": (128, 128)},
    2 * 128 * 2000 * 128,
    """
def mlp1(float(B,M) I, float(N,M) W1, float(N) B1) -> (O1) {
    O1(b,n) +=! I(b,m) * W1(n,m)
    O1(b,n)   = O1(b,n) + B1(n)
    O1(b,n)   = fmax(O1(b,n), 0)
}
""",
    "mlp1", lambda torch, F, X, W, B: torch.relu(F.linear(X, W, B)), key=True,
)  # fmt: skip


def perceptron(torch: Any, F: Any, X: Any, *layers: Any) -> Any:
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        X = torch.relu(F.linear(X, weight, bias))
    return X


add(
    "mlp3", "5 mlp", {"B": 128, "N": 128, "O": 64, "P": 32, "Q": 2},
    (
        Input("I", (128, 128)),
        Input("W2", (64, 128), "weight"), Input("B2", (64,)),
        Input("W3", (32, 64), "weight"), Input("B3", (32,)),
        Input("W4", (2, 32), "weight"), Input("B4", (2,)),
    ),
    {"O4": (128, 2)},
    2 * 128 * (128 * 64 + 64 * 32 + 32 * 2),
    """
def mlp3(float(B,N) I, float(O,N) W2, float(O) B2, float(P,O) W3, float(P) B3, float(Q,P) W4, float(Q) B4) -> (O2,O3,O4) {
    O2(b,o) +=! I(b,n) * W2(o,n)
    O2(b,o)   = fmax(O2(b,o) + B2(o), 0)
    O3(b,p) +=! O2(b,o) * W3(p,o)
    O3(b,p)   = fmax(O3(b,p) + B3(p), 0)
    O4(b,q) +=! O3(b,p) * W4(q,p)
    O4(b,q)   = fmax(O4(b,q) + B4(q), 0)
}
""",
    "mlp3", perceptron,
)  # fmt: skip

# ---------------------------------------------------------------- look-ups


def embedding_bag(torch: Any, F: Any, table: Any, index: Any) -> Any:
    return F.embedding_bag(index, table, mode="sum")


add(
    "lut1", "6 lut", {"E": 100000, "D": 64, "L": 50, "B": 128},
    (Input("LUT", (100000, 64)), Input("I", (128, 50), 100000)), {"O": (128, 64)},
    128 * 50 * 64,
    "def lut1(float(E,D) LUT, int32(B,L) I) -> (O) { O(b,d) +=! LUT(I(b,r_l), d) }",
    "lut1", embedding_bag,
)  # fmt: skip
add(
    "lut2", "6 lut", {"E": 100000, "D": 64, "L": 50, "B": 128},
    (Input("LUT1", (100000, 64)), Input("I1", (128, 50), 100000), Input("LUT2", (100000, 64)), Input("I2", (128, 50), 100000)),
    {"O1": (128, 64), "O2": (128, 64)},
    2 * 128 * 50 * 64,
    """
def lut2(float(E1,D) LUT1, int32(B,L) I1, float(E2,D) LUT2, int32(B,L) I2) -> (O1,O2) {
    O1(b,d) +=! LUT1(I1(b,r_l), d)
    O2(b,d) +=! LUT2(I2(b,r_l), d)
}
""",
    "lut2",
    lambda torch, F, LUT1, I1, LUT2, I2: (embedding_bag(torch, F, LUT1, I1), embedding_bag(torch, F, LUT2, I2)),
)  # fmt: skip

add(
    "c3", "7 C3", {"B": 128, "WX": 1000, "WY": 1024},
    (Input("I", (128, 1024)), Input("W", (1000, 1024), "weight")), {"C3": (128, 1000)},
    2 * 128 * 1000 * 1024,
    "def c3(float(B,WY) I, float(WX,WY) W) -> (C3) { C3(b,wx) +=! I(b,wy) * W(wx,wy) }",
    "c3", lambda torch, F, X, W: F.linear(X, W),
)  # fmt: skip

# ---------------------------------------------------------------- rows and elements

add(
    "softmax", "8 norm/elt", {"M": 1024, "N": 4096}, (Input("I", (1024, 4096)),), {"O": (1024, 4096)},
    5 * 1024 * 4096,
    """
def softmax(float(M,N) I) -> (O, mx, s) {
    mx(m) max=! I(m,n)
    O(m,n)   = exp(I(m,n) - mx(m))
    s(m)   +=! O(m,n)
    O(m,n)   = O(m,n) / s(m)
}
""",
    "softmax", lambda torch, F, X: torch.softmax(X, -1), key=True,
)  # fmt: skip
add(
    "layernorm", "8 norm/elt", {"M": 1024, "N": 1024},
    (Input("I", (1024, 1024)), Input("g", (1024,)), Input("b", (1024,))), {"O": (1024, 1024)},
    8 * 1024 * 1024,
    """
def layernorm(float(M,N) I, float(N) g, float(N) b) -> (O, mean, var) {
    mean(m) +=! I(m,n) / N
    var(m)  +=! (I(m,n) - mean(m)) * (I(m,n) - mean(m)) / N
    O(m,n)    = (I(m,n) - mean(m)) * rsqrt(var(m) + 1e-5) * g(n) + b(n)
}
""",
    "layernorm", lambda torch, F, X, g, b: F.layer_norm(X, (X.shape[1],), g, b),
)  # fmt: skip
add(
    "bias_gelu", "8 norm/elt", {"M": 1024, "N": 4096},
    (Input("I", (1024, 4096)), Input("b", (4096,))), {"O": (1024, 4096)},
    12 * 1024 * 4096,
    "def bias_gelu(float(M,N) I, float(N) b) -> (O) { O(m,n) = (I(m,n)+b(n)) * 0.5 * (1.0 + erf((I(m,n)+b(n)) * 0.70710678)) }",
    "bias_gelu", lambda torch, F, X, b: F.gelu(X + b),
)  # fmt: skip

add(
    "conv2d", "9 conv2d", {"N": 32, "C": 64, "H": 28, "W": 28, "F": 64, "KH": 3, "KW": 3},
    (Input("I", (32, 64, 28, 28)), Input("W1", (64, 64, 3, 3), "weight")), {"O": (32, 64, 26, 26)},
    2 * 32 * 64 * 26 * 26 * 64 * 9,
    """
def conv2d(float(N,C,H,W) I, float(F,C,KH,KW) W1) -> (O) {
    O(n,f,h,w) +=! I(n,r_c,h + r_kh,w + r_kw) * W1(f,r_c,r_kh,r_kw)
}
""",
    "conv2d", lambda torch, F, X, W: F.conv2d(X, W),
)  # fmt: skip

# ---------------------------------------------------------------- contractions

add(
    "mttkrp", "10 contraction", {"I": 128, "J": 128, "K": 128, "R": 32},
    (Input("X", (128, 128, 128)), Input("A", (128, 32), "weight"), Input("B", (128, 32), "weight")), {"M": (128, 32)},
    2 * 128**3 * 32 + 2 * 128 * 128 * 32,
    "def mttkrp(float(I,J,K) X, float(J,R) A, float(K,R) B) -> (M) { M(i,r) +=! X(i,j,k) * A(j,r) * B(k,r) }",
    "mttkrp", lambda torch, F, X, A, B: torch.einsum("ijk,jr,kr->ir", X, A, B), key=True,
)  # fmt: skip


def kronecker3(torch: Any, F: Any, X: Any, W0: Any, W1: Any, W2: Any) -> Any:
    last = torch.einsum("mnkl,el->mnke", X, W2)
    middle = torch.einsum("mnke,dk->mnde", last, W1)
    return torch.einsum("mnde,zn->mzde", middle, W0)


add(
    "kru3", "10 contraction", {"M": 256, "N0": 16, "N1": 16, "N2": 16, "D0": 16, "D1": 16, "D2": 16},
    (Input("X", (256, 16, 16, 16)), *(Input(f"W{mode}", (16, 16), "weight") for mode in range(3))), {"Y": (256, 16, 16, 16)},
    3 * 2 * 256 * 4096 * 16,
    """
def kru3(float(M,N0,N1,N2) X, float(D0,N0) W0, float(D1,N1) W1, float(D2,N2) W2) -> (Y,XW1,XW2) {
    XW2(m,n0,n1,d2) +=! X(m,n0,n1,n2) * W2(d2,n2)
    XW1(m,n0,d1,d2) +=! XW2(m,n0,n1,d2) * W1(d1,n1)
    Y(m,d0,d1,d2)   +=! XW1(m,n0,d1,d2) * W0(d0,n0)
}
""",
    "kru3", kronecker3,
)  # fmt: skip
add(
    "tccg4", "10 contraction", {"a": 32, "b": 32, "c": 32, "d": 32, "e": 24, "f": 20},
    (Input("A", (32, 24, 32, 20)), Input("B", (32, 20, 32, 24), "weight")), {"C": (32, 32, 32, 32)},
    2 * 32**4 * 24 * 20,
    "def tccg4(float(a_,e_,b_,f_) A, float(d_,f_,c_,e_) B) -> (C) { C(a,b,c,d) +=! A(a,e,b,f) * B(d,f,c,e) }",
    "tccg4", lambda torch, F, A, B: torch.einsum("aebf,dfce->abcd", A, B), key=True,
)  # fmt: skip

# ---------------------------------------------------------------- moments, tensordot


def moments(torch: Any, F: Any, X: Any) -> Sequence[Any]:
    variance, mean = torch.var_mean(X, 1, correction=0)
    return mean, variance


add(
    "moments", "11 moments/tensordot", {"N": 128, "K": 36864}, (Input("I", (128, 36864)),), {"mean": (128,), "var": (128,)},
    3 * 128 * 36864,
    """
def moments(float(N,K) I) -> (mean, var) {
    mean(n) +=! I(n,r_k)
    mean(n)   = mean(n) / K
    var(n)  +=! I(n,r_k) * I(n,r_k)
    var(n)    = var(n) / K - mean(n) * mean(n)
}
""",
    "moments", moments,
)  # fmt: skip
add(
    "tensordot", "11 moments/tensordot", {"N": 4, "C1": 512, "C2": 8, "C3": 2, "H": 28, "W": 28},
    (Input("I0", (4, 512, 8, 28, 28)), Input("I1", (4, 8, 2, 28, 28))), {"O": (4, 512, 2, 28, 28)},
    2 * 4 * 512 * 8 * 2 * 784,
    "def tensordot(float(N,C1,C2,H,W) I0, float(N,C2,C3,H,W) I1) -> (O) { O(n,c1,c3,h,w) +=! I0(n,c1,c2,h,w) * I1(n,c2,c3,h,w) }",
    "tensordot", lambda torch, F, I0, I1: torch.einsum("nabhw,nbchw->nachw", I0, I1),
)  # fmt: skip

# ---------------------------------------------------------------- a WaveNet layer


def wavenet(torch: Any, F: Any, Data: Any, FW: Any, FB: Any, GW: Any, GB: Any, RW: Any, RB: Any, SW: Any, SB: Any) -> Sequence[Any]:
    padded = F.pad(Data, (32, 0))
    gated = torch.tanh(F.conv1d(padded, FW, FB, dilation=32)) * torch.sigmoid(F.conv1d(padded, GW, GB, dilation=32))
    return Data + F.conv1d(gated, RW[:, :, None], RB), F.conv1d(gated, SW[:, :, None], SB)


add(
    "wavenet", "12 wavenet", {"B": 1, "RC": 32, "DC": 32, "SC": 256, "RF": 4000, "DIL": 32},
    (
        Input("Data", (1, 32, 4000)),
        Input("FW", (32, 32, 2), "weight"), Input("FB", (32,)),
        Input("GW", (32, 32, 2), "weight"), Input("GB", (32,)),
        Input("RW", (32, 32), "weight"), Input("RB", (32,)),
        Input("SW", (256, 32), "weight"), Input("SB", (256,)),
    ),
    {"Res": (1, 32, 4000), "Skip": (1, 256, 4000)},
    4000 * (2 * 2 * 2 * 32 * 32 + 2 * 32 * 32 + 2 * 256 * 32),
    """
def wavenet(float(B,RC,RF) Data, float(DC,RC,2) FW, float(DC) FB, float(DC,RC,2) GW, float(DC) GB,
            float(RC,DC) RW, float(RC) RB, float(SC,DC) SW, float(SC) SB) -> (Fo,Go,NonLin,Res,Skip) {
    Fo(b,c,t)   = FB(c) where b in 0:B, t in 0:RF
    Fo(b,c,t)  += Data(b,rc,t) * FW(c,rc,1) + ((t - 32 >= 0) ? Data(b,rc,t-32) * FW(c,rc,0) : 0.0) where t in 0:RF
    Go(b,c,t)   = GB(c) where b in 0:B, t in 0:RF
    Go(b,c,t)  += Data(b,rc,t) * GW(c,rc,1) + ((t - 32 >= 0) ? Data(b,rc,t-32) * GW(c,rc,0) : 0.0) where t in 0:RF
    NonLin(b,c,t) = tanh(Fo(b,c,t)) * (1.0 / (1.0 + exp(-Go(b,c,t))))
    Res(b,c,t)  = Data(b,c,t) + RB(c)
    Res(b,c,t) += NonLin(b,dc,t) * RW(c,dc)
    Skip(b,s,t) +=! NonLin(b,dc,t) * SW(s,dc)
    Skip(b,s,t)   = Skip(b,s,t) + SB(s)
}
""",
    "wavenet", wavenet,
)  # fmt: skip

# ---------------------------------------------------------------- the cost of a call

add(
    "tiny", "0 overhead", {"N": 32}, (Input("A", (32,)), Input("B", (32,))), {"C": (32,)},
    32, "def tiny(float(N) A, float(N) B) -> (C) { C(n) = A(n) + B(n) }",
    "tiny", lambda torch, F, A, B: A + B, key=True,
)  # fmt: skip
