#!/usr/bin/env python3
"""Renders small templates with Jinja2, the oracle of tests/api/chat/jinja/jinja_template_test.cpp.

    python3 tests/oracle/jinja_cases.py > tests/fixtures/chat/jinja_cases.json

Each template is rendered with VARIABLES in the environment of Hugging Face transformers. Where Jinja2
raises, the case has an "error", and the interpreter must refuse. The committed file was made with
Jinja2 3.1.6, transformers 5.24.0 and Python 3.11.7.
"""

import json
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

VARIABLES = {
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Hi <b> & 'you'"},
                 {"role": "assistant", "content": None, "calls": [{"name": "f", "n": 2}]},
                 {"role": "user", "content": "Bye"}],
    "text": "  héllo wörld\n", "word": "Straße", "empty": "", "lines": "a\n\n b\r\nc",
    "n": 7, "minus": -3, "pi": 3.14159, "big": 123456789012345678901234567890, "half": 2.5,
    "yes": True, "no": False, "nil": None, "list": [3, 1, 2], "nested": [[1, [2]], "x"],
    "names": ["b", "A", "c", "a", "B"], "odd": [1, "a", None, 2.0, True, {"k": [1]}],
    "map": {"b": 1, "A": {"x": "é\u2028\"\\/<>"}, "c": [1.0, None, True, 1e-7, 1e22]},
    "people": [{"name": "Ada", "age": 36, "tags": ["x"]}, {"name": "bob", "age": 7},
               {"name": "Cy", "age": 36, "tags": []}],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
    "keys": {"items": 1, "keys": 2, "get": 3, "x y": 4},
}

