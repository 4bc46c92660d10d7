#include "launch/tools/translate/megatron_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr const char* kGiveVocab = "give that of the model as --model.vocab N";
constexpr int64_t kGpt2Pieces = 50257, kTiktokenPieces = 1 << 17;

// One of the files, or what is wrong with it.
struct Pieces {
  int64_t count = 0;
  std::string how, flag, problem, fix, tokenizer;
};

Pieces failed(std::string flag, std::string problem, std::string fix) {
  return {.flag = std::move(flag), .problem = std::move(problem), .fix = std::move(fix)};
}

bool there(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

// The special pieces that Megatron's older SentencePieceTokenizer adds where the model has none.
int64_t added_by_legacy(const Tokenizer& t) {
  int64_t n = 0;
  for (const char* piece : {"<CLS>", "<SEP>", "<EOD>", "<MASK>"}) n += t.id_of(piece) < 0 ? 1 : 0;
  const std::pair<int32_t, const char*> kOwn[] = {{t.pad(), "<PAD>"}, {t.bos(), "<BOS>"}, {t.eos(), "<EOS>"}};
  for (const auto& [id, piece] : kOwn) n += id < 0 && t.id_of(piece) < 0 ? 1 : 0;
  return n;
}

Pieces of_model(const MegatronLine& line, const std::string& type) {
  const std::string path = line.value("tokenizer-model");
  if (path.empty()) return failed("tokenizer-type", type + " needs --tokenizer-model", "add it");
  if (!there(path)) {
    const bool hub = type == "HuggingFaceTokenizer";
    return failed("tokenizer-model",
                  path + (hub ? ": no such file or folder; a name on Hugging Face's hub is not downloaded"
                              : ": no such file; the size of the vocabulary is that of the tokenizer"),
                  hub ? fmt::format("hf download {} --local-dir TOKENIZER, then --tokenizer-model TOKENIZER", path)
                      : "give the file, or the size as --model.vocab N");
  }
  try {
    const Tokenizer t = Tokenizer::load(path);
    int64_t count = t.vocab();
    std::string how = fmt::format("{} has {} pieces", path, count);
    if (type == "SentencePieceTokenizer" && line.has("legacy-tokenizer")) {
      const int64_t extra = line.number("vocab-extra-ids").value_or(0), added = added_by_legacy(t) + extra;
      count += added;
      how += fmt::format(", to which --legacy-tokenizer adds {} special ones", added);
    }
    return {.count = count, .how = how, .tokenizer = path};
  } catch (const Error& e) { return failed("tokenizer-model", e.what(), kGiveVocab); }
}

// GPT-2's vocab.json under any name, and its merges.
Pieces of_vocab_file(const MegatronLine& line) {
  const std::string path = line.value("vocab-file"), merges = line.value("merge-file");
  if (!there(path))
    return failed("vocab-file", path + ": no such file; the size of the vocabulary is that of this file",
                  "give the file, or the size as --model.vocab N");
  try {
    const JsonValue root = parse_json(read_whole_file(path, kMaxTokenizerFile), path);
    if (root.kind != JsonValue::Kind::kObject || root.keys.empty())
      return failed("vocab-file", fmt::format("{}: expected an object of pieces, found {}", path, kind_name(root.kind)),
                    kGiveVocab);
    const fs::path file(path);
    const bool pair = file.filename() == "vocab.json" && fs::path(merges).filename() == "merges.txt" && there(merges) &&
                      fs::path(merges).parent_path() == file.parent_path();
    return {.count = static_cast<int64_t>(root.keys.size()),
            .how = fmt::format("{} has {} pieces", path, root.keys.size()),
            .tokenizer = pair ? path : ""};
  } catch (const Error& e) { return failed("vocab-file", e.what(), kGiveVocab); }
}

Pieces of_type(const MegatronLine& line, const std::string& type) {
  if (type == "NullTokenizer") {
    const auto n = line.number("vocab-size");
    if (!n) return failed("tokenizer-type", "NullTokenizer needs --vocab-size", "add it");
    return {.count = *n + 1, .how = fmt::format("NullTokenizer has --vocab-size {} and an end of document", *n)};
  }
  if (type == "TikTokenizer") {
    const int64_t n = line.number("vocab-size").value_or(kTiktokenPieces);
    return {.count = n, .how = fmt::format("TikTokenizer has {} pieces, its special ones included", n)};
  }
  if (type == "GPT2BPETokenizer") {
    if (line.has("vocab-file")) return of_vocab_file(line);
    return failed("tokenizer-type", "GPT2BPETokenizer needs --vocab-file and --merge-file", "add them");
  }
  for (const char* known :
       {"SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer", "HuggingFaceTokenizer"})
    if (type == known) return of_model(line, type);
  return failed("tokenizer-type", type + " is not read here: the size of its vocabulary is unknown", kGiveVocab);
}

// Without a type, Megatron's is GPT2BPETokenizer.
Pieces of_line(const MegatronLine& line) {
  if (const std::string type = line.value("tokenizer-type"); !type.empty()) return of_type(line, type);
  if (line.has("vocab-file")) return of_vocab_file(line);
  if (line.has("tokenizer-model")) return of_model(line, "");
  if (const auto n = line.number("vocab-size")) return {.count = *n, .how = fmt::format("--vocab-size {}", *n)};
  if (const std::string path = line.value("data.tokenizer"); !path.empty() && there(path)) try {
      const int64_t n = Tokenizer::load(path).vocab();
      return {.count = n, .how = fmt::format("{} has {} pieces", path, n)};
    } catch (const Error& e) { return failed("data.tokenizer", e.what(), kGiveVocab); }
  return {.count = kGpt2Pieces,
          .how = fmt::format("no tokenizer is named: GPT-2's {} pieces, Megatron's default", kGpt2Pieces)};
}

int64_t tp_of(const MegatronLine& line) {
  for (const char* name : {"tensor-model-parallel-size", "tp", "parallel.tp"})
    if (const auto n = line.number(name)) return *n;
  return 1;
}

}  // namespace

MegatronVocabulary megatron_vocabulary(const MegatronLine& line) {
  MegatronVocabulary v;
  if (line.has("model.vocab") || line.has("from")) {  // the tokenizer itself still serves
    const std::string path = line.value("tokenizer-model"), type = line.value("tokenizer-type");
    if (type != "TikTokenizer" && (type != "HuggingFaceTokenizer" || there(path))) v.tokenizer = path;
    return v;
  }
  const Pieces p = of_line(line);
  v.flag = p.flag, v.problem = p.problem, v.fix = p.fix;
  if (!p.problem.empty()) return v;
  v.tokenizer = p.tokenizer;
  if (const auto n = line.number("padded-vocab-size")) {
    v.padded = *n, v.how = fmt::format("--padded-vocab-size {}", *n);
    return v;
  }
  constexpr int64_t kMost = 1 << 22;
  const int64_t divisor = line.number("make-vocab-size-divisible-by").value_or(128), tp = tp_of(line);
  if (divisor > kMost || tp > kMost || p.count > kMost) {
    v.flag = divisor > kMost ? "make-vocab-size-divisible-by" : "vocab-size";
    v.problem = fmt::format("more than {} tokens", kMost), v.tokenizer.clear();
    return v;
  }
  const int64_t unit = divisor * tp;
  v.padded = (p.count + unit - 1) / unit * unit;
  v.how = fmt::format("{}, padded to a multiple of {} x tp {}", p.how, divisor, tp);
  return v;
}

}  // namespace gt
