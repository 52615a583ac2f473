#include "client/cli/command_line.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/nearest_name.h"

namespace pagoda::cli {
namespace {

std::string FullName(const CLI::App& app) {
  const std::string name = app.get_name();
  return app.get_parent() == nullptr ? name : absl::StrCat(FullName(*app.get_parent()), " ", name);
}

std::vector<std::string> NamesIn(const CLI::App& app, bool flags) {
  std::vector<std::string> names;
  if (flags) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  } else {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
  }
  return names;
}

// What the user wrote and nobody expected, with the nearest thing that exists.
std::string Unexpected(const CLI::App& app, const std::string& word) {
  const bool flag = absl::StartsWith(word, "-");
  const std::vector<std::string> names = NamesIn(app, flag);
  const std::string what = flag            ? "unknown flag"
                           : names.empty() ? "unexpected argument"
                                           : "unknown command";
  const std::string nearest = NearestName(word.substr(0, word.find('=')), names);
  std::string message = absl::StrCat(what, " \"", word, "\"");
  if (!nearest.empty()) absl::StrAppend(&message, "; did you mean ", nearest, "?");
  if (nearest.empty() && !flag && !names.empty()) {
    absl::StrAppend(&message, "; commands are ", absl::StrJoin(names, ", "));
  }
  return message;
}

std::string OneLine(absl::string_view text) {
  std::string line = absl::StrReplaceAll(text, {{"\n", " "}});
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

CommandLine::CommandLine(std::string name, std::string description, std::string version)
    : app_(std::move(description), std::move(name)) {
  app_.set_version_flag("--version", app_.get_name() + " " + version);
  app_.require_subcommand(0, 1);  // exactly one, but Main() says so in its own words
  app_.get_formatter()->column_width(32);
  app_.option_defaults()->always_capture_default();
}

CLI::App* CommandLine::AddApp(const std::string& name, const std::string& description,
                              const std::string& help_tail) {
  return AddApp(&app_, name, description, help_tail);
}

CLI::App* CommandLine::AddApp(CLI::App* parent, const std::string& name,
                              const std::string& description, const std::string& help_tail) {
  CLI::App* const app = parent->add_subcommand(name, description);
  app->footer(help_tail);
  app->get_formatter()->column_width(32);
  app->option_defaults()->always_capture_default();
  return app;
}

const CLI::App* CommandLine::Innermost() const {
  const CLI::App* app = &app_;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

int CommandLine::UsageError(const CLI::ParseError& error) const {
  const CLI::App& app = *Innermost();
  std::string message = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const std::vector<std::string> extras = app.remaining();
    const std::vector<std::string> above = app_.remaining(true);
    const std::vector<std::string>& words = extras.empty() ? above : extras;
    if (!words.empty()) message = Unexpected(app, words.front());
  }
  std::fprintf(stderr, "%s: %s; see \"%s --help\"\n", FullName(app).c_str(),
               OneLine(message).c_str(), FullName(app).c_str());
  return kExitUsage;
}

int CommandLine::Main(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are exceptions of CLI11 with exit code 0.
    if (error.get_exit_code() == 0) return app_.exit(error);
    return UsageError(error);
  }
  const CLI::App* const chosen = Innermost();
  for (const Command& command : commands_) {
    if (command.app != chosen) continue;
    const std::string name = FullName(*chosen);
    const std::string mistake = command.check == nullptr ? "" : command.check();
    if (!mistake.empty()) {
      std::fprintf(stderr, "%s: %s; see \"%s --help\"\n", name.c_str(), mistake.c_str(),
                   name.c_str());
      return kExitUsage;
    }
    const absl::Status status = command.run();
    if (status.ok()) return kExitOk;
    std::fprintf(stderr, "%s: %s\n", name.c_str(), OneLine(status.message()).c_str());
    return kExitFailure;
  }
  const std::string name = FullName(*chosen);
  std::fprintf(stderr, "%s: a command is missing; commands are %s; see \"%s --help\"\n",
               name.c_str(), absl::StrJoin(NamesIn(*chosen, false), ", ").c_str(), name.c_str());
  return kExitUsage;
}

void AddJsonFlag(CLI::App& app, JsonOptions& options) {
  app.add_option_function<std::string>(
         "--json",
         [&options](const std::string& path) { options.path = path.empty() ? "-" : path; },
         "also write the result as JSON to this file; - or nothing is stdout, text then goes to "
         "stderr")
      ->type_name("FILE")
      ->expected(0, 1);
}

}  // namespace pagoda::cli
