// The command line: which verb, its own flags, and the config flags that it takes. Parsing and checking only; running a
// subcommand is the business of launch/commands.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "launch/commands/verb_args.h"
#include "launch/ranks/ranks.h"

namespace gt {

enum class Verb {
  kShowText,  // --help, --version, no arguments: print Command::text and end with code 0
  kTrain,
  kTokenizerTrain,
  kTokenizerEncode,
  kTokenizerDecode,
  kDataPrepare,
  kDataInspect,
  kEval,
  kGenerate,
  kSchedule,
  kLr,
  kCkptLs,
  kCkptInspect,
  kCkptVerify,
  kCkptDiff,
  kCkptPrune,
  kExport,
  kImport,
  kBench,
  kBenchCeilings,
  kBenchOps,
  kBenchGemm,
  kBenchPeer,
  kBenchRoofline,
  kBenchComm,
  kBenchData,
  kVerify,
};

// The job's config is that of train, lr, bench and verify. eval and generate leave it at defaults, for the model is the
// checkpoint's: load that with checkpoint_config() (launch/commands/checkpoint_config.h). Their flags are known to act
// (launch/commands/verb_keys.h) and to have values of their domains.
struct Command : JobRequest {
  Verb verb = Verb::kShowText;
  std::string text;  // kShowText
  std::variant<std::monostate, TrainArgs, TokenizerTrainArgs, TokenizerEncodeArgs, TokenizerDecodeArgs, DataPrepareArgs,
               DataInspectArgs, EvalArgs, GenerateArgs, ScheduleArgs, LrArgs, CkptArgs, CkptInspectArgs, CkptVerifyArgs,
               CkptDiffArgs, CkptPruneArgs, ExportArgs, ImportArgs, BenchArgs, CeilingsArgs, OpsArgs, PeerArgs,
               RooflineArgs, CommArgs, DataBenchArgs, VerifyArgs>
      args;
  std::string config_file;                // --config
  std::vector<std::string> config_flags;  // as given

  template <class T>
  const T& get() const {
    return std::get<T>(args);
  }
};

// Throws one kUsage error with every problem of the command line, the config file and their combinations.
Command parse_command(int argc, const char* const* argv);
Command parse_command(const std::vector<std::string>& words, const RankEnv& env);

}  // namespace gt
