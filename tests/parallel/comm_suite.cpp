#include "tests/parallel/comm_suite.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <thread>

#include "kernels/core/rng.h"
#include "parallel/comm/call.h"
#include "parallel/comm/threads/thread_group.h"
#include "tests/parallel/exchanges.h"

namespace gt::suite {
namespace {

constexpr DType kExact[] = {DType::kF32, DType::kF64, DType::kI32, DType::kI64};

uint64_t bits(uint64_t call, int rank, int64_t i) {
  return splitmix64(splitmix64(call * 1315423911u + static_cast<uint64_t>(rank)) + static_cast<uint64_t>(i));
}

// Magnitudes from 2^-8 to 2^7 with both signs, so that results depend on the order of additions.
double number(uint64_t b) {
  return (static_cast<double>(b & 0xFFFFF) / 1048576.0 - 0.5) * static_cast<double>(1u << (b >> 60)) / 256.0;
}

void set(const Tensor& t, int64_t i, uint64_t b) {
  switch (t.dtype) {
    case DType::kF32: t.as<float>()[i] = static_cast<float>(number(b)); return;
    case DType::kF64: t.as<double>()[i] = number(b) * 1.000000001; return;
    case DType::kI32: t.as<int32_t>()[i] = static_cast<int32_t>(b >> 40); return;
    case DType::kI64: t.as<int64_t>()[i] = static_cast<int64_t>(b) >> 8; return;
    case DType::kByte:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2: t.as<uint8_t>()[i] = static_cast<uint8_t>(b); return;
    default:
      t.as<uint16_t>()[i] = static_cast<uint16_t>(0x3F80u | (b & 0x807Fu));
      return;  // bf16 in [1, 2) or (-2, -1]
  }
}

template <class T>
void fold(const Tensor& acc, const Tensor& x, ReduceOp op) {
  for (int64_t i = 0; i < acc.numel(); ++i) {
    T &a = acc.as<T>()[i], b = x.as<T>()[i];
    if (op == ReduceOp::kSum) a = a + b;
    if (op == ReduceOp::kMax) a = std::max(a, b);
    if (op == ReduceOp::kMin) a = std::min(a, b);
  }
}

void expect_same(const Tensor& got, const Tensor& expected, const std::string& what) {
  GT_CHECK(got.bytes() == expected.bytes(), what, ": sizes");
  const int64_t e = size_of(got.dtype);
  for (int64_t i = 0; i < got.numel(); ++i) {
    GT_CHECK(std::memcmp(got.data + i * e, expected.data + i * e, static_cast<size_t>(e)) == 0, what, ": element ", i,
             " of ", got.numel(), " differs from the reference");
  }
}

std::unique_ptr<ProcessGroup> whole_world(GroupFactory& f) {
  std::vector<int> all(static_cast<size_t>(f.world_size()));
  std::iota(all.begin(), all.end(), 0);
  auto g = f.make(all);
  g->set_label("suite world");
  return g;
}

Tensor part(const Tensor& full, int size, int i) { return full.slice(full.numel() / size * i, full.numel() / size); }

Block concatenation(int64_t shard, DType t, uint64_t call, int ranks) {
  Block full(shard * ranks, t);
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < shard; ++i) set(full.tensor, r * shard + i, bits(call, r, i));
  }
  return full;
}

// Runs each collective once, with n elements per rank.
void each_collective(ProcessGroup& g, int64_t n, DType t, uint64_t& call) {
  const int N = g.size(), me = g.rank();
  const std::string what = cat(g.backend(), " N=", N, " n=", n, " ", name_of(t));
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    Block x = make_input(n, t, ++call, me);
    g.all_reduce(x.tensor, op, {}).wait({});
    expect_same(x.tensor, reference_reduce(n, t, call, N, op).tensor, "all_reduce " + what);
  }
  Block shard = make_input(n, t, ++call, me), full(n * N, t);
  g.all_gather(shard.tensor, full.tensor, {}).wait({});
  expect_same(full.tensor, concatenation(n, t, call, N).tensor, "all_gather " + what);

  Block parts = make_input(n * N, t, ++call, me), mine(n, t);
  g.reduce_scatter(parts.tensor, mine.tensor, {}).wait({});
  expect_same(mine.tensor, part(reference_reduce(n * N, t, call, N, ReduceOp::kSum).tensor, N, me),
              "reduce_scatter " + what);
  for (int root : {0, N - 1}) {
    Block x = make_input(n, t, ++call, me);
    g.broadcast(x.tensor, root, {}).wait({});
    expect_same(x.tensor, make_input(n, t, call, root).tensor, "broadcast " + what);
  }
}

