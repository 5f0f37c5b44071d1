/// Renders templates for tests/oracle/jinja_templates.py: a line {"template": …, "variables": {…}} of
/// standard input gives a line {"text": …} or {"error": …}. Build it with
///
///     g++ -std=c++20 -O2 -Iinclude tests/oracle/render_jinja.cpp -lutf8proc -o render_jinja

#include <iostream>
#include <memory>
#include <string>

#include "nanovllm/api/chat/jinja_programs.hpp"
#include "nanovllm/chat/jinja_template.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;

int main() {
  std::string line, last;
  std::unique_ptr<nv::JinjaTemplate> parsed;
  while (std::getline(std::cin, line)) {
    const nv::Json in = nv::parse_json(line);
    nv::Json out = nv::Json::object();
    try {
      const std::string& text = in["template"].string();
      if (!parsed || text != last) {
        parsed.reset();
        last = text;
        parsed = std::make_unique<nv::JinjaTemplate>(text);
      }
      out["text"] = parsed->render(in["variables"]);
    } catch (const nv::Error& error) {
      out["error"] = error.what();
    }
    std::cout << out.dump() << std::endl;
  }
}
