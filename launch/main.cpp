// gpttrain: one binary, many verbs. Parses, dispatches, turns errors into one message and an exit code.
#include <fmt/format.h>

#include <string>
#include <system_error>

#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/commands/cli.h"
#include "launch/commands/verbs.h"
#include "launch/hosts/rank_env.h"
#include "launch/ranks/crash.h"
#include "launch/ranks/start/bundle.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/start_limits.h"

namespace {

gt::Exit dispatch(const gt::Command& c) {
  switch (c.verb) {
    case gt::Verb::kShowText: fmt::print("{}", c.text); return gt::Exit::kOk;
    case gt::Verb::kTrain: return gt::run_train(c);
    case gt::Verb::kTokenizerTrain: return gt::run_tokenizer_train(c);
    case gt::Verb::kTokenizerEncode: return gt::run_tokenizer_encode(c);
    case gt::Verb::kTokenizerDecode: return gt::run_tokenizer_decode(c);
    case gt::Verb::kDataPrepare: return gt::run_data_prepare(c);
    case gt::Verb::kDataInspect: return gt::run_data_inspect(c);
    case gt::Verb::kEval: return gt::run_eval(c);
    case gt::Verb::kGenerate: return gt::run_generate(c);
    case gt::Verb::kSchedule: return gt::run_schedule(c);
    case gt::Verb::kLr: return gt::run_lr(c);
    case gt::Verb::kCkptLs: return gt::run_ckpt_ls(c);
    case gt::Verb::kCkptInspect: return gt::run_ckpt_inspect(c);
    case gt::Verb::kCkptVerify: return gt::run_ckpt_verify(c);
    case gt::Verb::kCkptDiff: return gt::run_ckpt_diff(c);
    case gt::Verb::kCkptPrune: return gt::run_ckpt_prune(c);
    case gt::Verb::kExport: return gt::run_export(c);
    case gt::Verb::kImport: return gt::run_import(c);
    case gt::Verb::kBench: return gt::run_bench(c);
    case gt::Verb::kBenchCeilings: return gt::run_bench_ceilings(c);
    case gt::Verb::kBenchOps: return gt::run_bench_ops(c);
    case gt::Verb::kBenchGemm: return gt::run_bench_gemm(c);
    case gt::Verb::kBenchPeer: return gt::run_bench_peer(c);
    case gt::Verb::kBenchRoofline: return gt::run_bench_roofline(c);
    case gt::Verb::kBenchComm: return gt::run_bench_comm(c);
    case gt::Verb::kBenchData: return gt::run_bench_data(c);
    case gt::Verb::kVerify: return gt::run_verify(c);
  }
  return gt::Exit::kInternal;
}

// Of a process that does not get further; a rank says which one it is, and of those of a machine that were started by
// somebody else the first one speaks: they read the same files.
void print_error(const std::string& text) {
  const std::string what = gt::printable_lines(text);
  gt::RankEnv env;
  try {
    env = gt::find_rank_env();
  } catch (const gt::Error&) {  // which is what the message is about
  }
  if (env.launched() && gt::report_failed(env.rank, what)) return;
  if (env.launched() && env.world > 1) {
    if (env.local_rank == 0) fmt::print(stderr, "gpttrain: rank {} ({}): {}\n", env.rank, gt::host_name(), what);
    return;
  }
  fmt::print(stderr, "{}{}\n", what.rfind("gpttrain ", 0) == 0 ? "" : "gpttrain: ", what);  // "gpttrain ckpt diff: ..."
}

}  // namespace

int main(int argc, char** argv) {
  gt::install_crash_handlers();  // no subcommand dies in silence
  try {
    gt::use_bundled_mpi();
    return static_cast<int>(dispatch(gt::parse_command(argc, argv)));
  } catch (const gt::Error& e) {
    print_error(e.what());
    return static_cast<int>(e.code());
  } catch (const std::system_error& e) {
    const bool limit = e.code() == std::errc::resource_unavailable_try_again;
    print_error(limit ? gt::no_thread_text() : gt::cat("internal error: ", e.what()));
    return static_cast<int>(limit ? gt::Exit::kUsage : gt::Exit::kInternal);
  } catch (const std::exception& e) {
    print_error(gt::cat("internal error: ", e.what()));
    return static_cast<int>(gt::Exit::kInternal);
  }
}
