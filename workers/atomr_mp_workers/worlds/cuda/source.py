"""The kernels of collectives on GPUs, as text: one grid a collective, on every rank the same.

**Warps.** The first warp of a block *watches*: it compares what the ranks call, and ends the block's waits if they
differ, if the epoch is over, or if the kernel's own bound has passed. The other warps *work*. They send at once, and
write results once the watchers have found that all ranks call the same: where ranks differ, nothing is written.

**The stop word** lies in the host's memory, so that the supervisor can end the waits even where the process is stuck. A
look takes some 0.8 us, looks follow one after the other, and fences of scope `sys` wait for all of them: where one lane
of each of 64 blocks looked every 55 us, a chunk of 2 MiB took 147 us in place of 10 (two H200). So one look is made in
`LOOK_NS` by any block of the kernel, and the others glance at the table, in the device's memory.

**Headers.** Each collective has a number, its *sequence*, which the table counts in the device's memory; so a captured
graph is bound to no epoch. Block 0 stores what this rank calls into the mailboxes of its peers, and every block waits
for the headers of all peers before it ends. So a collective that has ended on one rank has begun on all, and the one
before it has ended on all; a part of a mailbox is used again two sequences later at the earliest.

**Order.** A header or a line of `push` is made of 64-bit words, each with 32 bits of data and 32 bits of the sequence
as its flag, that are stored and loaded by `relaxed` operations of scope `sys`. A vector of such words counts as several
operations in no order (PTX ISA, "Vector Data-types"), but each is one 64-bit access and is never seen in part ("Scalar
Data-types"), so a word whose flag has come has its data. No order between words is assumed. `pull` writes data by weak
stores; then a barrier of the block, and one thread stores the flag by `st.release.sys`, which is cumulative over what
the barrier has ordered before it; the peer's thread loads it by `ld.acquire.sys`, and a barrier orders the loads of its
block behind that ("Causality Order"). Weak loads see what was written so.

**Ends.** A kernel that ends early reports why on the process's page, and marks the table as broken: what is queued
behind it leaves at once. Only the host mends that.
"""

from __future__ import annotations

from typing import Final

TYPES: Final = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
"""

PRIMITIVES: Final = r"""
__device__ __forceinline__ u64 now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__device__ __forceinline__ void put2(u64 a, u64 x, u64 y) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" :: "l"(a), "l"(x), "l"(y) : "memory");
}
__device__ __forceinline__ void get2(u64 a, u64& x, u64& y) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(a) : "memory");
}
__device__ __forceinline__ void release(u64 a, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(a), "l"(v) : "memory");
}
__device__ __forceinline__ u64 acquire(u64 a) {
  u64 v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory"); return v;
}
__device__ __forceinline__ u64 peek(u64 a) {
  u64 v; asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory"); return v;
}
__device__ __forceinline__ void barrier(u32 which, u32 threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(which), "r"(threads) : "memory");
}
__device__ __forceinline__ float from_half(u16 bits) {
  float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits)); return f;
}
__device__ __forceinline__ u16 to_half(float v) {
  u16 bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v)); return bits;
}
"""
"""What the kernels take from PTX. A test has a form of it for the host, with another scheduler."""

KERNELS: Final = r"""

// The same numbers as in `layout`.
#define MAX_RANKS 64
#define PAGE_STOP 0
#define PAGE_CODE 8
#define PAGE_RANK 9
#define PAGE_SEQUENCE 10
#define PAGE_THEIRS 11
#define PAGE_OWN 14
#define PAGE_WAITING 20
#define PAGE_WAITS_IN 21
#define PAGE_GLANCED 23
#define STOPPED 1
#define LATE 2
#define MISMATCH 3
#define PAIRS 4
#define WORN 5
#define WATCHERS 32
#define THREADS 544
#define RESIDENT 2
#define PRODUCERS 128
#define CONSUMERS 384
#define RING 2
#define KERNEL __global__ void __launch_bounds__(THREADS, RESIDENT)
#define GLANCE_CYCLES 8192
#define LOOK_NS 50000
#define SHOWN_NS 1000000

