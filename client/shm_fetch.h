// A fetch out of shared memory: whoever waits copies, the layers it waits for first.
//
// Threads  as PageFetch      Errors  as MappedPages::Page(), of the first page that has one
#pragma once

#include <memory>

#include "client/client.h"
#include "client/shm_channel.h"
#include "client/shm_pages.h"

namespace pagoda::client {

// `load`, if not null, is what `pages` come by: layers are waited for before they are copied.
// `options` names target and precision_max: a page that is kept richer is not served from here.
std::unique_ptr<PageFetch> FetchFromShm(std::unique_ptr<ShmView> pages, const FetchOptions& options,
                                        std::unique_ptr<ShmLoad> load = nullptr);

}  // namespace pagoda::client
