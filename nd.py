exec(open('/tmp/tn.py').read().split("P=[")[0])
import re,subprocess,ctypes,torch,time,hashlib,os
from tcjit.mapping.nest.plan_nest import plan_nest
from tcjit.mapping.nest.cost import Core
from tcjit.codegen.tile_printer import TilePrinter
from tcjit.codegen.tile_loops import tile_tree
HEAD=r'''
#include <stdint.h>
#include <math.h>
#define min(a,b) ((a)<(b)?(a):(b))
#define max(a,b) ((a)>(b)?(a):(b))
#define floord(n,d) (((n)<0)?-((-(n)+(d)-1)/(d)):(n)/(d))
#define AI static inline __attribute__((always_inline))
typedef float tc_vec __attribute__((vector_size(64))); typedef float tc_vec_u __attribute__((vector_size(64),aligned(4),may_alias)); typedef int tc_ivec __attribute__((vector_size(64)));
typedef unsigned short tc_mask;
#define tc_all ((tc_mask)0xffff)
AI tc_vec tc_splat(float x){ return (tc_vec){0}+x; }
AI tc_vec tc_load(const float*p){ return *(const tc_vec_u*)p; }
AI tc_vec tc_load_masked(const float*p,tc_mask m){ return __builtin_ia32_loadups512_mask((const void*)p,(tc_vec){0},m); }
AI void tc_store(float*p,tc_vec v){ *(tc_vec_u*)p=v; }
AI void tc_store_masked(float*p,tc_vec v,tc_mask m){ __builtin_ia32_storeups512_mask((void*)p,v,m); }
AI void tc_scatter(float*p,long s,tc_vec v,tc_mask m){ for(int l=0;l<16;l++) if(m>>l&1) p[l*s]=v[l]; }
AI tc_vec tc_blend(tc_vec a,tc_vec b,tc_mask m){ return __builtin_ia32_blendmps_512_mask(a,b,m); }
AI tc_vec tc_max(tc_vec a,tc_vec b){ tc_vec r=__builtin_ia32_maxps512_mask(b,a,(tc_vec){0},-1,4); return tc_blend(r,b,__builtin_ia32_cmpps512_mask(b,b,3,-1,4)); }
AI tc_vec tc_min(tc_vec a,tc_vec b){ tc_vec r=__builtin_ia32_minps512_mask(b,a,(tc_vec){0},-1,4); return tc_blend(r,b,__builtin_ia32_cmpps512_mask(b,b,3,-1,4)); }
AI tc_vec tc_abs(tc_vec a){ return (tc_vec)((tc_ivec)a&0x7fffffff); }
AI float tc_across(tc_vec v){ float t[16]; *(tc_vec_u*)t=v; for(int h=8;h;h/=2) for(int i=0;i<h;i++) t[i]+=t[i+h]; return t[0]; }
AI tc_vec tc_load_even(const float*p){ return __builtin_shuffle(tc_load(p),tc_load(p+15),(tc_ivec){0,2,4,6,8,10,12,14,17,19,21,23,25,27,29,31}); }
AI tc_vec tc_load_even_masked(const float*p,tc_mask m){ return __builtin_shuffle(tc_load_masked(p,__builtin_ia32_pdep_si(m&255,0x5555)),tc_load_masked(p+15,__builtin_ia32_pdep_si(m>>8,0xAAAA)),(tc_ivec){0,2,4,6,8,10,12,14,17,19,21,23,25,27,29,31}); }
AI tc_vec tc_gather(const float*p,long s){ tc_vec r; for(int l=0;l<16;l++) r[l]=p[l*s]; return r; }
AI tc_vec tc_gather_masked(const float*p,long s,tc_mask m){ tc_vec r={0}; for(int l=0;l<16;l++) if(m>>l&1) r[l]=p[l*s]; return r; }
AI tc_mask tc_from(int64_t e){ return e>=0?0xffff:e<=-16?0:(tc_mask)(0xffff<<-e); }
AI tc_mask tc_until(int64_t e){ return e<0?0:e>=15?0xffff:(tc_mask)((2u<<e)-1); }
'''
ID={'+=':'0.0f','*=':'1.0f','max=':'-INFINITY','min=':'INFINITY'}
def kernel(text,sh):
    (s,d,v),=st(text,sh)
    q=restrict(s,d,v); verify_restrict(s,q,v)
    parts=split_residues(q); verify_split_residues(q,parts)
    body=""
    for k,(w,_) in enumerate(parts):
        r=drop_unit_dims(w.flat(),())
        again=True
        while again:
            again=False
            for o in r.dims:
                for i in r.dims:
                    if not again and o in r.dims and mergeable(r,o,i): r=merge(r,o,i); again=True
        p=plan_nest(r,Core()); t=tile(r,p.nest,16); verify_tiles(r,t)
        tp=TilePrinter(r,p.nest,t,p.operands,p.body,16)
        tree=tile_tree(r,p.nest,t,p.parallel)
        b=isl.AstBuild.from_context(isl.Set.read_from_str(r.domain.get_ctx(),"{ : }"))
        c=b.node_from_schedule(tree).to_C_str()
        def sub(m):
            a=[x.strip() for x in m.group(2).split(",") if x.strip()]
            kk=m.group(1)
            L=tp.start(ID[r.operator]) if kk=="I" else tp.store(a) if kk=="O" else tp.update(a,partial=kk=="P")
            return "{ "+"\n".join(L)+" }"
        c=re.sub(r"\b([IUPO])\(((?:[^()]|\([^()]*\))*)\);",sub,c)
        body+="{ "+tp.accumulators()+"\n"+c+"}\n"
    ins=[k for k in sh]; out=r.write.tensor
    src=HEAD+f"void f({', '.join('const float*restrict '+k for k in ins)}, float*restrict {out}) {{\n"+body+"}\n"
    fn="/tmp/nd_"+hashlib.sha1(src.encode()).hexdigest()[:8]; open(fn+".c","w").write(src)
    subprocess.run(["gcc","-O2","-march=native","-mprefer-vector-width=512","-fno-math-errno","-fno-trapping-math","-ffp-contract=fast","-mno-red-zone","-shared","-fPIC",fn+".c","-o",fn+".so","-lm"],check=True)
    return ctypes.CDLL(fn+".so").f,p,r
