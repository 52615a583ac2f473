// Goal: the binary starts, says so, stops cleanly on a signal, and every wrong start is one line
// with an exit code. Method: the real pagodad in a child process.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cache-server/testing/wire_client.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {
namespace {

std::string Binary() {
  const char* folder = std::getenv("PAGODA_BIN_DIR");
  return std::string(folder != nullptr ? folder : "build/release/bin") + "/pagodad";
}

struct Ended {
  int code = -1;
  std::string error;  // stderr
  std::string output;
};

class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    PAGODA_CHECK(::pipe(out.data()) == 0 && ::pipe(err.data()) == 0);
    arguments.insert(arguments.begin(), Binary());
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      for (const int fd : {out[0], out[1], err[0], err[1]}) ::close(fd);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    output_ = ::fdopen(out[0], "r");
    error_ = ::fdopen(err[0], "r");
  }
  std::string ReadLine() {
    std::array<char, 512> line{};
    return std::fgets(line.data(), line.size(), output_) != nullptr ? line.data() : "";
  }
  void Signal(int signal) { ::kill(pid_, signal); }
  Ended Wait() {
    Ended ended;
    const auto drain = [](FILE* file) {
      std::string text;
      for (int c; (c = std::fgetc(file)) != EOF;) text.push_back(static_cast<char>(c));
      std::fclose(file);
      return text;
    };
    ended.output = drain(output_);
    ended.error = drain(error_);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return ended;
  }

 private:
  pid_t pid_ = -1;
  FILE* output_ = nullptr;
  FILE* error_ = nullptr;
};

class PagodadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::access(Binary().c_str(), X_OK) != 0) GTEST_SKIP() << Binary() << " is not built";
  }
  std::vector<std::string> Good() {
    return {"--data-dir",       dir_.path() + "/data", "--listen",        "127.0.0.1:0",
            "--metrics-listen", "127.0.0.1:0",         "--host-capacity", "16MiB"};
  }
  TempDir dir_;
};

TEST_F(PagodadTest, ServesAndStopsCleanlyOnSigterm) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Child child(Good());
    const std::string ready = child.ReadLine();
    ASSERT_EQ(ready.rfind("pagodad_ready listen=127.0.0.1:", 0), 0u) << ready;
    const std::string address = ready.substr(21, ready.find(' ', 21) - 21);
    WireClient client(address);
    PAGODA_EXPECT_OK(client.Hello(TestModel()));
    PAGODA_EXPECT_OK(client.OpenSession());
    child.Signal(signal);
    const Ended ended = child.Wait();
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_NE(ended.error.find("stopped"), std::string::npos);
  }
}

TEST_F(PagodadTest, WrongStartsAreOneLineWithTheirCode) {
  std::ofstream(dir_.path() + "/bad.yaml") << "ladder: q9\n";
  const struct {
    std::vector<std::string> arguments;
    int code;
    const char* word;
  } table[] = {
      {{}, 2, "--data-dir"},
      {{"--no-such-flag"}, 2, "--help"},
      {{"--data-dir"}, 2, "--help"},
      {{"--data-dir", "/proc/x/y"}, 1, "data_dir"},
      {{"--data-dir", "/tmp", "--ladder", "q9"}, 2, "raw16, q8, q4, q3 or q2"},
      {{"--data-dir", "/tmp", "--host-capacity", "lots"}, 2, "--host-capacity"},
      {{"--data-dir", "/tmp", "--listen", "0.0.0.0:1"}, 2, "token_file"},
      {{"--data-dir", "/tmp", "--log-level", "loud"}, 2, "debug, info"},
      {{"--data-dir", "/tmp", "--stop-seconds", "0"}, 2, "--stop-seconds"},
      {{"--config", "/no/such/file"}, 1, "no such file"},
      {{"--config", dir_.path() + "/bad.yaml"}, 2, "ladder: is 'q9'"},
  };
  for (const auto& row : table) {
    const Ended ended = Child(row.arguments).Wait();
    EXPECT_EQ(ended.code, row.code) << ended.error;
    EXPECT_NE(ended.error.find(row.word), std::string::npos) << ended.error;
    EXPECT_EQ(std::count(ended.error.begin(), ended.error.end(), '\n'), 1) << ended.error;
    EXPECT_EQ(ended.error.rfind("pagodad: ", 0), 0u) << ended.error;
  }
}

TEST_F(PagodadTest, HelpTeachesAndCheckChecks) {
  const Ended help = Child({"--help"}).Wait();
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"Examples:", "--data-dir", "--ladder", "pagodad_ready"}) {
    EXPECT_NE(help.output.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(Child({"--version"}).Wait().output, "pagodad 0.1.0\n");
  std::vector<std::string> check = Good();
  check.push_back("--check");
  const Ended checked = Child(check).Wait();
  EXPECT_EQ(checked.code, 0);
  EXPECT_NE(checked.output.find("sound"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/data"));  // nothing was touched
}

}  // namespace
}  // namespace pagoda
