// Training data as configured.
#pragma once
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "data/samples/dataset.h"
#include "data/samples/loader.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "launch/observe/metrics.h"
#include "parallel/mesh.h"

namespace gt {

// Returns the samples of the run in order. `builder`: the one rank per machine that writes the index.
DatasetOptions training_data(const Config&, bool builder);

// Throws kUsage if the checkpoint step stores another tokenizer than that of the run's data.
void require_tokenizer_of(const std::string& step_dir, const Config&);

// Like open_dataset, but errors name the config file or flag that named the files.
std::unique_ptr<Dataset> open_training_data(const DatasetOptions&, const LoadedConfig&);

// Samples of evaluations, in the order of the files. `o`: the options for training.
std::unique_ptr<Dataset> open_validation_data(DatasetOptions o, const Config&);

// Datasets of a run. valid: nullptr if it does not evaluate.
struct RunDatasets {
  std::unique_ptr<Dataset> train, valid;
  std::string tokenizer_sha256;  // of data.tokenizer; "": none
};
// `o`: training_data(), with its warning callback set.
RunDatasets open_datasets(const DatasetOptions& o, const LoadedConfig&);

// Returns the end-of-document token according to the token files or the tokenizer. Throws kUsage if they differ or
// define none.
int32_t end_of_document(const Config&);

// Rows of the start block about data.tokenizer: its pieces, what begins each text, and a note where the model's
// vocabulary is far larger. Empty without one.
Rows tokenizer_rows(const Config&);

// Microbatches of this rank's steps from the first sample on, with document ends masked if configured.
LoaderConfig training_loader(const Config&, const Mesh&);

// Collective. Targets that carry loss in the global batch that each rank's loader gave last.
int64_t target_count(const Mesh&, const Loader&);
// By index of ModelSpec::losses.
struct MeanLoss {
  std::vector<double> parts;     // weight times mean: what each contributes to the loss of the model
  std::vector<double> accuracy;  // share of hits
  double sum() const { return std::accumulate(parts.begin(), parts.end(), 0.); }
};
MeanLoss mean_loss(const std::vector<LossTerm>&, const LossSums&, const LossCounts&);

}  // namespace gt
