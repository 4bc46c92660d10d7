// gpttrain generate: texts from a checkpoint, on any layout. Every rank of a tp x pp group processes the same texts;
// the rank that has the logits samples the tokens and broadcasts them. Texts are distributed over data-parallel
// replicas.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/world.h"
#include "data/prepare/text_stream.h"
#include "kernels/core/rng.h"
#include "launch/options/output.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/ranks.h"
#include "launch/ranks/signals.h"
#include "launch/tools/generate/decoder.h"
#include "launch/tools/generate/generation_config.h"
#include "launch/tools/generate/prompts.h"
#include "launch/tools/generate/sampler.h"
#include "launch/tools/generate/stop_strings.h"
#include "launch/tools/generate/subcommands.h"
#include "launch/train/kept_files.h"
#include "launch/train/kept_tokenizer.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

// A text being generated.
struct ActiveText {
  size_t index;  // index among all texts of the job
  const std::string& prompt;
  Sequence sequence;
  TextStream stream;
  StopStrings stop;
  std::string text = {};  // final text after the prompt
  int64_t tokens = 0;
  const char* ended = nullptr;  // reason: eod, stop, length, interrupted

  // `bos`: begins with what the tokenizer puts before every text.
  ActiveText(size_t i, const std::string& p, int64_t slot, const Tokenizer& t, const std::vector<std::string>& stops,
             bool bos)
      : index(i), prompt(p), stream(t), stop(stops) {
    sequence.slot = slot;
    const std::vector<int32_t> text = t.encode(p);
    for (const int32_t id : text) stream.push(id);
    stream.finish();
    if (bos) sequence.ids = t.before_text();
    sequence.ids.insert(sequence.ids.end(), text.begin(), text.end());
    // Without BOS a document begins after the EOD of another.
    if (sequence.ids.empty()) sequence.ids.push_back(bos ? t.empty_text() : t.eod());
  }

  // Appends a token; returns the text that became final. `ends`: ids that end a text.
  std::string add(int32_t id, const std::vector<int64_t>& ends, int64_t most) {
    std::string shown;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      ended = "eod";
    } else {
      sequence.ids.push_back(id);
      shown = stop.push(stream.push(id));
      ended = stop.found() ? "stop" : ++tokens == most ? "length" : nullptr;
    }
    text += shown;
    return shown;
  }
  std::string finish(const char* why) {
    ended = ended == nullptr ? why : ended;
    const std::string rest = stop.push(stream.finish()) + stop.finish();
    text += rest;
    return rest;
  }
};

// Output format: texts in order, or streamed if there is only one.
class Printer {
 public:
  Printer(const GenerateArgs& args, size_t texts) : json_(args.json), samples_(args.num_samples), texts_(texts) {}
  bool streams() const { return texts_ == 1 && !json_; }

  std::string complete(const ActiveText& w) const {
    if (!json_) {
      std::string out = texts_ > 1 ? fmt::format("== {} of {}\n", w.index + 1, texts_) : "";
      return out + w.prompt + w.text + "\n";
    }
    const auto n = static_cast<size_t>(samples_);
    const nlohmann::ordered_json line{{"prompt_index", w.index / n}, {"sample", w.index % n},
                                      {"prompt", w.prompt},          {"text", w.text},
                                      {"tokens", w.tokens},          {"ended", w.ended}};
    return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }

 private:
  bool json_;
  int64_t samples_;
  size_t texts_;
};

void show(const std::string& text) {
  write_out(text);
  flush_out();
}

