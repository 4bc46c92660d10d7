// Basic value types of every folder: DType, Device, Shape, Tensor, Stream.
// A Tensor never owns memory; a Buffer, an Arena or a Pool does (memory.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/core/check.h"

namespace gt {

// Numeric values are part of the checkpoint format: append only.
enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kF8E5M2, kI32, kU16, kByte, kF64, kI64, kI8 };

constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16: return 2;
    default: return 1;
  }
}

constexpr const char* name_of(DType t) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "f8e4m3", "f8e5m2", "i32", "u16", "byte", "f64", "i64", "i8"};
  return kNames[static_cast<size_t>(t)];
}

enum class DeviceKind : uint8_t { kCpu, kCuda, kNull };  // kNull: plans only, no memory behind it

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int8_t index = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

struct Shape {
  static constexpr int kMaxRank = 4;
  std::array<int64_t, kMaxRank> dim{1, 1, 1, 1};
  int32_t rank = 0;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> d) {
    for (int64_t n : d) dim[static_cast<size_t>(rank++)] = n;
  }
  constexpr int64_t operator[](int i) const { return dim[static_cast<size_t>(i < 0 ? i + rank : i)]; }
  constexpr int64_t numel() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
  constexpr int64_t rows() const { return rank && (*this)[-1] ? numel() / (*this)[-1] : 0; }  // all but the last
  constexpr int64_t cols() const { return rank ? (*this)[-1] : 0; }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;
};

std::string to_string(const Shape&);  // "[4, 1024, 768]"

// A contiguous, row-major, typed view. 56 bytes, trivially copyable, no refcount.
struct Tensor {
  std::byte* data = nullptr;
  Shape shape;
  DType dtype = DType::kF32;
  Device device;

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr int64_t numel() const { return shape.numel(); }
  constexpr int64_t bytes() const { return numel() * size_of(dtype); }

  // Typed pointer; only dereferenceable on the host for CPU tensors. Requires: T matches dtype.
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  Tensor slice(int64_t row_begin, int64_t row_count) const {  // along dim 0
    GT_DCHECK(row_begin >= 0 && row_begin + row_count <= shape[0]);
    Tensor t = *this;
    t.shape.dim[0] = row_count;
    t.data += shape[0] ? row_begin * (bytes() / shape[0]) : 0;
    return t;
  }
  Tensor view(Shape s) const {
    GT_DCHECK(s.numel() == numel());
    Tensor t = *this;
    t.shape = s;
    return t;
  }
};
static_assert(std::is_trivially_copyable_v<Tensor> && sizeof(Tensor) <= 56);

// Heads of attention in the rows of a matrix that may hold more: element d of head h of row r is column
// column + h * head_dim + d of that row. Views of queries, keys and values may share one tensor.
struct HeadView {
  Tensor rows;         // [n, C]
  int64_t column = 0;  // of the first head

  constexpr explicit operator bool() const { return static_cast<bool>(rows); }
  int64_t pitch() const { return rows.shape.cols(); }  // elements between rows
  std::byte* data() const { return rows.data + column * size_of(rows.dtype); }
};

// An in-order work queue on one device. `native`: cudaStream_t on CUDA; the rank's CpuContext (thread pool, packed
// weights) on CPU. nullptr is a valid CPU stream that runs everything on the calling thread.
struct Stream {
  Device device;
  void* native = nullptr;
};

}  // namespace gt
