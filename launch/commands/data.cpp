// gpttrain data prepare and data inspect.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <thread>
#include <unordered_map>

#include "data/prepare/prepare.h"
#include "data/tokens/inspect.h"
#include "data/tokens/llmc_tokens.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/text.h"
#include "launch/commands/inputs.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/commands/text_data.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/near_path.h"
#include "launch/options/output.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/stop_flag.h"

namespace gt {
namespace {

// Each encoder needs 32 MB, everything else 64 MB (data/prepare/prepare.h checks it).
int encoder_threads(const DataPrepareArgs& a) {
  if (a.threads > 0) return static_cast<int>(a.threads);
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  return static_cast<int>(std::clamp<int64_t>((a.memory_mb - 64) / 32, 1, cores));
}

PrepareOptions prepare_options(const DataPrepareArgs& a) {
  PrepareOptions o;
  o.inputs = a.input;
  o.tokenizer = a.tokenizer;
  o.output = a.output;
  o.format = text_format_from(a.format);
  o.json_key = a.json_key;
  o.ignore_unknown = a.ignore_unknown;
  o.chat_template = a.chat_template;
  o.max_tokens = a.max_tokens;
  o.split_docs = split_docs_from(a.split_docs);
  o.separator = a.separator;
  o.eod = !a.no_eod;
  o.bos = !a.no_bos;
  o.threads = encoder_threads(a);
  o.memory_mb = a.memory_mb;
  o.on_bad = on_bad_from(a.on_bad);
  o.max_doc_mb = a.max_doc_mb;
  o.strict_utf8 = a.strict_utf8;
  o.check_cache = a.check_cache;
  o.force = a.force;
  return o;
}

// Entropy of the unigram distribution, in nats per token: the loss of a model that uses token frequencies but no
// context. NaN if ids are negative.
double unigram_entropy(const TokenStore& f) {
  constexpr size_t kDense = size_t{1} << 24;
  std::vector<int64_t> dense;
  std::unordered_map<int32_t, int64_t> sparse;  // ids beyond any of our vocabularies
  std::vector<int32_t> block(1 << 16);
  int64_t total = 0;
  for (int64_t s = 0; s < f.sequences(); ++s)
    for (int64_t at = 0, n = f.length(s); at < n;) {
      const auto ids = std::span(block).first(static_cast<size_t>(std::min<int64_t>(n - at, 1 << 16)));
      const uint64_t top = f.read(s, at, ids);
      if (top >> 63) return std::nan("");
      if (top < kDense && top >= dense.size()) dense.resize(static_cast<size_t>(top) + 1);
      for (const int32_t id : ids)
        if (const auto k = static_cast<size_t>(id); k < dense.size())
          ++dense[k];
        else if (k < kDense)
          dense.resize(k + 1), ++dense[k];
        else
          ++sparse[id];
      at += static_cast<int64_t>(ids.size());
      total += static_cast<int64_t>(ids.size());
    }
  double h = 0;
  const auto add = [&](int64_t n) {
    if (n > 0)
      h -= static_cast<double>(n) / static_cast<double>(total) *
           std::log(static_cast<double>(n) / static_cast<double>(total));
  };
  for (const int64_t n : dense) add(n);
  for (const auto& [id, n] : sparse) add(n);
  return std::max(h, 0.0);
}

// Returns the requested tokenizer, or nullptr. One that does not match the tokens is rejected, because its text would
// look like corrupt data.
std::unique_ptr<Tokenizer> tokenizer_of(const DataInspectArgs& a, const std::string& prefix) {
  if (a.tokenizer.empty()) return nullptr;
  auto tokenizer = std::make_unique<Tokenizer>(Tokenizer::load(a.tokenizer));
  const auto meta = read_token_meta(prefix);
  GT_REQUIRE(!meta || meta->tokenizer_sha256 == tokenizer->sha256(), Exit::kUsage, a.tokenizer, ": SHA-256 ",
             tokenizer->sha256(), ", but ", prefix, ".meta.json records the tokenizer ", meta->tokenizer_sha256,
             "; give that tokenizer, or none to print ids");
  return tokenizer;
}

// Returns the first tokens of the first nonempty document as text on one line.
std::string beginning(const TokenStore& f, const Tokenizer& t) {
  int64_t s = 0;
  while (s + 1 < f.sequences() && f.length(s) == 0) ++s;
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(f.length(s), 24)));
  const uint64_t top = f.read(s, 0, ids);
  GT_REQUIRE(top < static_cast<uint64_t>(t.vocab()), Exit::kUsage, f.prefix(), ": token ", top,
             " is outside of the tokenizer's ", t.vocab(), " pieces; give the tokenizer that made the file");
  std::string line;
  append_json_string(line, t.decode(ids));
  return line;
}

