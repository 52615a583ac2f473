// Damages the files of a folder as disks, cables and people do: cuts them, flips bits, deletes one,
// exchanges blocks. The folder must not be in use.
//
// Threads  one.   Errors  none: what cannot be opened is passed over
#pragma once

#include <random>
#include <string>

namespace pagoda {

// One to three wounds. Says what it did, for people who look for the reason of a failure.
std::string DamageFolder(const std::string& folder, std::mt19937& rng);

}  // namespace pagoda
