// The yardstick: a page of nlohmann/json, which reads a config.json and prints some of it.
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  std::ifstream file(std::string(argv[1]) + "/config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  std::printf("%s\n", config.at("model_type").get<std::string>().c_str());
  for (const auto& [key, value] : config.items())
    if (value.is_number_integer()) std::printf("%s = %d\n", key.c_str(), value.get<int>());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
