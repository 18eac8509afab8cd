"""The programs whose kernels are inspected, at the sizes of a review of the CUDA texts: products, rows, windows, gathers, copies."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tcjit import library

NN = "def nn({t}(M,K) A, {t}(K,N) B) -> (C) {{ C(m,n) +=! A(m,k) * B(k,n) }}"
NT = "def nt({t}(M,K) A, {t}(N,K) B) -> (C) {{ C(m,n) +=! A(m,k) * B(n,k) }}"
TRIANGULAR = "def tri(float(N,N) L, float(N,M) B) -> (C) { C(i,j) +=! (k <= i) ? L(i,k) * B(k,j) : 0.0 }"
MLP = """def mlp1(float(B,M) I, float(N,M) W1, float(N) B1) -> (O1) {
    O1(b,n) +=! I(b,m) * W1(n,m)
    O1(b,n)   = O1(b,n) + B1(n)
    O1(b,n)   = fmax(O1(b,n), 0)
}"""
TBMM = "def tbmm(float(B,N,M) X, float(B,K,M) Y) -> (Z) { Z(b,n,k) +=! X(b,n,m) * Y(b,k,m) }"
GROUP_CONV = """def gconv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1, float(G,F) B) -> (O) {
    O(n,g,f,h,w) +=! I(n,g,r_c,h + r_kh,w + r_kw) * W1(g,f,r_c,r_kh,r_kw)
    O(n,g,f,h,w)   = O(n,g,f,h,w) + B(g,f)
}"""
LUT = "def lut1(float(E,D) LUT, int32(B,L) I) -> (O) { O(b,d) +=! LUT(I(b,r_l), d) }"
RMS_NORM_CHANNELS = """def rms_norm_channels(float(N, C, H, W) X, float(C) gamma, float32 eps) -> (float(N, C, H, W) Y) {
    scale(n, h, w) +=! X(n, c, h, w) * X(n, c, h, w)
    scale(n, h, w) = rsqrt(scale(n, h, w) / C + eps)
    Y(n, c, h, w) = X(n, c, h, w) * scale(n, h, w) * gamma(c)
}"""
STENCIL = """def stencil(float(M,N) A) -> (B) {
    B(i,j) = 0.2 * (A(i + 1,j + 1) + A(i,j + 1) + A(i + 2,j + 1) + A(i + 1,j) + A(i + 1,j + 2)) where i in 0:M - 2, j in 0:N - 2
}"""
BIAS_RELU = "def bias_relu(float(M,N) X, float(N) b) -> (Y) { Y(m,n) = fmax(X(m,n) + b(n), 0) }"
BIAS_GELU = """def bias_gelu(bfloat16(M, N) X, bfloat16(N) b) -> (Y) {
    Y(m, n) = bfloat16(0.5 * z * (1.0 + erf(z * 0.7071067811865476))) where z = float32(X(m, n) + b(n))
}"""
WAVENET = """def wavenet(float(B,RC,RF) Data, float(DC,RC,2) FW, float(DC) FB, float(DC,RC,2) GW, float(DC) GB,
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
}"""


@dataclass(frozen=True)
class Subject:
    """A text with the shapes of its tensors; ``scalars`` are those whose values the kernel is made for."""

    name: str
    text: str
    shapes: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _of(name: str, operator: str, dtype: str, scalars: Mapping[str, int] | None = None, **shapes: tuple[int, ...]) -> Subject:
    return Subject(name, library.source(operator, dtype), shapes, scalars or {})


def _product(name: str, form: str, dtype: str, m: int, n: int, k: int, **options: Any) -> Subject:
    shapes = {"A": (m, k), "B": (k, n) if form is NN else (n, k)}
    return Subject(name, form.format(t=dtype), shapes, options=options)


ROUNDED_ATTENTION = library.source("attention", "bfloat16").replace(
    "S(b, h, q, k) * Value(b, h, k, e)", "float32(bfloat16(S(b, h, q, k)) * Value(b, h, k, e))"
)
UNIT = {"sh": 1, "sw": 1, "ph": 1, "pw": 1, "dh": 1, "dw": 1}
POOL = {"kh": 3, "kw": 3, "sh": 2, "sw": 2, "ph": 1, "pw": 1, "dh": 1, "dw": 1}
HEADS = {"Query": (8, 16, 512, 64), "Key": (8, 16, 512, 64), "Value": (8, 16, 512, 64)}
IMAGE, FILTER = (32, 64, 56, 56), (64, 64, 3, 3)
_G = 32

SUBJECTS = (
    _product("fp32 NN 4096", NN, "float", 4096, 4096, 4096),
    _product("fp32 NT 4096", NT, "float", 4096, 4096, 4096),
    _product("fp32 NN 4096, stages=1", NN, "float", 4096, 4096, 4096, pipeline_stages=1),
    _product("fp32 4095x4091x4093", NN, "float", 4095, 4091, 4093),
    _product("fp32 16x16x100000", NN, "float", 16, 16, 100000),
    _product("tmm_s 128x32x256", NT, "float", 128, 256, 32),
    _product("tmm_m 128x1024x1024", NT, "float", 128, 1024, 1024),
    _product("tmm_l 128x4096x16384", NT, "float", 128, 16384, 4096),
    Subject("mlp1 128x2000x128", MLP, {"I": (128, 2000), "W1": (128, 2000), "B1": (128,)}),
    _product("c3 128x1000x1024", NT, "float", 128, 1024, 1000),
    _product("bf16 NN 4096", NN, "bfloat16", 4096, 4096, 4096),
    _product("fp16 NT 4096", NT, "float16", 4096, 4096, 4096),
    _of("bf16 linear+gelu 8192x8192x512", "linear_gelu", "bfloat16", X=(8192, 512), Weight=(8192, 512), Bias=(8192,)),
    _of("fp32 linear+gelu 4096", "linear_gelu", "float32", X=(4096, 4096), Weight=(4096, 4096), Bias=(4096,)),
    _of("bmm NT fp32 128x512x64", "batched_matmul_nt", "float32", X=(128, 512, 64), Y=(128, 512, 64)),
    _of("bmm NT bf16 128x512x64", "batched_matmul_nt", "bfloat16", X=(128, 512, 64), Y=(128, 512, 64)),
    Subject("tbmm 500x26x26x72", TBMM, {"X": (500, 26, 72), "Y": (500, 26, 72)}),
    _of("attention fp32", "attention", "float32", **HEADS),
    _of("attention bf16", "attention", "bfloat16", **HEADS),
    Subject("attention bf16, scores rounded", ROUNDED_ATTENTION, HEADS),
    _of("causal attention fp32", "causal_attention", "float32", **HEADS),
    Subject("triangular product 2048", TRIANGULAR, {"L": (2048, 2048), "B": (2048, 2048)}),
    _of("softmax 4096x32768", "softmax", "float32", X=(4096, 32768)),
    _of("softmax 8192x1024", "softmax", "float32", X=(8192, 1024)),
    _of("softmax 1x10^6", "softmax", "float32", X=(1, 1000000)),
    _of("cross entropy 8192x32000", "cross_entropy", "float32", X=(8192, 32000), Class=(8192,)),
    _of("layer norm 8192x4096", "layer_norm", "float32", X=(8192, 4096), gamma=(4096,), beta=(4096,)),
    _of("rms norm bf16 8192x4096", "rms_norm", "bfloat16", X=(8192, 4096), gamma=(4096,)),
    _of("row sum 8192^2", "row_sum", "float32", X=(8192, 8192)),
    _of("column sum 8192x4096", "column_sum", "float32", X=(8192, 4096)),
    _of("total sum 2^28", "total_sum", "float32", X=(1 << 14, 1 << 14)),
    Subject("bias+relu 2^26", BIAS_RELU, {"X": (8192, 8192), "b": (8192,)}),
    Subject("bias+gelu bf16 2^26", BIAS_GELU, {"X": (8192, 8192), "b": (8192,)}),
    _of("transposition fp32 8192^2", "transpose", "float32", X=(8192, 8192)),
    _of("transposition bf16 8192^2", "transpose", "bfloat16", X=(8192, 8192)),
    _of("conv2d 3x3 fp32", "conv2d", "float32", UNIT, X=IMAGE, Weight=FILTER, Bias=(64,)),
    _of("conv2d 3x3 fp16", "conv2d", "float16", UNIT, X=IMAGE, Weight=FILTER, Bias=(64,)),
    _of("conv2d valid fp16", "conv2d_valid", "float16", X=IMAGE, Weight=FILTER),
    _of("depthwise 3x3", "depthwise_conv2d", "float32", UNIT, X=(32, 128, 56, 56), Weight=(128, 3, 3), Bias=(128,)),
    *(
        Subject(f"group conv {side}", GROUP_CONV, {"I": (_G, _G, c, side, side), "W1": (_G, c, c, 3, 3), "B": (_G, c)})
        for c, side in ((4, 56), (16, 14), (32, 7))
    ),
    _of("max pool 3x3", "max_pool2d", "float32", POOL, X=(32, 64, 112, 112)),
    Subject("lut1 10^7 rows", LUT, {"LUT": (10_000_000, 64), "I": (128, 50)}),
    _of("embedding bag 8192x50x128", "embedding_bag_sum", "float32", Table=(100000, 128), Index=(8192, 50)),
    _of("moments 128x10^5", "moments", "float32", X=(128, 100000)),
    _of("kronecker3", "kronecker3", "float32", X=(256, 16, 16, 16), W0=(16, 16), W1=(16, 16), W2=(16, 16)),
    _of("mttkrp 512^3x32", "mttkrp", "float32", X=(512, 512, 512), A=(512, 32), B=(512, 32)),
    _of("tccg4", "tccg4", "float32", X=(72, 24, 72, 24), Y=(72, 24, 72, 24)),
    Subject(
        "wavenet", WAVENET,
        {"Data": (1, 32, 4000), "FW": (32, 32, 2), "FB": (32,), "GW": (32, 32, 2), "GB": (32,), "RW": (32, 32), "RB": (32,),
         "SW": (256, 32), "SB": (256,)},
    ),
    Subject("stencil 2D 8192^2", STENCIL, {"A": (8192, 8192)}),
    _of("pixel shuffle", "pixel_shuffle", "float32", {"r": 2}, X=(32, 256, 64, 64)),
    Subject("strided rms norm (32,256,64,64)", RMS_NORM_CHANNELS, {"X": (32, 256, 64, 64), "gamma": (256,)}),
    _of("batch norm training", "batch_norm_training", "float32", X=(32, 64, 112, 112), gamma=(64,), beta=(64,)),
    _product("bf16 64x8192x8192", NN, "bfloat16", 64, 8192, 8192),
    _product("bf16 4000x4090x4000", NN, "bfloat16", 4000, 4000, 4090),
)  # fmt: skip