// Generates the texts of one replica.
class Generator {
 public:
  // `ends`: ids that end a text besides those of the tokenizer.
  Generator(LoadedModel& m, const Tokenizer& tokenizer, const GenerateArgs& args, std::vector<int64_t> ends,
            std::vector<std::string> prompts)
      : m_(m),
        tokenizer_(tokenizer),
        ends_(std::move(ends)),
        args_(args),
        prompts_(std::move(prompts)),
        total_(prompts_.size() * static_cast<size_t>(args.num_samples)),
        replica_(static_cast<size_t>(m.mesh->coord(Axis::kDp))),
        replicas_(static_cast<size_t>(m.mesh->size(Axis::kDp))),
        batch_(std::min<int64_t>(args.batch, static_cast<int64_t>((total_ + replicas_ - 1) / replicas_))),
        key_(stream_key(static_cast<uint64_t>(args.seed), "generate")),
        printer_(args, total_),
        decoder_(m, batch_, !args.no_cache, args.shift),
        done_(total_) {
    ends_.insert(ends_.end(), {tokenizer.eod(), tokenizer.eos()});
  }

  // Returns true if all texts were generated, false after an interruption.
  bool run() {
    next_ = replica_;
    for (int64_t slot = batch_; slot-- > 0;) free_.push_back(slot);
    while (!interrupted_ && (start_texts() || !writing_.empty())) step();
    for (auto& w : writing_) end(*w, "interrupted");
    if (printer_.streams() && is_rank0()) show("\n");
    if (replicas_ > 1) print_all();
    return !interrupted_;
  }

 private:
  bool is_rank0() const { return m_.mesh->rank() == 0; }

  bool start_texts() {
    for (; !free_.empty() && next_ < total_; next_ += replicas_) {
      const std::string& prompt = prompts_[next_ / static_cast<size_t>(args_.num_samples)];
      writing_.push_back(
          std::make_unique<ActiveText>(next_, prompt, free_.back(), tokenizer_, args_.stop, !m_.config.data.no_bos));
      free_.pop_back();
      if (printer_.streams() && is_rank0()) show(prompt);
    }
    return !writing_.empty();
  }

  void step() {
    std::vector<Sequence*> sequences;
    for (auto& w : writing_) sequences.push_back(&w->sequence);
    decoder_.run(sequences);
    const std::vector<int32_t> ids = draw();
    interrupted_ = ids.back() != 0;
    for (size_t i = 0; i < writing_.size(); ++i) {
      ActiveText& w = *writing_[i];
      const std::string text = w.add(ids[i], ends_, args_.max_tokens);
      if (printer_.streams() && is_rank0() && !text.empty()) show(text);
      if (w.ended == nullptr) continue;
      free_.push_back(w.sequence.slot);
      end(w, nullptr);
    }
    std::erase_if(writing_, [](const auto& w) { return w->ended != nullptr; });
  }

  // Returns one token per text, equal on every rank of the replica, then whether a stop was requested.
  std::vector<int32_t> draw() {
    std::vector<int32_t> ids(writing_.size() + 1);
    ProcessGroup &tp = m_.mesh->group(Axis::kTp), &pp = m_.mesh->group(Axis::kPp);
    const Tensor all = host_tensor(std::span(ids));
    if (m_.mesh->last_stage()) {
      const SamplerOptions options{.temperature = args_.temperature, .top_k = args_.top_k, .top_p = args_.top_p};
      for (size_t i = 0; tp.rank() == 0 && i < writing_.size(); ++i) {
        const ActiveText& w = *writing_[i];
        const double u = philox(key_, static_cast<uint64_t>(w.tokens), w.index)[0] * 0x1p-32;
        const auto pieces = static_cast<size_t>(tokenizer_.vocab());  // vocabulary padding has no text
        ids[i] = sample_token(decoder_.logits(i).first(pieces), options, u);
      }
      ids.back() = stop_requested() ? 1 : 0;
      if (tp.size() > 1) tp.broadcast(all, 0, {}).wait({});
    }
    if (pp.size() > 1) pp.broadcast(all, pp.size() - 1, {}).wait({});
    return ids;
  }

  // Completes a text. Without replicas it is printed once all earlier ones are complete.
  void end(ActiveText& w, const char* why) {
    const std::string rest = w.finish(why);
    if (printer_.streams()) {
      if (is_rank0()) show(rest);
      return;
    }
    done_[w.index] = printer_.complete(w);
    if (replicas_ > 1 || !is_rank0()) return;
    for (; printed_ < total_ && done_[printed_]; ++printed_) show(*done_[printed_]), done_[printed_]->clear();
  }

