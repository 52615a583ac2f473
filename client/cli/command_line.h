// The words of the command line: each command adds itself with its flags, its help and what to do.
// CLI11 parses; this maps every outcome to one line and an exit code.
//
// Exit codes  0 done, 1 it failed, 2 the command line is wrong
// Threads     one
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/json_output.h"

namespace pagoda::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

class CommandLine {
 public:
  CommandLine(std::string name, std::string description, std::string version);

  struct Command {
    CLI::App* app = nullptr;
    // A mistake that CLI11 cannot see, such as two flags that exclude each other; empty: none.
    std::function<std::string()> check;
    std::function<absl::Status()> run;
  };
  // Of a command that stands alone; `help_tail` teaches: an example and the JSON keys.
  CLI::App* AddApp(const std::string& name, const std::string& description,
                   const std::string& help_tail);
  // Of a command below another ("eval ppl").
  CLI::App* AddApp(CLI::App* parent, const std::string& name, const std::string& description,
                   const std::string& help_tail);
  void Add(Command command) { commands_.push_back(std::move(command)); }

  // Parses, runs, prints the error if any. Returns the exit code.
  int Main(int argc, const char* const* argv);

 private:
  int UsageError(const CLI::ParseError& error) const;
  // The innermost command that was named on the command line.
  const CLI::App* Innermost() const;

  CLI::App app_;
  std::vector<Command> commands_;
};

// --json FILE
void AddJsonFlag(CLI::App& app, JsonOptions& options);

}  // namespace pagoda::cli
