// Directories of any size without a page's bytes: records with made-up keys.
#pragma once

#include <cstdint>

#include "storage/directory.h"

namespace pagoda {

// The record of page `number`, from 1, that follows page `parent` (0: at a root).
DirectoryRecord NumberedRecord(uint32_t number, uint32_t parent);

struct ManyPages {
  uint32_t page_count = 0;
  uint32_t chain_pages = 1;  // that many pages follow one another
  bool in_host = false;      // in both tiers, else on SSD alone
};

// Adds pages 1 to page_count; entry ids equal page numbers in an empty directory. All share one
// page in host memory, which is enough for whoever looks at sizes and recency.
void FillDirectory(Directory& directory, const ManyPages& pages);

}  // namespace pagoda
