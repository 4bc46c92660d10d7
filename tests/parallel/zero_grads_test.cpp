// Gradients in the parameter store: rounded, kept in bf16, missing, accumulated over microbatches, late.
#include "tests/parallel/toy_store.h"

using namespace gt;
using namespace gt::toy_store;

namespace {
float rounded(float x, DType t) {
  uint16_t bits = 0;
  cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(&x), {1}, DType::kF32, {}},
                           .dst = {reinterpret_cast<std::byte*>(&bits), {1}, t, {}}},
                          {});
  cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(&bits), {1}, t, {}},
                           .dst = {reinterpret_cast<std::byte*>(&x), {1}, DType::kF32, {}}},
                          {});
  return x;
}
}  // namespace

TEST_CASE("16-bit reductions round gradients first, at every stage, and halve the bytes") {
  const float factor = 1.01f;  // not representable in 16 bits
  for (const DType type : {DType::kBF16, DType::kF16})
    for (const MeshShape shape : {MeshShape{.dp = 2, .tp = 2}, MeshShape{.pp = 2, .dp = 4}})
      for (ZeroOptions z : all_stages(1500)) {
        INFO(text(z) << ' ' << name_of(type));
        z.reduce = type;
        Assembled all;
        on_ranks(shape, [&](GroupFactory& f) {
          Rank r(shape, f, z);
          for (int step = 0; step < 2; ++step) backward(r, {.factor = factor});
          all.add(r.store.grad_views());
          int64_t elements = 0;
          for (const UnitSpec& s : r.model.units) {
            int64_t n = 0;
            for (const Parameter* p : s.params) n += p->local_shape.numel();
            const int64_t unit = 64 * shape.dp;
            elements += (n + unit - 1) / unit * unit;
          }
          const int64_t sent = r.mesh.group(Axis::kDp).counters().bytes(CommOp::kReduceScatter);
          GT_CHECK(sent == 2 * 2 * elements * (shape.dp - 1) / shape.dp, "sent ", sent, " bytes of ", elements);
        });
        all.check_whole("grad");
        for (const auto& [name, size] : logical_sizes()) {
          if (name == "embed.weight") continue;  // a sum of two reductions
          for (int64_t i = 0; i < size; ++i) {
            float sum = 0;
            for (int d = 0; d < shape.dp; ++d) sum += rounded(gradient(name, i, d) * factor, type);
            INFO(name << " element " << i);
            REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == rounded(sum, type));
          }
        }
      }
}

TEST_CASE("bf16 gradients take half the bytes and are rounded once after the reduction") {
  const float factor = 1.01f;  // not representable in 16 bits
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const MeshShape shape : {MeshShape{.dp = 2, .tp = 2}, MeshShape{.pp = 2, .dp = 4}})
      for (ZeroOptions z : all_stages(1500)) {
        INFO(text(z) << " added up in " << name_of(type));
        z.grad = DType::kBF16;
        z.reduce = type;
        Assembled all;
        on_ranks(shape, [&](GroupFactory& f) {
          Rank r(shape, f, z);
          for (int step = 0; step < 2; ++step) backward(r, {.factor = factor});
          all.add(r.store.grad_views());
          const int64_t sent = r.mesh.group(Axis::kDp).counters().bytes(CommOp::kReduceScatter);
          const int64_t kept = r.store.grad_bytes() - r.store.temporary_bytes().gradients;
          ZeroOptions whole = z;
          whole.grad = DType::kF32;
          Rank other(shape, f, whole);
          backward(other);
          const int64_t of_f32 = other.store.grad_bytes() - other.store.temporary_bytes().gradients;
          const int64_t padding = kAlign * r.store.num_units();  // of buffers this small
          GT_CHECK(2 * kept - padding <= of_f32, "kept ", kept, " bytes, in f32 ", of_f32);
          GT_CHECK(sent % size_of(type) == 0 && sent > 0, "sent ", sent);
        });
        all.check_whole("grad");
        for (const auto& [name, size] : logical_sizes()) {
          if (name == "embed.weight") continue;  // a sum of two reductions
          for (int64_t i = 0; i < size; ++i) {
            float sum = 0;
            for (int d = 0; d < shape.dp; ++d) {
              const float kept = rounded(gradient(name, i, d) * factor, DType::kBF16);
              sum += type == DType::kF32 ? kept : rounded(kept, type);
            }
            const float travelled = type == DType::kF32 ? sum : rounded(sum, type);
            INFO(name << " element " << i);
            REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == rounded(travelled, DType::kBF16));
          }
        }
      }
}

