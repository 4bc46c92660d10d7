#include "data/tokenizer/tokenizer_train.h"

#include <sentencepiece_trainer.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/files.h"
#include "kernels/core/check.h"

namespace gt {
namespace {
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

class SampleIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit SampleIterator(const std::vector<SampledLine>& lines) : lines_(lines) {}
  bool done() const override { return at_ >= lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_].text; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<SampledLine>& lines_;
  size_t at_ = 0;
};

void check_options(const TokenizerTrainOptions& o) {
  GT_REQUIRE(!o.output.empty(), Exit::kUsage, "--output: expected a path for the model, found nothing");
  GT_REQUIRE(o.type == "bpe" || o.type == "unigram", Exit::kUsage, "--type: expected bpe or unigram, found \"", o.type,
             "\"");
  const int64_t least = 4 + 2 + static_cast<int64_t>(o.special.size() + o.control.size()) + 256;
  GT_REQUIRE(o.vocab > least && o.vocab <= 1'000'000, Exit::kUsage, "--vocab: expected ", least + 1,
             " (4 control pieces, the symbols and 256 bytes, and more) to 1000000, found ", o.vocab);
  GT_REQUIRE(o.sample_mb > 0 && o.sample_mb <= 10000, Exit::kUsage,
             "--sample-mb: expected a number above 0 and up to 10000, found ", o.sample_mb);
  GT_REQUIRE(o.coverage >= 0.98 && o.coverage <= 1, Exit::kUsage, "--coverage: expected 0.98 to 1, found ", o.coverage);
  GT_REQUIRE(!o.json_key.empty(), Exit::kUsage, "--json-key: expected a name, found nothing");
  GT_REQUIRE(o.threads >= 1 && o.threads <= 1024, Exit::kUsage, "--threads: expected 1 to 1024, found ", o.threads);
  for (const std::string& s : o.special)
    GT_REQUIRE(!s.empty() && s != "<|endoftext|>" && s != "\n", Exit::kUsage, "--special: \"", s,
               "\" is empty or already a symbol");
  for (const std::string& s : o.control)
    GT_REQUIRE(!s.empty() && s != "<|endoftext|>" && s != "\n" && s.find("\xE2\x96\x81") == std::string::npos &&
                   std::count(o.control.begin(), o.control.end(), s) == 1 &&
                   std::count(o.special.begin(), o.special.end(), s) == 0,
               Exit::kUsage, "--control: \"", s, "\" is empty, already a symbol, or holds a blank of pieces (U+2581)");
  for (const std::string& s : o.special)
    GT_REQUIRE(s.find("\xE2\x96\x81") == std::string::npos, Exit::kUsage, "--special: \"", s,
               "\" holds U+2581, which stands for a blank in pieces; use another character");
}

std::string csv_field(const std::string& s) {
  std::string quoted = "\"";
  for (char c : s) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// Returns the library's reason without its source lines, with advice.
std::string advice(std::string reason) {
  if (const size_t at = reason.rfind("] "); at != std::string::npos) reason.erase(0, at + 2);
  if (reason.find("required_chars") != std::string::npos)
    return cat(
        reason.substr(0, reason.find(" Increase")),
        " The text has more different characters than pieces: give a larger --vocab, or a smaller --coverage (0.98 "
        "to 1), which spells rare characters in bytes");
  return cat(reason, " Give ", reason.find("too high") != std::string::npos ? "a smaller" : "another",
             " --vocab or more text");
}

std::string train_model(const TokenizerTrainOptions& o, const std::vector<SampledLine>& lines) {
  std::string symbols = "<|endoftext|>,\n";
  for (const std::string& s : o.special) symbols += "," + csv_field(s);
  std::string control;
  for (const std::string& s : o.control) control += (control.empty() ? "" : ",") + csv_field(s);
  std::ostringstream coverage;
  coverage.precision(10);
  coverage << o.coverage;
  std::unordered_map<std::string, std::string> spec = {{"model_type", o.type},
                                                       {"vocab_size", std::to_string(o.vocab)},
                                                       {"character_coverage", coverage.str()},
                                                       {"byte_fallback", "true"},
                                                       {"normalization_rule_name", "identity"},
                                                       {"remove_extra_whitespaces", "false"},
                                                       {"add_dummy_prefix", "false"},
                                                       {"split_digits", "true"},
                                                       {"unk_id", "0"},
                                                       {"bos_id", "1"},
                                                       {"eos_id", "2"},
                                                       {"pad_id", "3"},
                                                       {"user_defined_symbols", symbols},
                                                       {"num_threads", "16"},
                                                       {"max_sentence_length", "65536"},
                                                       {"minloglevel", "2"}};
  if (!control.empty()) spec.emplace("control_symbols", control);
  SampleIterator iterator(lines);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(spec, &iterator, &model);
  GT_REQUIRE(status.ok(), Exit::kUsage, "training a tokenizer of ", o.vocab, " pieces from ", lines.size(),
             " lines failed: ", advice(status.ToString()));
  return model;
}

int64_t characters(std::string_view s) {
  return std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void measure(const Tokenizer& t, const std::vector<SampledLine>& lines, TokenizerReport* r) {
  Encoder encoder(t);
  std::vector<int32_t> ids;
  int64_t tokens = 0, chars = 0, fallback = 0;
  for (const SampledLine& l : lines) {
    ids.clear();
    encoder.encode(l.text, &ids);
    encoder.encode("\n", &ids);
    tokens += static_cast<int64_t>(ids.size());
    chars += characters(l.text) + 1;
    r->report_bytes += static_cast<int64_t>(l.text.size()) + 1;
    for (int32_t id : ids)  // first byte of a character: "<0x41>"
      if (t.is_byte(id)) fallback += (std::stoi(t.piece(id).substr(3, 2), nullptr, 16) & 0xC0) != 0x80;
  }
  r->bytes_per_token = tokens ? static_cast<double>(r->report_bytes) / static_cast<double>(tokens) : 0;
  r->fallback_percent = chars ? 100.0 * static_cast<double>(fallback) / static_cast<double>(chars) : 0;
}

std::vector<std::string> longest_pieces(const Tokenizer& t) {
  std::vector<std::pair<int64_t, int32_t>> order;
  for (int32_t id = 4; id < t.vocab(); ++id)
    if (!t.is_byte(id)) order.emplace_back(-characters(t.piece(id)), id);
  std::sort(order.begin(), order.end());
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min<size_t>(10, order.size()); ++i) out.push_back(t.piece(order[i].second));
  return out;
}

Json report_json(const TokenizerReport& r) {
  return {{"pieces", r.pieces},
          {"seconds", r.seconds},
          {"peak_memory", r.peak_memory},
          {"bytes_read", r.bytes_read},
          {"lines_read", r.lines_read},
          {"train_bytes", r.train_bytes},
          {"train_lines", r.train_lines},
          {"report_bytes", r.report_bytes},
          {"unseen", r.unseen},
          {"bytes_per_token", r.bytes_per_token},
          {"fallback_percent", r.fallback_percent},
          {"longest", r.longest}};
}

void write_outputs(const TokenizerTrainOptions& o, const std::string& model, const Tokenizer& t,
                   const TokenizerReport& r) {
  const std::string stem = o.output.ends_with(".model") ? o.output.substr(0, o.output.size() - 6) : o.output;
  const auto parent = std::filesystem::path(stem).parent_path();
  std::error_code ec;
  if (!parent.empty()) std::filesystem::create_directories(parent, ec);
  std::string vocab;
  for (int32_t id = 0; id < t.vocab(); ++id) {
    for (char c : t.piece(id)) vocab += c == '\n' ? std::string("\\n") : std::string(1, c);
    vocab += "\t" + std::to_string(id) + "\n";
  }
  Json meta = {{"sha256", t.sha256()},   {"type", o.type},          {"vocab", o.vocab}, {"sample_mb", o.sample_mb},
               {"coverage", o.coverage}, {"special", o.special},    {"seed", o.seed},   {"inputs", o.inputs},
               {"eod", t.eod()},         {"report", report_json(r)}};
  if (!o.control.empty()) meta["control"] = o.control;
  if (o.json_key != "text") meta["json_key"] = o.json_key;
  write_file_atomically(stem + ".vocab", vocab);
  write_file_atomically(stem + ".meta.json", meta.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  write_file_atomically(stem + ".model", model);  // last: its presence marks a complete model
}

}  // namespace

std::string to_json(const TokenizerReport& r) {
  return report_json(r).dump(2, ' ', false, Json::error_handler_t::replace);
}

TokenizerReport tokenizer_train(const TokenizerTrainOptions& o,
                                const std::function<void(const TokenizerTrainProgress&)>& progress) {
  check_options(o);
  const auto began = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  LineSample sample = sample_lines(o.inputs, o.sample_mb, o.seed, o.threads, progress, o.json_key);
  GT_REQUIRE(!sample.train.empty(), Exit::kUsage, "tokenizer train: the inputs have no text (", sample.bytes_read,
             " bytes, ", sample.lines_read, " lines)");
  TokenizerReport r;
  r.bytes_read = sample.bytes_read;
  r.lines_read = sample.lines_read;
  r.train_lines = static_cast<int64_t>(sample.train.size());
  for (const SampledLine& l : sample.train) r.train_bytes += static_cast<int64_t>(l.text.size()) + 1;
  if (progress) progress({"train", r.bytes_read, r.lines_read, seconds()});
  const std::string model = train_model(o, sample.train);
  if (progress) progress({"report", r.bytes_read, r.lines_read, seconds()});
  const Tokenizer t = Tokenizer::from_bytes(model, o.output);
  GT_CHECK(t.lossless() && t.line_cuts() == LineCuts::kEveryLine, "the trained model lost its settings");
  r.pieces = t.vocab();
  r.unseen = !sample.unseen.empty();
  measure(t, r.unseen ? sample.unseen : sample.train, &r);
  r.longest = longest_pieces(t);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  r.peak_memory = usage.ru_maxrss * int64_t{1024};
  r.seconds = seconds();
  if (progress) progress({"write", r.bytes_read, r.lines_read, r.seconds});
  write_outputs(o, model, t, r);
  return r;
}

}  // namespace gt
