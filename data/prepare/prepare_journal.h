// Resume state of an interrupted preparation: PREFIX.progress.json beside PREFIX.bin.part and PREFIX.len.part.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/prepare/prepare_chunks.h"

namespace gt {

struct PrepareJournal {
  std::string options;  // JSON text of the options that affect the output
  std::vector<TextInput> inputs;
  ReadState state;
  int64_t bin_bytes = 0;        // of .bin.part
  int64_t document_tokens = 0;  // of the open document
  PrepareResult sums;
  bool done = false;  // everything is written; only the renames remain
};

void write_journal(const std::string& path, const PrepareJournal& j);
std::optional<PrepareJournal> read_journal(const std::string& path);  // nullopt when absent; kUsage when broken
// Throws kUsage listing the differences between an interrupted preparation and this one.
void require_same_work(const std::string& path, const PrepareJournal& before, const PrepareJournal& now);

}  // namespace gt
