// What the parts of the translation share: reading values with DeepSpeed's defaults, setting our keys, and the report.
// One function a group of blocks, each in its own file.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "launch/config/translate/deepspeed.h"

namespace gt {

class DsTranslation {
 public:
  DsTranslation(const DsFile& file, Problems& problems) : file_(file), problems_(problems) {}

  // The value of a key that was given and is right; nullptr when absent, "auto" or wrong.
  const DsValue* given(std::string_view path) const;
  bool has(std::string_view path) const { return file_.find(path) != nullptr; }
  bool is_auto(std::string_view path) const;
  bool flag(std::string_view path, bool standard) const;
  double number(std::string_view path, double standard) const;
  int64_t integer(std::string_view path, int64_t standard) const;
  std::string text(std::string_view path, const std::string& standard) const;
  // Where `path` was given, else where its block was.
  std::string where(std::string_view path) const;

  // Sets one of our keys because of `path`; the report says so, with `comment` in parentheses. A default that the
  // file's author did not write is set with `quietly`.
  void set(std::string_view path, const std::string& native, const std::string& word, const std::string& comment = "");
  void set(std::string_view path, const std::string& native, const std::vector<std::string>& words,
           const std::string& comment = "");
  void quietly(std::string_view path, const std::string& native, const std::vector<std::string>& words);
  void report(std::string_view path, const std::string& what);  // "KEY VALUE: what"
  void refuse(std::string_view path, const std::string& reason, const std::string& fix = "");

  bool reported(std::string_view path) const;  // of a key that was given
  // The report in the order of the file.
  std::vector<std::string> sorted_report();

  DsConfig out;

 private:
  std::string origin(std::string_view path) const { return where(path) + ": " + std::string(path) + " ->"; }

  const DsFile& file_;
  Problems& problems_;
  std::vector<std::pair<std::ptrdiff_t, std::string>> report_;  // place in the file, line
};

void translate_optimizer(DsTranslation& t);  // and gradient_clipping
void translate_scheduler(DsTranslation& t);  // after the optimizer
void translate_precision(DsTranslation& t);  // fp16, bf16, amp, torch_autocast, types of gradients
void translate_zero(DsTranslation& t);       // and offload
void translate_layout(DsTranslation& t);     // pipeline, tensor_parallel, activation_checkpointing
void translate_logs(DsTranslation& t);       // tensorboard, csv_monitor
void translate_training(DsTranslation& t);   // progressive_layer_drop, curriculum_learning, flops_profiler

}  // namespace gt
