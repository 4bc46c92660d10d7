#include "data/prepare/prepare_chunks.h"

#include <algorithm>

#include "data/prepare/json_line.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

std::string_view without_end(std::string_view s) {
  if (!s.empty() && s.back() == '\n') s.remove_suffix(1);
  if (!s.empty() && s.back() == '\r') s.remove_suffix(1);
  return s;
}

// Returns whether LineCuts::kPlainLines allows a cut between these two.
bool plain_cut(std::string_view before, std::string_view after) {
  if (!before.ends_with('\n') || after.empty()) return false;
  before.remove_suffix(1);
  return !before.empty() && !ends_with_space(before) && !begins_with_space(after);
}

}  // namespace

void Chunk::clear() {
  text.clear();
  pieces.clear();
  problem.clear();
  read_bytes = disk_done = dropped = bad = 0;
}

ChunkReader::ChunkReader(const std::vector<TextInput>& inputs, const PrepareOptions& options, LineCuts cuts,
                         int64_t chunk_bytes, const ReadState& from)
    : inputs_(inputs), options_(options), cuts_(cuts), chunk_bytes_(chunk_bytes), state_(from) {
  for (int64_t i = 0; i < from.input; ++i) disk_before_ += inputs[static_cast<size_t>(i)].size;
}

void ChunkReader::open_input() {
  const TextInput& in = inputs_[static_cast<size_t>(state_.input)];
  reader_ = std::make_unique<LineReader>(in.path, options_.max_doc_mb << 20);
  json_ = options_.format == TextFormat::kJsonl || is_chat(options_.format) ||
          (options_.format == TextFormat::kAuto && is_json_lines(in.path, reader_->head()));
  if (state_.byte > 0) reader_->skip_to(state_.byte, state_.line);
}

bool ChunkReader::full(const Chunk& c) const {
  return static_cast<int64_t>(c.text.size()) >= chunk_bytes_ || c.pieces.size() >= 100'000 ||
         c.read_bytes >= 16 * chunk_bytes_;
}

bool ChunkReader::next(Chunk* c) {
  c->clear();
  const auto inputs = static_cast<int64_t>(inputs_.size());
  while (!failed_ && state_.input < inputs) {
    if (!reader_) open_input();
    if (held_ || reader_->next(&line_)) {
      if (!held_ && state_.open) see_cut(line_, *c);
      if (!held_ && state_.open && cuts_ == LineCuts::kPlainLines && uncut_ == 0 && full(*c)) {
        held_ = true;
        break;
      }
      held_ = false;
      c->read_bytes += static_cast<int64_t>(line_.text.size());
      take(line_, c);
      state_.byte = reader_->position();
      state_.line = line_.number + 1;
      if (!line_.complete || (cuts_ != LineCuts::kEveryLine && state_.open)) continue;  // a chunk cannot end here
      if (full(*c)) break;
    } else {
      end_input(c);
    }
  }
  c->after = state_;
  c->disk_done = disk_before_ + (reader_ ? reader_->disk_position() : 0);
  return !c->pieces.empty() || c->read_bytes > 0 || c->dropped > 0 || !c->problem.empty();
}

// Handles a possible cut between the open document and the next line.
void ChunkReader::see_cut(const LineReader::Line& line, const Chunk& c) {
  if (cuts_ == LineCuts::kPlainLines && line.complete && line.first && plain_cut(c.text, line.text)) uncut_ = 0;
}

void ChunkReader::take(const LineReader::Line& line, Chunk* c) {
  if (!line.complete || !line.first) {  // longer than the document limit: dropped
    if (line.first) bad(line, cat("the line is longer than --max-doc-mb ", options_.max_doc_mb), c);
    return;
  }
  const std::string_view text = line.text;
  const std::string_view bare = without_end(text);
  if (json_) {
    if (bare.find_first_not_of(" \t") == std::string_view::npos) return;
    append(bare, line, true, c);
    end_document(c);
  } else if (options_.split_docs == SplitDocs::kLine) {
    if (bare.empty()) {
      ++c->dropped;
      return;
    }
    append(bare, line, false, c);
    end_document(c);
  } else if ((options_.split_docs == SplitDocs::kBlankLine && bare.empty()) ||
             (options_.split_docs == SplitDocs::kSeparator && bare == options_.separator)) {
    end_document(c);
  } else {
    append(text, line, false, c);
  }
}

void ChunkReader::append(std::string_view text, const LineReader::Line& line, bool json, Chunk* c) {
  if (state_.skipping || text.empty()) return;
  if (!state_.open || c->pieces.empty() || c->pieces.back().ends)
    c->pieces.push_back({c->text.size(), 0, false, json, state_.input, line.number, line.begin, !state_.open});
  state_.open = true;
  c->text.append(text);
  TextChunk& p = c->pieces.back();
  p.size += text.size();
  if (cuts_ == LineCuts::kEveryLine || (uncut_ += static_cast<int64_t>(text.size())) <= options_.max_doc_mb << 20)
    return;
  if (cuts_ == LineCuts::kPlainLines) {  // earlier text has been written already
    c->problem = cat(inputs_[static_cast<size_t>(state_.input)].path, " line ", line.number + 1, " byte ", line.begin,
                     ": more than --max-doc-mb ", options_.max_doc_mb,
                     " of one document without a newline between two characters that are not white space, where this "
                     "tokenizer could cut it; cut documents with --split-docs");
    failed_ = true;
    return;
  }
  c->text.resize(p.begin);
  c->pieces.pop_back();
  state_.skipping = true;
  bad(line,
      cat("the document is longer than --max-doc-mb ", options_.max_doc_mb,
          " and this tokenizer has pieces that span lines"),
      c);
}

void ChunkReader::end_document(Chunk* c) {
  if (state_.open && !state_.skipping) {
    if (c->pieces.empty() || c->pieces.back().ends)
      c->pieces.push_back({c->text.size(), 0, false, false, state_.input, state_.line, state_.byte});
    c->pieces.back().ends = true;
  }
  state_.open = state_.skipping = false;
  uncut_ = 0;
}

void ChunkReader::end_input(Chunk* c) {
  if (!json_ && options_.split_docs == SplitDocs::kFile && !state_.open) ++c->dropped;
  end_document(c);
  disk_before_ += inputs_[static_cast<size_t>(state_.input)].size;
  reader_.reset();
  state_ = {state_.input + 1, 0, 0, false, false};
}

void ChunkReader::bad(const LineReader::Line& line, const std::string& what, Chunk* c) {
  if (options_.on_bad == OnBad::kSkip) {
    ++c->bad;
    return;
  }
  c->problem =
      cat(inputs_[static_cast<size_t>(state_.input)].path, " line ", line.number + 1, " byte ", line.begin, ": ", what);
  failed_ = true;
}

}  // namespace gt
