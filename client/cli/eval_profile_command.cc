#include "client/cli/commands.h"
namespace pagoda::cli {
void AddEvalProfileCommand(CommandLine&, CLI::App*) {}
}  // namespace pagoda::cli
