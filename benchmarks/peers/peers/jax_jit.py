"""JAX with jax.jit. BENCH_JAX_CACHE=1 keeps compiled code under $BENCH_CACHE."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

if os.environ["BENCH_THREADS"] == "1":
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " " + single
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
from jax import lax
from ops import Op

if os.environ.get("BENCH_JAX_CACHE"):
    jax.config.update("jax_compilation_cache_dir", os.environ["BENCH_CACHE"] + "/jax")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def versions() -> dict[str, str]:
    return {"jax": jax.__version__}


def prepare(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: jnp.asarray(array) for name, array in inputs.items()}


def sync(result: Any) -> None:
    jax.block_until_ready(result)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    return jnp.einsum("bm,nm->bn", x, weight) + bias


def perceptron(x: Any, *layers: Any) -> Any:
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = jax.nn.relu(linear(x, weight, bias))
    return x


def convolve(x: Any, weight: Any, groups: int = 1) -> Any:
    layout = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, weight, (1, 1), "VALID", feature_group_count=groups, dimension_numbers=layout)


def group_conv(x: Any, weight: Any, bias: Any) -> Any:
    n, g, c, h, w = x.shape
    f = weight.shape[1]
    flat = convolve(x.reshape(n, g * c, h, w), weight.reshape(g * f, c, 3, 3), g)
    return flat.reshape(n, g, f, h - 2, w - 2) + bias[None, :, :, None, None]


def layernorm(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gamma + beta


def moments(x: Any) -> Any:
    mean = x.mean(1)
    return mean, jnp.square(x).mean(1) - mean * mean


def causal_conv1d(x: Any, weight: Any, bias: Any) -> Any:
    layout = ("NCH", "OIH", "NCH")
    out = lax.conv_general_dilated(x, weight, (1,), [(32, 0)], rhs_dilation=(32,), dimension_numbers=layout)
    return out + bias[None, :, None]


def wavenet(data: Any, fw: Any, fb: Any, gw: Any, gb: Any, rw: Any, rb: Any, sw: Any, sb: Any) -> Any:
    gated = jnp.tanh(causal_conv1d(data, fw, fb)) * jax.nn.sigmoid(causal_conv1d(data, gw, gb))
    residual = data + jnp.einsum("bdt,rd->brt", gated, rw) + rb[None, :, None]
    return residual, jnp.einsum("bdt,sd->bst", gated, sw) + sb[None, :, None]


def einsum(equation: str) -> Callable[..., Any]:
    return lambda *operands: jnp.einsum(equation, *operands)


FORMS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("tmm_s", "tmm_m", "tmm_l"), einsum("mk,nk->mn")),
    **dict.fromkeys(("mm_1024", "mm_odd"), jnp.matmul),
    **dict.fromkeys(("gconv_56", "gconv_14", "gconv_7"), group_conv),
    **dict.fromkeys(("mlp1", "mlp3"), perceptron),
    "tbmm": einsum("bnm,bkm->bnk"),
    "lut1": lambda table, index: table[index].sum(1),
    "lut2": lambda table, index, table2, index2: (table[index].sum(1), table2[index2].sum(1)),
    "c3": einsum("by,xy->bx"),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "layernorm": layernorm,
    "bias_gelu": lambda x, bias: jax.nn.gelu(x + bias, approximate=False),
    "conv2d": convolve,
    "mttkrp": einsum("ijk,jr,kr->ir"),
    "kru3": einsum("mnkl,zn,dk,el->mzde"),
    "tccg4": einsum("aebf,dfce->abcd"),
    "moments": moments,
    "tensordot": einsum("nabhw,nbchw->nachw"),
    "wavenet": wavenet,
    "tiny": lambda a, b: a + b,
}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    jax.clear_caches()
    form = FORMS[op.name]
    return jax.jit(lambda *arrays: form(*arrays))  # a fresh function: nothing compiled earlier is found again
