// Token files of llm.c (github.com/karpathy/llm.c, dev/data/data_common.py): a header of 256 int32, then the tokens.
// Each file, a shard, is one sequence and one document here, since llm.c marks document ends by a token only. Identity:
// SHA-256 over all shards of the header and the XXH3-64 of the first and last 64 KiB of tokens.
#pragma once
#include <string>
#include <vector>

#include "data/tokens/mapped_file.h"
#include "data/tokens/token_store.h"

namespace gt {

class LlmcTokens final : public TokenStore {
 public:
  // `path`: a file, with or without .bin, or a pattern ("fineweb_train_*.bin"), whose files are sorted by name. Checks
  // all of them; throws Error(kUsage) naming files, bytes, expected and found.
  explicit LlmcTokens(const std::string& path);

  const std::vector<MappedFile>& shards() const { return shards_; }

  std::string format() const override;
  bool windows() const override { return true; }
  Lengths lengths() const override { return {counts_.data(), 0, sequences_}; }
  int64_t document_begin(int64_t entry) const override { return entry; }
  std::string locate(int64_t sequence, int64_t index) const override;
  uint64_t read(int64_t sequence, int64_t begin, std::span<int32_t> out) const override;
  void will_need(int64_t sequence, int64_t begin, int64_t count) const override;
  bool unchanged() const override;

 private:
  std::vector<MappedFile> shards_;
  std::vector<int32_t> counts_;  // tokens per shard: the format's count has 31 bits
};

// Returns whether open_tokens treats this as an llm.c file or a pattern of such files: it begins like one, or is a
// pattern instead of a file, and PREFIX.idx does not exist.
bool names_llmc_tokens(const std::string& path);

}  // namespace gt