// What rank `me` receives of inputs make_input(total, t, call, rank), with the order of ranks written out.
Block received(const Exchange& x, DType t, uint64_t call, int me) {
  int64_t n = 0;
  for (const int64_t rows : x.receives(me)) n += rows * x.width;
  Block out(n, t);
  int64_t to = 0;
  for (int from = 0; from < static_cast<int>(x.rows.size()); ++from) {
    int64_t first = 0;
    for (int j = 0; j < me; ++j) first += x.sends(from)[Exchange::at(j)] * x.width;
    const int64_t count = x.sends(from)[Exchange::at(me)] * x.width;
    for (int64_t i = 0; i < count; ++i) set(out.tensor, to++, bits(call, from, first + i));
  }
  return out;
}

void exchange(ProcessGroup& g, const Exchange& x, DType t, uint64_t call) {
  const int me = g.rank();
  const std::string what = cat("all_to_all_v ", g.backend(), " N=", g.size(), " ", x.name, " ", name_of(t));
  const Block expected = received(x, t, call, me), send = make_input(x.total(me), t, call, me);
  Block recv(expected.tensor.numel(), t);
  const std::vector<int64_t> sends = x.sends(me), receives = x.receives(me);
  g.all_to_all(send.tensor, recv.tensor, {sends, receives, x.width}, {}).wait({});
  expect_same(recv.tensor, expected.tensor, what);
  for (size_t i = static_cast<size_t>(recv.tensor.bytes()); i < recv.bytes.size(); ++i)
    GT_CHECK(recv.bytes[i] == std::byte{0}, what, ": byte ", i, " behind the tensor was written");
}

}  // namespace

std::vector<std::string> run_threads(int ranks, const std::function<void(GroupFactory&)>& body,
                                     std::chrono::milliseconds deadline) {
  ThreadWorld world(ranks, deadline);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        auto f = world.factory(r);
        body(*f);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
        world.abort(r, e.what());
      }
    });
  }
  for (auto& t : threads) t.join();
  return errors;
}

Block make_input(int64_t n, DType t, uint64_t call, int rank) {
  Block b(n, t);
  for (int64_t i = 0; i < n; ++i) set(b.tensor, i, bits(call, rank, i));
  return b;
}

Block reference_reduce(int64_t n, DType t, uint64_t call, int ranks, ReduceOp op) {
  Block acc = make_input(n, t, call, 0);
  for (int r = 1; r < ranks; ++r) {
    const Block x = make_input(n, t, call, r);
    if (t == DType::kF32) fold<float>(acc.tensor, x.tensor, op);
    if (t == DType::kF64) fold<double>(acc.tensor, x.tensor, op);
    if (t == DType::kI32) fold<int32_t>(acc.tensor, x.tensor, op);
    if (t == DType::kI64) fold<int64_t>(acc.tensor, x.tensor, op);
    if (t == DType::kByte) fold<uint8_t>(acc.tensor, x.tensor, op);
  }
  return acc;
}

void every_collective_equals_the_serial_reference(GroupFactory& f) {
  auto g = whole_world(f);
  uint64_t call = 0;
  for (DType t : kExact) {
    for (int64_t n : {0, 1, 2, 3, 7, 64, 1001, 5003}) each_collective(*g, n, t, call);
  }
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    Block x = make_input(33, DType::kByte, ++call, g->rank());
    g->all_reduce(x.tensor, op, {}).wait({});
    expect_same(x.tensor, reference_reduce(33, DType::kByte, call, g->size(), op).tensor, "byte all_reduce");
  }
  g->barrier();
}

void large_tensors(GroupFactory& f) {
  auto g = whole_world(f);
  uint64_t call = 9000;
  const int64_t n = (1 << 20) + 5, N = g->size();
  Block x = make_input(n, DType::kF32, ++call, g->rank());
  g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
  expect_same(x.tensor, reference_reduce(n, DType::kF32, call, g->size(), ReduceOp::kSum).tensor, "large all_reduce");
  const int64_t shard = (1 << 19) / N + 3;
  each_collective(*g, shard, DType::kF64, call);
}

