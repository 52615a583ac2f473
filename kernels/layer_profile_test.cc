// Goal: a profile's file is read as it was written, mistakes in it are one line with file, key,
// value and what is accepted, and a profile of another model is told apart.
// Method: files in a temporary folder; round trip; a table of mistakes; edits of a model.
#include "kernels/layer_profile.h"

#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {
namespace {

ModelSpec Model() {
  ModelSpec spec;
  spec.model = "a model";
  spec.groups = {{GroupKind::kFull, 30, 3, 64, 0}};
  return spec;
}

LayerProfile Profile() {
  return {"a \"small\" \\ model", IdentityOf(Model()), 30, {3, 8, 9, 29}, 4.588};
}

class LayerProfileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = dir_.path() + "/profile.yaml";
    std::ofstream(path, std::ios::trunc) << text;
    return path;
  }
  TempDir dir_;
};

TEST_F(LayerProfileTest, ReadsWhatWasWritten) {
  const auto read = ReadLayerProfile(Write(LayerProfileYaml(Profile())));
  PAGODA_ASSERT_OK(read);
  EXPECT_EQ(*read, Profile());
  LayerProfile none = Profile();
  none.k_lo_layers.clear();
  EXPECT_EQ(*ReadLayerProfile(Write(LayerProfileYaml(none))), none);
  // A line break would end the YAML text.
  none.model = "two\nlines";
  EXPECT_EQ(ReadLayerProfile(Write(LayerProfileYaml(none)))->model, "twolines");
}

TEST_F(LayerProfileTest, MistakesAreNamed) {
  const std::string identity = "identity: " + std::string(64, 'a') + "\n";
  const struct {
    std::string text;
    const char* message;
  } table[] = {
      {"", "layers: is absent, expected a value; write the file with `pagoda eval profile`"},
      {"layers: 30\nk_lo_layers: [1]\n", "identity: is absent, expected 64 hexadecimal digits"},
      {"identity: abc\nlayers: 30\nk_lo_layers: [1]\n", "identity: is 'abc', expected 64"},
      {identity + "layers: 30\n", "k_lo_layers: is absent"},
      {identity + "k_lo_layers: []\n", "layers: is absent"},
      {identity + "layers: 513\nk_lo_layers: []\n",
       "layers: is '513', expected a whole number from 1 to 512"},
      {identity + "layers: 30\nk_lo_layers: 3\n",
       "k_lo_layers: is '3', expected a list of whole numbers from 0 to 511, as in [3, 8]"},
      {identity + "layers: 30\nk_lo_layers: [x]\n", "k_lo_layers: is 'x', expected a list"},
      {identity + "layers: 30\nk_lo_layers: [[1]]\n", "k_lo_layers: is a list, expected a list"},
      {identity + "layers: 30\nk_lo_layers: [30]\n",
       "k_lo_layers: layer 30, expected layers from 0 to 29"},
      {identity + "layers: 30\nk_lo_layers: [4, 3]\n", "k_lo_layers: layer 3 after 4"},
      {identity + "layers: 30\nk_lo_layers: []\nbits: many\n",
       "bits: is 'many', expected a number from 1 to 16"},
      {identity + "layers: 30\nk_lo_layer: []\n",
       "k_lo_layer: unknown key; did you mean k_lo_layers?"},
      {"[1, 2]\n", "holds a list, expected a map of settings"},
  };
  for (const auto& row : table) {
    const std::string path = Write(row.text);
    const absl::Status status = ReadLayerProfile(path).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, row.message)) << row.text;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, path)) << row.text;
  }
  EXPECT_THAT(ReadLayerProfile(dir_.path() + "/none.yaml"),
              StatusIs(absl::StatusCode::kNotFound, "none.yaml: no such file"));
}

TEST_F(LayerProfileTest, AnotherModelIsToldApart) {
  const LayerProfile profile = Profile();
  PAGODA_EXPECT_OK(profile.Check(IdentityOf(Model()), Model()));
  ModelSpec other = Model();
  other.model = "another model";
  const auto kOther = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(profile.Check(IdentityOf(other), other),
              StatusIs(kOther, absl::StrCat("of model ", profile.identity.hex().substr(0, 12))));
  LayerProfile shallow = profile;
  shallow.layer_count = 29;
  EXPECT_THAT(shallow.Check(profile.identity, Model()),
              StatusIs(kOther, "of 29 layers, the model has 30 in 1 groups"));
  ModelSpec split = Model();
  split.groups = {{GroupKind::kFull, 15, 3, 64, 0}, {GroupKind::kFull, 15, 3, 64, 0}};
  EXPECT_THAT(profile.Check(profile.identity, split), StatusIs(kOther, "30 in 2 groups"));
}

}  // namespace
}  // namespace pagoda
