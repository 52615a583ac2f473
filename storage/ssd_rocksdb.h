// How RocksDB 7.8 is set up for pages, and how its errors become ours. Only the SSD tier and its
// tests include this.
#pragma once

#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rocksdb/db.h"
#include "storage/ssd_options.h"

namespace pagoda {

constexpr char kSsdMetaFamily[] = "meta";
constexpr char kSsdPlanesFamily[] = "planes";
constexpr char kSsdFormatKey[] = "format";  // in the default family
constexpr uint16_t kSsdHeaderIndex = 0xffff;

// The one place where RocksDB's errors become ours. `doing` names the operation and the path.
absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view doing);

rocksdb::DBOptions SsdDbOptions(const SsdOptions& options, bool direct_io);
// default, meta, planes: in this order.
std::vector<rocksdb::ColumnFamilyDescriptor> SsdFamilies(const SsdOptions& options);

}  // namespace pagoda