# One template a line; what needs several lines follows.
TEMPLATES = r"""
plain text
{{ n }} {{ minus }} {{ pi }} {{ big }} {{ half }} {{ yes }} {{ no }} {{ nil }} {{ missing }}|
{{ list }} {{ odd }} {{ map }} {{ nested }} {{ (1, 'a') }} {{ (1,) }} {{ () }} {{ {} }} {{ [] }}
{{ 'a\n\t\\\'"\x41\u00e9\U0001F999\q' }} {{ "it's" }} {{ ["it's", '"', '\'"', 'a\n', '\x7f\x00é\u2028'] }}
{{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1.5 }} {{ 1e3 }} {{ 2.5e-3 }} {{ 1E2 }} {{ 00 }}
{{ 'a' 'b' "c" }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ 1.0 + 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }} {{ 10 / 5 }} {{ true + 1 }} {{ -n }} {{ +n }} {{ - - n }} {{ -2 ** 2 }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] + [2] }} {{ [1, 2] * 2 }} {{ (1,) + (2,) }} {{ 'a' * -1 }}|
{{ 1 ~ 'a' ~ none ~ 2.0 ~ [1] ~ missing }} {{ 'a' ~ 1 + 2 }}
{{ 'a' + 1 }}
{{ [1] + (2,) }}
{{ missing + 'a' }}
{{ 'a' + missing }}
{{ none + 1 }}
{{ 1 / 0 }}
{{ 1 // 0 }} {{ 1 % 0 }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 2 >= 2 <= 3 }}
{{ 'a' == 1 }} {{ none == none }} {{ none == false }} {{ missing == missing }} {{ missing == none }} {{ [1, 2] == [1, 2] }} {{ [1] == (1,) }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ missing < 1 }}
{{ 1 in list }} {{ 9 in list }} {{ 9 not in list }} {{ 'é' in text }} {{ 'b' in map }} {{ 'x' in missing }} {{ not 1 in list }} {{ '' in 'abc' }}
{{ 1 in 'abc' }}
{{ 'a' in none }}
{{ 1 in 5 }}
{{ yes and no }} {{ yes or no }} {{ not yes }} {{ 0 or 'x' }} {{ 'a' and 'b' }} {{ '' or [] or none }} {{ not '' and not [] and not {} and not 0.0 }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} {{ 'a' if no }}| {{ 'a' if no else 'b' if no else 'c' }} {{ ('x' if yes) ~ 'y' }}
{{ list[0] }} {{ list[-1] }} {{ list[9] }}| {{ text[3] }} {{ word[-2] }} {{ map['b'] }} {{ map.b }} {{ map.A.x }} {{ map['none'] }}| {{ list.0 }} {{ nested.0.1.0 }}
{{ list[0:2] }} {{ list[::-1] }} {{ list[1:] }} {{ list[:-1] }} {{ list[::2] }} {{ list[5:] }} {{ list[-2:] }} {{ list[2:0:-1] }} {{ text[2:5] }} {{ word[::-1] }} {{ (1, 2, 3)[1:] }} {{ list[none:2] }}
{{ list[::0] }}
{{ map[1:] }}
{{ none[0] }}|{{ n.foo }}|{{ 'a'.foo }}|{{ none.foo }}|
{{ missing.foo }}
{{ missing['foo'] }}
{{ map.none.foo }}
{{ messages[0].foo.bar }}
{{ missing() }}
{{ n() }}
{{ keys.get('x y') }}{{ keys['items'] }}{{ keys['get'] }}
{{ map.keys() }} {{ map.values() }} {{ map.items() }} {{ map.get('b') }} {{ map.get('z') }} {{ map.get('z', 5) }} {{ map.keys() | list }} {{ map.items() | list | length }} {{ map.copy() == map }}
{{ list.append(1) }}
{{ list.pop() }}
{{ map.update({'a': 1}) }}
{{ map.pop('b') }}
{{ list.index(2) }} {{ list.count(1) }} {{ odd.index(none) }}
{{ list.index(9) }}
{{ {'a': 1, 'b': [2], 1: none}['b'] }} {{ {'a': 1, 'a': 2} }} {{ {1: 'x', 1.0: 'y', true: 'z'} }}
{{ dict(a=1, b='x') }} {{ dict(map, b=2).b }} {{ dict([('a', 1), ['b', 2]]) }} {{ dict() }}
{{ {[1]: 2} }}
{{ '__class__' in messages }}{{ messages.__class__ }}|{{ ''.__class__.__mro__ }}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ m.role }};{% endfor %}
{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }};{% endfor %}
{% for x in [] %}never{% else %}none{% endfor %} {% for x in missing %}never{% else %}none{% endfor %}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %} {% for k in map %}{{ k }}{% endfor %} {% for c in 'hé!' %}{{ c }}.{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in list if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }} {% else %}none{% endfor %} {% for x in list if x > 9 %}{% else %}none{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in list %}{% for y in 'ab' %}{{ loop.index }}{{ y }}{% if y == 'a' %}{% continue %}{% endif %}{% break %}{% endfor %}{{ loop.index }};{% endfor %}
{% for t in tree recursive %}{{ t.v }}@{{ loop.depth }}{% if t.kids %}({{ loop(t.kids) }}){% endif %}{% endfor %}
{% for x in list %}{{ loop(list) }}{% endfor %}
{% for x in (1, 2), 3 %}{{ x }}{% endfor %} {% for x in range(2, 10, 3) %}{{ x }},{% endfor %} {% for x in range(3, 0, -1) %}{{ x }}{% endfor %} {{ range(3) | list }} {{ range(5)[1] }} {{ range(5)[-2:] | list }}
{{ range(200000) | list | length }}
{% set x = 1 %}{% for i in list %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }} {% set c = (3) %}{{ c }}
{% set ns = namespace(n=0, l=[]) %}{% for i in list %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }} {{ ns.l }} {{ ns.other }}| {{ ns['n'] }} {{ ns is mapping }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }} {{ ns }}
{% set list.x = 1 %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set x %}  block {{ n }} {% endset %}[{{ x }}] {% set y | trim | upper %}  a b {% endset %}[{{ y }}]
{% set x %}{% set z = 1 %}{% endset %}{{ z }}|{% for i in list %}{% set ns = i %}{% endfor %}{{ ns }}|
{% macro f(a, b='d', c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}{{ f('x', c='y') | upper }} {{ f(1) | length }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 'a', x=2) }}{{ f() }}
{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}
{% macro f() %}{{ later }}{% endmacro %}{% set later = 'set' %}{{ f() }} {% set f2 = f %}{{ f2() }} {{ f is callable }} {{ n is callable }}
{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in {{ n }}{% endcall %} {% call(x) box2() %}{{ x }}{% endcall %}
{% macro each(l) %}{% for i in l %}{{ caller(i, loop.index) }};{% endfor %}{% endmacro %}{% call(i, k) each(list) %}{{ i }}@{{ k }}{% endcall %}
{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}
{% macro f(*a) %}{% endmacro %}
{% set f = 1 %}{% macro g(x) %}{% set f = x %}{{ f }}{% endmacro %}{{ g(2) }}{{ f }} {{ g(*[3]) }} {{ g(**{'x': 4}) }}
{% for i in [1, 2] %}{% macro h() %}{{ i }}{% endmacro %}{{ h() }}{% endfor %}
{% filter upper %}a{{ n }}b{% endfilter %} {% filter replace('a', 'b') | trim %} aa {% endfilter %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ c }}| {% with %}x{% endwith %}
{% generation %}a{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}|
{% if no %}a{% elif n == 7 %}b{% elif yes %}c{% else %}d{% endif %} {% if missing %}a{% else %}b{% endif %} {% if not no and n > 3 or crash() %}ok{% endif %}
{% raw %}{{ not }} {% this %}{% endraw %} {%- raw -%}  x  {%- endraw -%} y
a {#- comment -#} b {# other #} c {##} d
{{ raise_exception('no ' ~ n) }}
{% if no %}{{ raise_exception('never') }}{% endif %}ok
{{ strftime_now('%%') }}
{{ n is defined }}{{ missing is defined }}{{ missing is undefined }}{{ n is not defined }}{{ messages[0].foo is defined }}{{ messages[0]['role'] is defined }}
{{ nil is none }}{{ missing is none }}{{ word is string }}{{ n is string }}{{ map is mapping }}{{ list is mapping }}{{ list is iterable }}{{ n is iterable }}{{ word is iterable }}{{ missing is iterable }}{{ list is sequence }}{{ map is sequence }}{{ word is sequence }}{{ n is sequence }}{{ nil is sequence }}
{{ n is number }}{{ yes is number }}{{ pi is number }}{{ big is number }}{{ word is number }}{{ n is integer }}{{ yes is integer }}{{ pi is integer }}{{ pi is float }}{{ n is float }}{{ yes is boolean }}{{ n is boolean }}{{ yes is true }}{{ no is true }}{{ no is false }}{{ n is true }}{{ 1 is true }}
{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is divisibleby(2) }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 'aB' is lower }}{{ '1' is upper }}
{{ n is eq 7 }}{{ n is equalto(7) }}{{ n is ne 7 }}{{ n is gt 3 }}{{ n is lt(3) }}{{ n is ge 7 }}{{ n is le 6 }}{{ n is sameas n }}{{ 1 is in list }}{{ n is in([7]) }}{{ n is greaterthan 3 }}{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}
{{ n is nosuchtest }}
{{ n | nosuchfilter }}
{{ n is string is string }}
{{ text | trim }}|{{ 'xxaxx' | trim('x') }}|{{ text | upper }}|{{ word | upper }}|{{ word | lower }}|{{ 'hello big-world (x)' | title }}|{{ 'hELLO' | capitalize }}|{{ nil | trim }}|{{ missing | trim }}|{{ 5 | upper }}
{{ list | length }}{{ word | length }}{{ map | count }}{{ missing | length }}{{ '' | length }}
{{ n | length }}
{{ nil | length }}
{{ missing | default('d') }}{{ empty | default('d') }}{{ empty | default('d', true) }}{{ nil | d('x') }}{{ nil | default('x', boolean=true) }}{{ missing | default }}|
{{ list | join(', ') }} {{ list | join }} {{ people | join('/', attribute='name') }} {{ 'abc' | join('.') }} {{ missing | join }}| {{ odd | join(' ') }}
{{ list | first }}{{ list | last }}{{ [] | first }}|{{ 'héy' | last }}{{ map | first }}
{{ list | sort }} {{ names | sort }} {{ names | sort(case_sensitive=true) }} {{ list | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ odd[:0] | sort }}
{{ odd | sort }}
{{ list | reverse | list }} {{ 'abc' | reverse }} {{ names | unique | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ people | unique(attribute='age') | map(attribute='name') | join }}
{{ list | sum }} {{ people | sum(attribute='age') }} {{ [] | sum }} {{ [0.5, 1] | sum(start=1) }} {{ list | min }}{{ list | max }}{{ names | min }}{{ names | max }}{{ [] | max }}| {{ people | max(attribute='age') }}
{{ map | dictsort }} {{ map | dictsort(true) }} {{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'a': 2, 'b': 1} | dictsort(reverse=true) }}
{{ missing | dictsort }}
{{ list | map('string') | join('-') }} {{ people | map(attribute='name') | map('upper') | list }} {{ people | map(attribute='tags.0', default='none') | list }} {{ list | map('default', 1) | list }} {{ nil | map('upper') | list }}
{{ list | select('odd') | list }} {{ list | select('gt', 1) | list }} {{ list | reject('eq', 2) | list }} {{ odd | select | list }} {{ odd | select('string') | list }} {{ odd | reject('none') | list }}
{{ people | selectattr('tags') | map(attribute='name') | list }} {{ people | selectattr('age', 'equalto', 36) | map(attribute='name') | list }} {{ people | rejectattr('age', 'lt', 10) | list | length }} {{ people | selectattr('tags', 'defined') | list | length }} {{ messages | selectattr('role', '==', 'user') | map(attribute='content') | first }}
{% set g = list | map('string') %}{{ g | list }}{{ g | list }} {{ 'yes' if [] | map('upper') else 'no' }}
{{ list | list }} {{ 'ab' | list }} {{ map | list }} {{ missing | list }} {{ map | items | list }} {{ missing | items | list }} {{ n | string + 'x' }}
{{ '12' | int }} {{ ' 12 ' | int }} {{ '1.9' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 'ff' | int(0, 16) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ nil | int }} {{ yes | int }} {{ '1.5' | float }} {{ 'x' | float }} {{ 2 | float }} {{ '1e3' | int }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ -3 | abs }} {{ -2.5 | abs }} {{ minus | abs }}
{{ 'a,b,a' | replace('a', 'x') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ n | replace(7, 8) }} {{ 'abc' | replace('', '-') }}
{{ 'a b  c' | wordcount }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }} {{ '%s is %d' | format('x', 3) }} {{ 'a\nb\n\nc' | indent }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent('>', blank=true) }}
{% for key, group in people | groupby('age') %}{{ key }}:{% for p in group %}{{ p.name }},{% endfor %};{% endfor %} {% for g in people | groupby('age') %}{{ g.grouper }}{{ g.list | length }};{% endfor %} {{ ['b', 'a', 'B'] | groupby(0) }} {{ ['b', 'a', 'B'] | groupby(0, case_sensitive=true) | map('first') | list }} {{ [{'a': 1}, {}] | groupby('a', default=0) }} {{ [] | groupby('x') }}
{{ people | groupby }}
{{ people | groupby('age', nope=1) }}
{% set c = cycler('a', 'b') %}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() or '' }}{{ c.current }}{{ c.next() }} {% for x in list %}{{ c.next() }}{% endfor %}
{{ cycler() }}
{% set j = joiner() %}{% for x in list %}{{ j() }}{{ x }}{% endfor %} {% set k = joiner('|') %}{{ k() }}a{{ k() }}b{{ k() }} {% set l = joiner(sep='; ') %}{{ l() }}{{ l() }}
{% set c = cycler(1, 2) %}{% set c.items = 3 %}{{ c.next() }}
{{ '<a & "b">' | e }} {{ '<' | escape | escape }} {{ ('<' | safe) + '&' }} {{ '&' + ('<' | safe) }} {{ '<' | safe ~ '&' }} {{ ['<' | safe] }}
{{ map | tojson }} {{ odd | tojson }} {{ 'é"\\\n\u2028</x>' | tojson }} {{ [] | tojson }} {{ (1, 2) | tojson }} {{ nil | tojson }} {{ big | tojson }} {{ pi | tojson }}
{{ map | tojson(indent=2) }} {{ [[], {}, [1]] | tojson(indent=1) }} {{ map | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ 'é🦙\x7f' | tojson(ensure_ascii=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ [1] | tojson(indent='\t') }} {{ [1, 2] | tojson(indent=0) }}
{{ missing | tojson }}
{{ map | tojson(nope=1) }}
{{ {(1, 2): 3} | tojson }}
{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ 'aab'.lstrip('a') }}|{{ 'éaé'.strip('é') }}|{{ ' \u00a0\u2003x\x1c'.strip() }}|
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'a  b'.split(none) }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abcabc'.split('bc') }} {{ 'a<think>b</think>c'.split('</think>')[-1] }}
{{ 'a'.split('') }}
{{ 'a'.split(1) }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\n'.splitlines() }} {{ 'a\u2028b\x0bc'.splitlines() }}
{{ 'abcab'.replace('ab', 'x') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ 'héy'.replace('', '.') }} {{ ''.replace('', 'x') }} {{ 'abc'.replace('z', 'y') }}
{{ 'abc'.startswith('a') }}{{ 'abc'.startswith(('x', 'ab')) }}{{ 'abc'.endswith('c') }}{{ 'abc'.endswith('b') }}{{ 'abc'.startswith('b', 1) }}{{ 'abc'.startswith('') }}{{ 'abc'.endswith('b', 0, 2) }}
{{ 'abc'.startswith(1) }}
{{ 'héllo'.find('l') }} {{ 'abc'.find('z') }} {{ 'abcb'.rfind('b') }} {{ 'abc'.index('c') }} {{ 'abcab'.count('ab') }} {{ 'aaa'.count('') }} {{ 'abcb'.find('b', 2) }}
{{ 'abc'.index('z') }}
{{ 'hello wORLD it\'s'.title() }} {{ 'hELLO'.capitalize() }} {{ word.upper() }} {{ 'ÀÉ'.lower() }} {{ '-'.join(['a', 'b']) }} {{ ''.join('abc') }}
{{ ','.join([1]) }}
{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'é'.isalpha() }}{{ ' \t'.isspace() }}{{ 'AB'.isupper() }}{{ 'ab1'.islower() }}{{ ''.isdigit() }}{{ '1'.isalpha() }} {{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}-{y[k]}'.format(x=1, y={'k': 'v'}) }} {{ '{{}}{}'.format(2) }} {{ '{:>5}|{:<4}|{:.2f}|{:5}|{:05d}'.format('a', 'b', pi, 1, 42) }} {{ '{!r}'.format('a') }}
{{ '{} {}'.format(1) }}
{{ '%s %s' % ('a', 1) }} {{ '%d%%' % 5 }} {{ '%.2f|%5s|%-5s|%05d|%x' % (pi, 'a', 'b', 42, 255) }} {{ '%r' % 'a' }} {{ '%s' % [1] }} {{ '%(a)s' % {'a': 1} }}
{{ '%s' % (1, 2) }}
{{ '%d %i %d' % (1e20, -2.5e30, -0.5) }}
{{ '%d' % (1e308 * 10) }}
{{ [1, 'a', 0] | selectattr(none, 'string') | list }} {{ [1, 'a', 0] | rejectattr(none) | list }} {{ [1] | sort(attribute=none) }}
{{ [1] | selectattr | list }}
{{ '%(a)s-%(b)d' | format(a=1, b=2) }} {{ 'x' | format(a=1) }} {{ [0, 1] | select(a=1) | list }}
{{ '%s' | format(1, a=2) }}
{{ [{}, {}] | max(attribute='a') }}
{{ "it's 2.5 a_b - é1" | wordcount }} {{ '' | wordcount }} {{ big | float }} {{ '½'.isalnum() }} {{ '½'.isdigit() }}
{{ 1.5 is odd }}{{ 1.5 is even }}{{ 3.0 is odd }}{{ -4 is even }}{{ true is odd }}{{ -3 is odd }}
{{ 1e30 | int }} {{ -1e19 | int }} {{ '123456789012345678901' | int }} {{ '1e20' | int }} {{ big | int }}
{% filter upper(1)(2) %}x{% endfilter %}
{{ (n | string).foo }}|{{ n | string.foo }}
{{ n | string().foo }}
{% set x | upper is string %}a{% endset %}
{{ '%d' % 'a' }}
{{ 'a'.nosuch() }}
{{ list | first | string | length + 1 }} {{ (list | length) - 1 }} {{ 'a' | upper ~ 'b' | upper }} {{ -list[0] | abs }} {{ not list | length > 2 }} {{ 1 if list is defined and list else 2 }}
{{ [1, 2,] }} {{ {'a': 1,} }} {{ range(1,)|list }}
{{ list.sort }}|{{ (list | sort)[0] }}{{ messages | map(attribute='role') | unique | list }}
{{ [missing, 1] }} {{ {'a': missing} }}
{{ 'a' 1 }}
{{ 1 + }}
{{ (1 }}
{{ [1, }}
{{ {1} }}
{{ a b }}
{{ 'a }}
{{ @ }}
{{ }}
{% if %}{% endif %}
{% if yes %}
{% endif %}
{% for %}{% endfor %}
{% for x list %}{% endfor %}
{% for x in list %}
{% nosuch %}
{% set %}
{% set 1 = 2 %}
{% break %}
{% macro %}{% endmacro %}
{% raw %}x
{# open
{{ open
{% open
{% endfor %}
{% if yes %}{% endfor %}
{% block a %}{% endblock %}{% include 'x' %}
{{ f(a=1, 2) }}
}} %} #} { % x % } {
"""