void aliased_shards(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  for (int64_t n : {1, 5, 3000, 70001}) {
    Block full(n * N, DType::kF32);
    const Block own = make_input(n, DType::kF32, 41, me);
    std::memcpy(part(full.tensor, N, me).data, own.tensor.data, static_cast<size_t>(own.tensor.bytes()));
    g->all_gather(part(full.tensor, N, me), full.tensor, {}).wait({});
    expect_same(full.tensor, concatenation(n, DType::kF32, 41, N).tensor, "all_gather in place");

    Block grads = make_input(n * N, DType::kF32, 42, me);
    g->reduce_scatter(grads.tensor, part(grads.tensor, N, me), {}).wait({});
    expect_same(part(grads.tensor, N, me),
                part(reference_reduce(n * N, DType::kF32, 42, N, ReduceOp::kSum).tensor, N, me),
                "reduce_scatter in place");
  }
}

void reductions_of_16bit_types(GroupFactory& f) {
  auto g = whole_world(f);
  // Small integers are exact in both formats, so the expected sum needs no conversion routine of this test. 1.0 is
  // 0x3F80 in bf16 and 0x3C00 in f16; powers of two differ in the exponent field.
  for (auto [type, one, exponent] : {std::tuple(DType::kBF16, 0x3F80, 0x80), std::tuple(DType::kF16, 0x3C00, 0x400)}) {
    Block x(1000, type);
    for (int i = 0; i < 1000; ++i) x.tensor.as<uint16_t>()[i] = static_cast<uint16_t>(one);
    g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
    int power = 0;
    while ((2 << power) <= g->size()) ++power;
    const int expected =
        one + power * exponent;  // 2^power <= size < 2^(power+1): the field must match, the mantissa for powers
    for (int i = 0; i < 1000; ++i) {
      const int got = x.tensor.as<uint16_t>()[i];
      GT_CHECK(got / exponent == expected / exponent && ((1 << power) != g->size() || got == expected), name_of(type),
               " sum of ", g->size(), " ones is ", got, ", expected ", expected);
    }
  }
}

namespace {
// An integer of magnitude below 256, exact in bf16 and f16.
uint16_t small_number(int v, DType t) {
  if (v == 0) return 0;
  int magnitude = std::abs(v), exponent = 0;
  while (magnitude >> (exponent + 1)) ++exponent;
  const int bits = t == DType::kBF16 ? 7 : 10, bias = t == DType::kBF16 ? 127 : 15;
  const int mantissa = (magnitude << bits >> exponent) - (1 << bits);
  return static_cast<uint16_t>((v < 0 ? 0x8000 : 0) | (exponent + bias) << bits | mantissa);
}
}  // namespace

void every_dtype_moves(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  uint64_t call = 500;
  for (DType t : {DType::kBF16, DType::kF16, DType::kU16, DType::kByte, DType::kI64}) {
    for (int64_t n : {0, 1, 3, 1001, 30011}) {
      const std::string what = cat(name_of(t), " n=", n);
      const Block shard = make_input(n, t, ++call, me);
      Block full(n * N, t);
      g->all_gather(shard.tensor, full.tensor, {}).wait({});
      expect_same(full.tensor, concatenation(n, t, call, N).tensor, "all_gather " + what);
      Block x = make_input(n, t, ++call, me);
      g->broadcast(x.tensor, N - 1, {}).wait({});
      expect_same(x.tensor, make_input(n, t, call, N - 1).tensor, "broadcast " + what);
      if (N == 1) continue;
      const Block out = make_input(n, t, ++call, me);
      Block in(n, t);
      Work sending = g->send(out.tensor, (me + 1) % N, 3, {}), receiving = g->recv(in.tensor, (me + N - 1) % N, 3, {});
      receiving.wait({}), sending.wait({});
      expect_same(in.tensor, make_input(n, t, call, (me + N - 1) % N).tensor, "message " + what);
    }
  }
  // Sums, maxima and reduce-scatter in both 16-bit dtypes; integers, so that every order gives the same result.
  for (DType t : {DType::kBF16, DType::kF16}) {
    const auto value = [](int rank, int64_t i) { return static_cast<int>((rank * 7 + i * 3) % 17) - 8; };
    const int64_t n = 1201;
    Block parts(n * N, t), mine(n, t), most(n, t);
    for (int64_t i = 0; i < n * N; ++i) parts.tensor.as<uint16_t>()[i] = small_number(value(me, i), t);
    std::memcpy(most.tensor.data, parts.tensor.data, static_cast<size_t>(most.tensor.bytes()));
    g->reduce_scatter(parts.tensor, mine.tensor, {}).wait({});
    g->all_reduce(most.tensor, ReduceOp::kMax, {}).wait({});
    for (int64_t i = 0; i < n; ++i) {
      int sum = 0, max = -9;
      for (int r = 0; r < N; ++r) sum += value(r, me * n + i), max = std::max(max, value(r, i));
      GT_CHECK(mine.tensor.as<uint16_t>()[i] == small_number(sum, t), name_of(t), " reduce_scatter, element ", i);
      GT_CHECK(most.tensor.as<uint16_t>()[i] == small_number(max, t), name_of(t), " maximum, element ", i);
    }
  }
  // Added in f32 and rounded once: 256 + 1 + 1 + … would stay 256 if each sum were rounded to bf16.
  Block x(700, DType::kBF16);
  for (int i = 0; i < 700; ++i) x.tensor.as<uint16_t>()[i] = me == 0 ? 0x4380 : 0x3F80;
  g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
  const int odd = (N - 1) % 4, above = (N - 1) / 4 * 2 + (odd == 0 ? 0 : odd == 3 ? 2 : odd == 2 ? 1 : 0);
  for (int i = 0; i < 700; ++i)
    GT_CHECK(x.tensor.as<uint16_t>()[i] == 0x4380 + above, "256 + ", N - 1, " is ", x.tensor.as<uint16_t>()[i]);
}

