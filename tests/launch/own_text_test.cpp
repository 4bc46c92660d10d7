// A newcomer's path: a text file, three commands, text that a model wrote.
#include <filesystem>

#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

const std::string kModel =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.global_batch 4 "
    "--train.micro_batch 2 --device.kind cpu --log.tensorboard false ";

size_t token_files(const std::string& folder) {
  size_t n = 0;
  for (const auto& e : fs::directory_iterator(folder)) n += e.path().extension() == ".idx";
  return n;
}

}  // namespace

TEST_CASE("from a text file to text in three commands, and the text is prepared once") {
  TempDir dir;
  write_file(dir / "mine.txt", "\xEF\xBB\xBF" + read_file("/usr/share/common-licenses/GPL-3") + "caf\xE9\r\n");
  const Outcome untold = gpttrain(kModel + "--data.train mine.txt --train.steps 2", dir.path());
  INFO(untold.out);
  CHECK(untold.code == 2);
  CHECK(untold.says("gpttrain tokenizer train --input mine.txt --vocab 400 --output mine.model"));
  must("tokenizer train --input mine.txt --vocab 400 --output mine.model", dir);
  const std::string train = kModel +
                            "--data.train mine.txt --data.tokenizer mine.model --log.name mine --train.eval_every 5 "
                            "--train.eval_steps 1 --dp 2 --launch.ranks threads --train.steps ";
  CHECK(must(train + "1 --dry-run", dir).code == 0);
  CHECK_FALSE(fs::exists(dir / "runs/mine"));
  const Outcome first = must(train + "5", dir);
  CHECK(first.says("prepare "));
  CHECK(first.says("1 document is too few"));  // and data.split cuts its tokens, so there is something to evaluate on
  CHECK(logged(dir / "runs/mine", "loss", "eval").size() == 1);
  CHECK(token_files(dir / "runs/mine/data") == 1);
  const Outcome again = must(train + "10 --checkpoint.allow_change train.steps", dir);
  CHECK(again.says("from step 5"));
  CHECK_FALSE(again.says("prepare "));
  CHECK(token_files(dir / "runs/mine/data") == 1);
  CHECK(must("generate --load runs/mine --prompt \"The\" --max-tokens 4", dir).says("The"));
  write_file(dir / "mine.txt", "Other text.\nOf two lines, and so on, and so on, and so on, and so on.\n");
  CHECK(gpttrain(train + "12", dir.path()).code == 2);  // other data than the checkpoint's
}

TEST_CASE("what is no text says so, and a model too small for the tokenizer says how large it must be") {
  TempDir dir;
  const std::string gpl = read_file("/usr/share/common-licenses/GPL-3");
  write_file(dir / "mine.txt", gpl);
  write_file(dir / "empty.txt", "");
  write_file(dir / "weights.pt", std::string("PK\3\4\0\0 and more", 15));
  fs::create_directories(dir / "folder");
  must("tokenizer train --input mine.txt --vocab 420 --output mine.model", dir);
  const auto refused = [&](const std::string& args, const std::string& why) {
    const Outcome r = gpttrain(kModel + "--data.tokenizer mine.model --train.steps 2 " + args, dir.path());
    INFO(args << "\n" << r.out);
    CHECK(r.code == 2);
    CHECK(r.says(why));
  };
  refused("--data.train mine.txt", "--model.vocab 420");
  refused("--data.train empty.txt --model.vocab 420", "no text");
  refused("--data.train weights.pt --model.vocab 420", "zero bytes");
  refused("--data.train folder --model.vocab 420", "no such file");
}