import torch.nn.functional as F
torch.set_num_threads(1)
P=[
("def f(float(N,C,H,W) I, float(C,O,4,4) K) -> (Y) { Y(n,o,h,w) +=! ((h+1-kh)%2 == 0 && (w+1-kw)%2 == 0 && h+1-kh >= 0 && (h+1-kh)/2 < H && w+1-kw >= 0 && (w+1-kw)/2 < W ? I(n,c,(h+1-kh)/2,(w+1-kw)/2)*K(c,o,kh,kw) : 0.0) where h in 0:2*H, w in 0:2*W }",{"I":(4,32,28,28),"K":(32,16,4,4)},lambda I,K:F.conv_transpose2d(I,K,stride=2,padding=1)),
("def f(float(N,C,H,W) I, float(O,C,3,3) K) -> (Y) { Y(n,o,h,w) +=! I(n,c,h+kh,w+kw)*K(o,c,kh,kw) }",{"I":(4,32,30,30),"K":(32,32,3,3)},lambda I,K:F.conv2d(I,K)),
("def f(float(N,C,H,W) I, float(C,3,3) K) -> (Y) { Y(n,c,h,w) +=! I(n,c,h+kh,w+kw)*K(c,kh,kw) }",{"I":(4,32,58,58),"K":(32,3,3)},lambda I,K:F.conv2d(I,K[:,None],groups=K.shape[0])),
("def f(float(B,M,K) A, float(B,K,N) D) -> (C) { C(b,m,n) +=! A(b,m,k)*D(b,k,n) }",{"A":(32,128,64),"D":(32,64,128)},lambda A,D:A@D),
("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k)*B(k,n) }",{"A":(100,70),"B":(70,90)},lambda A,B:A@B),
("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (k >= m && k <= n ? A(m,k)*B(k,n) : 0.0) }",{"A":(384,384),"B":(384,384)},lambda A,B:A.triu()@B.triu()),
("def f(float(B,C,H,W) X) -> (Y) { Y(b,c,h,w) max=! X(b,c,2*h+kh,2*w+kw) where kh in 0:3, kw in 0:3, h in 0:(H-3)/2+1, w in 0:(W-3)/2+1 }",{"X":(8,64,112,112)},lambda X:F.max_pool2d(X,3,2)),
("def f(float(M,N) A) -> (S) { S(j) +=! A(i,j) }",{"A":(8192,250)},lambda A:A.sum(0)),
("def f(float(M,N) A) -> (S) { S(i) +=! A(i,j) }",{"A":(8190,250)},lambda A:A.sum(1)),
("def f(float(M,N) A, float(N) x) -> (S) { S(i) +=! A(i,j) * x(j) }",{"A":(2048,2048),"x":(2048,)},lambda A,x:A@x),
("def f(float(I,K) A, float(J,K) B) -> (S) { S(i,j) +=! fabs(A(i,k)-B(j,k)) }",{"A":(512,64),"B":(500,64)},lambda A,B:torch.cdist(A,B,p=1)),
("def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k)*B(n,k) }",{"A":(64,100),"B":(77,100)},lambda A,B:A@B.T),
("def f(float(B,Q,K) S, float(B,K,D) V) -> (O) { O(b,q,d) +=! (k <= q ? S(b,q,k) * V(b,k,d) : 0.0) }",{"S":(8,512,512),"V":(8,512,64)},lambda S,V:S.tril()@V),
]
if __name__=="__main__":
    for text,sh,ref in P:
        try: f,p,r=kernel(text,sh)
        except Exception as e: print("FAIL",type(e).__name__,str(e)[:200]); continue
        a=[torch.randn(x) for x in sh.values()]; want=ref(*a).contiguous(); got=torch.full_like(want,7.)
        ptr=[ctypes.c_void_p(x.data_ptr()) for x in (*a,got)]; f(*ptr)
        err=((got-want).abs().max()/want.abs().max()).item()
        def tm(g):
            g(); b=1e9
            for _ in range(8):
                t0=time.perf_counter(); g(); b=min(b,time.perf_counter()-t0)
            return b
        x,y=tm(lambda:ref(*a)),tm(lambda:f(*ptr))
        print(f"err {err:.2g} ratio {x/y:.2f}", p.nest.leaf, [ (l.dim,l.block) for l in p.nest.loops])
