// Runs launches of the kernels above: those of one rank one behind the other, those of several ranks beside each other.
#include <algorithm>
#include <deque>
#include <memory>

struct Launch {
  u32 rank, kernel, type, blocks, threads, unused;
  Call call;
  Layout at;
  u64 x, width, rows, y, count;
  u32 op, how;
  int from, unused_too;
};

template <class T> void reduce(const Launch& l) {
  switch (l.kernel) {
    case 1: push<T, T>(l.call, l.at, (const T*)l.x, (T*)l.y, l.count, l.op, l.how & WANTS); break;
    case 2: pull<T, T>(l.call, l.at, {(const u8*)l.x, l.width, l.rows}, (u8*)l.y, l.op, l.how); break;
    default: flow_pull<T, T>(l.call, l.at, {(const u8*)l.x, l.width, l.rows}, (u8*)l.y, l.op, l.how);
  }
}

void one_thread(const void* given) {
  const Launch& l = *(const Launch*)given;
  if (l.kernel == 0) begin(l.call.table, l.x, l.width, l.rows);
  else if (l.kernel == 4) move(l.call, l.at, {(const u8*)l.x, l.width, l.rows}, (u8*)l.y, l.from, l.how);
  else if (l.kernel == 5) flow_move(l.call, l.at, {(const u8*)l.x, l.width, l.rows}, (u8*)l.y, l.from, l.how);
  else
    switch (l.type) {
      case 0: reduce<float>(l); break;
      case 1: reduce<int>(l); break;
      case 2: reduce<signed char>(l); break;
      case 3: reduce<Half>(l); break;
      default: reduce<Brain>(l);
    }
}

namespace emulated {

std::vector<std::unique_ptr<char[]>> stacks;
std::vector<void*> free_stacks;
constexpr size_t STACK = 64 * 1024;

void enter() {
  current->run(current->launch);
  current->over = true;
  leave();
}

void start(const Launch& l, std::deque<Block>& blocks, std::deque<Fiber>& fibers) {
  for (unsigned b = 0; b < l.blocks; b++) {
    Block& block = blocks.emplace_back();
    block.warps.resize((l.threads + 31) / 32);
    for (unsigned t = 0; t < l.threads; t++) {
      Fiber& f = fibers.emplace_back();
      f.thread = {t}; f.block = {b}; f.block_dim = {l.threads}; f.grid_dim = {l.blocks};
      f.home = &block; f.rank = l.rank; f.group = (l.rank * 8 + b) * 16 + t / 32;
      f.run = one_thread; f.launch = &l; f.over = false;
      if (free_stacks.empty()) {
        stacks.emplace_back(new char[STACK]);
        free_stacks.push_back(stacks.back().get());
      }
      f.stack = free_stacks.back(); free_stacks.pop_back();
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack; f.context.uc_stack.ss_size = STACK; f.context.uc_link = nullptr;
      makecontext(&f.context, enter, 0);
      ready.push_back(&f);
    }
  }
}

}  // namespace emulated

// Return how many turns were taken; -1 if the launches have not ended within so many. At `fault_at` the ranks in `dead`
// stop for ever, and at `stop_at` the stop word of every page is set to `epoch`.
extern "C" long long run(const Launch* launches, u32 count, u32 ranks, u64 seed, u64 most, u64 fault_at, u64 dead,
                         u64 stop_at, u64 epoch, u64** pages) {
  using namespace emulated;
  state = seed * 0x9e3779b97f4a7c15ull | 1; steps = 0; ready.clear();
  std::vector<std::deque<const Launch*>> queues(ranks);
  for (u32 i = 0; i < count; i++) queues[launches[i].rank].push_back(&launches[i]);
  std::vector<std::deque<Block>> blocks(ranks);
  std::vector<std::deque<Fiber>> fibers(ranks);
  std::vector<unsigned> left(ranks, 0);
  uint64_t slow = 0, until = 0, gone = 0;
  auto next = [&](u32 rank) {
    for (Fiber& f : fibers[rank]) free_stacks.push_back(f.stack);
    fibers[rank].clear(); blocks[rank].clear();
    if (queues[rank].empty()) return;
    const Launch& l = *queues[rank].front();
    queues[rank].pop_front();
    start(l, blocks[rank], fibers[rank]);
    left[rank] = l.blocks * l.threads;
  };
  for (u32 rank = 0; rank < ranks; rank++) next(rank);
  while (!ready.empty()) {
    if (++steps > most) break;
    if (steps == fault_at) {
      gone = dead;
      ready.erase(std::remove_if(ready.begin(), ready.end(), [&](Fiber* f) { return gone >> f->rank & 1; }), ready.end());
      if (ready.empty()) break;
    }
    if (steps == stop_at)
      for (u32 rank = 0; rank < ranks; rank++) pages[rank][PAGE_STOP] = epoch;
    if (steps >= until) { slow = draw() & draw(); until = steps + draw() % 4096; }
    size_t at = draw() % ready.size();
    for (int tries = 0; tries < 8 && slow >> (ready[at]->group * 0x9e3779b9u >> 26) & 1; tries++) at = draw() % ready.size();
    current = ready[at];
    ready[at] = ready.back(); ready.pop_back();
    swapcontext(&scheduler, &current->context);
    if (current->over && --left[current->rank] == 0) next(current->rank);
  }
  bool ended = true;
  for (u32 rank = 0; rank < ranks; rank++) {
    ended = ended && (gone >> rank & 1 || (left[rank] == 0 && queues[rank].empty()));
    for (Fiber& f : fibers[rank]) free_stacks.push_back(f.stack);
  }
  return ended ? (long long)steps : -1;
}