struct Table {
  u64 sequence, call, bound_ns, epoch, looked;
  u32 ranks, rank, slot, broken, done, rehearses;
  u64 base[MAX_RANKS];
  u32 slot_of[MAX_RANKS];
};
struct Layout { u64 headers, flags, taken, flag_stride, lines, line_count, halves, half; };
struct Call { Table* table; u64* page; u64 first; u64 second; };

struct Shared { volatile u32 quit, agreed, left, bad, bad_producers, produced, consumed; u32 pairs[MAX_RANKS]; };

// Mark the epoch as broken, and say why, once. Every block finds that ranks differ. Block 0 marks it, after it has told
// the peers what this rank calls. If another block did, block 0 might not begin, and the peers would wait.
__device__ void report(const Call& c, Shared* sh, u32 code, u32 rank, u64 sequence, const u32* theirs) {
  sh->quit = code;
  if (blockIdx.x && (code == MISMATCH || code == PAIRS)) return;
  if (atomicCAS(&c.table->broken, 0u, code)) return;
  volatile u64* page = c.page;
  page[PAGE_RANK] = rank;
  page[PAGE_SEQUENCE] = sequence;
  for (int i = 0; i < 3; i++) page[PAGE_THEIRS + i] = theirs ? theirs[2 * i] | (u64)theirs[2 * i + 1] << 32 : 0;
  page[PAGE_OWN] = c.first;
  page[PAGE_OWN + 1] = (u32)c.second | (u64)(u32)c.table->call << 32;
  page[PAGE_OWN + 2] = c.table->call >> 32;
  __threadfence_system();
  page[PAGE_CODE] = code;
}

// Find out whether all ranks send to those that expect it from them.
__device__ void check_pairs(const Call& c, Shared* sh, u64 s, u32 n, u32 me) {
  for (u32 a = 0; a < n; a++) {
    u32 to = sh->pairs[a] & 0xffff, from = sh->pairs[a] >> 16;
    if ((to < n && (sh->pairs[to] >> 16) != a) || (from < n && (sh->pairs[from] & 0xffff) != a)) {
      u32 whom = to < n && (sh->pairs[to] >> 16) != a ? to : from;
      u32 said[6] = {a, sh->pairs[a], whom, sh->pairs[whom], 0, 0};
      report(c, sh, PAIRS, a == me ? whom : a, s, said);
      return;
    }
  }
}