  // Prints the texts of all replicas on the first rank.
  void print_all() {
    if (!m_.mesh->first_stage() || m_.mesh->coord(Axis::kTp) != 0) return;
    ProcessGroup& dp = m_.mesh->group(Axis::kDp);
    for (size_t i = 0; i < total_; ++i) {
      const std::string text = broadcast_bytes(dp, done_[i].value_or(""), static_cast<int>(i % replicas_));
      if (is_rank0()) show(text);
    }
  }

  LoadedModel& m_;
  const Tokenizer& tokenizer_;
  std::vector<int64_t> ends_;
  const GenerateArgs& args_;
  const std::vector<std::string> prompts_;
  const size_t total_, replica_, replicas_;
  const int64_t batch_;
  const uint64_t key_;
  const Printer printer_;
  Decoder decoder_;
  std::vector<std::optional<std::string>> done_;  // formatted complete texts
  std::vector<std::unique_ptr<ActiveText>> writing_;
  std::vector<int64_t> free_;  // free cache slots
  size_t next_ = 0, printed_ = 0;
  bool interrupted_ = false;
};

// A prompt that writes BOS itself, as chat templates do, gets a second one.
void note_second_bos(const Tokenizer& t, const std::vector<std::string>& prompts, bool no_bos) {
  const std::vector<int32_t>& before = t.before_text();
  if (no_bos || before.empty()) return;
  for (const std::string& prompt : prompts)
    if (const std::vector<int32_t> ids = t.encode(std::string_view(prompt).substr(0, 1000));
        ids.size() >= before.size() && std::equal(before.begin(), before.end(), ids.begin()))
      return fmt::print(stderr,
                        "note: a prompt begins with {}, which is written before every prompt: leave it out, or "
                        "give --no-bos\n",
                        t.names_of(before));
}

Exit generate_rank(const ModelSource& source, const GenerateArgs& args, const FolderGeneration& folder,
                   GroupFactory& factory) {
  install_stop_signals();
  const auto model = load_model(source, factory);
  ProcessGroup& world = model->mesh->world();
  std::optional<Tokenizer> tokenizer;
  std::string prompts;
  agree(world, [&] {
    tokenizer.emplace(model_tokenizer(args.tokenizer, "--tokenizer", model->step_dir, model->config.model.vocab));
    if (model->mesh->rank() != 0) return;
    if (!folder.note.empty()) fmt::print(stderr, "note: {}\n", folder.note);
    const std::vector<std::string> texts = read_prompts(args);
    note_second_bos(*tokenizer, texts, model->config.data.no_bos);
    prompts = pack_prompts(texts);
  });
  Generator writer(*model, *tokenizer, args, args.tokenizer.empty() ? folder.ends : std::vector<int64_t>(),
                   unpack_prompts(broadcast_bytes(world, prompts, 0)));
  if (writer.run()) return Exit::kOk;
  if (world.rank() == 0) fmt::print(stderr, "gpttrain: interrupted by {}\n", signal_name(stop_signal()));
  return static_cast<Exit>(128 + stop_signal());
}

}  // namespace

Exit run_generate(const Command& command) {
  Command c = command;
  const ModelSource source =
      find_model(c.get<GenerateArgs>().load, command.config_flags, InferencePrecision::k16Bit, command.env);
  c.loaded = source.loaded;
  GT_REQUIRE(
      !source.loaded.config.model.predicts_pairs(), Exit::kUsage, c.get<GenerateArgs>().load, ": a ",
      source.loaded.config.model.arch,
      " model sees tokens on both sides of the one that it predicts and cannot continue a text; use gpttrain eval, or "
      "gpttrain export");
  take_standard_input(c);
  GenerateArgs args = c.get<GenerateArgs>();
  const FolderGeneration folder =
      take_generation_config(read_aux(source.step_dir, kBaseGeneration), command.words, &args);
  return run_ranks(c, [&](GroupFactory& factory) { return generate_rank(source, args, folder, factory); });
}

}  // namespace gt
