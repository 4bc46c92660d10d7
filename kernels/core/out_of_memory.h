// std::bad_alloc with the size of the request and its purpose. Thrown by the program's operator new (launch/main.cpp).
#pragma once
#include <cstddef>
#include <new>

namespace gt {

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t bytes) noexcept;
  const char* what() const noexcept override { return text_; }  // "out of memory: 4096 bytes for the checkpoint"

 private:
  char text_[128];
};

// What the calling thread allocates for while this object lives: "training", "the checkpoint". The text must outlive
// it.
class MemoryPurpose {
 public:
  explicit MemoryPurpose(const char* text) noexcept;
  ~MemoryPurpose();
  MemoryPurpose(const MemoryPurpose&) = delete;
  MemoryPurpose& operator=(const MemoryPurpose&) = delete;

 private:
  const char* before_;
};

}  // namespace gt