// The first warp's part of a block.
__device__ void watch(const Call& c, const Layout& at, Shared* sh, u64 s, u32 warps, bool pairs) {
  Table* t = c.table;
  u32 lane = threadIdx.x, n = t->ranks, me = t->rank, flag = (u32)s, parity = s & 1;
  if (t->rehearses) return;
  u32 own[6] = {(u32)c.first, (u32)(c.first >> 32), (u32)c.second, (u32)t->call, (u32)(t->call >> 32),
                (u32)(c.second >> 32)};
  if (blockIdx.x == 0)
    for (u32 r = lane; r < n; r += WATCHERS)
      if (r != me) {
        u64 to = t->base[r] + at.headers + (t->slot * 2 + parity) * 64ull, up = (u64)flag << 32;
        for (int i = 0; i < 3; i++) put2(to + 16 * i, own[2 * i] | up, own[2 * i + 1] | up);
      }
  u64 since = now(), told = 0, bound = t->bound_ns;
  long long glanced = clock64();
  u32 r = lane;
  bool shown = false, compared = false;
  if (lane == me % WATCHERS && me < n) sh->pairs[me] = own[5];
  while (true) {
    while (r < n && r == me) r += WATCHERS;
    if (r < n) {
      u64 from = t->base[me] + at.headers + (t->slot_of[r] * 2 + parity) * 64ull, w[6];
      for (int i = 0; i < 3; i++) get2(from + 16 * i, w[2 * i], w[2 * i + 1]);
      bool come = true;
      u32 theirs[6];
      for (int i = 0; i < 6; i++) { come = come && (u32)(w[i] >> 32) == flag; theirs[i] = (u32)w[i]; }
      if (come) {
        for (int i = 0; i < 5; i++)
          if (theirs[i] != own[i]) { report(c, sh, MISMATCH, r, s, theirs); break; }
        sh->pairs[r] = theirs[5];
        r += WATCHERS;
      }
    }
    bool all = !__any_sync(0xffffffffu, r < n), ends = false;
    if (all && !compared) {
      compared = true;
      __syncwarp();
      if (lane == 0) {
        if (pairs && !sh->quit) check_pairs(c, sh, s, n, me);
        if (!sh->quit) sh->agreed = 1;
      }
    }
    if (lane == 0) {
      ends = sh->quit != 0 || (all && sh->left == warps);
      if (!ends && clock64() - glanced > GLANCE_CYCLES) {
        glanced = clock64();
        u64 time = now(), last = *(volatile u64*)&t->looked;
        if (u32 broken = *(volatile u32*)&t->broken) sh->quit = broken;
        else if (time - since > bound) report(c, sh, LATE, n, s, nullptr);
        else if (time - last > LOOK_NS && atomicCAS(&t->looked, last, time) == last) {
          if (((volatile u64*)c.page)[PAGE_STOP] >= t->epoch) report(c, sh, STOPPED, n, s, nullptr);
        }
        if (!all && blockIdx.x == 0 && time - since > SHOWN_NS) {
          if (!shown) {
            ((volatile u64*)c.page)[PAGE_WAITS_IN] = c.first;
            ((volatile u64*)c.page)[PAGE_WAITS_IN + 1] = (u32)c.second;
            __threadfence_system();
            ((volatile u64*)c.page)[PAGE_WAITING] = s;
          }
          if (!shown || time - told > LOOK_NS) {  // it depends on what the headers were, so it is stored behind that
            told = time;
            ((volatile u64*)c.page)[PAGE_GLANCED] = time;
          }
          shown = true;
        }
      }
    }
    if (__shfl_sync(0xffffffffu, (int)ends, 0)) break;
  }
  if (lane == 0 && shown) ((volatile u64*)c.page)[PAGE_WAITING] = 0;
}

// Wait until the watchers have compared what all ranks call; false if nothing may be written.
__device__ __forceinline__ bool agrees(const Table* t, Shared* sh) {
  if (t->rehearses) return true;
  while (!sh->agreed)
    if (sh->quit) return false;
  return true;
}

// What a block does first: false if this epoch is broken.
__device__ __forceinline__ bool begins(const Call& c, Shared* sh, u64* s) {
  if (threadIdx.x == 0) {
    sh->quit = sh->agreed = sh->left = 0;
    sh->bad = sh->bad_producers = sh->produced = sh->consumed = 0;
  }
  *s = *(volatile u64*)&c.table->sequence + 1;
  bool broken = *(volatile u32*)&c.table->broken != 0;
  return !__syncthreads_or(broken);
}
// What a block does last. The last one counts the sequence.
__device__ __forceinline__ void ends(const Call& c, Shared* sh, u64 s) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&c.table->done, 1u) == gridDim.x - 1) {
      c.table->done = 0;
      if (!*(volatile u32*)&c.table->broken) {
        *(volatile u64*)&c.table->sequence = s;
        if ((u32)(s + 2) == 0) report(c, sh, WORN, 0, s, nullptr);
      }
      __threadfence();
    }
  }
}
__device__ __forceinline__ void leaves(Shared* sh) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) { __threadfence_block(); atomicAdd((u32*)&sh->left, 1u); }
}

// --- elements ------------------------------------------------------------------------------------------------------

struct Half { u16 bits; };
struct Brain { u16 bits; };
struct Complex64 { float x, y; };
struct Complex128 { double x, y; };

template <class T> struct As { typedef T type; };
template <> struct As<Half> { typedef float type; };
template <> struct As<Brain> { typedef float type; };

template <class T> __device__ __forceinline__ T up(T v) { return v; }
__device__ __forceinline__ float up(Half v) { return from_half(v.bits); }
__device__ __forceinline__ float up(Brain v) { return __uint_as_float((u32)v.bits << 16); }

