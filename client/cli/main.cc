// pagoda: the command line of operators and the curious. Each command is in the file of its name.
#include <cstdlib>

#include "client/cli/commands.h"
#include "storage/base/log.h"

#ifndef PAGODA_VERSION
#error "the build defines PAGODA_VERSION"
#endif

int main(int argc, char** argv) {
  // Libraries log to stderr; a command says what matters itself.
  pagoda::SetLogLevel(pagoda::LogLevel::kError);
  ::setenv("GRPC_VERBOSITY", "none", /*replace=*/0);
  pagoda::cli::CommandLine commands(
      "pagoda",
      "Pagoda: a KV-cache service for LLM inference. Look at a running pagodad, steer it, measure "
      "it, and see in a minute what it does (pagoda demo).",
      PAGODA_VERSION);
  pagoda::cli::AddDemoCommand(commands);
  pagoda::cli::AddStatusCommand(commands);
  pagoda::cli::AddTopCommand(commands);
  pagoda::cli::AddModelsCommand(commands);
  pagoda::cli::AddPagesCommand(commands);
  pagoda::cli::AddPinCommands(commands);
  pagoda::cli::AddEvictCommand(commands);
  pagoda::cli::AddLadderCommand(commands);
  pagoda::cli::AddPolicyCommand(commands);
  pagoda::cli::AddDrainCommand(commands);
  pagoda::cli::AddFlushCommand(commands);
  pagoda::cli::AddBenchCommand(commands);
  pagoda::cli::AddEvalCommand(commands);
  pagoda::cli::AddReplayCommand(commands);
  return commands.Main(argc, argv);
}