void all_to_alls_equal_the_serial_reference(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  uint64_t call = 700;
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI32,
                        DType::kU16, DType::kByte, DType::kF64, DType::kI64, DType::kI8})
    for (const Exchange& x : exchanges(N)) exchange(*g, x, t, ++call);
  for (const DType t : {DType::kF32, DType::kBF16, DType::kByte, DType::kI64})
    for (const int64_t n : {0, 1, 3, 1001}) {
      const Exchange x = exchange_by("equal", N, 1, [&](int, int) { return n; });
      const Block send = make_input(n * N, t, ++call, me);
      Block recv(n * N, t);
      g->all_to_all(send.tensor, recv.tensor, {}, {}).wait({});
      expect_same(recv.tensor, received(x, t, call, me).tensor, cat("all_to_all of ", n, " ", name_of(t)));
    }
  // Chunks of shared memory: parts larger than one, and parts of none beside them.
  exchange(*g, exchange_by("large", N, 1, [&](int i, int j) { return (i + j) % 2 == 0 ? 90'001 + 70'001 * i : j; }),
           DType::kF64, ++call);
  const auto back = [&](int i, int j) {
    return i < N - 1 ? 0 : j == 0 ? 700'000 : 3;
  };  // the first part is the largest
  exchange(*g, exchange_by("large bytes", N, 1, back), DType::kByte, ++call);
}

std::string parts_that_differ(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  std::vector<int64_t> sends(Exchange::at(N), 4), receives = sends;
  if (me == 0) sends[1] = 5;
  if (me == 1) receives[0] = 6;
  const Block send = make_input(me == 0 ? 4 * N + 1 : 4 * N, DType::kF32, 1, me);
  Block recv(me == 1 ? 4 * N + 2 : 4 * N, DType::kF32);
  try {
    g->all_to_all(send.tensor, recv.tensor, {sends, receives}, {}).wait({});
  } catch (const Error& e) { return e.what(); }
  return "";
}

