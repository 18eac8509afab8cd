"""The CUDA runtime through both packages, against a driver that loads and launches nothing (``support.rings.cuda_stub``).

Modules: runtime.cuda_bindings runtime.cuda_pycuda
"""
from __future__ import annotations

import json

import pytest
from support.rings import cuda_stub as stub


@pytest.fixture(params=stub.PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    stub.require(name)
    return name


def run(package: str, code: str, **environment: str) -> list[str]:
    return stub.run(package, code, **environment).splitlines()


def test_devices(package: str) -> None:
    lines = run(
        package,
        """
import dataclasses, json
print(cuda.count())
for ordinal in range(2):
    print(json.dumps(dataclasses.asdict(cuda.device(ordinal)), default=sorted))
print(cuda.describe(0))
print(cuda.describe(1))
print(raises(LaunchError, lambda: cuda.device(2)))
""",
    )
    assert lines[0] == "2"
    h100, a100 = map(json.loads, lines[1:3])
    assert h100["name"] == "sm_90" and h100["max_shared_bytes"] == 227 << 10 and h100["processors"] == 132
    assert a100["name"] == "sm_80" and a100["max_shared_bytes"] == 163 << 10 and a100["processors"] == 108
    assert h100["shared_bytes"] == 48 << 10 and h100["max_grid"] == [2**31 - 1, 65535, 65535] and h100["warp"] == 32
    assert h100["registers"] == 65536 and h100["resident_threads"] == 2048 and h100["resident_blocks"] == 32
    atomic = ["atomic32", "atomic64", "atomic_float_sums"]
    assert h100["capabilities"] == ["async_copy", *atomic, "bfloat", "half", "mma", "shuffle", "warp_barrier"]
    assert lines[3:5] == [f"Stub {k} ({name}), CUDA 13.0 through {package}" for k, name in enumerate(("sm_90", "sm_80"))]
    assert "CUDA_ERROR_INVALID_DEVICE, invalid device ordinal" in lines[5]


def test_fewer_blocks(package: str) -> None:
    """A launch with dynamic sizes says how many blocks there are of each kernel; the next one without has them all again."""
    lines = run(
        package,
        """
made = module(first, KernelLaunch("second", (1, 5, 1), 32, 0))
made.launch(0, 0, *ARGUMENTS, [(2, 2, 1), (1, 4, 1)])
made.launch(0, 0, *ARGUMENTS)
print(*(line for line in stub.log() if line.startswith("launch")), sep="\\n")
""",
    )
    assert [line.split()[1:3] for line in lines] == [["first", "2,2,1"], ["second", "1,4,1"], ["first", "7,2,1"], ["second", "1,5,1"]]


def test_load_and_launch(package: str) -> None:
    """Parameters arrive as they are laid out, launches in order, code is loaded once, and shared memory above 48 KB is asked for."""
    lines = run(
        package,
        """
seen = []
stub.on_launch(lambda symbol, word: seen.append((symbol, *(word(n) for n in range(5)))))
large = KernelLaunch("second", (1, 1, 1), 32, 100_000)
made = module(first, large)
made.launch(0, 0, *ARGUMENTS)
made.launch(0, 0, [1 << 63, 2], (7, 8), 0)
print(*stub.log(), sep="\\n")
print(seen)
print(made.attributes(0))
print(stub.log(), stub.current(), stub.cuda.stub_depth())
""",
    )
    assert [line for line in lines if not line.startswith("pinned")][:-3] == [
        "load 0",
        "set second 8=100000",
        *["launch first 7,2,1 96,1,1 shared 0 device 0 default", "launch second 1,1,1 32,1,1 shared 100000 device 0 default"] * 2,
    ]
    words = (0x1000, 0x2000, 0x3000, -5, 1 << 62)
    assert lines[-3] == str([(n, *w) for w in (words, (-(1 << 63), 2, 0, 7, 8)) for n in ("first", "second")])
    assert lines[-2].count("KernelAttributes(registers=32, local=0, shared=0, threads=1024)") == 2
    assert lines[-1] == "[] -1 0", "no context is left behind"


def test_devices_have_their_own_code_and_contexts(package: str) -> None:
    """Whatever is current in the thread, torch's device or none, stays so."""
    lines = run(
        package,
        """
mine, yours = module(), module(cubin=a100)
stub.use(0)
yours.launch(1, 0, *ARGUMENTS)
mine.launch(0, 0, *ARGUMENTS)
yours.launch(1, 0, *ARGUMENTS)
print(stub.current(), stub.cuda.stub_depth())
print([line for line in stub.log() if not line.startswith("pinned")])
print(raises(LaunchError, lambda: mine.launch(1, 0, *ARGUMENTS)))
""",
    )
    assert lines[0] == "0 1"
    launch = "launch first 7,2,1 96,1,1 shared 0 device {} default"
    assert lines[1] == str(["load 1", launch.format(1), "load 0", launch.format(0), launch.format(1)])
    assert "cuda:1 does not load first: CUDA_ERROR_NO_BINARY_FOR_GPU, no kernel image is available" in lines[2]
    assert "tcjit.cache.clear()" in lines[3]


def test_threads(package: str) -> None:
    """Autograd's threads have no context; launches of one module at once keep their parameters apart."""
    lines = run(
        package,
        """
import collections
seen, made, errors = collections.Counter(), module(first, second), []
def react(symbol, word):
    seen[symbol, word(0), word(3)] += 1
stub.on_launch(react)
def work(number):
    try:
        if number % 2:
            stub.use(number % 4 // 2)
        for _ in range(50):
            made.launch(0, 0, [number, 2], [number, 0], 0)
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(errors, sum(line == "load 0" for line in stub.log()))
print(seen == {(name, n, n): 50 for n in range(8) for name in ("first", "second")})
""",
    )
    assert lines == ["[] 1", "True"]


def test_streams(package: str) -> None:
    """Side streams: cuda-bindings launches on them; pycuda orders its launches between what was there and what comes."""
    lines = run(
        package,
        """
made, side = module(), stub.stream(0)
made.load(0)
stub.log()
made.launch(0, side, *ARGUMENTS)
print(stub.log())
made.launch(0, 1, *ARGUMENTS)
print(stub.log())
import time
print(0.02 < cuda.seconds(0, side, lambda: time.sleep(0.02)) < 5, 0.01 < cuda.seconds(0, 0, lambda: time.sleep(0.01)) < 5)
cuda.synchronize()
print(stub.log()[-1])
""",
    )
    launch = "launch first 7,2,1 96,1,1 shared 0 device 0 "
    bridged = ["record side", "wait default", f"{launch}default", "record default", "wait side"]
    side = [f"{launch}side"] if package == "cuda-bindings" else bridged
    assert lines == [str(side), str([f"{launch}default"]), "True True", "synchronize 0"]


def test_capture() -> None:
    """A captured launch is a launch and nothing else: what is not allowed then would have invalidated the capture."""
    lines = run(
        "cuda-bindings",
        """
made, late, side = module(first, second), module(), stub.stream(0)
made.launch(0, 0, *ARGUMENTS)
stub.log()
stub.begin(side)
made.launch(0, side, *ARGUMENTS)
made.check(0)
print(raises(LaunchError, lambda: late.launch(0, side, *ARGUMENTS)))
print(stub.log(), stub.end(side))
stub.begin(side)
print(raises(LaunchError, cuda.synchronize))
print(stub.end(side))
late.launch(0, side, *ARGUMENTS)
""",
    )
    assert lines[0] == "first is not loaded on cuda:0, and cannot be while a graph is captured"
    assert lines[1] == "try: call it once with the same shapes before the capture"
    launches = ["launch first 7,2,1 96,1,1 shared 0 device 0 side captured", "launch second 1,1,1 32,1,1 shared 0 device 0 side captured"]
    assert lines[2] == f"{launches} 0"
    assert "waiting for cuda:0: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in lines[3] and lines[-1] == "901"


def test_capture_with_pycuda() -> None:
    """It cannot, says so, and leaves the capture to others."""
    lines = run(
        "pycuda",
        """
made, side = module(), stub.stream(0)
made.launch(0, 0, *ARGUMENTS)
stub.begin(side)
print(raises(LaunchError, lambda: made.launch(0, side, *ARGUMENTS)))
print(raises(LaunchError, lambda: module().launch(0, side, *ARGUMENTS)))
print(stub.end(side), stub.cuda.stub_depth())
""",
    )
    assert lines[0] == "pycuda cannot launch into a graph that is being captured" and "TCJIT_CUDA_DRIVER=cuda-bindings" in lines[1]
    assert "first is not loaded on cuda:0" in lines[2] and lines[-1] == "0 1"


def test_flags(package: str) -> None:
    """A flag comes up at the module's next launch, in ``check`` or in ``synchronize``, once, and in no other module."""
    lines = run(
        package,
        """
import ctypes
site = 0
def react(symbol, word):
    if site and word(0) == 1:
        address = ctypes.c_int32.from_address(word(5))
        address.value = max(address.value, site)
stub.on_launch(react)
bad, good = module(), module()
bad.launch(0, 0, [1, 2], [0, 0], 0)
good.launch(0, 0, [0, 2], [0, 0], 0)
bad.check(0), cuda.synchronize(0), bad.check(1)
site = 3
bad.launch(0, 0, [1, 2], [0, 0], 0)
good.launch(0, 0, [0, 2], [0, 0], 0), good.check(0)
stub.log()
site = 0
print(raises(DivisionError, lambda: bad.launch(0, 0, [1, 2], [0, 0], 0)), stub.log())
bad.launch(0, 0, [1, 2], [0, 0], 0), bad.check(0)
site = 4
bad.launch(0, 0, [1, 2], [0, 0], 0)
print(raises(DivisionError, lambda: bad.check(0)))
bad.launch(0, 0, [1, 2], [0, 0], 0), good.launch(0, 0, [1, 2], [0, 0], 0)
stub.log()
print(raises(DivisionError, cuda.synchronize), raises(DivisionError, cuda.synchronize), cuda.synchronize(), stub.log())
unnamed = cuda.Module(h100, (first,), 2, 2)
unnamed.launch(0, 0, [1, 2], [0, 0], 0)
print(raises(LaunchError, lambda: unnamed.check(0)))
""",
    )
    assert lines[0] == "site 3 []", "what is wrong already is not launched again"
    assert lines[1] == "site 4"
    assert lines[2] == f"site 4 site 4 None {['synchronize 0'] * 3}"
    assert lines[3] == "a kernel raised flag 4, which nobody explains"


def test_many_modules_come_and_go(package: str) -> None:
    """As in tuning: flags are given back, more than a page of them are had, and code leaves the device."""
    lines = run(
        package,
        """
cuda.PAGE = 4
flags = []
stub.on_launch(lambda symbol, word: flags.append(word(5)))
for _ in range(3):
    made = [module() for _ in range(6)]
    for each in made:
        each.launch(0, 0, *ARGUMENTS)
    for each in made:
        each.unload()
log = stub.log()
print(len(set(flags)), sum(l.startswith("pinned") for l in log), log.count("load 0"), log.count("unload 0"))
made[0].launch(0, 0, *ARGUMENTS)
print(stub.log()[0], len(set(flags)))
""",
    )
    assert lines == ["6 2 18 18", "load 0 6"]


def test_errors_have_names_and_hints(package: str) -> None:
    lines = run(
        package,
        """
made = module()
stub.fail("cuInit", 100)
print(raises(LaunchError, cuda.count))
stub.fail("cuMemHostAlloc", 1)
print(raises(LaunchError, lambda: made.launch(0, 0, *ARGUMENTS)))
print([line for line in stub.log() if "load" in line])
made.launch(0, 0, *ARGUMENTS)
for status in (700, 701, 999, 906):
    stub.fail("cuLaunchKernel", status)
    print(raises(LaunchError, lambda: made.launch(0, 0, *ARGUMENTS)))
print(raises(LaunchError, lambda: module(KernelLaunch("third", (1, 1, 1), 32, 0)).load(0)))
print(raises(LaunchError, lambda: module(cubin=b"\\x7fELF" + bytes(100)).load(0)))
made.launch(0, 0, *ARGUMENTS)
print(stub.cuda.stub_depth())
""",
    )
    text = "\n".join(lines)
    assert "cannot start CUDA: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected\ntry: nvidia-smi" in text
    assert "cannot allocate pinned memory for cuda:0: CUDA_ERROR_INVALID_VALUE, invalid argument" in text
    assert "['load 0', 'unload 0']" in lines
    what = "cannot launch first on cuda:0: "
    assert f"{what}CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered\ntry: a kernel of this process failed" in text
    assert f"{what}CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, too many resources requested for launch\ntry: options with fewer threads" in text
    assert f"{what}CUDA_ERROR_UNKNOWN, unknown error\ntry: nvidia-smi and dmesg" in text
    assert f"{what}CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" in text and "before the capture" in text
    assert "cuda:0 does not load third: CUDA_ERROR_NOT_FOUND, named symbol not found" in text
    assert "cuda:0 does not load first: CUDA_ERROR_INVALID_IMAGE, device kernel image is invalid" in text
    assert lines[-1] == "0"


def test_what_does_not_fit_the_device(package: str) -> None:
    lines = run(
        package,
        """
for grid, threads, shared in (((1, 1, 1), 32, 300_000), ((1, 1, 1), 2048, 0), ((1, 70_000, 1), 32, 0)):
    print(raises(LaunchError, lambda: module(KernelLaunch("first", grid, threads, shared)).load(0)).partition("\\n")[0])
stub.cuda.stub_threads(64)
print(raises(LaunchError, lambda: module().load(0)).partition("\\n")[0])
""",
    )
    assert lines == [
        "first does not fit cuda:0: it wants 300000 bytes of shared memory, and a block gets 232448",
        "first does not fit cuda:0: it wants 2048 threads, and a block gets 1024",
        "first does not fit cuda:0: it wants (1, 70000, 1) blocks, and a grid gets (2147483647, 65535, 65535)",
        "first takes 32 registers per thread: cuda:0 runs 64 threads of it in a block, not 96",
    ]


def test_forked_children_are_refused(package: str) -> None:
    """They have neither the driver nor the memory of the flags; a parent that used none of it leaves them all."""
    lines = run(
        package,
        """
import os
def child(work):
    sys.stdout.flush()
    number = os.fork()
    if not number:
        work()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(number, 0)[1] == 0
# the third leaves through the interpreter's own end
made = module()
child(lambda: print(made.launch(0, 0, *ARGUMENTS), made.launch(0, 0, *ARGUMENTS), stub.log().count("load 0")))
made.launch(0, 0, *ARGUMENTS)
child(lambda: print(raises(LaunchError, lambda: made.launch(0, 0, *ARGUMENTS)), made.check(0)))
child(lambda: print(raises(LaunchError, lambda: cuda.synchronize(0)), cuda.synchronize()))
child(lambda: sys.exit(0))
made.launch(0, 0, *ARGUMENTS)
""",
    )
    assert lines[0] == "None None 1"
    assert lines[1] == lines[3] == "CUDA was in use before this process was forked" and "spawn" in lines[2]


def test_pycuda_leaves_in_order() -> None:
    """Its own clean-up would abort or warn, above all for what another thread made."""
    lines = run(
        "pycuda",
        """
thread = threading.Thread(target=lambda: module().launch(0, 0, *ARGUMENTS))
thread.start(), thread.join()
kept = module()
kept.launch(0, 0, *ARGUMENTS)
print("end")
""",
    )
    assert lines == ["end"]


def test_launch_cost(package: str) -> None:
    """The time of one call, in a driver that does nothing: some microseconds, with room for a busy machine."""
    lines = run(
        package,
        """
import time
made, side = module(), stub.stream(0)
stub.quiet()
for stream in (0, side):
    best = 1.0
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(1000):
            made.launch(0, stream, *ARGUMENTS)
        best = min(best, time.perf_counter() - start)
    print(1e3 * best)
""",
    )
    print(package, "microseconds on the default stream, on another:", *lines)
    assert float(lines[0]) < 40 and float(lines[1]) < 150
