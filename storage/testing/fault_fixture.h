// A store on an SSD whose system calls fail on demand. Pages are small, files too.
#pragma once

#include <string>
#include <vector>

#include "storage/testing/captured_log.h"
#include "storage/testing/faulty_env.h"
#include "storage/testing/faulty_file_ops.h"
#include "storage/testing/store_fixture.h"

namespace pagoda {

class FaultTest : public StoreTest {
 protected:
  using Call = FaultyFileOps::Call;

  FaultTest() {
    options_.writer_threads = 1;  // files grow in a known order
    options_.ssd.extent_file_bytes = 1 << 20;
    options_.ssd.system.files = &files_;
    options_.ssd.system.env = env_.env();
  }
  ~FaultTest() override {
    files_.Heal();
    env_.Heal();
    store_ = nullptr;
  }

  // Commits the pages and asks for their way to SSD; waits until that has happened or failed.
  void PushAndWrite(const std::vector<TestPage>& pages) {
    for (const TestPage& page : pages) {
      PAGODA_EXPECT_OK(Push(page));
      store_->PersistAsync(page.record(), page.scope()).IgnoreError();
    }
    store_->Flush().IgnoreError();
  }
  bool OnSsd(const TestPage& page) {
    bool found = false;
    store_->ForEachPage([&](const PageInfo& info) {
      found |= info.record == page.record() && info.on_ssd && !info.dirty;
    });
    return found;
  }
  void ExpectWhole(const std::vector<TestPage>& pages) {
    for (const TestPage& page : pages) {
      const auto loaded = Load(page);
      PAGODA_EXPECT_OK(loaded);
      if (loaded.ok()) {
        EXPECT_TRUE(IsExactly(**loaded, page));
      }
    }
  }
  int64_t IntegrityCount(IntegrityKind kind) {
    return store_->Stats()
        .counters.integrity_failures[static_cast<int>(TierKind::kSsd)][static_cast<int>(kind)];
  }

  FaultyFileOps files_;
  FaultyEnv env_;
};

}  // namespace pagoda