void ring_all_reduce_sends_as_counted(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  if (N == 1) return;
  for (int64_t n : {int64_t{N}, int64_t{N} * 1000, int64_t{N} * 1000 + 1}) {
    Block x = make_input(n, DType::kF32, 77, me), piece(n / N + 1, DType::kF32);
    const auto slice = [&](int j) {
      j = (j % N + N) % N;
      return x.tensor.slice(n * j / N, n * (j + 1) / N - n * j / N);
    };
    const CommCounters before = g->counters();
    for (int k = 0; k < 2 * (N - 1); ++k) {
      // First N-1 steps: slice j accumulates its sum on the way from rank j+1 to rank j. Then the sums are passed
      // around.
      const bool adding = k < N - 1;
      const Tensor out = slice(me - 1 - k), in = slice(me - 2 - k);
      const Tensor into = adding ? piece.tensor.slice(0, in.numel()) : in;
      Work sending = g->send(out, (me + 1) % N, 0, {}), receiving = g->recv(into, (me + N - 1) % N, 0, {});
      receiving.wait({}), sending.wait({});
      for (int64_t i = 0; adding && i < in.numel(); ++i) in.as<float>()[i] = into.as<float>()[i] + in.as<float>()[i];
    }
    for (int j = 0; j < N; ++j) {  // slice j: rank j+1 first, rank j last
      const Tensor got = slice(j);
      for (int64_t i = 0; i < got.numel(); ++i) {
        const int64_t at = n * j / N + i;
        const auto term = [&](int r) { return static_cast<float>(number(bits(77, r, at))); };
        float expected = term((j + 1) % N);
        for (int r = 2; r <= N; ++r) expected += term((j + r) % N);
        GT_CHECK(got.as<float>()[i] == expected, "ring all_reduce, slice ", j, " element ", i);
      }
    }
    const int64_t sent = g->counters().bytes(CommOp::kSend) - before.bytes(CommOp::kSend);
    Block same = make_input(n, DType::kF32, 77, me);
    g->all_reduce(same.tensor, ReduceOp::kSum, {}).wait({});
    const int64_t counted = g->counters().bytes(CommOp::kAllReduce) - before.bytes(CommOp::kAllReduce);
    int64_t total[2] = {sent, counted};
    g->all_reduce({reinterpret_cast<std::byte*>(total), {2}, DType::kI64, {}}, ReduceOp::kSum, {}).wait({});
    GT_CHECK(total[0] == 2 * (N - 1) * n * 4, "a ring sends ", total[0], " bytes in all");
    if (n % N == 0) GT_CHECK(sent == counted && total[0] == total[1], "ring ", sent, " bytes, counted ", counted);
  }
}

void messages_keep_their_order_and_tags_do_not_block(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  if (N == 1) return;
  const int next = (me + 1) % N, prev = (me + N - 1) % N;
  const int64_t sizes[] = {0, 1, 777, 50000};
  for (bool receive_first : {false, true}) {
    std::deque<Block> out, in;
    std::vector<Work> works;
    auto send_all = [&] {
      for (int tag : {0, 5}) {
        for (int k = 0; k < 4; ++k) {
          out.push_back(make_input(sizes[k], DType::kF32, static_cast<uint64_t>(100 * tag + k), me));
          works.push_back(g->send(out.back().tensor, next, tag, {}));
        }
      }
    };
    if (!receive_first) send_all();
    for (int tag : {5, 0}) {  // reverse order of the sends
      for (int k = 0; k < 4; ++k) {
        in.emplace_back(sizes[k], DType::kF32);
        works.push_back(g->recv(in.back().tensor, prev, tag, {}));
      }
    }
    if (receive_first) send_all();
    for (Work& w : works) g->poll(), w.wait({});
    size_t i = 0;
    for (int tag : {5, 0}) {
      for (int k = 0; k < 4; ++k) {
        expect_same(in[i++].tensor,
                    make_input(sizes[k], DType::kF32, static_cast<uint64_t>(100 * tag + k), prev).tensor, "message");
      }
    }
  }
  g->barrier();
}

void interleaved_work_on_several_groups(GroupFactory& f) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  // Pairs of neighbours, even and odd ranks: every rank is in three groups.
  std::vector<int> pair, parity;
  for (int r = 0; r < N; ++r) {
    if (r / 2 == me / 2) pair.push_back(r);
    if (r % 2 == me % 2) parity.push_back(r);
  }
  auto p = f.make(pair), q = f.make(parity);
  p->set_label("pair " + to_string(pair));
  for (uint64_t round = 0; round < 20; ++round) {
    const int64_t n = static_cast<int64_t>(1 + bits(round, 0, 0) % 9000);
    Block a = make_input(n, DType::kF32, 3 * round, me), b = make_input(n, DType::kF32, 3 * round + 1, p->rank());
    Block c = make_input(n, DType::kF64, 3 * round + 2, q->rank()), gathered(n * q->size(), DType::kF64);
    Work wb = p->all_reduce(b.tensor, ReduceOp::kSum, {});
    Work wa = g->all_reduce(a.tensor, ReduceOp::kSum, {});
    Work wc = q->all_gather(c.tensor, gathered.tensor, {});
    if (round % 3 == 0) wa.wait({}), wb.wait({}), wc.wait({});
    if (round % 3 == 1) wc.wait({}), wa.wait({}), wb.wait({});
    if (round % 3 == 2) g->poll(), p->poll(), wb.wait({}), wc.wait({}), wa.wait({});
    expect_same(a.tensor, reference_reduce(n, DType::kF32, 3 * round, N, ReduceOp::kSum).tensor, "world");
    expect_same(b.tensor, reference_reduce(n, DType::kF32, 3 * round + 1, p->size(), ReduceOp::kSum).tensor, "pair");
    expect_same(gathered.tensor, concatenation(n, DType::kF64, 3 * round + 2, q->size()).tensor, "parity");
  }
}

