// What CUDA's kernels find on a GPU, for the host: blocks of threads that take turns on one thread of the host, and the
// primitives of `atomr_mp_workers.worlds.cuda.source`. The turns are drawn from a seed. Every access by which threads
// tell each other something may be followed by another thread's turn, in the middle of a pair of words too. Memory is
// seen by all in the order of the turns: what the host cannot show is a store that others see late.
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace emulated {

struct Dim { unsigned x; };

struct Fiber;

// Threads that wait for each other, and what they have agreed on.
struct Meeting {
  std::vector<Fiber*> waiting;
  unsigned arrived = 0;
  int any = 0, first = 0, agreed_any = 0, agreed_first = 0;
};

struct Block {
  alignas(16) unsigned char shared[2048] = {};
  Meeting all, named[16];
  std::vector<Meeting> warps;
};

struct Fiber {
  ucontext_t context;
  Dim thread, block, block_dim, grid_dim;
  Block* home;
  unsigned rank, group;
  void (*run)(const void*);
  const void* launch;
  bool over;
  void* stack;
};

inline Fiber* current = nullptr;
inline ucontext_t scheduler;
inline uint64_t state = 1, steps = 0;
inline std::vector<Fiber*> ready;

inline uint64_t draw() {
  state ^= state << 13; state ^= state >> 7; state ^= state << 17;
  return state;
}
inline void leave() { swapcontext(&current->context, &scheduler); }
inline void turn() {
  if (draw() & 1) { ready.push_back(current); leave(); }
}
inline void meet(Meeting& m, unsigned expected, int any, int first, bool is_first) {
  m.any |= any;
  if (is_first) m.first = first;
  if (++m.arrived < expected) {
    m.waiting.push_back(current);
    leave();
    return;
  }
  m.agreed_any = m.any; m.agreed_first = m.first; m.any = m.first = 0; m.arrived = 0;
  for (Fiber* each : m.waiting) ready.push_back(each);
  m.waiting.clear();
  turn();
}
inline Meeting& warp() { return current->home->warps[current->thread.x / 32]; }
inline unsigned lanes() {
  unsigned rest = current->block_dim.x - current->thread.x / 32 * 32;
  return rest < 32 ? rest : 32;
}

// A word of shared memory by which the threads of a block tell each other something.
struct Watched {
  unsigned word;
  operator unsigned() const { turn(); return *(const volatile unsigned*)&word; }
  Watched& operator=(unsigned value) { *(volatile unsigned*)&word = value; turn(); return *this; }
};

}  // namespace emulated

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (emulated::current->thread)
#define blockIdx (emulated::current->block)
#define blockDim (emulated::current->block_dim)
#define gridDim (emulated::current->grid_dim)

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

inline void __syncthreads() { emulated::meet(emulated::current->home->all, blockDim.x, 0, 0, false); }
inline int __syncthreads_or(int value) {
  emulated::Meeting& m = emulated::current->home->all;
  emulated::meet(m, blockDim.x, value, 0, false);
  return m.agreed_any;
}
inline void __syncwarp() { emulated::meet(emulated::warp(), emulated::lanes(), 0, 0, false); }
inline bool __any_sync(unsigned, int value) {
  emulated::Meeting& m = emulated::warp();
  emulated::meet(m, emulated::lanes(), value, 0, false);
  return m.agreed_any;
}
inline int __shfl_sync(unsigned, int value, int) {
  emulated::Meeting& m = emulated::warp();
  emulated::meet(m, emulated::lanes(), 0, value, threadIdx.x % 32 == 0);
  return m.agreed_first;
}
inline void __threadfence() { emulated::turn(); }
inline void __threadfence_block() { emulated::turn(); }
inline void __threadfence_system() { emulated::turn(); }
inline long long clock64() { return emulated::steps * 100; }
template <class T> T atomicCAS(T* at, T expected, T value) {
  T found = *at;
  if (found == expected) *at = value;
  emulated::turn();
  return found;
}
template <class T> T atomicAdd(T* at, T value) { T found = *at; *at = found + value; emulated::turn(); return found; }
inline unsigned __float_as_uint(float v) { unsigned u; __builtin_memcpy(&u, &v, 4); return u; }
inline float __uint_as_float(unsigned u) { float v; __builtin_memcpy(&v, &u, 4); return v; }

// --- the primitives ------------------------------------------------------------------------------------------------

inline u64 now() { return emulated::steps * 50; }
inline u64& word(u64 at) { return *(u64*)at; }
inline void put2(u64 a, u64 x, u64 y) {
  bool second = emulated::draw() & 1;
  word(second ? a + 8 : a) = second ? y : x;
  emulated::turn();
  word(second ? a : a + 8) = second ? x : y;
  emulated::turn();
}
inline void get2(u64 a, u64& x, u64& y) {
  bool second = emulated::draw() & 1;
  (second ? y : x) = word(second ? a + 8 : a);
  emulated::turn();
  (second ? x : y) = word(second ? a : a + 8);
  emulated::turn();
}
inline void release(u64 a, u64 v) { emulated::turn(); word(a) = v; emulated::turn(); }
inline u64 acquire(u64 a) { emulated::turn(); return word(a); }
inline u64 peek(u64 a) { emulated::turn(); return word(a); }
inline void barrier(u32 which, u32 threads) {
  emulated::meet(emulated::current->home->named[which], threads, 0, 0, false);
}
inline float from_half(u16 bits) { _Float16 h; __builtin_memcpy(&h, &bits, 2); return (float)h; }
inline u16 to_half(float v) { _Float16 h = (_Float16)v; u16 bits; __builtin_memcpy(&bits, &h, 2); return bits; }
