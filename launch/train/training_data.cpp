#include "launch/train/training_data.h"

#include <algorithm>
#include <map>

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/index_store.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/check.h"
#include "launch/train/kept_tokenizer.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

// The id of a special token: an option's piece.
int32_t special_token(const Tokenizer& t, const char* key, const std::string& piece) {
  const int32_t id = t.id_of(piece);
  GT_REQUIRE(id >= 0 && id != t.unk(), Exit::kUsage, key, ": ", t.name(), " has no piece \"", piece,
             "\"; name another one, or train a tokenizer with --control CLS,SEP,MASK");
  return id;
}

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += cat(out.empty() ? "" : " ", id);
  return ids.empty() ? "none" : out;
}

// Without a tokenizer (random tokens) the special ones are the first four ids.
MaskingOptions masking_options(const Config& c) {
  MaskingOptions o = c.data.masking;
  o.vocab = c.model.vocab;
  if (c.data.tokenizer.empty()) {
    for (const auto* list : {&c.data.train, &c.data.valid})
      for (const DataSource& s : *list)
        GT_REQUIRE(s.path == "mock", Exit::kUsage,
                   "data.tokenizer: missing: it defines the tokens that mask, begin and separate sentences; give the "
                   "tokenizer that ",
                   s.path, " was prepared with");
    return o;
  }
  const Tokenizer t = Tokenizer::load(c.data.tokenizer);
  o.special.mask = special_token(t, "data.mask_token", c.data.mask_token);
  o.special.cls = special_token(t, "data.cls_token", c.data.cls_token);
  o.special.sep = special_token(t, "data.sep_token", c.data.sep_token);
  GT_REQUIRE(!c.data.pad_token.empty() || t.pad() >= 0, Exit::kUsage, "data.pad_token: ", t.name(),
             " has no padding token; name a piece");
  o.special.pad = c.data.pad_token.empty() ? t.pad() : special_token(t, "data.pad_token", c.data.pad_token);
  o.vocab = std::min(o.vocab, t.vocab());
  if (o.whole_words) o.word_starts = word_starts(t);
  return o;
}

// Warns of token files whose documents begin otherwise than the tokenizer's texts, or than those of other files.
void note_beginnings(const DatasetOptions& o, const Config& c) {
  std::map<std::vector<int32_t>, std::string> files;  // by the tokens that begin documents: one of the files
  bool ours = false;                                  // some were written with data.tokenizer
  for (const auto* list : {&c.data.train, &c.data.valid})
    for (const DataSource& s : *list)
      if (const auto meta = s.path == "mock" ? std::nullopt : read_token_meta(token_prefix(s.path))) {
        files.emplace(meta->bos, s.path);
        ours = ours || (!o.tokenizer_sha256.empty() && meta->tokenizer_sha256 == o.tokenizer_sha256);
      }
  if (files.size() > 1)
    o.warn(cat("documents of ", files.rbegin()->second, " begin with the tokens ", ids_text(files.rbegin()->first),
               ", those of ", files.begin()->second, " with ", ids_text(files.begin()->first),
               ": they were prepared with and without --no-bos, or by different versions"));
  if (!ours || c.data.no_bos || !files.begin()->first.empty()) return;
  const Tokenizer t = Tokenizer::load(c.data.tokenizer);
  if (!t.before_text().empty())
    o.warn(
        cat("documents of ", files.begin()->second, " do not begin with ", t.names_of(t.before_text()),
            ", which the tokenizer puts before every text: prepare the text again, or give --no-bos if that is meant "
            "(generate and eval then leave it out too)"));
}

}  // namespace

DatasetOptions training_data(const Config& c, bool builder) {
  DatasetOptions o;
  o.sources = c.data.train;
  o.split = c.data.split;
  o.whole = !c.data.valid.empty();
  o.split_tokens = c.train.eval_every > 0;  // without evaluation all data is used for training
  o.seq = c.model.seq;
  o.seed = static_cast<uint64_t>(c.train.seed);
  o.order = c.data.order;
  o.num_samples = c.train.steps * c.train.global_batch;
  o.dp = c.parallel.dp;
  o.micro_batch = c.train.micro_batch;
  o.vocab = c.model.vocab;
  o.documents = c.data.pack == Packing::kDocuments;
  if (!c.data.tokenizer.empty()) o.tokenizer_sha256 = tokenizer_sha256(c.data.tokenizer);
  if (c.model.predicts_pairs()) o.masking = masking_options(c);
  o.beside = c.data.valid;
  o.cache_dir = default_cache_dir();
  o.builder = builder;
  return o;
}

void require_tokenizer_of(const std::string& step_dir, const Config& c) {
  const auto kept = kept_tokenizer_claim(step_dir);
  if (!kept) return;
  std::vector<DeclaredTokenizer> claims{*kept};
  if (!c.data.tokenizer.empty()) claims.push_back({c.data.tokenizer, tokenizer_sha256(c.data.tokenizer)});
  for (const auto* list : {&c.data.train, &c.data.valid})
    for (const DataSource& s : *list)
      if (auto claim = declared_tokenizer(token_prefix(s.path))) claims.push_back(*claim);
  require_one_tokenizer(claims);
}

