// The command line: which verb, its own flags, and the config flags that it takes. Parsing and checking only; running a
// verb is the business of launch/verbs.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "launch/config/config.h"
#include "launch/ranks/rank_env.h"
#include "launch/verbs/verb_args.h"

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

struct Command {
  Verb verb = Verb::kShowText;
  std::string name;  // "train", "tokenizer train"
  std::string text;  // kShowText
  std::variant<std::monostate, TrainArgs, TokenizerTrainArgs, TokenizerEncodeArgs, TokenizerDecodeArgs, DataPrepareArgs,
               DataInspectArgs, EvalArgs, GenerateArgs, ScheduleArgs, LrArgs, CkptArgs, CkptInspectArgs, CkptVerifyArgs,
               CkptDiffArgs, CkptPruneArgs, ExportArgs, ImportArgs, BenchArgs, CeilingsArgs, OpsArgs, PeerArgs,
               RooflineArgs, CommArgs, DataBenchArgs, VerifyArgs>
      args;
  // train, lr, bench and verify: the checked config. eval and generate leave it at defaults, for the model is the
  // checkpoint's: load that with checkpoint_config() (launch/verbs/checkpoint_config.h). Their flags are known to act
  // (launch/config/verb_keys.h) and to have values of their domains.
  LoadedConfig loaded;
  std::string config_file;                // --config
  std::vector<std::string> config_flags;  // as given
  RankEnv env;
  std::vector<std::string> words;  // the command line without the program's name

  template <class T>
  const T& get() const {
    return std::get<T>(args);
  }
};

// Throws one kUsage error with every problem of the command line, the config file and their combinations.
Command parse_command(int argc, const char* const* argv);
Command parse_command(const std::vector<std::string>& words, const RankEnv& env);

}  // namespace gt