TEST_CASE("with one microbatch a tied copy on its owner's rank has no gradient of its own but adds to the owner's") {
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.dp = 2}, MeshShape{.pp = 2}})
    for (const DType type : {DType::kF32, DType::kBF16})
      for (ZeroOptions z : all_stages()) {
        INFO(text(z) << ' ' << name_of(type));
        z.grad = type;
        Assembled all;
        on_ranks(shape, [&](GroupFactory& f) {
          Rank several(shape, f, z);
          ZeroOptions one = z;
          one.one_microbatch = true;
          Rank r(shape, f, one);
          // Sums over ranks are of complete gradients, and in bf16 each is rounded.
          const bool adds = shape.dp == 1 && shape.pp == 1 && type == DType::kF32;
          GT_CHECK(r.adds_to_owner() == adds && !several.adds_to_owner(), "adds ", r.adds_to_owner());
          const int64_t table = kAlign * ((4 * kPadded / shape.tp * kHidden + kAlign - 1) / kAlign);
          GT_CHECK(several.store.grad_bytes() - r.store.grad_bytes() == (adds ? table : 0), several.store.grad_bytes(),
                   " and ", r.store.grad_bytes(), " bytes");
          for (int step = 0; step < 2; ++step) backward(r);
          all.add(r.store.grad_views());
        });
        all.check_whole("grad");
        for (const auto& [name, size] : logical_sizes())
          for (int64_t i = 0; i < size; ++i)
            REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == reduced(name, i, shape.dp));
      }
}

TEST_CASE("a parameter without gradient and an unreduced step are errors that name it") {
  for (bool overlap : {false, true})
    for (const ZeroOptions& z : all_stages(1, overlap))
      for (const char* missing : {"layers.0.attn.qkv.bias", "embed.weight"}) {  // one of several, and all of a unit
        INFO(text(z));
        const std::vector<std::string> errors = suite::run_threads(2, [&](GroupFactory& f) {
          Rank r({.dp = 2}, f, z);
          try {
            backward(r, {}, missing);
          } catch (...) {  // both ranks throw; neither frees what the other still reduces
            r.mesh.world().barrier();
            throw;
          }
        });
        CHECK_THAT(errors[0], Catch::Contains(cat(missing, " got no gradient")));
      }
  const std::vector<std::string> errors = suite::run_threads(1, [&](GroupFactory& f) {
    Rank r({}, f);
    r.store.begin_step();
    r.store.finish_reduction();
  });
  CHECK_THAT(errors[0], Catch::Contains("gradients of embed were never reduced"));
  const std::vector<std::string> unknown =
      suite::run_threads(1, [&](GroupFactory& f) { Rank({}, f).store.unit("layers.7"); });
  CHECK_THAT(unknown[0], Catch::Contains("no FSDP unit named layers.7"));
}

