// The subcommands of the command line: a row of a table each, and a function in a file of its name.
#pragma once
#include <any>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "launch/commands/cli.h"
#include "launch/options/options.h"

namespace gt {

// Which config flags a subcommand takes. kLater: they are collected, and checked by whoever loads the config.
enum class ConfigFlags : uint8_t { kNone, kNow, kLater };

struct Subcommand {
  const char* name;     // "tokenizer train"
  const char* meaning;  // of --help
  const char* example;  // what follows "gpttrain NAME"
  Exit (*run)(const Command&);
  // Puts the subcommand's arguments (subcommand_args.h) into `args` and lists their options, which point into it.
  std::vector<Option> (*bind)(std::any& args);
  ConfigFlags config = ConfigFlags::kNone;
  const char* plain = nullptr;         // the option that takes a word without a flag
  bool needs_data = false;             // data.train must be given
  std::vector<std::string> keys = {};  // patterns of the config keys that act (admits()); empty: all
};
const std::vector<Subcommand>& subcommands();  // in the order of --help; the first is meant when none is named

// Each returns the exit code or throws gt::Error, which main prints.
Exit run_train(const Command&);
Exit run_check(const Command&);
Exit run_bench(const Command&);
Exit run_bench_ceilings(const Command&);
Exit run_bench_ops(const Command&);
Exit run_bench_gemm(const Command&);
Exit run_bench_peer(const Command&);
Exit run_bench_roofline(const Command&);
Exit run_bench_comm(const Command&);
Exit run_bench_data(const Command&);
Exit run_verify(const Command&);
Exit run_generate(const Command&);
Exit run_eval(const Command&);
Exit run_schedule(const Command&);
Exit run_lr(const Command&);
Exit run_tokenizer_train(const Command&);
Exit run_tokenizer_encode(const Command&);
Exit run_tokenizer_decode(const Command&);
Exit run_data_prepare(const Command&);
Exit run_data_inspect(const Command&);
Exit run_ckpt_ls(const Command&);
Exit run_ckpt_inspect(const Command&);
Exit run_export(const Command&);
Exit run_import(const Command&);
Exit run_ckpt_verify(const Command&);
Exit run_ckpt_diff(const Command&);
Exit run_ckpt_prune(const Command&);

}  // namespace gt