template <class T> struct Down { template <class A> static __device__ __forceinline__ T of(A v) { return v; } };
template <> struct Down<Half> { static __device__ __forceinline__ Half of(float v) { return {to_half(v)}; } };
template <> struct Down<Brain> {
  static __device__ __forceinline__ Brain of(float v) {
    u32 b = __float_as_uint(v);
    Brain h;
    h.bits = (b & 0x7fffffffu) > 0x7f800000u ? (u16)(b >> 16 | 0x40u) : (u16)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
    return h;
  }
};

#define GIVES 1
#define WANTS 2
#define PAIRED 4

#define SUM 0
#define PROD 1
#define MIN 2
#define MAX 3
#define AVG 4

template <class A> __device__ __forceinline__ A add(A a, A b) { return a + b; }
template <class A> __device__ __forceinline__ A times(A a, A b) { return a * b; }
template <class A> __device__ __forceinline__ A least(A a, A b) { return a < b || a != a ? a : b; }
template <class A> __device__ __forceinline__ A most(A a, A b) { return a > b || a != a ? a : b; }
template <class A> __device__ __forceinline__ A part(A a, u32 n) { return a / (A)n; }
#define COMPLEX(C, R) \
  __device__ __forceinline__ C add(C a, C b) { return {a.x + b.x, a.y + b.y}; } \
  __device__ __forceinline__ C times(C a, C b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; } \
  __device__ __forceinline__ C least(C a, C) { return a; } \
  __device__ __forceinline__ C most(C a, C) { return a; } \
  __device__ __forceinline__ C part(C a, u32 n) { return {a.x / (R)n, a.y / (R)n}; }
COMPLEX(Complex64, float)
COMPLEX(Complex128, double)

// Takes elements of the next rank to those of the ranks before it.
template <class A, class W, int N> __device__ __forceinline__ void take(A (&into)[N], const W (&more)[N], u32 op) {
  switch (op) {
    case PROD:
      #pragma unroll
      for (int e = 0; e < N; e++) into[e] = times(into[e], (A)up(more[e]));
      break;
    case MIN:
      #pragma unroll
      for (int e = 0; e < N; e++) into[e] = least(into[e], (A)up(more[e]));
      break;
    case MAX:
      #pragma unroll
      for (int e = 0; e < N; e++) into[e] = most(into[e], (A)up(more[e]));
      break;
    default:
      #pragma unroll
      for (int e = 0; e < N; e++) into[e] = add(into[e], (A)up(more[e]));
  }
}

// --- small: every rank sends all of its elements to all ------------------------------------------------------------

template <class W, class O>
KERNEL push(Call c, Layout at, const W* x, O* y, u64 count, u32 op, u32 wants) {
  __shared__ Shared sh;
  u64 s;
  if (!begins(c, &sh, &s)) { ends(c, &sh, s); return; }
  u32 workers = blockDim.x - WATCHERS;
  if (threadIdx.x < WATCHERS) watch(c, at, &sh, s, workers / 32, false);
  else {
    typedef typename As<W>::type A;
    constexpr int N = 8 / sizeof(W);
    Table* t = c.table;
    u32 n = t->ranks, me = t->rank, parity = s & 1, flag = (u32)s;
    u64 up_flag = (u64)flag << 32;
    bool alone = t->rehearses;
    u64 lines = (count + N - 1) / N, step = (u64)gridDim.x * workers;
    union Line { u64 word; W e[N]; };
    bool whole = ((u64)x & 7) == 0;
    for (u64 i = blockIdx.x * (u64)workers + threadIdx.x - WATCHERS; i < lines; i += step) {
      Line own;
      own.word = 0;
      if (whole && (i + 1) * N <= count) own.word = ((const u64*)x)[i];
      else
        for (int e = 0; e < N; e++) if (i * N + e < count) own.e[e] = x[i * N + e];
      if (!alone)
        for (u32 r = 0; r < n; r++)
          if (r != me)
            put2(t->base[r] + at.lines + ((t->slot * 2 + parity) * at.line_count + i) * 16,
                 (u32)own.word | up_flag, (u32)(own.word >> 32) | up_flag);
    }
    bool bad = false;
    for (u64 i = blockIdx.x * (u64)workers + threadIdx.x - WATCHERS; i < lines && !bad; i += step) {
      A sum[N];
      Line own;
      own.word = 0;
      if (whole && (i + 1) * N <= count) own.word = ((const u64*)x)[i];
      else
        for (int e = 0; e < N; e++) if (i * N + e < count) own.e[e] = x[i * N + e];
      for (u32 r = 0; r < n && !bad; r++) {
        Line line = own;
        if (r != me && !alone) {
          u64 from = t->base[me] + at.lines + ((t->slot_of[r] * 2 + parity) * at.line_count + i) * 16, a, b;
          while (true) {
            get2(from, a, b);
            if ((u32)(a >> 32) == flag && (u32)(b >> 32) == flag) break;
            if (sh.quit) { bad = true; break; }
          }
          line.word = (u32)a | b << 32;
        }
        if (r == 0)
          for (int e = 0; e < N; e++) sum[e] = (A)up(line.e[e]);
        else take(sum, line.e, op);
      }
      bad = bad || !agrees(t, &sh);
      if (bad || !wants) continue;
      if (op == AVG)
        for (int e = 0; e < N; e++) sum[e] = part(sum[e], n);
      for (int e = 0; e < N; e++) if (i * N + e < count) y[i * N + e] = Down<O>::of(sum[e]);
    }
    leaves(&sh);
  }
  ends(c, &sh, s);
}

