"""Scratch: times of variants, profiles."""
import cProfile, io, pstats, subprocess, sys, time
import torch, triton
import triton.language as tl
from pytest_udftorch import patched
from pytest_udftorch.cuda import philox
from pytest_udftorch.contract import launching

def ev(f, n=10, r=9):
    f(); ts=[]
    for _ in range(r):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record()
        for _ in range(n): f()
        b.record(); b.synchronize(); ts.append(a.elapsed_time(b)/n)
    return sorted(ts)[len(ts)//2]
torch.backends.cuda.matmul.allow_tf32=torch.backends.cudnn.allow_tf32=False
print(torch.cuda.get_device_name(), torch.__version__, triton.__version__, flush=True)
out=torch.empty(1<<26,device="cuda"); n=out.numel()
for _ in range(3): print("stock normal_", ev(out.normal_), "uniform", ev(out.uniform_), "bernoulli", ev(lambda: out.bernoulli_(0.3)))
with patched("repro"):
    for _ in range(3): print("repro normal_", ev(out.normal_), "uniform", ev(out.uniform_), "bernoulli", ev(lambda: out.bernoulli_(0.3)))
for block in (256,512,1024):
    for warps in (2,4,8):
        f=lambda: philox.normals_of_places[(n//(4*block),)](out,n,12345678901,0.0,1.0,SCALED=False,SHIFTED=False,WHOLE=True,BLOCK=block,num_warps=warps,enable_fp_fusion=False)
        print("block",block,"warps",warps,round(ev(f),4),flush=True)
src=open("tests/libtorch/test_contract_cuda_kernels.py").read().split('VARIATES = """')[1].split('"""')[0]
open("/tmp/variates_i21.py","w").write(src)
r=subprocess.run([sys.executable,"/tmp/variates_i21.py","1","cuda"],capture_output=True,text=True)
print("exhaustive", r.stdout, r.stderr[-500:], flush=True)
del out
def host(f,n=300):
    f(); torch.cuda.synchronize(); t=time.perf_counter()
    for _ in range(n): f()
    d=time.perf_counter()-t; torch.cuda.synchronize(); e=time.perf_counter()-t
    return round(d/n*1e6,1), round(e/n*1e6,1)
for s in (64,256,512,1024,2048,4096):
    a,b=(torch.randn(s,s,device="cuda") for _ in range(2)); m=300 if s<2000 else 20
    st=host(lambda: torch.mm(a,b),m)
    with patched("repro"): print("mm",s,"stock host/total us",st,"repro",host(lambda: torch.mm(a,b),m),flush=True)
from benches.experiments.contract_digests_cuda import _task, SEED
from benches.experiments.training import Training
def kern(f,label,top=14):
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CUDA]) as p: f(); torch.cuda.synchronize()
    k={}
    for e in p.events():
        if str(e.device_type).endswith("CUDA") and "Optimizer" not in e.name:
            c=k.setdefault(e.name[:60],[0,0.0]); c[0]+=1; c[1]+=e.device_time
    print(label,"kernels",sum(v[0] for v in k.values()),"gpu us",round(sum(v[1] for v in k.values())))
    for nme,(c,t) in sorted(k.items(),key=lambda i:-i[1][1])[:top]: print("   ",c,round(t),nme)
    sys.stdout.flush()
for name in ("resnet","gpt","vit","lenet"):
    task=_task(name,"SGD","cuda")
    for lib in ("std","repro"):
        with patched(lib):
            tr=Training(task,SEED); bs=task.batches(SEED); nb=lambda: next(bs).cuda()
            for _ in range(5): tr.step(nb())
            torch.cuda.synchronize(); t=time.perf_counter()
            for _ in range(10): tr.step(nb())
            d=time.perf_counter()-t; torch.cuda.synchronize()
            print(name,lib,"step ms host",round(d*100,2),"total",round((time.perf_counter()-t)*100,2))
            if lib=="repro":
                kern(lambda: tr.step(nb()),f"{name} {lib}",12)
                if name in("resnet","gpt"):
                    p=cProfile.Profile(); p.enable()
                    for _ in range(5): tr.step(nb())
                    torch.cuda.synchronize(); p.disable(); io_=io.StringIO(); pstats.Stats(p,stream=io_).sort_stats("tottime").print_stats(34); print(io_.getvalue()[:5500],flush=True)
K=launching.kernels()
for s in (512,1024,4096):
    a,b=(torch.randn(s,s,device="cuda") for _ in range(2))
    g=torch.cuda.CUDAGraph(); torch.mm(a,b)
    with torch.cuda.graph(g):
        for _ in range(10): torch.mm(a,b)
    print("stock mm",s,"us",round(ev(g.replay,1,9)*100,1))
    for rows,cols,step,stages,warps in ((64,64,32,2,4),(32,32,32,2,4),(32,64,32,2,4),(64,64,16,3,4),(128,128,16,3,8),(128,64,16,3,4)):
        try:
            levels=max(0,(s//64-1).bit_length())
            tiles=(s//rows)*(s//cols); c=torch.empty(s,s,device="cuda"); progs=min(tiles,132*3)
            w=torch.empty(progs*levels*rows*cols,device="cuda")
            f=lambda: K.products[(progs,)](a,b,c,w,s,s,s,1,1,0,s,1,0,s,1,LEVELS=levels,CHUNK=64,ROWS=rows,COLUMNS=cols,STEP=step,WHOLE=True,TILED=True,num_warps=warps,num_stages=stages,enable_fp_fusion=False)
            f(); g=torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                for _ in range(10): f()
            print("  products",s,(rows,cols,step,stages,warps),"us",round(ev(g.replay,1,9)*100,1),flush=True)
        except Exception as e: print("  failed",(rows,cols,step,stages,warps),type(e).__name__,str(e)[:100])