TEST_CASE("with allow_unused a missing gradient is 0 at every stage, others are unchanged") {
  for (bool overlap : {false, true})
    for (ZeroOptions z : all_stages(1500, overlap))
      for (const char* missing : {"layers.0.attn.qkv.bias", "embed.weight", "layers.0.norm.weight"})
        for (const MeshShape& shape : {MeshShape{.dp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
          INFO(text(z) << " without " << missing);
          z.allow_unused = true;
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, z);
            backward(r);  // leaves values that the next step must not use
            backward(r, {}, missing);
            all.add(r.store.grad_views());
          });
          all.check_whole("grad");
          for (const auto& [name, size] : logical_sizes())
            for (int64_t i = 0; i < size; ++i) {
              double expected = reduced(name, i, shape.dp);
              if (name == missing)
                for (int dp = 0; dp < shape.dp; ++dp) expected -= gradient(name, i, dp);
              INFO(name << " element " << i);
              REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == expected);
            }
        }
}

TEST_CASE("gradients of several microbatches add up, whenever each is reduced") {
  for (const MeshShape& shape : {MeshShape{.dp = 2}, MeshShape{.dp = 4, .tp = 2}})
    for (int64_t bucket : {int64_t{1}, int64_t{1500}, int64_t{1} << 30})
      for (bool overlap : {false, true})
        for (const ZeroOptions& z : all_stages(bucket, overlap)) {
          INFO(text(z));
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, z);
            r.store.begin_step();
            for (int m = 0; m < 3; ++m) {
              r.store.begin_backward(0, m, m == 2);
              for (auto unit = r.model.units.rbegin(); unit != r.model.units.rend(); ++unit) {
                for (Parameter* p : unit->params) {
                  const GradDst to = grad_dst(*p);
                  for (int64_t i = 0; i < to.tensor.numel(); ++i) {
                    const int64_t at = logical(r, *p, i);
                    const float g = at < 0 ? 0 : gradient(p->name, at, r.dp()) * static_cast<float>(m + 1);
                    float& x = to.tensor.as<float>()[i];
                    x = to.accumulate ? x + g : g;
                  }
                }
                r.store.unit(unit->name).grads_ready({});
              }
            }
            r.store.reduce_grads(0);
            r.store.reduce_tied();
            r.store.finish_reduction();
            all.add(r.store.grad_views());
            const int times = z.grad_reduce == GradReduce::kEach && z.stage >= 2 ? 3 : 1;
            const int64_t a = 3 * 64 * 4 * (shape.dp - 1);  // bytes: three units with one shard of 64 elements per rank
            const int64_t sent = r.mesh.group(Axis::kDp).counters().bytes(CommOp::kReduceScatter);
            GT_CHECK(shape.tp == 1 || sent == times * a, "sent ", sent, " in ", times, " reductions of ", a);
          });
          all.check_whole("grad");
          for (const auto& [name, size] : logical_sizes())
            for (int64_t i = 0; i < size; ++i) {
              INFO(name << " element " << i);
              REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == 6 * reduced(name, i, shape.dp));
            }
        }
}

TEST_CASE("random delays of ranks leave sums bitwise identical over 200 steps") {
  const MeshShape shape{.dp = 4};
  for (const ZeroOptions& z : {ZeroOptions{1, 1500}, ZeroOptions{2, 1, true, GradReduce::kEach},
                               ZeroOptions{3, 1500, true, GradReduce::kEach, 1, 0}})
    on_ranks(shape, [&](GroupFactory& f) {
      Rank r(shape, f, z);
      r.store.init(5, 1);
      uint64_t draw = 0;
      const auto pause = [&] { suite::random_sleep(splitmix64(++draw * 1000 + static_cast<uint64_t>(r.mesh.rank()))); };
      for (int step = 0; step < 200; ++step) {
        for_each_readable(r, [&](Parameter&) { pause(); });
        backward(r, {}, "", pause);
        for (const ShardView& v : r.store.grad_views()) {
          if (!v.save) continue;
          for (int64_t i = 0; i < v.data.numel(); ++i)
            if (const int64_t at = logical_offset(v, v.begin + i); at >= 0)
              GT_CHECK(v.data.as<float>()[i] == reduced(v.name.substr(5), at, shape.dp), text(z), " step ", step, ' ',
                       v.name, " element ", at);
        }
        r.store.all_gather_values();
      }
    });
}
