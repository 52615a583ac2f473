// Certificates for one test, made by the program `openssl` in a folder of their own: authorities,
// and what they sign. Nothing of them is kept.
//
// Errors  a failing openssl ends the test
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {

class TestCertificates {
 public:
  static bool Possible() { return std::system("openssl version > /dev/null 2>&1") == 0; }

  // Files NAME.crt and NAME.key.
  std::string Certificate(const std::string& name) const { return Path(name + ".crt"); }
  std::string Key(const std::string& name) const { return Path(name + ".key"); }
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  void MakeAuthority(const std::string& name) {
    MakeKey(name);
    Run(absl::StrCat("req -x509 -new -key ", Key(name), " -subj /CN=", name, " -days 30 -out ",
                     Certificate(name)));
  }

  // Signed by `authority`, for these names ("IP:127.0.0.1,DNS:x,URI:spiffe://..."). Days below 0:
  // it is over.
  void Make(const std::string& name, const std::string& authority, const std::string& alt_names,
            int days = 30) {
    MakeKey(name);
    WriteFile("ext", "subjectAltName=" + alt_names + "\n");
    Run(absl::StrCat("req -new -key ", Key(name), " -subj /CN=", name, " -out ", Path("csr")));
    Run(absl::StrCat("x509 -req -in ", Path("csr"), " -CA ", Certificate(authority), " -CAkey ",
                     Key(authority), " -CAcreateserial -days ", days, " -extfile ", Path("ext"),
                     " -out ", Certificate(name)));
  }

  // Puts the pair of `from` where that of `to` is, each file in one step.
  void Replace(const std::string& to, const std::string& from) {
    for (const char* kind : {".key", ".crt"}) {
      std::filesystem::copy_file(Path(from + kind), Path("next"),
                                 std::filesystem::copy_options::overwrite_existing);
      std::filesystem::rename(Path("next"), Path(to + kind));
    }
  }

  void WriteFile(const std::string& name, const std::string& text) const {
    FILE* const file = std::fopen(Path(name).c_str(), "w");
    PAGODA_CHECK(file != nullptr);
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }

 private:
  void MakeKey(const std::string& name) {
    Run(absl::StrCat("ecparam -name prime256v1 -genkey -noout -out ", Key(name)));
    ::chmod(Key(name).c_str(), 0600);
  }
  void Run(const std::string& arguments) {
    const std::string command = absl::StrCat("openssl ", arguments, " > ", Path("log"),
                                             " 2>&1 || (cat ", Path("log"), " && false)");
    PAGODA_CHECK(std::system(command.c_str()) == 0);
  }

  TempDir dir_;
};

}  // namespace pagoda
