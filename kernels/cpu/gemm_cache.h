// oneDNN behind GEMM: compiled tile kernels, found by shape, and packed copies of right-hand sides, found by address.
// One a context; used by one calling thread at a time, which creates everything before it splits the work. Knows tiles,
// not ops.
#pragma once
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/cpu/context.h"

namespace gt::cpu {

// c [m,n] (+)= op(a) op(b) + bias, bias and c f32; leading dimensions in elements. Packed: b is a panel of a
// PackedMatrix, ldb unused.
struct TileSpec {
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  DType in = DType::kF32;  // of a and b
  bool trans_a = false, trans_b = false, packed = false, bias = false, accumulate = false;
  friend bool operator==(const TileSpec&, const TileSpec&) = default;
};

struct TileSpecHash {
  size_t operator()(const TileSpec& s) const;
};

// One oneDNN matmul primitive with its argument objects, one set a thread of the pool.
class TileKernel {
 public:
  TileKernel(const TileSpec& spec, const dnnl::memory::desc& b, const dnnl::engine& engine, int threads);
  // `scratchpad`: scratchpad_bytes() bytes of this thread. `b`: nullptr when b_packed is the panel to use.
  void run(int thread, dnnl_stream_t stream, void* a, void* b, dnnl_memory_t b_packed, void* bias, void* c,
           void* scratchpad) const;
  int64_t scratchpad_bytes() const { return scratchpad_bytes_; }
  bool reference() const { return reference_; }  // oneDNN has only its slow reference code for this combination

 private:
  struct Args {
    dnnl::memory a, b, bias, c, scratchpad;
  };
  dnnl::matmul primitive_;
  std::vector<Args> args_;
  int64_t scratchpad_bytes_ = 0;
  bool bias_ = false, reference_ = false;
};

// A [k,n] matrix cut into column panels, each in the layout that oneDNN's kernels read fastest.
class PackedMatrix {
 public:
  PackedMatrix(int64_t k, int64_t n, int64_t panel, bool trans, DType type, const dnnl::memory::desc& full,
               const dnnl::memory::desc& tail, const dnnl::engine& engine, int threads);
  // Copies b ([k,n], or [n,k] when trans) into the panels, panels split over the pool.
  void pack(const void* b, class GemmCache& cache, ThreadPool& pool);
  dnnl_memory_t panel(int64_t i) const { return panels_[static_cast<size_t>(i)].get(); }
  int64_t bytes() const { return storage_.bytes(); }
  // Of n columns in panels of `panel`, laid out as `full`.
  static int64_t bytes_of(int64_t n, int64_t panel, const dnnl::memory::desc& full);
  int64_t version = 0;  // of the bytes packed now; 0: none
  bool holds(int64_t wanted) const { return wanted > 0 && version == wanted; }

 private:
  struct Reorder {
    dnnl::reorder primitive;
    std::vector<dnnl::memory> from, scratchpad;  // one a thread
    int64_t scratchpad_bytes = 0;
  };
  Reorder make_reorder(int64_t width, const dnnl::memory::desc& to, const dnnl::engine& engine, int threads) const;
  int64_t k_, n_, width_;
  bool trans_;
  DType type_;
  Scratch storage_;
  std::vector<dnnl::memory> panels_;
  Reorder full_, tail_;
};

struct PackKey {
  const void* address = nullptr;  // nullptr: repacked at every call
  int64_t k = 0, n = 0, panel = 0;
  bool trans = false;
  DType type = DType::kF32;
  friend bool operator==(const PackKey&, const PackKey&) = default;
};

struct PackKeyHash {
  size_t operator()(const PackKey& k) const;
};

class GemmCache {
 public:
  explicit GemmCache(int threads);
  // The kernel of this shape, compiled at the first request. References stay valid.
  const TileKernel& kernel(const TileSpec& spec);
  // Whether a copy of b pays for itself: where oneDNN has a layout of its own for panels (AVX-512), and elsewhere for
  // rows that lie a multiple of a page apart (they share cache sets: a third of the speed).
  bool worth_packing(int64_t k, int64_t n, int64_t panel, bool trans, DType type);
  // The place of b's copy in panels of `panel` columns of `type`, to be packed unless it holds the version. version >
  // 0: kept under b's address until the version changes. 0: valid until the next such call of the same shape.
  PackedMatrix& copy_of(const void* b, int64_t k, int64_t n, int64_t panel, bool trans, DType type, int64_t version);
  // `bytes`: b in the copy's type.
  void pack(PackedMatrix& copy, const void* bytes, int64_t version, ThreadPool& pool);

  dnnl_stream_t stream(int thread) const { return threads_[static_cast<size_t>(thread)].stream.get(); }
  std::byte* scratchpad(int thread, int64_t bytes) {
    return threads_[static_cast<size_t>(thread)].scratchpad.get(bytes);
  }
  // An f32 tile of this thread, for results that are converted on the way out.
  float* tile(int thread, int64_t count) {
    return reinterpret_cast<float*>(threads_[static_cast<size_t>(thread)].tile.get(count * 4));
  }
  // Columns of a transposed a, copied out of rows that lie far apart.
  std::byte* columns(int thread, int64_t bytes) { return threads_[static_cast<size_t>(thread)].columns.get(bytes); }
  // Whole operands converted to f32, where the processor has no kernel for the half type. slot: 0 a, 1 b, 2 bias;
  // 3: sums of columns, by blocks of rows.
  float* converted(int slot, int64_t count) { return reinterpret_cast<float*>(converted_[slot].get(count * 4)); }

  // Panels in this layout instead of the one that oneDNN prefers here: tests cover the packed path on every processor.
  void force_panel_layout(dnnl::memory::format_tag tag) { panel_tag_ = tag, layouts_.clear(); }
  bool layout_forced() const { return panel_tag_ != dnnl::memory::format_tag::any; }

  int64_t packs() const { return packs_; }            // panels sets written so far
  size_t kernels() const { return kernels_.size(); }  // primitives compiled so far
  int64_t kept_bytes() const;                         // memory of the copies that are kept under a version
  int64_t copy_bytes(int64_t k, int64_t n, int64_t panel, DType type);  // what one copy takes

 private:
  const dnnl::memory::desc& panel_layout(int64_t k, int64_t width, DType type);
  struct PerThread {
    dnnl::stream stream;
    Scratch scratchpad, tile, columns;
  };
  dnnl::engine engine_;
  std::vector<PerThread> threads_;
  std::unordered_map<TileSpec, TileKernel, TileSpecHash> kernels_;
  std::unordered_map<PackKey, PackedMatrix, PackKeyHash> packed_;
  std::unordered_map<PackKey, dnnl::memory::desc, PackKeyHash> layouts_;  // of panels: no address, n = panel
  Scratch converted_[4];
  dnnl::memory::format_tag panel_tag_ = dnnl::memory::format_tag::any;
  int64_t packs_ = 0;
};

// Rows of a tile: fixed, so that the cut of a matrix into tiles, and with it every bit, is the same for all thread
// counts.
constexpr int64_t kTileRows = 64;

// Elements added to a row of a copy, so that its rows do not share cache sets.
constexpr int64_t kPadding = 16;

// While it lives, OpenMP regions entered by this thread have one thread: oneDNN then runs on the caller alone.
class SingleOpenMpThread {
 public:
  SingleOpenMpThread();
  ~SingleOpenMpThread();
  SingleOpenMpThread(const SingleOpenMpThread&) = delete;
  SingleOpenMpThread& operator=(const SingleOpenMpThread&) = delete;

 private:
  int before_;
};

}  // namespace gt::cpu
