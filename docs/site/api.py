"""Pages of the API from Doxygen's XML: api.py XML_FOLDER INCLUDE_FOLDER PAGES_FOLDER

A page a face, that is a header that programs include (docs/versioning.md): what it says of itself,
and the headers that it brings, with their documented names. A page a folder for all other headers.
Headings are Markdown, so that they are found and linked; all else is HTML, in which nothing of C++
has to be escaped twice. Writes nav.json, the list of its pages, into PAGES_FOLDER.
"""

import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CLexer, CppLexer, TextLexer

KINDS = {"class", "struct", "union", "concept"}


def code_html(text, lexer=None):
    """A highlighted block, as the theme shows fenced ones."""
    inner = highlight(text, lexer or CppLexer(), HtmlFormatter(nowrap=True))
    return f'<div class="highlight"><pre><code>{inner}</code></pre></div>\n'


def plain_text(element):
    """The text of an element, with the blanks that Doxygen writes as <sp/>."""
    if element is None:
        return ""
    out = element.text or ""
    for child in element:
        out += " " if child.tag == "sp" else plain_text(child)
        out += child.tail or ""
    return out


def tidy(cpp):
    """Doxygen's blanks within C++ as clang-format writes them."""
    cpp = re.sub(r"\s+", " ", cpp).strip()
    cpp = re.sub(r"< +", "<", cpp)
    cpp = re.sub(r" +>", ">", cpp)
    cpp = re.sub(r" ([&*]+)", r"\1", cpp)
    cpp = re.sub(r"([&*])(?=[A-Za-z_])", r"\1 ", cpp) if not cpp.startswith("[") else cpp
    cpp = cpp.replace("operator<", "operator <") if "operator< " in cpp else cpp
    return re.sub(r" ?=(default|delete|0)$", r" = \1", cpp)


def wrapped(head, arguments, tail):
    """A declaration, with a line an argument if it is long."""
    line = f"{head}({', '.join(arguments)}){tail}"
    if len(line) <= 88 or not arguments:
        return line
    return f"{head}(\n    " + ",\n    ".join(arguments) + f"){tail}"


def template_head(element):
    parameters = element.find("templateparamlist")
    if parameters is None:
        return ""
    names = []
    for p in parameters.findall("param"):
        name = " ".join(filter(None, [tidy(plain_text(p.find("type"))), p.findtext("declname")]))
        default = plain_text(p.find("defval"))
        names.append(name + (f" = {tidy(default)}" if default else ""))
    return f"template <{', '.join(names)}>\n"


def address(target, page):
    """The link from one page to another. Pages are folders on the site: api/engine.md is api/engine/."""
    folder, here = (re.sub(r"(^|/)(index|README)$", "", p[:-3]) or "." for p in (target, page))
    return os.path.relpath(folder, here) + "/"


def text_html(text, page):
    """Text with links to the pages of docs/ that it names."""
    return re.sub(r"\bdocs/([a-z0-9_/]+\.md)(#[a-z0-9-]+)?",
                  lambda m: f'<a href="{address(m[1], page)}{m[2] or ""}">{m[0]}</a>', escape(text or ""))