// --- larger: own part into the own mailbox, meet, read the mailboxes of all ----------------------------------------

// The workers of a block wait for those of the same block on all ranks; false if they need not go on.
__device__ bool meet(const Call& c, const Layout& at, Shared* sh, u64 value, u32 workers) {
  Table* t = c.table;
  barrier(1, workers);
  if (t->rehearses) return true;
  for (u32 r = threadIdx.x - WATCHERS; r < t->ranks; r += workers)
    if (r != t->rank) release(t->base[r] + at.flags + blockIdx.x * at.flag_stride + t->slot * 8ull, value);
  for (u32 r = threadIdx.x - WATCHERS; r < t->ranks; r += workers)
    if (r != t->rank) {
      u64 mine = t->base[t->rank] + at.flags + blockIdx.x * at.flag_stride + t->slot_of[r] * 8ull;
      while (peek(mine) < value)
        if (sh->quit) { sh->bad = 1; break; }
      acquire(mine);
    }
  if (threadIdx.x == WATCHERS && !agrees(t, sh)) sh->bad = 1;
  barrier(1, workers);
  return !sh->bad;
}

__device__ __forceinline__ void copy(u8* to, const u8* from, u64 bytes, bool whole) {
  if (whole && bytes == 16) *(uint4*)to = *(const uint4*)from;
  else if ((((u64)to | (u64)from | bytes) & 3) == 0)
    for (u64 i = 0; i < bytes; i += 4) *(u32*)(to + i) = *(const u32*)(from + i);
  else
    for (u64 i = 0; i < bytes; i++) to[i] = from[i];
}

// Copies every `step`th group of 16 bytes from number `g` on, up to `end`. The last group may have fewer.
__device__ __forceinline__ void copy_groups(u8* to, const u8* from, u64 g, u64 end, u64 step, u64 bytes, bool whole) {
  u64 full = end < bytes / 16 ? end : bytes / 16;
  if (whole)
    for (; g + 3 * step < full; g += 4 * step) {
      uint4 v[4];
      #pragma unroll
      for (int k = 0; k < 4; k++) v[k] = ((const uint4*)from)[g + k * step];
      #pragma unroll
      for (int k = 0; k < 4; k++) ((uint4*)to)[g + k * step] = v[k];
    }
  for (; g < end; g += step) copy(to + 16 * g, from + 16 * g, bytes - 16 * g < 16 ? bytes - 16 * g : 16, whole);
}

// `rows` rows of `width` bytes.
struct Rows { const u8* x; u64 width, rows; };

