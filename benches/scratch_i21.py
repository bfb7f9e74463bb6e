"""Scratch: variants of randn, launch costs, profile of a step of ResNet."""

import cProfile, io, math, pstats, subprocess, sys, time
import torch, triton
import triton.language as tl
from pytest_udftorch import patched
from pytest_udftorch.cuda import philox
from pytest_udftorch.contract import gpu as G


def ev(f, n=10, r=9):
    f()
    ts = []
    for _ in range(r):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        for _ in range(n):
            f()
        b.record()
        b.synchronize()
        ts.append(a.elapsed_time(b) / n)
    return sorted(ts)[len(ts) // 2]


print(torch.cuda.get_device_name(), torch.__version__, triton.__version__, flush=True)
out = torch.empty(1 << 26, device="cuda")
n = out.numel()
print("stock normal_", ev(out.normal_))
with patched("repro"):
    print("repro normal_", ev(out.normal_))
    torch.manual_seed(5)
    a = torch.randn(100001, device="cuda").cpu()
    torch.manual_seed(5)
    b = torch.randn(100001)
    print("same as cpu", torch.equal(a.view(torch.int32), b.view(torch.int32)), flush=True)
for block in (128, 256, 512, 1024):
    for warps in (2, 4, 8):
        f = lambda: philox.normals_of_places[(n // (4 * block),)](
            out,
            n,
            12345678901,
            0.0,
            1.0,
            SCALED=False,
            SHIFTED=False,
            WHOLE=True,
            BLOCK=block,
            num_warps=warps,
            enable_fp_fusion=False,
        )
        print("block", block, "warps", warps, round(ev(f), 4), flush=True)


@triton.jit
def words_only(y, n, key, BLOCK: tl.constexpr):
    quad = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.uint32)
    w = tl.philox(
        tl.zeros([], tl.int64) + key, quad.to(tl.uint32), (quad >> 32).to(tl.uint32), zero, zero
    )
    z = tl.join(tl.join(w[0], w[2]), tl.join(w[1], w[3])).to(tl.float32)
    at = tl.program_id(0).to(tl.int64) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    tl.store(y + at, tl.reshape(z, [4 * BLOCK]), at < n // 4 * 4)


@triton.jit
def functions_only(y, n, BLOCK: tl.constexpr):
    quad = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = tl.join(quad * 40503, quad * 40503 + 77).to(tl.uint32)
    v = tl.join(quad * 65531, quad * 65531 + 11).to(tl.uint32)
    a, b = philox.normals_of_words(u, v)
    z = tl.join(a, b)
    at = tl.program_id(0).to(tl.int64) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    tl.store(y + at, tl.reshape(z, [4 * BLOCK]), at < n // 4 * 4)


print(
    "words only", ev(lambda: words_only[(n // 1024,)](out, n, 12345678901, BLOCK=256, num_warps=4))
)
print(
    "functions only",
    ev(
        lambda: functions_only[(n // 1024,)](out, n, BLOCK=256, num_warps=4, enable_fp_fusion=False)
    ),
)
print("fill", ev(lambda: out.fill_(1.0)), flush=True)
print("uniform stock", ev(out.uniform_))
with patched("repro"):
    print("uniform repro", ev(out.uniform_))
    print("bernoulli repro", ev(lambda: out.bernoulli_(0.3)))
print("bernoulli stock", ev(lambda: out.bernoulli_(0.3)), flush=True)
del out
src = (
    open("tests/libtorch/test_contract_cuda_kernels.py")
    .read()
    .split('VARIATES = """')[1]
    .split('"""')[0]
)
open("/tmp/variates_i21.py", "w").write(src)
print(
    "exhaustive",
    subprocess.run(
        [sys.executable, "/tmp/variates_i21.py", "1", "cuda"], capture_output=True, text=True
    ).stdout,
    flush=True,
)



sys.path.insert(0, "tests/libtorch")
import traceback
import test_contract_outside as TO
def flat(r): return [t for t in (r if isinstance(r,tuple) else (r,))]
def enc(t):
    t=t.detach().cpu().contiguous()
    return t.view({4:torch.int32,2:torch.int16}[t.element_size()]).masked_fill(t.isnan(),-1) if t.is_floating_point() else t
loss=TO.LOSS
try:
  for dt in (torch.float32, torch.bfloat16):
    with patched("repro"):
        want={}; x,g=(TO.random(70001,seed=k).to(dt) for k in (4,5)); TO.LOSS=loss.to(dt)
        for nme,call in TO.CALLS.items():
            try: want[nme]=flat(call(x,g))
            except Exception as e: want[nme]=None
        torch.set_default_device("cuda"); TO.LOSS=loss.to(dt).cuda(); x,g=x.cuda(),g.cuda()
        bad=[]
        for nme,call in TO.CALLS.items():
            try: got=flat(call(x,g)); n_=[int((enc(a)!=enc(b)).sum()) for a,b in zip(want[nme],got)] if want[nme] else "cpu refuses"
            except Exception as e: n_=type(e).__name__+str(e)[:80]
            if isinstance(n_,str) or any(n_): bad.append((nme,n_))
        torch.set_default_device("cpu")
        print("TRIED on cuda", dt, "differ:",bad,flush=True)
except Exception:
    torch.set_default_device("cpu"); traceback.print_exc()

def host(f, n=300):
    f()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(n):
        f()
    d = time.perf_counter() - t
    torch.cuda.synchronize()
    e = time.perf_counter() - t
    return round(d / n * 1e6, 1), round(e / n * 1e6, 1)


for s in (64, 256, 512, 1024):
    a, b = (torch.randn(s, s, device="cuda") for _ in range(2))
    st = host(lambda: torch.mm(a, b))
    with patched("repro"):
        print("mm", s, "stock host/total us", st, "repro", host(lambda: torch.mm(a, b)), flush=True)
    if s == 512:
        with patched("repro"):
            p = cProfile.Profile()
            p.enable()
            for _ in range(500):
                torch.mm(a, b)
            p.disable()
            io_ = io.StringIO()
            pstats.Stats(p, stream=io_).sort_stats("tottime").print_stats(16)
            print(io_.getvalue(), flush=True)


def kern(f, label, top=14):
    from torch.profiler import profile, ProfilerActivity

    f()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        f()
        torch.cuda.synchronize()
    k = {}
    for e in p.events():
        if str(e.device_type).endswith("CUDA"):
            c = k.setdefault(e.name[:70], [0, 0.0])
            c[0] += 1
            c[1] += e.device_time
    tot = sum(v[1] for v in k.values())
    cnt = sum(v[0] for v in k.values())
    print(label, "kernels", cnt, "gpu us", round(tot))
    for nme, (c, t) in sorted(k.items(), key=lambda i: -i[1][1])[:top]:
        print("   ", c, round(t), nme)
    sys.stdout.flush()


torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
from benches.experiments.contract_digests_cuda import _task, SEED
from benches.experiments.training import Training

for name in ("resnet", "gpt"):
    task = _task(name, "SGD", "cuda")
    for lib in ("std", "repro"):
        with patched(lib):
            tr = Training(task, SEED)
            bs = task.batches(SEED)
            nb = lambda: next(bs).cuda()
            for _ in range(5):
                tr.step(nb())
            torch.cuda.synchronize()
            t = time.perf_counter()
            for _ in range(10):
                tr.step(nb())
            d = time.perf_counter() - t
            torch.cuda.synchronize()
            print(
                name,
                lib,
                "step ms host",
                round(d * 100, 2),
                "total",
                round((time.perf_counter() - t) * 100, 2),
            )
            kern(lambda: tr.step(nb()), f"{name} {lib}", 18)
            if lib == "repro":
                p = cProfile.Profile()
                p.enable()
                for _ in range(5):
                    tr.step(nb())
                torch.cuda.synchronize()
                p.disable()
                io_ = io.StringIO()
                pstats.Stats(p, stream=io_).sort_stats("tottime").print_stats(40)
                print(io_.getvalue()[:6500], flush=True)
for s in (512, 1024, 4096):
    a, b = (torch.randn(s, s, device="cuda") for _ in range(2))
    kern(lambda: torch.mm(a, b), f"mm {s} stock")
    with patched("repro"):
        kern(lambda: torch.mm(a, b), f"mm {s} repro")
    for rows, cols, step, stages, warps in (
        (64, 64, 32, 2, 4),
        (32, 64, 32, 2, 4),
        (32, 32, 32, 3, 2),
        (64, 64, 16, 3, 4),
        (128, 128, 16, 3, 8),
        (128, 64, 16, 3, 4),
    ):
        try:
            for split_levels in ((3,) if s == 512 else ()) or (max(0, (s // 64 - 1).bit_length()),):
                for levels in (3, 1) if s == 512 else (split_levels,):
                    splits = -(-s // (64 << levels))
                    tiles = (s // rows) * (s // cols)
                    c = (
                        torch.empty(splits, s, s, device="cuda")
                        if splits > 1
                        else torch.empty(s, s, device="cuda")
                    )
                    progs = min(tiles * splits, 132 * 3)
                    w = torch.empty(progs * max(levels, 1) * rows * cols, device="cuda")
                    f = lambda: G._kernels().products[(progs,)](
                        a,
                        b,
                        c,
                        w,
                        s,
                        s,
                        s,
                        1,
                        splits,
                        0,
                        s,
                        1,
                        0,
                        s,
                        1,
                        LEVELS=levels,
                        CHUNK=64,
                        ROWS=rows,
                        COLUMNS=cols,
                        STEP=step,
                        WHOLE=True,
                        TILED=True,
                        num_warps=warps,
                        num_stages=stages,
                        enable_fp_fusion=False,
                    )
                    f()
                    g = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(g):
                        for _ in range(10):
                            f()
                    print(
                        "  products",
                        s,
                        (rows, cols, step, stages, warps),
                        "levels",
                        levels,
                        "splits",
                        splits,
                        "us",
                        round(ev(g.replay, 1, 9) * 100, 1),
                        flush=True,
                    )
        except Exception as e:
            print("  failed", (rows, cols, step, stages, warps), type(e).__name__, str(e)[:100])