void counters_equal_the_ring_formulas(GroupFactory& f) {
  auto g = whole_world(f);
  const int64_t N = g->size(), n = 840, e = 4;  // 840 is divisible by 1 … 8
  Block full = make_input(n, DType::kF32, 1, g->rank()), shard(n / N, DType::kF32);
  g->all_reduce(full.tensor, ReduceOp::kSum, {}).wait({});
  g->reduce_scatter(full.tensor, shard.tensor, {}).wait({});
  g->all_gather(shard.tensor, full.tensor, {}).wait({});
  g->broadcast(full.tensor, static_cast<int>(N - 1), {}).wait({});
  if (g->rank() == 0 && N > 1) g->send(full.tensor, 1, 0, {}).wait({});
  if (g->rank() == 1) g->recv(full.tensor, 0, 0, {}).wait({});
  Block other(n, DType::kF32);
  g->all_to_all(full.tensor, other.tensor, {}, {}).wait({});
  const Exchange x = exchange_by("counted", g->size(), 3, [](int i, int j) { return 2 * i + 5 * j; });
  exchange(*g, x, DType::kBF16, 5);
  const int64_t rows = x.total(g->rank()) - x.sends(g->rank())[Exchange::at(g->rank())] * x.width;
  const CommCounters& c = g->counters();
  GT_CHECK(c.bytes(CommOp::kAllReduce) == 2 * n * (N - 1) / N * e, "all_reduce ", c.bytes(CommOp::kAllReduce));
  GT_CHECK(c.bytes(CommOp::kReduceScatter) == n * (N - 1) / N * e, "reduce_scatter ", c.bytes(CommOp::kReduceScatter));
  GT_CHECK(c.bytes(CommOp::kAllGather) == n * (N - 1) / N * e, "all_gather ", c.bytes(CommOp::kAllGather));
  GT_CHECK(c.bytes(CommOp::kBroadcast) == (g->rank() == N - 1 && N > 1 ? n * e : 0), "broadcast ",
           c.bytes(CommOp::kBroadcast));
  GT_CHECK(c.bytes(CommOp::kAllToAll) == n * (N - 1) / N * e, "all_to_all ", c.bytes(CommOp::kAllToAll));
  GT_CHECK(c.bytes(CommOp::kAllToAllV) == rows * 2, "all_to_all_v ", c.bytes(CommOp::kAllToAllV));
  GT_CHECK(c.of(CommOp::kAllToAllV).payload == x.total(g->rank()) * 2 && c.of(CommOp::kAllToAllV).calls == 1);
  GT_CHECK(c.bytes(CommOp::kSend) == (g->rank() == 0 && N > 1 ? n * e : 0), "send ", c.bytes(CommOp::kSend));
}

namespace {
struct Flight {
  Work work;
  Block out, in;
};

// Operation k of random_operations: equal or unequal parts of up to n elements.
Flight random_all_to_all(ProcessGroup& g, uint64_t r, uint64_t k, int64_t n, DType t) {
  const int N = g.size(), me = g.rank();
  if (r % 8 == 5) {
    Flight x{{}, Block(n * N, t), make_input(n * N, t, k, me)};
    x.work = g.all_to_all(x.in.tensor, x.out.tensor, {}, {});
    return x;
  }
  const Exchange e = exchange_by("random", N, 1, [&](int i, int j) {
    const uint64_t b = bits(r, i, j);
    return static_cast<int64_t>(b % 3 == 0 ? 0 : b % static_cast<uint64_t>(n + 1));
  });
  const std::vector<int64_t> sends = e.sends(me), receives = e.receives(me);  // read during the call only
  Flight x{{}, Block(received(e, t, k, me).tensor.numel(), t), make_input(e.total(me), t, k, me)};
  x.work = g.all_to_all(x.in.tensor, x.out.tensor, {sends, receives}, {});
  return x;
}
}  // namespace