class Reference:
    """All that Doxygen found, by header."""

    def __init__(self, xml, include):
        self.include = include
        self.compounds, self.files, self.of_header = {}, {}, {}
        for path in sorted(xml.glob("*.xml")):
            if path.name in ("index.xml", "Doxyfile.xml"):
                continue
            for compound in ElementTree.parse(path).getroot().findall("compounddef"):
                self.add_compound(compound)
        for entries in self.of_header.values():
            entries.sort(key=lambda e: (int(e.find("location").get("line")), e.get("id")))
        self.links = {}  # id to (page, anchor)

    def add_compound(self, compound):
        kind = compound.get("kind")
        if kind == "file":
            self.files[compound.find("location").get("file")] = compound
            # Names outside of every namespace: those of the interface for C.
            if compound.find("location").get("file").endswith(".h"):
                for member in compound.iter("memberdef"):
                    self.add_entry(member)
        elif kind in KINDS:
            self.compounds[compound.get("id")] = compound
            name = compound.findtext("compoundname")
            # A class within a class is shown with it.
            if not self.is_nested(name, compound) and "detail" not in name.split("::"):
                self.add_entry(compound)
        elif kind == "namespace":
            if "detail" in compound.findtext("compoundname").split("::"):
                return
            for member in compound.iter("memberdef"):
                self.add_entry(member)

    def is_nested(self, name, compound):
        outer = re.sub(r"<.*", "", name).rsplit("::", 1)[0]
        return compound.get("prot") is not None and any(
            other.findtext("compoundname") == outer for other in self.compounds.values()
        ) or compound.get("prot") in ("private", "protected")

    def add_entry(self, element):
        location = element.find("location")
        if location is None or element.get("kind") == "friend":
            return
        # Macros are part of the interface for C alone.
        if element.get("kind") == "define" and not location.get("file").endswith(".h"):
            return
        entries = self.of_header.setdefault(location.get("file"), [])
        if all(e.get("id") != element.get("id") for e in entries):
            entries.append(element)

    # Text.

    def inline(self, element, page):
        out = text_html(element.text, page)
        for child in element:
            out += self.piece(child, page) + text_html(child.tail, page)
        return out

    def piece(self, e, page):
        """The HTML of an element within a description."""
        tag = e.tag
        if tag in ("para", "parblock"):
            return self.paragraph(e, page)
        if tag == "ref":
            return self.linked(e.get("refid"), self.inline(e, page), page)
        if tag == "computeroutput":
            return f"<code>{self.inline(e, page)}</code>"
        if tag in ("bold", "emphasis"):
            name = {"bold": "strong", "emphasis": "em"}[tag]
            return f"<{name}>{self.inline(e, page)}</{name}>"
        if tag == "ulink":
            return f'<a href="{escape(e.get("url"))}">{self.inline(e, page)}</a>'
        if tag in ("itemizedlist", "orderedlist"):
            items = "".join(f"<li>{self.inside(i, page)}</li>" for i in e.findall("listitem"))
            name = "ul" if tag == "itemizedlist" else "ol"
            return f"<{name}>{items}</{name}>\n"
        if tag == "programlisting":
            lines = [plain_text(line) for line in e.findall("codeline")]
            lexer = CLexer() if e.get("filename") == ".c" else CppLexer()
            return code_html("\n".join(lines), lexer)
        if tag in ("verbatim", "preformatted"):
            return code_html(plain_text(e).strip("\n"), TextLexer())
        if tag == "parameterlist":
            rows = ""
            for item in e.findall("parameteritem"):
                names = ", ".join(plain_text(n) for n in item.iter("parametername"))
                text = self.inside(item.find("parameterdescription"), page)
                rows += f"<dt><code>{escape(names)}</code></dt><dd>{text}</dd>"
            return f'<dl class="parameters">{rows}</dl>\n'
        if tag == "simplesect":
            return self.inside(e, page)
        if tag == "table":
            rows = ""
            for row in e.findall("row"):
                cells = "".join(
                    f"<{'th' if c.get('thead') == 'yes' else 'td'}>{self.inside(c, page)}"
                    f"</{'th' if c.get('thead') == 'yes' else 'td'}>" for c in row.findall("entry"))
                rows += f"<tr>{cells}</tr>"
            return f"<table>{rows}</table>\n"
        if tag in ("ndash", "mdash", "nbsp", "sp", "linebreak"):
            return {"ndash": "–", "mdash": "—", "linebreak": "<br>"}.get(tag, " ")
        return self.inline(e, page)

    BLOCKS = {"itemizedlist", "orderedlist", "programlisting", "verbatim", "preformatted",
              "parameterlist", "simplesect", "table", "para", "parblock"}

    def paragraph(self, e, page):
        """A paragraph; lists and code within it are blocks of their own."""
        out, open_text = "", text_html(e.text, page)
        for child in e:
            if child.tag in self.BLOCKS:
                if open_text.strip():
                    out += f"<p>{open_text.strip()}</p>\n"
                out += self.piece(child, page)
                open_text = text_html(child.tail, page)
            else:
                open_text += self.piece(child, page) + text_html(child.tail, page)
        if open_text.strip():
            out += f"<p>{open_text.strip()}</p>\n"
        return out

    def inside(self, element, page):
        """What a cell or an item has: one paragraph is text, several are paragraphs."""
        if element is None:
            return ""
        paragraphs = element.findall("para")
        if len(paragraphs) == 1 and not any(c.tag in self.BLOCKS for c in paragraphs[0]):
            return self.inline(paragraphs[0], page).strip()
        return "".join(self.paragraph(p, page) for p in paragraphs)

    def description(self, element, page):
        out = ""
        for name in ("briefdescription", "detaileddescription"):
            part = element.find(name)
            for child in part if part is not None else ():
                out += self.piece(child, page)
        return out

    def linked(self, id_, html, page):
        if id_ not in self.links:
            return html
        target, anchor = self.links[id_]
        path = address(target, page) if target != page else ""
        return f'<a href="{path}#{anchor}">{html}</a>'

    # Declarations.

    def declaration(self, e):
        kind, name = e.get("kind"), e.findtext("name") or ""
        head, type_ = template_head(e), tidy(plain_text(e.find("type")))
        if kind == "function":
            arguments = e.findtext("argsstring") or "()"
            tail = arguments[arguments.rindex(")") + 1:] if ")" in arguments else ""
            names = []
            for p in e.findall("param"):
                text = " ".join(filter(None, [tidy(plain_text(p.find("type"))), p.findtext("declname")]))
                default = plain_text(p.find("defval"))
                names.append(tidy(text) + (f" = {tidy(default)}" if default else "")
                             + (p.findtext("array") or ""))
            requires = e.findtext("requiresclause")
            if requires:
                head += f"requires {tidy(requires)}\n"
            prefix = "static " if e.get("static") == "yes" and "::" in (e.findtext("qualifiedname") or "") else ""
            prefix += "explicit " if e.get("explicit") == "yes" else ""
            prefix += "virtual " if e.get("virt") in ("virtual", "pure-virtual") else ""
            type_ = re.sub(r"^(NANOVLLM_INLINE|inline) ", "", type_)
            name = re.sub(r" ([&*])", r"\1", name)  # operator T&
            return wrapped(head + prefix + (type_ + " " if type_ else "") + name, names,
                           (" " + tidy(tail) if tail.strip() else "") + ";")
        if kind == "typedef":
            return f"{head}using {name} = {type_};"
        if kind == "variable":
            start = tidy(plain_text(e.find("initializer")))
            if len(start) > 80:
                start = "…" if not start.startswith("=") else "= …"
            static = "static " if e.get("static") == "yes" else ""
            return f"{head}{static}{type_} {name}{e.findtext('argsstring') or ''}" \
                   f"{' ' if start.startswith('=') else ''}{start};"
        if kind == "define":
            return f"#define {name} {plain_text(e.find('initializer')).strip()}"
        if kind == "enum":
            strong = "enum class" if e.get("strong") == "yes" else "enum"
            base = f" : {type_}" if type_ else ""
            return f"{strong} {name}{base};"
        if kind == "concept":
            text = plain_text(e.find("initializer"))
            return text.replace("nanovllm::", "", 1) + ";" if "=" in text else text
        bases = ", ".join(tidy(b.text) for b in e.findall("basecompoundref") if b.get("prot") == "public")
        bases = bases.replace("nanovllm::", "")
        return f"{template_head(e)}{kind} {self.short_name(e)}{' : ' + bases if bases else ''};"

    @staticmethod
    def short_name(e):
        name = e.findtext("name") or e.findtext("compoundname")
        return re.sub(r"^nanovllm::", "", tidy(name)) if "<" in name else name.rsplit("::", 1)[-1]

    # Members.

    def fields(self, variables, page):
        rows = ""
        for v in variables:
            start = tidy(plain_text(v.find("initializer"))).lstrip("= ")
            start = "" if start in ("{}", "") else start
            static = "static " if v.get("static") == "yes" else ""
            type_ = static + tidy(plain_text(v.find("type")))
            default = f" = {start}" if start and len(start) < 60 else " = …" if start else ""
            rows += (f"<tr><td><code>{escape(v.findtext('name'))}</code></td>"
                     f"<td><code>{escape(type_ + default)}</code></td>"
                     f"<td>{self.description(v, page)}</td></tr>\n")
        return ('<table class="fields"><thead><tr><th>member</th><th>type and default</th><th></th></tr>'
                f"</thead><tbody>\n{rows}</tbody></table>\n")

    def enumerators(self, enum, page):
        rows = "".join(f"<tr><td><code>{escape(v.findtext('name'))}</code></td>"
                       f"<td>{self.description(v, page)}</td></tr>" for v in enum.findall("enumvalue"))
        return f'<table class="fields"><tbody>{rows}</tbody></table>\n'

    def members(self, compound, page):
        public = [m for s in compound.findall("sectiondef") for m in s.findall("memberdef")
                  if m.get("prot") == "public" and m.get("kind") != "friend"
                  and not re.search(r"= ?(delete|default)$", m.findtext("argsstring") or "")]
        public.sort(key=lambda m: int(m.find("location").get("line")))
        out, plain = "", []

        def end_plain():
            nonlocal out, plain
            if plain:
                out += code_html("\n".join(plain))
            plain = []

        variables = [m for m in public if m.get("kind") == "variable"]
        if variables:
            out += self.fields(variables, page)
        for m in public:
            if m.get("kind") == "variable":
                continue
            text = self.description(m, page)
            if m.get("kind") == "enum":
                text += self.enumerators(m, page)
            if not text:
                plain.append(self.declaration(m))
                continue
            end_plain()
            out += f'<div class="member" id="{self.links[m.get("id")][1]}">\n' \
                   f"{code_html(self.declaration(m))}{text}</div>\n"
        end_plain()
        for inner in compound.findall("innerclass"):
            nested = self.compounds.get(inner.get("refid"))
            if nested is None or inner.get("prot") != "public" or not self.is_documented(nested):
                continue
            out += f'<div class="member" id="{self.links[nested.get("id")][1]}">\n' \
                   f"{code_html(self.declaration(nested))}{self.description(nested, page)}" \
                   f"{self.members(nested, page)}</div>\n"
        return out

    @staticmethod
    def is_documented(e):
        return any(plain_text(e.find(n)).strip() for n in ("briefdescription", "detaileddescription"))

    # Pages.

    def entries_of(self, header):
        """Lists of entries that stand together: constants under one comment are one list."""
        groups, last_line = [], -9
        for e in self.of_header.get(header, []):
            location = e.find("location")
            line = int(location.get("line"))
            if self.is_documented(e):
                groups.append([e])
            elif groups and e.get("kind") == groups[-1][0].get("kind") and line == last_line + 1:
                groups[-1].append(e)
            else:
                continue
            end = int(location.get("bodyend") or -1) if e.get("kind") not in KINDS else -1
            last_line = max(line, end)
        merged = []
        for group in groups:  # overloads have one heading
            if merged and group[0].get("kind") == "function" and \
                    self.short_name(group[0]) == self.short_name(merged[-1][0][0]):
                merged[-1].append(group)
            else:
                merged.append([group])
        return merged

    def register(self, page, headers):
        """Gives every name of the page its anchor."""
        used = set()

        def anchor_for(text):
            base = re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-") or "name"
            name, i = base, 1
            while name in used:
                i += 1
                name = f"{base}-{i}"
            used.add(name)
            return name

        for header in headers:
            self.links.setdefault(self.files[header].get("id"), (page, anchor_for(header)))
            for groups in self.entries_of(header):
                anchor = anchor_for(self.short_name(groups[0][0]))
                for group in groups:
                    for e in group:
                        self.links[e.get("id")] = (page, anchor)
                        if e.get("kind") in KINDS:
                            self.register_members(e, page, anchor, anchor_for)

    def register_members(self, compound, page, anchor, anchor_for):
        for m in compound.iter("memberdef"):
            is_block = m.get("kind") != "variable" and self.is_documented(m) or m.get("kind") == "enum"
            own = anchor_for(f"{anchor}-{m.findtext('name')}") if is_block else anchor
            self.links[m.get("id")] = (page, own)
        for inner in compound.findall("innerclass"):
            nested = self.compounds.get(inner.get("refid"))
            if nested is not None:
                own = anchor_for(f"{anchor}-{self.short_name(nested)}")
                self.links[nested.get("id")] = (page, own)
                self.register_members(nested, page, own, anchor_for)

    def header_html(self, header, page, title):
        name = header.removeprefix("nanovllm/")
        # The page of a face has its name already.
        out = f"\n{'#' if name == title else '##'} {name} " \
              f"{{ #{self.links[self.files[header].get('id')][1]} }}\n\n"
        out += self.description(self.files[header], page)
        for groups in self.entries_of(header):
            first = groups[0][0]
            title = escape(self.short_name(first)).replace("_", "\\_").replace("*", "\\*")
            out += f"\n### {title} {{ #{self.links[first.get('id')][1]} }}\n\n"
            for group in groups:
                out += code_html("\n".join(self.declaration(e) for e in group))
                out += self.description(group[0], page)
                if first.get("kind") == "enum":
                    out += self.enumerators(first, page)
                if first.get("kind") in KINDS - {"concept"}:
                    out += self.members(first, page)
        return out

    def page(self, page, title, intro, headers):
        body = f"---\ntitle: {title}\n---\n\n{intro}"
        for header in headers:
            body += self.header_html(header, page, title)
        return body


