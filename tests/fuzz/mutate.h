// Input mutations, a pure function of the seed: flipped and odd bytes, odd numbers, words of the format, deletions,
// repetitions, and splices of other inputs.
#pragma once
#include <random>
#include <string>
#include <vector>

namespace gt::fuzz {

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> words) : random_(seed), words_(std::move(words)) {}

  // Returns one of `pool` with one to eight changes, at most `limit` bytes.
  std::string next(const std::vector<std::string>& pool, size_t limit);

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  void change(std::string& s, const std::vector<std::string>& pool);
  void put_number(std::string& s);
  void change_digits(std::string& s);

  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

}  // namespace gt::fuzz