std::unique_ptr<Dataset> open_training_data(const DatasetOptions& o, const LoadedConfig& loaded) {
  try {
    return open_dataset(o);
  } catch (const Error& e) {
    const auto origin = loaded.origin.find("data.train");
    if (origin == loaded.origin.end()) throw;
    throw Error(std::string(e.what()) + "\ndata.train was set by " + origin->second, e.code());
  }
}

std::unique_ptr<Dataset> open_validation_data(DatasetOptions o, const Config& c) {
  if (o.whole)
    o.sources = c.data.valid;
  else
    o.part = 1;
  o.order = SampleOrder::kSequential;
  return open_dataset(o);
}

RunDatasets open_datasets(const DatasetOptions& o, const LoadedConfig& loaded) {
  const Config& c = loaded.config;
  RunDatasets d{open_training_data(o, loaded), nullptr, o.tokenizer_sha256};
  if (c.data.eod_mask_loss) end_of_document(c);  // checked here, where all ranks get the error
  if (c.train.eval_every > 0) d.valid = open_validation_data(o, c);
  if (o.builder && o.warn) note_beginnings(o, c);
  return d;
}

Rows tokenizer_rows(const Config& c) {
  if (c.data.tokenizer.empty()) return {};
  const Tokenizer t = Tokenizer::load(c.data.tokenizer);
  std::string line = cat(c.data.tokenizer, ": ", t.vocab(), " pieces");
  if (!t.before_text().empty())
    line += c.data.no_bos ? cat(", texts without ", t.names_of(t.before_text()), " (data.no_bos)")
                          : cat(", texts begin with ", t.names_of(t.before_text()));
  if (!t.after_text().empty() && !c.data.no_bos) line += cat(", end with ", t.names_of(t.after_text()));
  const int64_t unused = c.model.vocab - t.vocab();
  if (unused > 0) line += cat(", ", unused, " fewer than model.vocab");
  Rows rows{{"tokenizer", line}};
  if (const std::string note = t.undecided_bos(); !note.empty() && !c.data.no_bos) rows.push_back({"note", note});
  if (unused > std::max<int64_t>(1024, t.vocab() / 10))  // vocabularies are often rounded up, for speed
    rows.push_back({"note", cat("model.vocab is ", c.model.vocab, ", the tokenizer has ", t.vocab(), " pieces: ",
                                unused, " rows of the embedding and the head are never used; give --model.vocab ",
                                t.vocab(), " unless the tokenizer is to grow")});
  return rows;
}

int32_t end_of_document(const Config& c) {
  std::vector<DataSource> sources = c.data.train;
  sources.insert(sources.end(), c.data.valid.begin(), c.data.valid.end());
  int64_t eod = -1;
  if (!c.data.tokenizer.empty()) eod = Tokenizer::load(c.data.tokenizer).eod();
  for (const DataSource& s : sources) {
    const auto meta = s.path == "mock" ? std::nullopt : read_token_meta(s.path);
    if (!meta || meta->eod < 0) continue;
    GT_REQUIRE(eod < 0 || eod == meta->eod, Exit::kUsage, s.path, ".meta.json: documents end with token ", meta->eod,
               ", elsewhere with ", eod, "; data.eod_mask_loss needs one");
    eod = meta->eod;
  }
  GT_REQUIRE(eod >= 0, Exit::kUsage, "data.eod_mask_loss: the end-of-document token is unknown; give ",
             "--data.tokenizer, or token files that `gpttrain data prepare` wrote with one");
  return static_cast<int32_t>(eod);
}

LoaderConfig training_loader(const Config& c, const Mesh& mesh) {
  LoaderConfig l;
  l.seq = c.model.seq;
  l.micro_batch = c.train.micro_batch;
  l.microbatches = static_cast<int>(c.train.grad_accum);
  l.dp_rank = mesh.coord(Axis::kDp);
  l.dp_size = mesh.size(Axis::kDp);
  l.need_tokens = mesh.first_stage();
  l.need_targets = mesh.last_stage();
  l.documents = c.data.pack == Packing::kDocuments;
  l.eod_mask_loss = c.data.eod_mask_loss;
  if (l.eod_mask_loss) l.eod = end_of_document(c);
  return l;
}

// Counted on the ranks with targets, reduced to all.
int64_t target_count(const Mesh& mesh, const Loader& loader) {
  return sum_over(mesh.world(), mesh.last_stage() && mesh.coord(Axis::kTp) == 0 ? loader.step_tokens() : int64_t{0});
}

MeanLoss mean_loss(const std::vector<LossTerm>& losses, const LossSums& sums, const LossCounts& counts) {
  MeanLoss out;
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto count = static_cast<double>(std::max<int64_t>(counts.of(losses[i].divisor), 1));
    out.parts.push_back(losses[i].weight * (sums.sums[i] / count));
    out.accuracy.push_back(sums.hits[i] / count);
  }
  return out;
}

}  // namespace gt
