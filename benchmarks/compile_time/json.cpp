// The yardstick: a page of nlohmann/json, which reads a config.json and prints it.
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

struct Config {
  std::string model_type;
  std::vector<std::string> architectures;
  std::map<std::string, double> numbers;
};

void from_json(const nlohmann::json& json, Config& config) {
  json.at("model_type").get_to(config.model_type);
  config.architectures = json.value("architectures", std::vector<std::string>{});
  for (const auto& [key, value] : json.items())
    if (value.is_number()) config.numbers[key] = value.get<double>();
}

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  std::ifstream file(std::string(argv[1]) + "/config.json");
  const Config config = nlohmann::json::parse(file).get<Config>();
  const nlohmann::json out{{"type", config.model_type},
                           {"architectures", config.architectures},
                           {"numbers", config.numbers}};
  std::printf("%s\n", out.dump(2).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