uint64_t random_operations(GroupFactory& f, uint64_t seed, const std::function<void(uint64_t)>& delay) {
  auto g = whole_world(f);
  const int N = g->size(), me = g->rank();
  std::deque<Flight> flying;
  uint64_t hash = 1469598103934665603ull;
  auto land = [&] {
    Flight& x = flying.front();
    x.work.wait({});
    for (int64_t i = 0; i < x.out.tensor.bytes(); ++i)
      hash = (hash ^ static_cast<uint8_t>(x.out.tensor.data[i])) * 1099511628211ull;
    flying.pop_front();
  };
  for (uint64_t k = 0; k < 500; ++k) {
    const uint64_t r = splitmix64(seed + k);  // the same on every rank
    const int64_t n = static_cast<int64_t>((r >> 8) % ((r >> 4) % 8 == 0 ? 20000 : 300));
    const DType t = kExact[(r >> 32) % 4];
    switch (r % 8) {
      case 0:
      case 1: {
        flying.push_back({{}, make_input(n, t, k, me), Block(0, t)});
        flying.back().work = g->all_reduce(flying.back().out.tensor, r % 8 ? ReduceOp::kSum : ReduceOp::kMax, {});
        break;
      }
      case 5:
      case 6: flying.push_back(random_all_to_all(*g, r, k, n, t)); break;
      case 2: {
        flying.push_back({{}, Block(n * N, t), make_input(n, t, k, me)});
        flying.back().work = g->all_gather(flying.back().in.tensor, flying.back().out.tensor, {});
        break;
      }
      case 3: {
        flying.push_back({{}, Block(n, t), make_input(n * N, t, k, me)});
        flying.back().work = g->reduce_scatter(flying.back().in.tensor, flying.back().out.tensor, {});
        break;
      }
      case 4: {
        flying.push_back({{}, make_input(n, t, k, me), Block(0, t)});
        flying.back().work =
            g->broadcast(flying.back().out.tensor, static_cast<int>((r >> 40) % static_cast<uint64_t>(N)), {});
        break;
      }
      default: {
        if (N == 1) break;
        const int hop = 1 + static_cast<int>((r >> 40) % static_cast<uint64_t>(N - 1)),
                  tag = static_cast<int>(r >> 56) % 3;
        flying.push_back({{}, make_input(n, t, k, me), Block(0, t)});
        flying.back().work = g->send(flying.back().out.tensor, (me + hop) % N, tag, {});
        flying.push_back({{}, Block(n, t), Block(0, t)});
        flying.back().work = g->recv(flying.back().out.tensor, (me + N - hop) % N, tag, {});
      }
    }
    delay(bits(seed, me, static_cast<int64_t>(k)));
    g->poll();
    while (flying.size() > (r >> 20) % 12) land();
  }
  while (!flying.empty()) land();
  return hash;
}

void random_sleep(uint64_t b) {
  if (b % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(b >> 8 & 1023));
}

uint64_t random_operations_on_threads(int ranks, uint64_t seed, int rank) {
  std::vector<uint64_t> hashes(static_cast<size_t>(ranks));
  const auto errors = run_threads(ranks, [&](GroupFactory& f) {
    hashes[static_cast<size_t>(f.world_rank())] = random_operations(f, seed, [](uint64_t) {});
  });
  for (const std::string& e : errors) GT_CHECK(e.empty(), e);
  return hashes[static_cast<size_t>(rank)];
}

void everything(const OnRanks& on_ranks) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, every_collective_equals_the_serial_reference);
    on_ranks(ranks, aliased_shards);
    on_ranks(ranks, reductions_of_16bit_types);
    on_ranks(ranks, every_dtype_moves);
    on_ranks(ranks, all_to_alls_equal_the_serial_reference);
    on_ranks(ranks, messages_keep_their_order_and_tags_do_not_block);
    on_ranks(ranks, ring_all_reduce_sends_as_counted);
    on_ranks(ranks, interleaved_work_on_several_groups);
    on_ranks(ranks, counters_equal_the_ring_formulas);
  }
  on_ranks(3, large_tensors);
}

bool random_operations_agree_with_threads(const OnRanks& on_ranks) {
  std::atomic<uint64_t> first{0};
  on_ranks(4, [&](GroupFactory& f) {
    const uint64_t hash = random_operations(f, 7, random_sleep);
    if (f.world_rank() == 0) first = hash;
  });
  return first == random_operations_on_threads(4, 7, 0);
}

}  // namespace gt::suite