MORE = [
    "a\n{% if yes %}\n  b\n{% endif %}\nc\n",
    "a\n  {% if yes %}  \n  b\n\t{% endif %}\nc\n\n",
    "a\n  {%+ if yes %}\n  b\n  {%- endif %}\n  c",
    "a  {% if yes -%}  \n\n  b  {%- endif %}  \nc",
    "x {% if yes +%}\ny{% endif +%}\nz",
    "  {{ n }}\n  {{- n }}\n  {{ n -}}  \n  x\n",
    "{# a #}\nb\n  {# c #}\nd {# e #}\nf\n  {#- g -#}\n  h",
    "a\r\n{% if yes %}\r\nb\r\n{% endif %}\rc\r\n",
    "{% raw %}\n a {{ b }}\n{% endraw %}\nc",
    "a\n  {% raw %}\n b\n  {% endraw %}\n  c",
    "{%- for x in list -%}\n  {{ x }}\n{%- endfor -%}\n end",
    "{%-set x = 1-%}\n{{-x-}}\n{%if x%}y{%endif%}",
    "{{ 'a\nb' }}{{ \"c\\\nd\" }}{{ 1\n+\n2 }}",
    "{% set x = {'a': {'b': 1}} %}{{ x.a.b }}{{ {'a': {}} }}{{ {'a': '}}'} }}",
    "{% macro f(x) %}\n  [{{ x }}]\n{% endmacro %}\n{{ f(1) }}{{ f(2)|trim }}\n",
    "{% for m in messages %}\n{% if loop.first %}\n{% set x = m.content %}\n{{ x }}\n{% else %}\n"
    "{{ m.content }}{% endif %}\n{% endfor %}\n",
    "\n\n{% if yes %}a{% endif %}\n",
    " \t{% if yes %} a {% endif %} \t\n b",
    "é\u2028{% if yes %}ü{% endif %}\u00a0{%- if yes %}x{% endif %}",
    "{%- if messages[0]['role'] == 'system' -%}\n    {%- set head = messages[0]['content'] -%}\n"
    "    {%- set rest = messages[1:] -%}\n{%- else -%}\n    {%- set rest = messages -%}\n"
    "{%- endif -%}\n{{ head }}{% for m in rest %}{{ m['role'] }}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages[::-1] %}{% set index = "
    "(messages | length - 1) - loop.index0 %}{% if not ns.found and m.role == 'user' %}"
    "{% set ns.found = true %}{{ index }}{% endif %}{% endfor %}",
]


def main():
    cases = []
    for template in [line for line in TEMPLATES.split("\n") if line] + MORE:
        try:
            variables = json.loads(json.dumps(VARIABLES))
            result = {"text": _compile_jinja_template(template).render(**variables)}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:100]}
        cases.append(json.dumps({"template": template, **result}, ensure_ascii=False))
    variables = json.dumps(VARIABLES, ensure_ascii=False)
    sys.stdout.write(f'{{"variables": {variables},\n"cases": [\n' + ",\n".join(cases) + "\n]}\n")


if __name__ == "__main__":
    main()
