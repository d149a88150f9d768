"""Hostile CUDA sources, and what NVRTC makes of them; no GPU is needed.

Seen with NVRTC 13.0 for sm_90. "endless" means: not done in 12 s of processor time.
"""

from __future__ import annotations

import tempfile
from typing import Final

K: Final = 'extern "C" __global__ void k'
DIGITS: Final = "\n".join(f"#define {b} " + "+".join([a] * 10) for a, b in zip("xABCDEF", "ABCDEFG", strict=True))
FIFO: Final = f"{tempfile.gettempdir()}/hostile-sources.fifo"

SOURCES: Final = {
    # --- ends the process (SIGSEGV), also from a plain thread: a compiler must be a process of its own
    "crash_nested_if": ("SIGSEGV, 60 KB of source", K + "(int* x) {" + "if(x[0])" * 6000 + "x[0]=1;}"),
    "crash_unary": ("SIGSEGV", K + "(int* x) { x[0]=" + "- " * 6000 + "1; }"),
    "crash_ternary": ("SIGSEGV", K + "(int* x) { x[0]=" + "x[1]?2:" * 6000 + "1; }"),
    # --- never ends: a deadline, and SIGKILL
    "macro_bomb": ("endless", DIGITS + "\n" + K + "(int* p, int x) { p[0]=G; }"),
    "template_exponential": (
        "endless",
        "template<int N,int M> struct A{static const int v=A<N-1,2*M>::v+A<N-1,2*M+1>::v;}; "
        "template<int M> struct A<0,M>{static const int v=1;}; " + K + "(int* x) { x[0]=A<24,0>::v; }",
    ),
    "huge_unroll": (
        "endless",
        K + "(float* x, int n) {\n#pragma unroll\nfor(int i=0;i<10000000;i++) x[i%7]=x[i%11]*x[i%13]+i; }",
    ),
    "long_chain": ("endless", K + "(float* x) { float a=x[0];" + "a=a*a+x[1];" * 40000 + "x[0]=a; }"),
    "very_deep_unary": ("endless", K + "(int* x) { x[0]=" + "- " * 300000 + "1; }"),
    "include_fifo": ("endless: waits in open()", f'#include "{FIFO}"\n' + K + "() {}"),
    # --- slow or large, but ends
    "deep_parentheses": (
        "compiles, 7.0 s, 586 MiB",
        K + "(float* x) { x[0]=" + "(" * 200000 + "1" + ")" * 200000 + "; }",
    ),
    "deep_braces": ("compiles, 6.6 s, 675 MiB", K + "(float* x) {" + "{" * 300000 + "}" * 300000 + "}"),
    "deep_pointer": ("compiles, 4.4 s, 279 MiB", K + "(int" + "*" * 300000 + " x) {}"),
    "constexpr_loop": (
        "error, 4.4 s",
        "constexpr int f(){int s=0; for(long i=0;;++i) s^=1; return s;} "
        + K
        + "(int* x) { constexpr int v=f(); x[0]=v; }",
    ),
    "error_storm": ("error, a log of 400 KB: bound it", K + "(float* x) {" + "y;" * 200000 + "}"),
    # --- reads what it should not
    "include_passwd": ("error whose log shows the file's first line", '#include "/etc/passwd"\n' + K + "() {}"),
    "include_devzero": ("error: not a regular file", '#include "/dev/zero"\n' + K + "() {}"),
    "include_itself": ("error", "#include __FILE__\n"),
    "missing_header": ("error", "#include <nothere.h>\n"),
    # --- compiles, and must be refused or survived later
    "huge_array": (
        "compiles: 64 TiB of device memory; the load must fail typed",
        "__device__ char a[1ull<<46]; " + K + "() { a[0]=1; }",
    ),
    "nul_inside": ("compiles: what follows NUL is not seen; refuse NUL at the caller", K + "(float* x) {}\0 rubbish"),
    # --- plain errors, well told
    "syntax": ("error", K + "(float* x) { x[0]="),
    "template_recursion": (
        "error: excessive recursion",
        "template<int N> struct A{static const int v=A<N+1>::v;}; " + K + "(int* x) { x[0]=A<0>::v; }",
    ),
    "huge_shared": ("error of ptxas", K + "(float* x) { __shared__ float s[1<<20]; s[threadIdx.x]=1; x[0]=s[3]; }"),
    "bad_assembly": ("error of ptxas", K + '(float* x) { asm volatile("garbage.op %r1;"); }'),
    "not_utf8": ("error", K + "(float* x) {/*\udcff\udcfe*/}"),
    "good": ("compiles, 0.1-0.9 s", K + "(float* x) { x[0]=1; }"),
}
"""Sources by name, with what was seen of each."""