__device__ __forceinline__ void gives(const Rows& in, u8* box, u64 room, u32 workers) {
  u64 first = blockIdx.x * (u64)workers + threadIdx.x - WATCHERS, step = (u64)gridDim.x * workers;
  bool whole = (((u64)in.x | in.width) & 15) == 0;
  for (u64 row = 0; row < in.rows; row++)
    copy_groups(box + row * room, in.x + row * in.width, first, (in.width + 15) / 16, step, in.width, whole);
}

// The rows that are written to `y`: all ranks' (from < 0), or those of one.
extern "C" KERNEL move(Call c, Layout at, Rows in, u8* y, int from, u32 how) {
  __shared__ Shared sh;
  u64 s;
  if (!begins(c, &sh, &s)) { ends(c, &sh, s); return; }
  u32 workers = blockDim.x - WATCHERS;
  if (threadIdx.x < WATCHERS) watch(c, at, &sh, s, workers / 32, how & PAIRED);
  else {
    Table* t = c.table;
    u32 n = t->ranks;
    u64 room = (in.width + 15) / 16 * 16, row = in.rows > 1 ? t->rank : 0, half = at.halves + (s & 1) * at.half;
    u64 step = (u64)gridDim.x * workers, first = blockIdx.x * (u64)workers + threadIdx.x - WATCHERS, bytes = in.width;
    bool whole = (((u64)y | in.width) & 15) == 0;
    if (how & GIVES) gives(in, (u8*)t->base[t->rank] + half, room, workers);
    if (meet(c, at, &sh, s << 20 | 1, workers) && (how & WANTS))
      for (u32 r = from < 0 ? 0 : from; r < (from < 0 ? n : from + 1); r++) {
        const u8* theirs = (const u8*)t->base[r] + half + row * room;
        copy_groups(y + (from < 0 ? r * in.width : 0), theirs, first, (bytes + 15) / 16, step, bytes, whole);
      }
    leaves(&sh);
  }
  ends(c, &sh, s);
}

template <class W, class O, int U>
__device__ __forceinline__ void reduce_groups(Table* t, u64 where, u64 g, u64 step, u8* y, u64 count, u32 op,
                                              bool whole) {
  typedef typename As<W>::type A;
  constexpr int N = 16 / sizeof(W);
  union Group { uint4 words; W e[N]; };
  A sum[U][N];
  u32 n = t->ranks;
  for (u32 r = 0; r < n; r++) {
    Group v[U];
    #pragma unroll
    for (int k = 0; k < U; k++) v[k].words = *(const uint4*)(t->base[r] + where + 16 * (g + k * step));
    #pragma unroll
    for (int k = 0; k < U; k++) {
      if (r == 0) {
        #pragma unroll
        for (int e = 0; e < N; e++) sum[k][e] = (A)up(v[k].e[e]);
      } else take(sum[k], v[k].e, op);
    }
  }
  #pragma unroll
  for (int k = 0; k < U; k++) {
    if (op == AVG) {
      #pragma unroll
      for (int e = 0; e < N; e++) sum[k][e] = part(sum[k][e], n);
    }
    u64 at = (g + k * step) * N;
    O out[N];
    #pragma unroll
    for (int e = 0; e < N; e++) out[e] = Down<O>::of(sum[k][e]);
    if (whole && at + N <= count) {
      if (sizeof(out) == 16) *(uint4*)((O*)y + at) = *(uint4*)out;
      else *(uint2*)((O*)y + at) = *(uint2*)out;
    } else
      for (int e = 0; e < N; e++) if (at + e < count) ((O*)y)[at + e] = out[e];
  }
}

