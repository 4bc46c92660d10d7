// The training data as a config describes them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "parallel/mesh.h"

namespace gt {

// The samples of the run in their order. `builder`: of the ranks of a machine the one that writes its index.
DatasetOptions training_data(const Config&, bool builder);

// Throws kUsage where the checkpoint step keeps another tokenizer than the run's data were made with.
void require_tokenizer_of(const std::string& step_dir, const Config&);

// open_dataset, whose errors say who named the files.
std::unique_ptr<Dataset> open_training_data(const DatasetOptions&, const LoadedConfig&);

// The samples of evaluations, in the order of the files. `o`: those of training.
std::unique_ptr<Dataset> open_validation_data(DatasetOptions o, const Config&);

// The datasets of a run. valid: nullptr where it does not evaluate.
struct RunDatasets {
  std::unique_ptr<Dataset> train, valid;
  std::string tokenizer_sha256;          // of data.tokenizer; "": there is none
  std::vector<AuxFile> tokenizer_files;  // of data.tokenizer, for checkpoints
};
// `o`: training_data(), with who is warned.
RunDatasets open_datasets(const DatasetOptions& o, const LoadedConfig&);

// The token that ends a document, as the token files or the tokenizer name it. Throws kUsage when they differ or are
// silent.
int32_t end_of_document(const Config&);

// The microbatches of this rank's steps, from the first sample on, ends of documents masked where the config says so.
LoaderConfig training_loader(const Config&, const Mesh&);

// Collective. Targets that carry loss in the global batch that each rank's loader gave last, and its sentence pairs.
struct TargetCounts {
  int64_t tokens = 0, pairs = 0;
};
TargetCounts target_counts(const Mesh&, const Loader&);
// Means over tokens and over pairs; the loss of the model is their sum.
struct MeanLoss {
  double tokens = 0, pairs = 0;
  double sum() const { return tokens + pairs; }
};
MeanLoss mean_loss(const LossSums&, const TargetCounts&);

}  // namespace gt
