#include "client/cli/testing/run_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/daemon_process.h"
#include "client/cli/temp_folder.h"
#include "storage/base/check.h"

namespace pagoda::cli {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void Redirect(const std::string& path, int descriptor) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0) _exit(126);
  dup2(file, descriptor);
}

}  // namespace

ProgramResult RunProgram(const std::string& name, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& variables) {
  const absl::StatusOr<std::string> program = ProgramBesideThisOne(name);
  PAGODA_CHECK(program.ok());
  absl::StatusOr<TempFolder> folder = TempFolder::Make("run_program_");
  PAGODA_CHECK(folder.ok());
  std::vector<char*> pointers = {const_cast<char*>(program->c_str())};
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  // Made before the fork: the child may not allocate. Of two equal names the first counts.
  std::vector<char*> environment;
  for (const std::string& variable : variables) {
    environment.push_back(const_cast<char*>(variable.c_str()));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  const std::string output = folder->File("stdout");
  const std::string errors = folder->File("stderr");
  const pid_t pid = fork();
  PAGODA_CHECK(pid >= 0);
  if (pid == 0) {
    Redirect(output, STDOUT_FILENO);
    Redirect(errors, STDERR_FILENO);
    execve(pointers[0], pointers.data(), environment.data());
    _exit(127);
  }
  int status = 0;
  PAGODA_CHECK(waitpid(pid, &status, 0) == pid);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadAll(output), ReadAll(errors)};
}

std::vector<std::string> Lines(const std::string& text) {
  if (text.empty()) return {};
  return absl::StrSplit(absl::StripSuffix(text, "\n"), '\n');
}

}  // namespace pagoda::cli