template <class W, class O>
KERNEL pull(Call c, Layout at, Rows in, u8* y, u32 op, u32 how) {
  __shared__ Shared sh;
  u64 s;
  if (!begins(c, &sh, &s)) { ends(c, &sh, s); return; }
  u32 workers = blockDim.x - WATCHERS;
  if (threadIdx.x < WATCHERS) watch(c, at, &sh, s, workers / 32, false);
  else {
    Table* t = c.table;
    u64 room = (in.width + 15) / 16 * 16, row = in.rows > 1 ? t->rank : 0, half = at.halves + (s & 1) * at.half;
    u64 step = (u64)gridDim.x * workers, bytes = in.width;
    bool whole = ((u64)y & 15) == 0;
    gives(in, (u8*)t->base[t->rank] + half, room, workers);
    if (meet(c, at, &sh, s << 20 | 1, workers) && (how & WANTS)) {
      u64 where = half + row * room, count = bytes / sizeof(W);
      u64 g = blockIdx.x * (u64)workers + threadIdx.x - WATCHERS;
      constexpr int U = sizeof(W) >= 4 ? 4 : sizeof(W);
      for (; g + (U - 1) * step < (bytes + 15) / 16; g += U * step)
        reduce_groups<W, O, U>(t, where, g, step, y, count, op, whole);
      for (; g < (bytes + 15) / 16; g += step) reduce_groups<W, O, 1>(t, where, g, step, y, count, op, whole);
    }
    leaves(&sh);
  }
  ends(c, &sh, s);
}

// --- large: as much again is sent while what came before is read ---------------------------------------------------

// Some warps of a block put chunks into a ring in the mailbox, the others read those of all ranks. Each side tells the
// same block of its peers how far it is. Nobody waits at the end for readers: they have read all before this half is
// used again, two sequences later.
template <class Read>
__device__ __forceinline__ void flow(const Call& c, const Layout& at, Shared* sh, u64 s, const Rows& in, u32 how,
                                     Read read) {
  Table* t = c.table;
  u32 n = t->ranks, me = t->rank, worker = threadIdx.x - WATCHERS;
  bool alone = t->rehearses;
  u64 room = at.half / RING / in.rows / 16 * 16, ring = at.halves + (s & 1) * at.half;
  u64 flags = at.flags + blockIdx.x * at.flag_stride, taken = at.taken + blockIdx.x * at.flag_stride;
  u64 base = t->base[me];
  bool whole = (((u64)in.x | in.width) & 15) == 0;
  u32 k = 0;
  for (u64 begin = 0; begin < in.width; begin += room, k++) {
    u64 bytes = in.width - begin < room ? in.width - begin : room, groups = (bytes + 15) / 16;
    // The same part of all chunks: a block knows of its own part alone that it was read.
    u64 low = room / 16 * blockIdx.x / gridDim.x, high = room / 16 * (blockIdx.x + 1) / gridDim.x;
    high = high < groups ? high : groups;
    u64 slot = ring + k % RING * (at.half / RING);
    if (worker < PRODUCERS) {
      if (k >= RING) {
        u32 free = k - RING + 1;
        for (u32 r = worker; r < n; r += PRODUCERS) {
          bool own = r == me || alone;
          while (own ? sh->consumed < free : peek(base + taken + t->slot_of[r] * 8ull) < (s << 20 | free))
            if (sh->quit) { sh->bad_producers = 1; break; }
        }
        barrier(2, PRODUCERS);
        if (sh->bad_producers) break;
      }
      if (how & GIVES)
        for (u64 row = 0; row < in.rows; row++) {
          const u8* from = in.x + row * in.width + begin;
          copy_groups((u8*)base + slot + row * room, from, low + worker, high, PRODUCERS, bytes, whole);
        }
      __threadfence_block();
      barrier(2, PRODUCERS);
      if (!alone)
        for (u32 r = worker; r < n; r += PRODUCERS)
          if (r != me) release(t->base[r] + flags + t->slot * 8ull, s << 20 | (k + 1));
      if (worker == 0) sh->produced = k + 1;
    } else {
      u32 reader = worker - PRODUCERS;
      for (u32 r = reader; r < n; r += CONSUMERS) {
        bool own = r == me || alone;
        u64 mine = base + flags + t->slot_of[r] * 8ull;
        while (own ? sh->produced < k + 1 : peek(mine) < (s << 20 | (k + 1)))
          if (sh->quit) { sh->bad = 1; break; }
        if (own) __threadfence_block(); else acquire(mine);
      }
      if (k == 0 && reader == 0 && !agrees(t, sh)) sh->bad = 1;
      barrier(3, CONSUMERS);
      if (sh->bad) break;
      if (how & WANTS) read(slot, room, begin, bytes, low, high, reader);
      barrier(3, CONSUMERS);
      if (!alone)
        for (u32 r = reader; r < n; r += CONSUMERS)
          if (r != me) release(t->base[r] + taken + t->slot * 8ull, s << 20 | (k + 1));
      if (reader == 0) sh->consumed = k + 1;
    }
  }
}

