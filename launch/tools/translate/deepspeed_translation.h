// Shared state of the translation: reads values with DeepSpeed's defaults, sets our keys and builds the report. Each
// group of blocks has a function in its own file.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "launch/tools/translate/deepspeed.h"

namespace gt {

class DsTranslation {
 public:
  DsTranslation(const DsFile& file, Problems& problems) : file_(file), problems_(problems) {}

  // Returns the value of a key that is present and valid; nullptr if absent, "auto" or invalid.
  const DsValue* given(std::string_view path) const;
  bool has(std::string_view path) const { return file_.find(path) != nullptr; }
  bool is_auto(std::string_view path) const;
  bool flag(std::string_view path, bool standard) const;
  double number(std::string_view path, double standard) const;
  int64_t integer(std::string_view path, int64_t standard) const;
  std::string text(std::string_view path, const std::string& standard) const;
  // Returns the position of `path`, or of its block if the key is absent.
  std::string where(std::string_view path) const;

  // Sets one of our keys because of `path` and reports it, with `comment` in parentheses. quietly() sets a DeepSpeed
  // default that the file does not contain, without a report line.
  void set(std::string_view path, const std::string& native, const std::string& word, const std::string& comment = "");
  void set(std::string_view path, const std::string& native, const std::vector<std::string>& words,
           const std::string& comment = "");
  void quietly(std::string_view path, const std::string& native, const std::vector<std::string>& words);
  void report(std::string_view path, const std::string& what);  // "KEY VALUE: what"
  void refuse(std::string_view path, const std::string& reason, const std::string& fix = "");

  bool reported(std::string_view path) const;  // whether a present key has a report line
  // Returns the report in file order.
  std::vector<std::string> sorted_report();

  DsConfig out;

 private:
  std::string origin(std::string_view path) const { return where(path) + ": " + std::string(path) + " ->"; }

  const DsFile& file_;
  Problems& problems_;
  std::vector<std::pair<std::ptrdiff_t, std::string>> report_;  // position in the file, line
};

void translate_optimizer(DsTranslation& t);  // also gradient_clipping
void translate_scheduler(DsTranslation& t);  // Requires: after translate_optimizer
void translate_precision(DsTranslation& t);  // fp16, bf16, amp, torch_autocast, gradient dtypes
void translate_zero(DsTranslation& t);       // also offload
void translate_layout(DsTranslation& t);     // pipeline, tensor_parallel, activation_checkpointing
void translate_logs(DsTranslation& t);       // tensorboard, csv_monitor
void translate_training(DsTranslation& t);   // progressive_layer_drop, curriculum_learning, flops_profiler

}  // namespace gt
