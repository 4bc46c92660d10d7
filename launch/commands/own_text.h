// Text as data.train: prepared once into the run's folder, then read as token files.
#pragma once
#include <string>

#include "data/prepare.h"
#include "launch/commands/output.h"
#include "launch/config/config.h"

namespace gt {

// Makes token files of every text file in data.train and data.valid and puts their prefixes in its place. They are
// RUN/data/NAME-HASH, where the hash is of the text and the tokenizer: what is there is used. Of several processes one
// reads and prepares the text, the others wait. Throws kUsage for a tokenizer with more pieces than model.vocab,
// kInterrupted after a stop signal, and as prepare_data.
void prepare_own_text(Config& config);

// Random tokens in place of text: a dry run writes nothing. Returns whether there was any.
bool forget_own_text(Config& config);

// One line of progress on the terminal or in the log.
void show_progress(const PrepareProgress& p, WorkLine& line);

}  // namespace gt