def includes_of(path):
    return re.findall(r'^#include "(nanovllm/[^"]+)"', path.read_text(), re.M)


def main(xml, include, pages):
    reference = Reference(xml, include)
    top = include / "nanovllm"
    faces = [f"nanovllm/{n}" for n in ("engine.hpp", "policy.hpp", "full_policy.hpp", "cuda_policy.hpp")]
    faces += ["nanovllm/sampling.hpp"]
    faces += [str(p.relative_to(include)) for p in sorted(top.glob("*.hpp")) + [top / "cuda.cuh"]
              if str(p.relative_to(include)) not in faces
              and p.name not in ("nanovllm.hpp", "implementation.hpp", "mpi.hpp")]
    wings = [str(p.relative_to(include)) for p in sorted((top / "with").glob("*.*"))]
    c_face = "nanovllm/c/nanovllm.h"

    shown, plan = set(), []  # (page, title, section, headers)
    listed = {}  # header to the faces that include it

    def add_face(face, section):
        stem = face.removeprefix("nanovllm/").removeprefix("with/").replace(".hpp", "").replace(".", "_")
        name = f"api/{'with_' if '/with/' in face else ''}{stem}.md"
        module = face.rsplit(".", 1)[0] + "/"
        own = [h for h in includes_of(include / face) if h.startswith(module) and h in reference.files]
        if face == "nanovllm/engine.hpp":
            # The types that its calls take and give.
            own = [h for h in includes_of(include / face) if h.startswith("nanovllm/engine/")]
            own += [h for h in includes_of(include / "nanovllm/engine/any_engine.hpp")
                    if h.startswith("nanovllm/engine/") and h not in own]
        headers = [h for h in [face] + own if h == face or h not in shown]
        shown.update(headers)
        plan.append((name, face.removeprefix("nanovllm/"), section, headers))

    for face in faces:
        add_face(face, "Faces")
    for face in wings:
        add_face(face, "Wings")
    plan.append(("api/c.md", "c/nanovllm.h", "C", [c_face]))
    shown.add(c_face)
    folders = {}
    for header in sorted(reference.files):
        if header not in shown and header.count("/") > 1:
            folders.setdefault(os.path.dirname(header), []).append(header)
    for folder, headers in sorted(folders.items()):
        inner = folder.removeprefix("nanovllm/")
        plan.append((f"api/inside/{inner.replace('/', '_')}.md", f"{inner}/", "Inside", headers))

    for page, _, _, headers in plan:
        reference.register(page, headers)
    (pages / "api" / "inside").mkdir(parents=True, exist_ok=True)
    nav = {"Faces": [], "Wings": [], "C": [], "Inside": []}
    rows = {"Faces": "", "Wings": "", "C": "", "Inside": ""}
    num_names = 0
    for page, title, section, headers in plan:
        intro = ""
        if section == "Inside":
            intro = f"# {title}\n\n<p>Headers that no face names: they may change in any version.</p>\n"
        text = reference.page(page, title, intro, headers)
        num_names += text.count("\n### ")
        (pages / page).write_text(text)
        nav[section].append({title: page})
        brief = reference.description(reference.files[headers[0]], "api/index.md") if section != "Inside" else ""
        brief = re.sub(r"</?p>", "", brief.split("</p>")[0]).strip()
        brief = re.split(r"(?<=[a-z)>])\. ", brief)[0].rstrip(".")
        rows[section] += f'<tr><td><a href="{address(page, "api/index.md")}"><code>{title}</code></a></td>' \
                         f"<td>{brief}</td></tr>\n"

    def table(section):
        return f'<table class="fields"><tbody>\n{rows[section]}</tbody></table>\n'

    (pages / "api" / "index.md").write_text(
        "---\ntitle: API\n---\n\n# API\n\n"
        "What the headers say of themselves. A *face* is a header that programs include, and what it "
        "names is the interface ([Versions](../versioning.md)); `nanovllm/nanovllm.hpp` includes all "
        "of them. Names are in the namespace `nanovllm`.\n\n"
        f"## Faces\n\n{table('Faces')}\n## Wings\n\nA capability that a program may do without is a "
        f"folder of `with/`, and this is its face.\n\n{table('Wings')}\n## C\n\n{table('C')}\n"
        "## Inside\n\nAll other headers, by folder, for readers and authors of the library. They may "
        f"change in any version.\n\n<p class=\"folders\">"
        + " ".join(f'<a href="{address(p, "api/index.md")}"><code>{t}</code></a>'
                   for p, t, s, _ in plan if s == "Inside") + "</p>\n")
    (pages / "api" / "nav.json").write_text(json.dumps(
        [{"Contents": "api/index.md"}, *nav["Faces"], {"with/": nav["Wings"]}, *nav["C"],
         {"Inside": nav["Inside"]}]))
    print(f"API: {len(plan)} pages, {num_names} names of {len(reference.files)} headers")
    if num_names < 500:
        sys.exit("Doxygen found too little")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:4]))
