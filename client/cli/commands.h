// All commands of the binary `pagoda`, each in the file of its name: status_command.cc, ...
#pragma once

#include "client/cli/command_line.h"

namespace pagoda::cli {

// What operators ask and change.
void AddStatusCommand(CommandLine& commands);
void AddTopCommand(CommandLine& commands);
void AddModelsCommand(CommandLine& commands);
void AddPagesCommand(CommandLine& commands);
void AddPinCommands(CommandLine& commands);  // pin and unpin
void AddEvictCommand(CommandLine& commands);
void AddLadderCommand(CommandLine& commands);
void AddPolicyCommand(CommandLine& commands);
void AddDrainCommand(CommandLine& commands);
void AddFlushCommand(CommandLine& commands);

// What shows and measures.
void AddDemoCommand(CommandLine& commands);
void AddBenchCommand(CommandLine& commands);  // bench, bench storage, attention, ...
void AddStorageBenchCommand(CommandLine& commands, CLI::App* bench);
void AddAttentionBenchCommand(CommandLine& commands, CLI::App* bench);
void AddTransportBenchCommand(CommandLine& commands, CLI::App* bench);
void AddOverlapBenchCommand(CommandLine& commands, CLI::App* bench);
void AddEvalCommand(CommandLine& commands);  // eval ppl, ablate, codecs, decode, profile
void AddEvalAblateCommand(CommandLine& commands, CLI::App* eval);
void AddEvalCodecsCommand(CommandLine& commands, CLI::App* eval);
void AddEvalDecodeCommand(CommandLine& commands, CLI::App* eval);
void AddEvalProfileCommand(CommandLine& commands, CLI::App* eval);
void AddReplayCommand(CommandLine& commands);

}  // namespace pagoda::cli
