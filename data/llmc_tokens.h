// Token files of llm.c (github.com/karpathy/llm.c, dev/data/data_common.py): 256 int32 of header, then the tokens. Each
// file, a shard, is one sequence and one document here: llm.c marks ends of documents by a token alone. What identifies
// them: SHA-256 of, shard by shard, the header and XXH3-64 of the first and of the last 64 KiB of tokens.
#pragma once
#include <string>
#include <vector>

#include "data/mapped_file.h"
#include "data/token_store.h"

namespace gt {

class LlmcTokens final : public TokenStore {
 public:
  // A file, its .bin left out or not, or a pattern ("fineweb_train_*.bin"): its files in the byte order of their names.
  // All of them are checked and listed; throws Error(kUsage) naming files, bytes, what was expected and what was found.
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
  std::vector<int32_t> counts_;  // tokens of each: the format's number has 31 bits
};

// Whether open_tokens takes this for a file of llm.c or a pattern of such files: what begins like one, or is no file
// but a pattern, and no PREFIX.idx lies there.
bool names_llmc_tokens(const std::string& path);

}  // namespace gt