template <class W, class O>
KERNEL flow_pull(Call c, Layout at, Rows in, u8* y, u32 op, u32 how) {
  __shared__ Shared sh;
  u64 s;
  if (!begins(c, &sh, &s)) { ends(c, &sh, s); return; }
  if (threadIdx.x < WATCHERS) watch(c, at, &sh, s, (THREADS - WATCHERS) / 32, false);
  else {
    Table* t = c.table;
    u64 row = in.rows > 1 ? t->rank : 0;
    bool whole = ((u64)y & 15) == 0;
    flow(c, at, &sh, s, in, how, [&](u64 slot, u64 room, u64 begin, u64 bytes, u64 low, u64 high, u32 reader) {
      u64 where = slot + row * room, count = bytes / sizeof(W), g = low + reader;
      u8* to = y + begin / sizeof(W) * sizeof(O);
      constexpr int U = sizeof(W) >= 4 ? 4 : sizeof(W);
      for (; g + (U - 1) * CONSUMERS < high; g += U * CONSUMERS)
        reduce_groups<W, O, U>(t, where, g, CONSUMERS, to, count, op, whole);
      for (; g < high; g += CONSUMERS) reduce_groups<W, O, 1>(t, where, g, CONSUMERS, to, count, op, whole);
    });
    leaves(&sh);
  }
  ends(c, &sh, s);
}

extern "C" KERNEL flow_move(Call c, Layout at, Rows in, u8* y, int from, u32 how) {
  __shared__ Shared sh;
  u64 s;
  if (!begins(c, &sh, &s)) { ends(c, &sh, s); return; }
  if (threadIdx.x < WATCHERS) watch(c, at, &sh, s, (THREADS - WATCHERS) / 32, how & PAIRED);
  else {
    Table* t = c.table;
    u64 row = in.rows > 1 ? t->rank : 0;
    bool whole = (((u64)y | in.width) & 15) == 0;
    u32 first = from < 0 ? 0 : from, last = from < 0 ? t->ranks : from + 1;
    flow(c, at, &sh, s, in, how, [&](u64 slot, u64 room, u64 begin, u64 bytes, u64 low, u64 high, u32 reader) {
      for (u32 r = first; r < last; r++) {
        const u8* theirs = (const u8*)t->base[r] + slot + row * room;
        u8* to = y + (from < 0 ? r * in.width : 0) + begin;
        copy_groups(to, theirs, low + reader, high, CONSUMERS, bytes, whole);
      }
    });
    leaves(&sh);
  }
  ends(c, &sh, s);
}

// This rank's elements, multiplied by a factor, in the type in which they are computed.
template <class T, class W> __global__ void scale(const T* x, W* y, u64 count, double real, double, long long whole) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
    if constexpr ((W)0.5f == (W)0) y[i] = (W)((u64)up(x[i]) * (u64)whole);
    else y[i] = (W)up(x[i]) * (W)real;
}
template <class C, class R> __device__ void turn(const C* x, C* y, u64 count, R real, R imaginary) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
    y[i] = times(x[i], C{real, imaginary});
}
template <> __global__ void scale(const Complex64* x, Complex64* y, u64 n, double real, double imaginary, long long) {
  turn(x, y, n, (float)real, (float)imaginary);
}
template <> __global__ void scale(const Complex128* x, Complex128* y, u64 n, double real, double imaginary, long long) {
  turn(x, y, n, real, imaginary);
}

// The first of a gang call. `mend` is the number of the collective that has broken the one before, 0 for none.
extern "C" __global__ void begin(Table* t, u64 call, u64 mend, u64 bound_ns) {
  t->call = call;
  t->bound_ns = bound_ns;
  if (mend) { t->sequence = mend; t->broken = 0; }
}
"""

SOURCE: Final = TYPES + PRIMITIVES + KERNELS
