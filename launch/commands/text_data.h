// Text files as data.train: tokenized once into the run's folder, then read as token files.
#pragma once
#include <string>

#include "data/prepare/prepare.h"
#include "launch/config/config.h"
#include "launch/options/output.h"

namespace gt {

// Tokenizes every text file in data.train and data.valid and replaces it by the prefix of its token files,
// RUN/data/NAME-HASH. The hash covers text and tokenizer; existing files are reused. One process tokenizes while the
// others wait. Throws kUsage for a tokenizer with more pieces than model.vocab, kInterrupted after a stop signal, and
// the errors of prepare_data.
void tokenize_text_data(Config& config);

// Replaces text files by mock data for a dry run, which writes nothing. Returns whether there were any. Throws kUsage
// for a file that is not text, and as tokenize_text_data for the tokenizer.
bool replace_text_by_mock(Config& config);

// Shows one line of progress on the terminal or in the log.
void show_progress(const PrepareProgress& p, WorkLine& line);

}  // namespace gt
