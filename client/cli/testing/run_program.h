// Runs a program of the build to its end: for tests of command lines.
#pragma once

#include <string>
#include <vector>

namespace pagoda::cli {

struct ProgramResult {
  int exit_code = -1;  // -1: it did not exit by itself
  std::string output;  // stdout
  std::string errors;  // stderr
};

// `name` is a program in the folder of the test, which is that of all binaries. Variables are added
// to the environment ("NAME=value").
ProgramResult RunProgram(const std::string& name, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& variables = {});

// The lines of a text; a newline at its end begins no line.
std::vector<std::string> Lines(const std::string& text);

}  // namespace pagoda::cli