std::string near_prefix(const std::string& prefix) {
  const std::string guess = near_path(prefix, {".bin", ".idx"});
  return guess.empty() ? "" : "; did you mean " + guess + "?";
}

void require_pair(const std::string& given) {
  const std::string missing = missing_token_files(given), prefix = token_prefix(given);
  GT_REQUIRE(missing.empty(), Exit::kUsage, missing,
             "; expected PREFIX of a pair PREFIX.bin + PREFIX.idx, or token files of llm.c",
             std::filesystem::exists(prefix + ".progress.json") ? ": its preparation was interrupted, repeat it"
                                                                : near_prefix(prefix));
}

Exit inspect_whole(const std::string& path, const Tokenizer* tokenizer, std::ostream& out) {
  if (!inspect_file(path, out)) return Exit::kDamaged;
  const auto tokens = open_tokens(path);
  if (tokenizer) out << "begins       " << beginning(*tokens, *tokenizer) << '\n';
  const double h = unigram_entropy(*tokens);
  if (!std::isnan(h))
    out << fmt::format("unigram entropy {:.2f} nats per token: a trained model should end well below this\n", h);
  return Exit::kOk;
}

std::unique_ptr<Dataset> dataset_of(const DataInspectArgs& a) {
  DatasetOptions o;
  o.sources = {{.path = a.path}};
  o.seq = a.seq;
  o.seed = static_cast<uint64_t>(a.seed);
  o.order = a.data_order;
  o.dp = a.dp;
  o.micro_batch = a.micro_batch;
  o.whole = a.split == "all";
  o.split_tokens = true;  // as a run with train.eval_every does
  o.split = a.shares;
  o.part = a.split == "valid" ? 1 : a.split == "test" ? 2 : 0;
  o.num_samples = std::max(a.samples, a.sample + 1);
  o.warn = [](const std::string& w) { fmt::print(stderr, "warning: {}\n", w); };
  return open_dataset(o);
}

}  // namespace

Exit run_data_prepare(const Command& command) {
  const auto& args = command.get<DataPrepareArgs>();
  require_inputs(args.input);
  PrepareOptions options = prepare_options(args);
  install_stop_signals();
  const StopFlag stop;
  options.stop = stop.get();
  PrepareResult result;
  {
    WorkLine line;
    options.progress_seconds = line.seconds();
    result = prepare_data(options, [&](const PrepareProgress& p) { show_progress(p, line); });
  }
  const std::string prefix = token_prefix(args.output);
  if (result.documents == 1 && !result.masked)
    write_out(
        "note: found 1 document, so data.split divides its tokens, not documents. Set the document separator with "
        "--split-docs: blank-line, line, or sep with --separator '%'\n");
  if (!result.note.empty()) write_out("note: " + result.note + "\n");
  write_out(fmt::format("{}\n{}.bin, {}.idx, {}{}.meta.json\nnext: gpttrain data inspect {}\n", to_text(result), prefix,
                        prefix, result.masked ? prefix + ".mask, " : "", prefix, shell_word(prefix)));
  flush_out();
  return Exit::kOk;
}

Exit run_data_inspect(const Command& command) {
  const auto& args = command.get<DataInspectArgs>();
  const std::string prefix = token_prefix(args.path);
  if (!names_llmc_tokens(args.path)) require_pair(args.path);
  const auto tokenizer = tokenizer_of(args, prefix);
  Exit code = Exit::kOk;
  if (args.doc < 0 && args.sample < 0 && !args.order) code = inspect_whole(args.path, tokenizer.get(), std::cout);
  if (args.doc >= 0) inspect_document(*open_tokens(args.path), args.doc, args.full, tokenizer.get(), std::cout);
  if (args.sample >= 0 || args.order) {
    const auto dataset = dataset_of(args);
    if (args.sample >= 0) inspect_sample(*dataset, args.sample, tokenizer.get(), std::cout);
    if (args.order) inspect_order(*dataset, 0, args.samples, std::cout);
  }
  std::cout.flush();
  GT_REQUIRE(std::cout.good(), Exit::kIo, "standard output: write failed");
  return code;
}

}  // namespace gt
